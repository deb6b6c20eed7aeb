//! Fail points, so that tests meet every crash: after each step of ADD and DEL, and after each question to the kernel by
//! which GC decides, a test can make the plugin fail, kill it, or stop it.
//!
//! `TARTAN_CNI_FAULT=STEP:fail`, `STEP:kill` or `STEP:stop`, with the cargo feature `faults` alone, which no released plugin has:
//! without it every step goes on, and the variable means nothing.

#[cfg(feature = "faults")]
pub(crate) use asked::{Error, after, is_set, is_stop_set};
#[cfg(not(feature = "faults"))]
pub(crate) use none::{Error, after, is_set, is_stop_set};

#[cfg(not(feature = "faults"))]
mod none {
    /// No fail point fails.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum Error {}

    pub(crate) const fn after(_: &'static str) -> Result<(), Error> {
        Ok(())
    }

    pub(crate) const fn is_set(_: &str) -> bool {
        false
    }

    pub(crate) const fn is_stop_set() -> bool {
        false
    }
}

#[cfg(feature = "faults")]
mod asked {
    use rustix::process::{Signal, getpid, kill_process};

    /// An error that a test asked for.
    #[derive(Debug, thiserror::Error)]
    #[error("{VARIABLE} asks for a failure after {step}: unset it")]
    pub(crate) struct Error {
        step: &'static str,
    }

    /// Call it after each step.
    pub(crate) fn after(step: &'static str) -> Result<(), Error> {
        match action(step).as_deref() {
            Some(":fail") => Err(Error { step }),
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

    /// Whether a test waits for this step, which then has to come, whatever it depends on otherwise.
    pub(crate) fn is_set(step: &str) -> bool {
        action(step).is_some()
    }

    /// Whether a test stops the plugin after any step.
    pub(crate) fn is_stop_set() -> bool {
        let asked = std::env::var(VARIABLE);
        asked.is_ok_and(|asked| asked.ends_with(":stop"))
    }

    fn action(step: &str) -> Option<String> {
        let asked = std::env::var_os(VARIABLE)?;
        let action = asked.to_str()?.strip_prefix(step)?;
        action.starts_with(':').then(|| action.to_owned())
    }

    const VARIABLE: &str = "TARTAN_CNI_FAULT";
}
