//! Failures on demand, so that tests meet every crash: after each step of ADD
//! and DEL, and after each look at the kernel by which GC decides, the plugin
//! can be made to fail, to die, or to stand still.
//!
//! `TARTAN_CNI_FAULT=STEP:fail`, `STEP:kill` or `STEP:stop`. Without the
//! variable, which no runtime sets, nothing happens. A runtime that could set
//! it could do worse with the plugin's other variables.

use rustix::process::{Signal, getpid, kill_process};

/// An error that a test asked for.
#[derive(Debug, thiserror::Error)]
#[error("{VARIABLE} asks for a failure after {step}: unset it")]
pub(crate) struct Fault {
    step: &'static str,
}

/// To be called after each step.
pub(crate) fn after(step: &'static str) -> Result<(), Fault> {
    match fate(step).as_deref() {
        Some(":fail") => Err(Fault { step }),
        Some(":kill") => {
            let _ = kill_process(getpid(), Signal::KILL);
            Ok(())
        }
        Some(":stop") => {
            let _ = kill_process(getpid(), Signal::STOP);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether something is to happen after this step, which then comes, whatever
/// it depends on otherwise.
pub(crate) fn is_awaited(step: &str) -> bool {
    fate(step).is_some()
}

/// Whether the plugin is to stand still, wherever.
pub(crate) fn is_to_stop() -> bool {
    let asked = std::env::var(VARIABLE);
    asked.is_ok_and(|asked| asked.ends_with(":stop"))
}

fn fate(step: &str) -> Option<String> {
    let asked = std::env::var_os(VARIABLE)?;
    let fate = asked.to_str()?.strip_prefix(step)?;
    fate.starts_with(':').then(|| fate.to_owned())
}

const VARIABLE: &str = "TARTAN_CNI_FAULT";
