//! What a panic does to a program.

use std::{panic, process};

/// A panic of any thread ends the process from now on. So it does by itself in the profile of releases; in those of tests,
/// whose harness catches panics, all that the programs consist of is built the same way, once.
pub fn abort_at_panic() {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        say(panic);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::{env, thread};

    use rustix::process::{Resource, Rlimit, Signal, setrlimit};

    use super::*;

    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        let name = "panics::tests::another_process_panics";
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let signal = ended.status.signal();
        assert_eq!(signal, Some(Signal::ABORT.as_raw()), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("as it is to"), "{said}");
    }

    #[test]
    #[ignore = "it ends its process, which the test above starts"]
    fn another_process_panics() {
        let (current, maximum) = (Some(0), Some(0));
        setrlimit(Resource::Core, Rlimit { current, maximum }).unwrap();
        abort_at_panic();
        let thread = thread::spawn(|| panic!("as it is to"));
        let _ = thread.join();
    }
}
