//! The faults as the control loop sees them.
//!
//! Theory of operation. What the kernel announces (interfaces, routes, `rp_filter`) is judged when the loop has read it anyway
//! ([`Watch::see`]). What it does not announce is looked at every [`LOOK_EVERY`] ([`Watch::look`]): counters, files, settings of
//! bridges. The packet filter, which may have many thousand rules, is asked for less often, every [`RULES_EVERY`], and read
//! again only where its generation is another one. So a fault shows, and is gone, within ten seconds; what is counted, after
//! two looks.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use tracing::debug;

use super::checksum_errors::{self, ChecksumErrors};
use super::{bridge_netfilter, clock, flannel_rules, reverse_path_filter};
use crate::causes::causes;
use crate::control::model::Known;
use crate::host::{FirewallSurvey, Flanneld, KernelReader, Picture};
use crate::problems::Problem;

/// What was seen.
#[derive(Debug, Default)]
pub struct Watch {
    looked: Option<Instant>,
    reader: Option<KernelReader>,
    /// Of the picture that was seen last.
    filters: Vec<Problem>,
    bridges: Vec<String>,
    /// When the packet filter was asked for.
    asked: Option<Instant>,
    /// The packet filter, and the generation of its rules.
    rules: Option<(u32, FirewallSurvey)>,
    /// Of the last time that the packet filter was asked for.
    flannels: Option<Problem>,
    counted: Option<ChecksumErrors>,
    /// Of the last look.
    found: Vec<Problem>,
}

impl Watch {
    /// Judges what a picture shows.
    pub fn see(&mut self, known: &Known, picture: &Picture) {
        let device = &known.config.device_name;
        let underlay = reverse_path_filter::interfaces(&known.facts.underlay.name);
        let peers = || -> Vec<IpAddr> {
            let others = known.leases.iter();
            let others = others.filter(|lease| lease.name != known.own.name);
            others.map(|lease| lease.public.first()).collect()
        };
        self.filters = reverse_path_filter::judge(None, &underlay, Some(picture), peers);
        self.bridges = bridge_netfilter::pod_bridges(picture, &known.own.subnets, device);
    }

    /// Looks at the rest, where that is due. Returns whether it was.
    pub async fn look(&mut self, known: &Known) -> bool {
        if !is_due(self.looked, LOOK_EVERY) {
            return false;
        }
        self.looked = Some(Instant::now());
        if is_due(self.asked, RULES_EVERY) {
            self.asked = self.looked;
            self.read_rules(known).await;
            // Every process is looked at, where flannel has rules.
            let is_running = || Flanneld::running().is_some();
            let survey = self.rules.as_ref().map(|(_, survey)| survey);
            self.flannels =
                survey.and_then(|survey| flannel_rules::judge(&survey.flannels, is_running));
        }
        // That of the tunnel device the service puts right itself: only one that stays is a fault.
        let device = Some(&*known.config.device_name);
        let mut found = reverse_path_filter::judge(device, &[], None, Vec::new);
        if let Some((_, survey)) = &self.rules {
            let settings = bridge_netfilter::settings(&known.own.subnets);
            found.extend(bridge_netfilter::judge(
                &self.bridges,
                survey.kube_proxy,
                &settings,
            ));
        }
        found.extend(self.flannels.clone());
        // What cannot be read is judged by the doctor, which says so.
        if let Ok(now) = ChecksumErrors::read() {
            let before = self.counted.replace(now);
            found.extend(before.and_then(|before| checksum_errors::judge(before, now)));
        }
        if let Some((path, written)) = clock::last_written(&known.config.state_dir()) {
            found.extend(clock::judge(&path, written, SystemTime::now()));
        }
        self.found = found;
        true
    }

    /// Reads the packet filter where it is another than before.
    async fn read_rules(&mut self, known: &Known) {
        if self.reader.is_none() {
            self.reader = KernelReader::open().ok();
        }
        let Some(reader) = &self.reader else { return };
        let generation = self.rules.as_ref().map(|(generation, _)| *generation);
        let cluster = known.net_conf.cluster();
        match reader.firewall_since(&cluster, generation).await {
            Ok(Some(read)) => self.rules = Some(read),
            Ok(None) => {}
            // What was read before may hold no longer.
            Err(error) => {
                debug!("the packet filter cannot be read: {}", causes(&error));
                self.rules = None;
            }
        }
    }

    /// All that is wrong.
    pub fn problems(&self) -> Vec<Problem> {
        self.filters.iter().chain(&self.found).cloned().collect()
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

/// Between two looks, at least. The loop comes by once a second, so that it is every other time.
const LOOK_EVERY: Duration = Duration::from_millis(1500);
/// Between two questions for the packet filter, at least.
const RULES_EVERY: Duration = Duration::from_secs(5);
