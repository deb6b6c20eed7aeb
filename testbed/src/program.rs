//! Programs that a test runs to their end.

use std::process::Command;

/// Runs a program and returns what it prints; it must succeed.
///
/// # Panics
/// With what it wrote to standard error.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; these tests need root and iproute2"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The same, by name and arguments.
///
/// # Panics
/// As [`run`].
#[track_caller]
pub fn command(program: &str, arguments: &[&str]) -> String {
    run(Command::new(program).args(arguments))
}

/// Runs `ip`.
///
/// # Panics
/// As [`run`].
#[track_caller]
pub fn ip(arguments: &[&str]) -> String {
    command("ip", arguments)
}

/// Whether `address` answers one ping from a namespace, given by name or path, within 2 seconds.
pub fn ping(namespace: &str, address: &str) -> bool {
    let name = namespace.trim_start_matches("/run/netns/");
    let arguments = ["netns", "exec", name, "ping", "-c1", "-W2", "-q", address];
    let output = Command::new("ip").args(arguments).output().unwrap();
    output.status.success()
}
