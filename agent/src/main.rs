//! `tartan`, the host service and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    tartan::cli::main()
}
