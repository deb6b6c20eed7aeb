//! A periodic timer that wakes its task, and the process, once for each tick.
//!
//! A timer of tokio's wakes the thread three times for one tick: setting it interrupts the poll, its wheel is turned when
//! the tick's slot of 64 ms begins, and then the tick comes. Where nothing else happens that is most of what a process
//! costs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A periodic timer of the kernel's (timerfd_create(2)).
#[derive(Debug)]
pub(crate) struct Ticker {
    timer: AsyncFd<OwnedFd>,
    period: Duration,
}

impl Ticker {
    /// Ticks every `period`, which is not zero, the first time after one.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub(crate) fn every(period: Duration) -> io::Result<Ticker> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        set(&timer, period)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe: the caller vouches for the descriptor, as the type OwnedFd does here"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Ticker { timer, period })
    }

    /// Ticks every `period` from now on. Nothing changes where it already does.
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

    /// Waits for the next tick. Ticks that passed unread count as one. Dropping the future loses none.
    ///
    /// # Errors
    /// When the kernel refuses to be asked.
    pub(crate) async fn tick(&self) -> io::Result<()> {
        let read = |timer: &OwnedFd| Ok(rustix::io::read(timer, &mut [0; COUNT])?);
        self.timer.async_io(Interest::READABLE, read).await?;
        Ok(())
    }
}

fn set(timer: &impl AsFd, period: Duration) -> io::Result<()> {
    let period = Timespec::try_from(period).map_err(|_| io::ErrorKind::InvalidInput)?;
    let ticks = Itimerspec {
        it_interval: period,
        it_value: period,
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &ticks)?;
    Ok(())
}

/// Bytes of a read: the number of ticks since the last.
const COUNT: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::test_run::run;

    #[test]
    fn ticks_come_in_time_and_missed_ones_are_one() {
        run(async {
            let period = Duration::from_millis(40);
            let start = Instant::now();
            let mut ticker = Ticker::every(period).unwrap();
            for tick in 1..=3 {
                ticker.tick().await.unwrap();
                assert!(start.elapsed() >= period * tick);
            }
            std::thread::sleep(period * 5);
            ticker.tick().await.unwrap();
            let missed = Instant::now();
            ticker.change(period * 3).unwrap();
            ticker.tick().await.unwrap();
            assert!(missed.elapsed() >= period * 2, "{:?}", missed.elapsed());
        });
    }
}
