//! Asks the agent again and again, on a thread of its own: an agent that does not answer holds up neither keys nor drawing.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Incoming;
use super::picture::Picture;
use crate::api::client::{ClientError, call};
use crate::api::wire::{Request, Top};
use crate::causes::causes;

/// Asks once.
pub(super) fn sample(socket: &std::path::Path) -> Result<Top, ClientError> {
    let answer = call(socket, &Request::Top { flows: FLOWS })?;
    serde_json::from_value(answer).map_err(ClientError::Answer)
}

/// Starts to sample; pictures and faults go to `to`. What is sent to the returned end is the new interval. The thread
/// ends with either end.
pub(super) fn start(
    socket: PathBuf,
    first: Top,
    interval: Duration,
    to: Sender<Incoming>,
) -> io::Result<Sender<Duration>> {
    let (paces, pace) = channel();
    let mut samples = Samples {
        before: Some(first),
        socket,
        to,
    };
    let run = move || samples.run(interval, &pace);
    thread::Builder::new()
        .name("sampler".to_owned())
        .spawn(run)?;
    Ok(paces)
}

struct Samples {
    /// The latest answer.
    before: Option<Top>,
    socket: PathBuf,
    to: Sender<Incoming>,
}

impl Samples {
    fn run(&mut self, mut interval: Duration, pace: &Receiver<Duration>) {
        let mut next = Instant::now() + interval;
        loop {
            match pace.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(wanted) => {
                    interval = wanted;
                    next = next.min(Instant::now() + interval);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // An answer that took long is not followed by several at once.
            next = Instant::now() + interval;
            let incoming = match sample(&self.socket) {
                Ok(top) => {
                    let picture = Picture::new(self.before.as_ref(), &top);
                    self.before = Some(top);
                    Incoming::Picture(Box::new(picture))
                }
                Err(error) => Incoming::Fault(causes(&error)),
            };
            if self.to.send(incoming).is_err() {
                return;
            }
        }
    }
}

/// Flows of a sample: more than the top 100, so that those that come to the top had a sample before.
const FLOWS: usize = 200;
