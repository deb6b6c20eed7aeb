//! Signals of the keeper and of the service.
//!
//! | Signal | Effect |
//! |---|---|
//! | SIGTERM, SIGINT | the process stops in order |
//! | SIGHUP | the configuration is read again |
//! | SIGKILL, and those that report a fault of the process itself (SIGSEGV, SIGABRT and the like) | it dies |
//! | every other that would end it | none |
//!
//! Each has a handler that does nothing. A handler is not inherited by a program that is executed, unlike SIG_IGN, so
//! the service begins with every signal as the kernel has it. It restarts what it interrupts (SA_RESTART); a poll that
//! it ends early is an early wake-up.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that have an effect. Those that have none are caught for the rest of the process's life.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches them all. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// When the kernel has no descriptor left for it.
    pub fn listen() -> io::Result<Signals> {
        for number in WITHOUT_EFFECT {
            // The handler stays when this is dropped.
            drop(signal(SignalKind::from_raw(number.as_raw()))?);
        }
        for number in REAL_TIME {
            // The C library may keep the first few for itself.
            let _ = signal(SignalKind::from_raw(number));
        }
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until the process is asked to stop. Dropping the future loses nothing.
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits until the process is asked to stop (`true`) or to read its configuration again (`false`). Dropping the
    /// future loses nothing.
    pub async fn stop_or_reload(&mut self) -> bool {
        let Signals {
            terminate,
            interrupt,
            hangup,
        } = self;
        tokio::select! {
            biased;
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
            _ = hangup.recv() => false,
        }
    }
}

/// What ends a process that does not catch it, and says nothing about the process itself.
const WITHOUT_EFFECT: [Number; 12] = [
    Number::QUIT,
    Number::USR1,
    Number::USR2,
    Number::PIPE,
    Number::ALARM,
    Number::VTALARM,
    Number::PROF,
    Number::IO,
    Number::POWER,
    Number::STKFLT,
    Number::XCPU,
    Number::XFSZ,
];
/// From SIGRTMIN of the GNU C library to SIGRTMAX.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;
