//! `/metrics`: every counter and state of the node, in the OpenMetrics text format, for Prometheus.
//!
//! Theory of operation. A page is made from the latest [`View`], the workers' counters and the kernel's, as the answers of
//! the API are ([`crate::control::view`]): no scrape waits for the control loop or a worker, and none of them for a
//! scrape. Each file here writes the metrics of one thing, from [`Facts`] that were read before the first line; docs/metrics.md
//! lists them.
//!
//! What a scrape costs is bounded. Reading and writing run on a thread of low priority (nice 10); only what
//! receives the kernel's answers on netlink runs beside it, at the service's priority and outside the measured time. A page serves
//! everyone who asks within [`LEAST_AGE`], so a host that asks all the time costs no more than one that asks once a second.
//! The series of peers and pods are at most `metrics-limit` each, and the rest share one ([`own_series`]). 5,000 peers take
//! some milliseconds.
//!
//! It never says what it does not know: a metric whose value cannot be read has no sample.

mod facts;
mod gathering;
mod kernel_path;
mod metric;
mod node;
mod own_series;
mod page;
mod party_drops;
mod peer_paths;
mod peers;
mod pods;
mod problems;
mod queues;
mod registry;
mod workers;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::spawn_blocking;
use tracing::debug;

use crate::control::view::View;
use crate::control::view::drops::KernelCounts;
use crate::host::KernelReader;
use facts::{Facts, KernelFacts, Scrapes};
use page::Page;
use peers::OwnPeers;
use pods::OwnPods;

/// What answers scrapes.
pub struct Metrics {
    view: watch::Receiver<Option<Arc<View>>>,
    /// Whether the node carries its pods' packets, by a view.
    is_ready: fn(&View) -> bool,
    latest: AsyncMutex<Latest>,
    memory: Arc<Mutex<Memory>>,
}

/// The page made last.
#[derive(Default)]
struct Latest {
    page: Option<(Instant, Bytes)>,
    kernel: Option<Arc<KernelReader>>,
}

/// What is kept from scrape to scrape.
#[derive(Debug)]
struct Memory {
    peers: OwnPeers,
    pods: OwnPods,
    /// When the service began to forward, since the epoch: a clock that is set changes it no more.
    started: Option<Duration>,
    scrapes: Scrapes,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Answers from the latest `view`. At most `limit` peers, and as many pods, have series of their own.
    pub fn new(
        view: watch::Receiver<Option<Arc<View>>>,
        is_ready: fn(&View) -> bool,
        limit: usize,
    ) -> Metrics {
        Metrics {
            view,
            is_ready,
            latest: AsyncMutex::default(),
            memory: Arc::new(Mutex::new(Memory::new(limit))),
        }
    }

    /// The page; `None` when the service is ending. A caller that disconnects meanwhile does not end the scrape, so it
    /// cannot have one made after the other.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn page(self: &Arc<Self>) -> Option<Bytes> {
        let scrape = tokio::spawn(Arc::clone(self).fresh());
        scrape.await.ok().flatten()
    }

    async fn fresh(self: Arc<Self>) -> Option<Bytes> {
        let mut latest = self.latest.lock().await;
        if let Some((made, page)) = &latest.page
            && made.elapsed() < LEAST_AGE
        {
            return Some(page.clone());
        }
        let view = self.view.borrow().clone();
        let page = match view {
            None => starting(),
            Some(view) => {
                let reader = latest.reader();
                let runtime = Handle::current();
                let is_ready = (self.is_ready)(&view);
                let memory = Arc::clone(&self.memory);
                let write = move || {
                    // A refusal costs nothing but the priority.
                    let _ = setpriority_process(None, NICE);
                    let before = cpu_time();
                    let kernel = runtime.block_on(ask_kernel(reader, &view));
                    let asked = cpu_time().saturating_sub(before);
                    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                    memory.scrapes.cpu += asked;
                    memory.scrape(view, kernel, is_ready)
                };
                spawn_blocking(write).await.ok()?
            }
        };
        let page = Bytes::from(page);
        latest.page = Some((Instant::now(), page.clone()));
        Some(page)
    }
}

impl Latest {
    /// Asks the kernel, on a socket that stays open; `None` without one.
    fn reader(&mut self) -> Option<Arc<KernelReader>> {
        if self.kernel.is_none() {
            self.kernel = KernelReader::open().ok().map(Arc::new);
        }
        self.kernel.clone()
    }
}

/// What the kernel counts. What cannot be read is left out.
async fn ask_kernel(reader: Option<Arc<KernelReader>>, view: &View) -> KernelFacts {
    let Some(kernel) = reader else {
        return KernelFacts::default();
    };
    let device = &view.service.config.device_name;
    let left_out = |error: &crate::host::HostError| debug!(%error, "left out of the metrics");
    KernelFacts {
        counts: KernelCounts {
            device: (kernel.device_stats(device).await)
                .inspect_err(left_out)
                .ok(),
            pods: (kernel.pod_drops().await)
                .inspect_err(left_out)
                .ok()
                .flatten(),
            lost_routes: (kernel.lost_routes().await)
                .inspect_err(left_out)
                .ok()
                .flatten(),
        },
        links: (kernel.pod_links().await)
            .inspect_err(left_out)
            .unwrap_or_default(),
    }
}

impl Memory {
    fn new(limit: usize) -> Memory {
        Memory {
            peers: OwnPeers::new(limit),
            pods: OwnPods::new(limit),
            started: None,
            scrapes: Scrapes::default(),
        }
    }

    /// Reads everything, and writes the page.
    fn scrape(&mut self, view: Arc<View>, kernel: KernelFacts, is_ready: bool) -> String {
        let before = cpu_time();
        self.scrapes.count += 1;
        let facts = self.read(view, kernel, is_ready);
        let page = encode(WholePage(facts));
        self.scrapes.cpu += cpu_time().saturating_sub(before);
        page
    }

    fn read(&mut self, view: Arc<View>, kernel: KernelFacts, is_ready: bool) -> Facts {
        let pods = view.pods(&kernel.links);
        let shown_peers = self.peers.choose(&view);
        let (shown_pods, shown_pods_in_kernel) = pods::choose(&mut self.pods, &pods, &view);
        let started = *self.started.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let running = view.service.started.elapsed();
            now.unwrap_or_default().saturating_sub(running)
        });
        let flows = view.kernel_path.flows.as_ref();
        Facts {
            // After those of peers and pods: their sum is never above it.
            totals: view.counters.read(),
            now: view.clock.now(),
            started,
            is_ready,
            programs: view.kernel_path.totals(),
            passes: view.kernel_path.passes(),
            flows: flows.map(|counts| counts.read()),
            sockets: (view.sockets.queues())
                .filter_map(|(name, queue)| Some((name, queue.ok()?)))
                .collect(),
            pods,
            paths: view.peer_health.paths(),
            round_trips: view.peer_health.round_trips(),
            outcomes: view.peer_health.outcomes(),
            shown_peers,
            shown_pods,
            shown_pods_in_kernel,
            scrapes: self.scrapes,
            kernel,
            view,
        }
    }
}

/// A page of a node that forwards.
struct WholePage(Facts);

impl fmt::Debug for WholePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WholePage")
    }
}

impl Collector for WholePage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let WholePage(facts) = self;
        let mut page = Page::new(encoder);
        node::write_build(&mut page, facts.is_ready)?;
        let parts = [
            node::write,
            problems::write,
            registry::write,
            workers::write,
            queues::write,
            peers::write,
            peer_paths::write,
            pods::write,
            kernel_path::write,
            gathering::write,
        ];
        parts.iter().try_for_each(|write| write(&mut page, facts))
    }
}

/// A page of a service that does not forward yet.
#[derive(Debug)]
struct Starting;

impl Collector for Starting {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        node::write_build(&mut Page::new(encoder), false)
    }
}

fn starting() -> String {
    encode(Starting)
}

fn encode(page: impl Collector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut written = String::new();
    match text::encode(&mut written, &registry) {
        Ok(()) => written,
        // A string takes every write.
        Err(fmt::Error) => String::new(),
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// What the page is, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a page serves those who ask: far less than the time between two scrapes of one Prometheus.
const LEAST_AGE: Duration = Duration::from_secs(1);
/// The kernel gives a thread of this nice value about a tenth of what a worker beside it gets (sched(7)).
const NICE: i32 = 10;

#[cfg(test)]
mod tests;
