//! Which versions of CNI a plugin speaks: its own answer to VERSION, for which it gets no more than [`PATIENCE`]. A plugin may
//! be any program: it may hang, print without end, or not be one.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Asks the program at `path`.
///
/// # Errors
/// Why there is no answer: it cannot be run, fails, takes too long, or says something else.
pub fn supported(path: &Path) -> io::Result<Vec<String>> {
    let said = ask(path)?;
    let value: Option<Value> = serde_json::from_slice(&said).ok();
    let versions = value
        .as_ref()
        .and_then(|value| value.get("supportedVersions"));
    let versions = versions.and_then(Value::as_array).ok_or_else(|| {
        let said = String::from_utf8_lossy(&said);
        let said: String = said.chars().take(MOST_QUOTED).collect();
        io::Error::other(format!("asked for its versions, it prints {said:?}"))
    })?;
    let words = versions.iter().filter_map(Value::as_str);
    Ok(words.map(str::to_owned).collect())
}

fn ask(path: &Path) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut child = start(path, deadline)?;
    let (sender, said) = mpsc::channel();
    let out = child.stdout.take();
    // Not waited for: what the program started may hold its output open for longer than itself.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = out.map_or(Ok(0), |out| out.take(MOST_BYTES).read_to_end(&mut bytes));
        // The receiver is gone after the deadline.
        let _ = sender.send(read.map(|_| bytes));
    });
    let ended = wait(&mut child, deadline)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let bytes = said.recv_timeout(left).map_err(|_| too_slow())??;
    if ended.success() {
        Ok(bytes)
    } else {
        Err(io::Error::other(format!(
            "asked for its versions, it ends with {ended}"
        )))
    }
}

/// Starts the program; waits for a process that has it open for writing, or a child of such a process that has not called
/// exec yet and so still has it open.
fn start(path: &Path, deadline: Instant) -> io::Result<Child> {
    loop {
        let started = Command::new(path)
            .env_clear()
            .env("CNI_COMMAND", "VERSION")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < deadline =>
            {
                thread::sleep(CHECK_EVERY);
            }
            started => return started,
        }
    }
}

/// Waits for the end, and brings it about at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    while Instant::now() < deadline {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        thread::sleep(CHECK_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Err(too_slow())
}

fn too_slow() -> io::Error {
    let message = format!("asked for its versions, it prints nothing for {PATIENCE:?}");
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// Many times what a plugin takes that starts at all.
const PATIENCE: Duration = Duration::from_secs(5);
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// An answer has a hundred.
const MOST_BYTES: u64 = 64 * 1024;
const MOST_QUOTED: usize = 200;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn of(script: &str) -> io::Result<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        supported(&path)
    }

    #[test]
    fn an_answer_is_a_list_of_versions() {
        let script = r#"[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'"#;
        assert_eq!(of(script).unwrap(), ["0.4.0", "1.0.0"]);
    }

    #[test]
    fn any_other_answer_of_a_program_is_quoted() {
        for (script, said) in [
            ("echo hello", "hello"),
            ("echo '{}'", "{}"),
            ("exit 3", "exit status: 3"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let error = of(script).unwrap_err().to_string();
            assert!(error.contains(said), "{script}: {error}");
        }
        assert!(supported(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn one_that_hangs_or_never_stops_printing_is_given_up() {
        for script in ["exec sleep 60", "sleep 60 & exit 0", "exec yes"] {
            let start = Instant::now();
            assert!(of(script).is_err(), "{script}");
            assert!(start.elapsed() < 3 * PATIENCE, "{script}");
        }
    }
}
