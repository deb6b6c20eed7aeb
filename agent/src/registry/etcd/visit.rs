//! A visit to one server: list, watch, keep this node's own key, report.

use std::convert::Infallible;
use std::time::Duration;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Mac;
use tokio::time::{Instant, sleep_until};

use super::super::announcement::{Announcement, RegistrySettings};
use super::super::pace::Pace;
use super::super::place::RegistryPlace;
use super::super::records::{self, Candidate};
use super::super::remote::{Asked, Ended, Seat};
use super::super::{Contact, own};
use super::DEBOUNCE;
use super::key::SubnetKey;
use super::own_lease::{OwnLease, Standing};
use super::report::Reports;
use super::session::{Failure, Session};
use super::table::{MOST_KEYS, Table, Written};
use super::watch::{Change, Interruption, Watch};
use crate::causes::causes;
use crate::config::node::registry::EtcdConfig;
use crate::config::{NetConf, NetConfError};
use crate::lease::Lease;

/// What stays from one visit to the next.
pub(super) struct Visitor {
    config: EtcdConfig,
    /// `<prefix>/config`.
    config_key: String,
    table: Table,
    own: OwnLease,
    reports: Reports,
    announcement: Option<Announcement>,
    pace: Pace,
    /// Why the last attempt failed.
    reason: String,
    /// When the loss is reported if no server has answered by then.
    lost_at: Option<Instant>,
    /// The cluster's configuration can be used.
    is_configured: bool,
}

/// Why a visit has ended.
pub(super) enum End {
    /// The control loop is gone.
    Ended,
    /// Everything is to be read again.
    Relist,
    /// The server does not answer, or refuses us.
    Lost(String),
}

impl From<Ended> for End {
    fn from(_: Ended) -> End {
        End::Ended
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Lost(failure.reason())
    }
}

impl From<Interruption> for End {
    fn from(interruption: Interruption) -> End {
        match interruption {
            Interruption::Compacted => End::Relist,
            Interruption::Failed(failure) => failure.into(),
        }
    }
}

/// A server that answers.
struct Arrival {
    session: Session,
    config: Option<Written>,
    list: Vec<Written>,
    watch: Watch,
}

impl Arrival {
    async fn at(
        config: &EtcdConfig,
        endpoint: &str,
        below: &str,
        config_key: &str,
    ) -> Result<Arrival, End> {
        let mut session = Session::open(config, endpoint).await?;
        let config = session.get(config_key.as_bytes()).await?;
        let list = session.list(below, config.revision, MOST_KEYS + 1).await?;
        let from = config.revision.saturating_add(1);
        let watch = Watch::open(&mut session, below, config_key, from).await?;
        Ok(Arrival {
            session,
            config: config.found,
            list,
            watch,
        })
    }
}

impl Visitor {
    pub(super) fn new(config: &EtcdConfig) -> Visitor {
        Visitor {
            config_key: format!("{}/config", config.prefix),
            table: Table::new(&config.prefix),
            own: OwnLease::new(config.renew_margin),
            reports: Reports::default(),
            announcement: None,
            pace: Pace::starting_with(DEBOUNCE),
            reason: "no server answers".to_owned(),
            lost_at: Some(Instant::now() + SILENCE),
            is_configured: false,
            config: config.clone(),
        }
    }

    /// Takes over the latest announcement.
    pub(super) async fn announced(&mut self, seat: &mut Seat) -> Result<(), Ended> {
        self.announcement = Some(seat.announcement().await?);
        self.own.retry();
        Ok(())
    }

    fn announced_address(&self) -> Option<PublicAddresses> {
        self.announcement.as_ref().map(|latest| latest.public)
    }

    pub(super) async fn report_lost(&mut self, seat: &Seat, reason: String) -> Result<(), Ended> {
        self.reports.contact(seat, Contact::Lost { reason }).await
    }

    /// Visits the server at `endpoint` until something ends the visit.
    pub(super) async fn visit(&mut self, endpoint: &str, seat: &mut Seat) -> End {
        let Err(end) = self.stay(endpoint, seat).await;
        if let End::Lost(reason) = &end {
            self.reason = format!("{endpoint}: {reason}");
        }
        end
    }

    /// Connects, and reads everything. The loss is reported meanwhile when it takes long.
    async fn arrive(&mut self, endpoint: &str, seat: &Seat) -> Result<Arrival, End> {
        let below = self.table.below().to_owned();
        let config_key = self.config_key.clone();
        let arrival = Arrival::at(&self.config, endpoint, &below, &config_key);
        tokio::pin!(arrival);
        loop {
            let lost_at = self.lost_at;
            tokio::select! {
                arrival = &mut arrival => return arrival,
                () = sleep_until(lost_at.unwrap_or_else(Instant::now)), if lost_at.is_some() => {
                    self.lost_at = None;
                    let reason = self.reason.clone();
                    self.reports.contact(seat, Contact::Lost { reason }).await?;
                }
            }
        }
    }

    async fn stay(&mut self, endpoint: &str, seat: &mut Seat) -> Result<Infallible, End> {
        let Arrival {
            mut session,
            config,
            list,
            mut watch,
        } = self.arrive(endpoint, seat).await?;
        let visited = self.dwell(&mut session, (config, list), &mut watch, seat);
        let Err(end) = visited.await;
        // The connection may have been dead for as long as it takes to notice.
        self.lost_at = Some(Instant::now() + SILENCE);
        Err(end)
    }

    async fn dwell(
        &mut self,
        session: &mut Session,
        (config, list): (Option<Written>, Vec<Written>),
        watch: &mut Watch,
        seat: &mut Seat,
    ) -> Result<Infallible, End> {
        self.table.replace(list);
        let text = config.map(|found| found.value);
        self.configure(seat, text.as_deref()).await?;
        self.reports.contact(seat, Contact::InTouch).await?;
        self.own.retry();
        let mut report_at = Some(Instant::now());
        let mut relist_at = None;
        loop {
            let due = [report_at, relist_at, self.due()]
                .into_iter()
                .flatten()
                .min();
            tokio::select! {
                asked = seat.asked() => match asked? {
                    Asked::Announcement => {
                        let before = self.announced_address();
                        self.announced(seat).await?;
                        // This node has moved: nothing arrives any more on a connection from the address that it had.
                        if before.is_some_and(|before| Some(before) != self.announced_address()) {
                            return Err(End::Relist);
                        }
                        report_at = Some(Instant::now());
                    }
                    Asked::Reread => return Err(End::Relist),
                },
                changes = watch.next(session) => {
                    let now = Instant::now();
                    for change in changes? {
                        // There may be room now for a key that had none.
                        if matches!(change, Change::Deleted { .. }) && self.table.is_incomplete() {
                            relist_at.get_or_insert(now + RELIST_AFTER);
                        }
                        self.enter(seat, change).await?;
                    }
                    report_at.get_or_insert(now + self.pace.wait(now));
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if relist_at.is_some_and(|at| at <= Instant::now()) {
                        return Err(End::Relist);
                    }
                    if report_at.take().is_some() {
                        self.pace.made(Instant::now());
                    }
                    self.settle(session, seat).await?;
                }
            }
        }
    }

    /// When this node's own key needs something, whatever etcd says.
    fn due(&self) -> Option<Instant> {
        self.announcement.as_ref().and_then(|_| self.own.due())
    }

    async fn enter(&mut self, seat: &Seat, change: Change) -> Result<(), Ended> {
        match change {
            Change::Put(written) => self.table.put(written),
            Change::Deleted { key, revision } => self.table.delete(&key, revision),
            Change::Config(text) => self.configure(seat, text.as_deref()).await?,
        }
        Ok(())
    }

    /// Reports the configuration, or why it cannot be used.
    async fn configure(&mut self, seat: &Seat, text: Option<&[u8]>) -> Result<(), Ended> {
        let read = read_config(text, &self.config_key);
        self.is_configured = read.is_ok();
        match read {
            Ok(text) => {
                let settings = RegistrySettings {
                    net_conf: Some(text),
                    ..RegistrySettings::default()
                };
                self.reports.settings(seat, settings).await
            }
            Err(reason) => {
                let place = RegistryPlace::Etcd {
                    key: self.config_key.clone(),
                };
                self.reports.refused(seat, (place, reason), true).await
            }
        }
    }

    /// Makes this node's own key what is announced, and reports the list.
    async fn settle(&mut self, session: &mut Session, seat: &Seat) -> Result<(), End> {
        let Some(announcement) = &self.announcement else {
            return Ok(());
        };
        if !self.is_configured {
            // No subnet is taken then, and none is lost.
            self.own.retry();
            let renewed = self.own.renew(session, &mut self.table, announcement);
            return Ok(renewed.await?);
        }
        let settled = self.own.settle(session, &mut self.table, announcement);
        match settled.await? {
            Standing::Relist => Err(End::Relist),
            Standing::Refused { place, reason } => {
                Ok(self.reports.refused(seat, (place, reason), false).await?)
            }
            Standing::Ours {
                subnet,
                vtep_mac,
                trouble,
            } => Ok(self.report(seat, (subnet, vtep_mac), trouble).await?),
        }
    }

    async fn report(
        &mut self,
        seat: &Seat,
        (subnet, vtep_mac): (SubnetKey, PerFamily<Mac>),
        trouble: Option<(RegistryPlace, String)>,
    ) -> Result<(), Ended> {
        let Some(announcement) = &self.announcement else {
            return Ok(());
        };
        let own_key = self.table.key(&subnet);
        let own_place = Table::place(&own_key);
        let this_node = Candidate {
            place: own_place.clone(),
            lease: Lease {
                name: announcement.node_name.clone(),
                subnets: subnet.subnets(),
                public: announcement.public,
                format: announcement.net_conf.backend.format(),
                vtep_mac,
                accept_sources: Vec::new(),
                underlay_sources: Vec::new(),
                kernel_path: None,
            },
            is_own: true,
        };
        let (others, mut refused) = self.table.candidates(&own_key);
        let candidates = std::iter::once(this_node).chain(others).collect();
        let (leases, unfit) = records::check(candidates, &announcement.net_conf);
        refused.extend(unfit);
        match own(&leases, &announcement.node_name) {
            Ok(_) => self.reports.leases(seat, leases, trouble).await?,
            Err(reason) => {
                let found = refused.iter().find(|record| record.place == own_place);
                let reason = found.map_or(reason, |record| record.reason.clone());
                let refusal = (own_place, reason);
                self.reports.refused(seat, refusal, false).await?;
            }
        }
        self.reports.refused_records(seat, refused).await
    }
}

/// The text of the configuration, checked; or why it cannot be used. What is there may be in use by other nodes: no command
/// that writes it anew is offered then.
fn read_config(value: Option<&[u8]>, key: &str) -> Result<String, String> {
    let Some(value) = value else {
        return Err(format!(
            "the cluster's configuration is missing: check etcd-prefix (flanneld: -etcd-prefix), or for a new cluster write it, as in etcdctl put {key} '{EXAMPLE}'"
        ));
    };
    let fault = match std::str::from_utf8(value) {
        _ if value.len() > MOST_CONFIG_BYTES => {
            format!("it has more than {MOST_CONFIG_BYTES} bytes")
        }
        Err(_) => "it is not UTF-8 text".to_owned(),
        Ok(text) if text.trim().is_empty() => "it is empty".to_owned(),
        Ok(text) => match NetConf::parse(text) {
            Ok(_) => return Ok(text.to_owned()),
            Err(NetConfError::Json(error)) => format!("it is not JSON: {error}"),
            Err(NetConfError::UnknownBackend(name)) => {
                return Err(format!(
                    "the cluster's configuration names the backend {name}, and Tartan speaks udp and vxlan: change the backend with flannel first (docs/migrate.md)"
                ));
            }
            Err(error) => causes(&error),
        },
    };
    Err(format!(
        "the cluster's configuration cannot be used: {fault}; correct the value of {key}, which every node reads"
    ))
}

const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// A connection is found dead within 15 s, and a pause between two visits lasts up to 4 s: the loss is reported 25 s after
/// the last answer, however many servers there are that do not answer.
const SILENCE: Duration = Duration::from_secs(6);
/// Of keys that are deleted where not all are read: each list has all keys that there is room for.
const RELIST_AFTER: Duration = Duration::from_secs(5);
/// As of a file with it.
const MOST_CONFIG_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(value: &str) -> String {
        read_config(Some(value.as_bytes()), "/n/config").unwrap_err()
    }

    #[test]
    fn a_configuration_that_is_there_is_never_to_be_written_over() {
        for (value, part) in [
            (
                "",
                "cannot be used: it is empty; correct the value of /n/config",
            ),
            (" \n", "it is empty"),
            (
                "{",
                "it is not JSON: EOF while parsing an object at line 1 column 1;",
            ),
            ("{\"Network\":7}", "the value of Network must be"),
            (
                r#"{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}"#,
                "names the backend host-gw, and Tartan speaks udp and vxlan: change the backend with flannel first",
            ),
        ] {
            let reason = refusal(value);
            assert!(reason.contains(part), "{reason}");
            assert!(!reason.contains("etcdctl"), "{reason}");
        }
        let missing = read_config(None, "/n/config").unwrap_err();
        let place = |part: &str| missing.find(part).unwrap();
        assert!(
            place("check etcd-prefix (flanneld: -etcd-prefix)") < place("etcdctl put /n/config")
        );
    }
}
