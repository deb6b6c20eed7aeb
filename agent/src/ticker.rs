//! A clock whose beat wakes its task, and the process, once.
//!
//! A timer of tokio's wakes the thread three times for one beat: setting it nudges the poll, its wheel is turned when the
//! beat's slot of 64 ms begins, and then the beat comes. Where nothing else happens that is most of what a process costs.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// A periodic timer of the kernel's (timerfd_create(2)).
#[derive(Debug)]
pub(crate) struct Pulse {
    // tokio has no type for a timerfd. Its pipe serves: readable is readable, and a read gives what is there.
    timer: Receiver,
    period: Duration,
}

impl Pulse {
    /// Beats every `period`, which is not zero, the first time after one.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub(crate) fn every(period: Duration) -> io::Result<Pulse> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        set(&timer, period)?;
        let timer = Receiver::from_owned_fd_unchecked(timer)?;
        Ok(Pulse { timer, period })
    }

    /// Beats every `period` from now on. Nothing changes where it already does.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub(crate) fn change(&mut self, period: Duration) -> io::Result<()> {
        if period != self.period {
            set(&self.timer, period)?;
            self.period = period;
        }
        Ok(())
    }

    /// Waits for the next beat; those that nobody waited for are one. Dropping the future loses none.
    ///
    /// # Errors
    /// When the kernel refuses to be asked.
    pub(crate) async fn beat(&self) -> io::Result<()> {
        loop {
            self.timer.readable().await?;
            match self.timer.try_read(&mut [0; COUNT]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done.map(|_| ()),
            }
        }
    }
}

fn set(timer: &impl AsFd, period: Duration) -> io::Result<()> {
    let period = Timespec::try_from(period).map_err(|_| io::ErrorKind::InvalidInput)?;
    let beats = Itimerspec {
        it_interval: period,
        it_value: period,
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &beats)?;
    Ok(())
}

/// Bytes of a read: how many beats there were.
const COUNT: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::test_run::run;

    #[test]
    fn beats_come_in_time_and_missed_ones_are_one() {
        run(async {
            let period = Duration::from_millis(40);
            let start = Instant::now();
            let mut pulse = Pulse::every(period).unwrap();
            for beat in 1..=3 {
                pulse.beat().await.unwrap();
                assert!(start.elapsed() >= period * beat);
            }
            std::thread::sleep(period * 5);
            pulse.beat().await.unwrap();
            let missed = Instant::now();
            pulse.change(period * 3).unwrap();
            pulse.beat().await.unwrap();
            assert!(missed.elapsed() >= period * 2, "{:?}", missed.elapsed());
        });
    }
}
