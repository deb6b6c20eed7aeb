//! The samples that browsers see: taken once for all of them, and only while there is one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::frame::Frame;
use crate::api::wire::Top;
use crate::causes::causes;
use crate::cli::top::picture::Picture;
use crate::cli::top::sampler::sample;

/// The latest sample, as it is sent.
#[derive(Clone, Debug)]
pub(super) enum Latest {
    /// None was taken yet.
    Nothing,
    /// A [`Frame`] as JSON.
    Frame(Arc<str>),
    /// Why there is none.
    Fault(Arc<str>),
}

/// Where samples come out.
#[derive(Debug)]
pub(super) struct Feed {
    latest: watch::Sender<Latest>,
}

impl Feed {
    /// What is sampled from now on; none where too many watch.
    pub(super) fn subscribe(&self) -> Option<watch::Receiver<Latest>> {
        (self.latest.receiver_count() < WATCHERS).then(|| self.latest.subscribe())
    }
}

/// Starts the thread that asks the agent at `socket` every `interval` while something watches. It ends with the program.
pub(super) fn start(socket: PathBuf, interval: Duration) -> io::Result<Arc<Feed>> {
    let (latest, _) = watch::channel(Latest::Nothing);
    let feed = Arc::new(Feed { latest });
    let fed = Arc::clone(&feed);
    let run = move || {
        loop {
            while_watched(&fed.latest, &socket, interval);
            thread::sleep(UNWATCHED);
        }
    };
    thread::Builder::new()
        .name("sampler".to_owned())
        .spawn(run)?;
    Ok(feed)
}

fn while_watched(latest: &watch::Sender<Latest>, socket: &Path, interval: Duration) {
    let mut before: Option<Top> = None;
    while latest.receiver_count() > 0 {
        let next = Instant::now() + interval;
        let sampled = match sample(socket) {
            Ok(top) => {
                let picture = Picture::new(before.as_ref(), &top);
                before = Some(top);
                encoded(&picture)
            }
            Err(error) => Latest::Fault(causes(&error).into()),
        };
        latest.send_replace(sampled);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn encoded(picture: &Picture) -> Latest {
    match serde_json::to_string(&Frame::of(picture)) {
        Ok(text) => Latest::Frame(text.into()),
        Err(error) => Latest::Fault(causes(&error).into()),
    }
}

/// Browsers at a time.
pub(super) const WATCHERS: usize = 16;
/// How long a browser waits for its first sample at most.
const UNWATCHED: Duration = Duration::from_millis(200);
