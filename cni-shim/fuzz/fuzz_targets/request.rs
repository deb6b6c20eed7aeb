//! A request's environment and standard input: `cargo fuzz run request`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/oracle/request.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| oracle::read(bytes));
