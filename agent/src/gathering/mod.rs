//! Small packets of pods are gathered before they enter the tunnel device.
//!
//! Theory of operation. The cost of forwarding is per packet that crosses the host's stack, not per byte. Three things at
//! a pod's link let its small UDP packets cross as few:
//!
//! 1. *Features.* The host's end joins the datagrams of a flow that arrive together into a super-packet
//!    ([`crate::host::GatheredPods`], `cni_shim::ethtool`), in their order. A datagram that comes alone goes on at once.
//! 2. *A queue* at the pod's end ([`queue`]). Where the host's end is full, the sender waits. It is made by the plugin
//!    alone, with the pod, and stays as long as the pod.
//! 3. *A NAPI thread* while a pod floods one way ([`flood`], [`watcher`]): the sender's core is then left to the sender,
//!    and more datagrams wait for each other. It would cost a ping-pong the waking of a thread for each packet, so it is
//!    there only during a flood.
//!
//! What the kernel lacks is left out and said in `tartan status`. `gather = false` switches all of it off, restores what
//! was changed at the ends of other plugins, and leaves the queues of pods that have one.

mod counters;
pub(crate) mod end;
mod flood;
pub mod queue;
mod report;
mod watcher;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::host::{GatheredEnd, GatheredPods};
use counters::Counters;
use queue::NoQueue;
pub use report::FloodReport;
use watcher::Watcher;

/// The part of the control loop that gathers.
pub struct Gathering {
    ends: Vec<GatheredEnd>,
    watcher: Option<Sender<Option<Vec<GatheredEnd>>>>,
    facts: GatheringFacts,
}

/// What is known of it, for the status.
#[derive(Clone, Debug)]
pub struct GatheringFacts {
    /// It is configured.
    pub is_on: bool,
    /// How many ends gather.
    pub ends: usize,
    /// Why some end does not, in words.
    pub refused: Option<Arc<str>>,
    /// Whether the pods' ends get a queue.
    pub queue: Result<(), NoQueue>,
    /// Floods and their NAPI threads.
    pub floods: Arc<FloodReport>,
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl Gathering {
    /// Starts the watcher, where gathering is configured. `forwarded` counts the packets that the node has forwarded for
    /// its pods so far, and is called a few times a second.
    ///
    /// # Errors
    /// When no thread or no socket can be had.
    pub fn start(
        is_on: bool,
        forwarded: impl FnMut() -> u64 + Send + 'static,
    ) -> io::Result<Gathering> {
        let mut gathering = Gathering::without_watcher(is_on);
        if is_on {
            let (sender, ends) = channel();
            let report = Arc::clone(&gathering.facts.floods);
            let watcher = Watcher {
                forwarded,
                counters: Counters::open()?,
                ends,
                report,
            };
            let name = "gathering".to_owned();
            thread::Builder::new().name(name).spawn(|| watcher.run())?;
            gathering.watcher = Some(sender);
        }
        Ok(gathering)
    }

    /// The same without NAPI threads.
    pub fn without_watcher(is_on: bool) -> Gathering {
        Gathering {
            ends: Vec::new(),
            watcher: None,
            facts: GatheringFacts {
                is_on,
                ends: 0,
                refused: None,
                queue: queue::of_this_kernel(),
                floods: Arc::default(),
            },
        }
    }

    /// Whether it is configured.
    pub fn is_on(&self) -> bool {
        self.facts.is_on
    }

    /// Takes what became of the ends of pods.
    pub fn follow(&mut self, pods: GatheredPods) {
        self.facts.ends = pods.ends.len();
        self.facts.refused = pods.refused.map(Arc::from);
        if self.ends != pods.ends {
            self.ends.clone_from(&pods.ends);
            self.tell(Some(pods.ends));
        }
    }

    /// Leaves the ends as they are from now on, threads and all: another service is to have them.
    pub fn pause(&self) {
        self.tell(None);
    }

    /// Goes on, by what is there now.
    pub fn resume(&self) {
        self.tell(Some(self.ends.clone()));
    }

    fn tell(&self, ends: Option<Vec<GatheredEnd>>) {
        if let Some(watcher) = &self.watcher {
            // Without a watcher nothing is to be watched.
            let _ = watcher.send(ends);
        }
    }

    /// What is known.
    pub fn facts(&self) -> GatheringFacts {
        self.facts.clone()
    }
}
