//! A node with an etcd registry, as the control loop sees it.

use std::time::Duration;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Mac;
use tartan::config::NetConf;
use tartan::config::node::registry::{EtcdConfig, RegistryConfig};
use tartan::lease::Lease;
use tartan::registry::{
    Announcement, Contact, RefusedRecord, RegistryPlace, RemoteRegistry, Update, etcd, own, parse,
    render,
};
use tokio::time::{Instant, timeout_at};

use super::server::{PREFIX, Server};

pub(crate) const UDP: &str = r#"{"Network":"10.244.0.0/16"}"#;
pub(crate) const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(crate) const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}"#;

/// What the registry reported last of each kind.
pub(crate) struct Node {
    registry: RemoteRegistry,
    pub(crate) number: u8,
    pub(crate) settings: Option<String>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) refused_records: Vec<RefusedRecord>,
    pub(crate) contact: Option<Contact>,
    pub(crate) refused: Option<(RegistryPlace, String)>,
    /// Updates so far.
    pub(crate) updates: usize,
    /// Lists so far.
    pub(crate) lists: usize,
}

pub(crate) fn config(server: &Server) -> EtcdConfig {
    EtcdConfig {
        endpoints: vec![server.url()],
        prefix: PREFIX.to_owned(),
        ..RegistryConfig::default().etcd
    }
}

/// The announcement of the node at 192.0.2.`number` with the VTEP MAC 02:00:00:00:00:`number`.
pub(crate) fn announcement(number: u8, net_conf: &str) -> Announcement {
    Announcement {
        node_name: format!("n{number}"),
        public: PublicAddresses::V4([192, 0, 2, number].into()),
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, number])),
        previous: vec![],
        net_conf: NetConf::parse(net_conf).unwrap(),
        forwarding: true,
    }
}

impl Node {
    /// Opens the registry and announces nothing.
    pub(crate) fn open(config: &EtcdConfig) -> Node {
        Node {
            registry: etcd::open(config).unwrap(),
            number: 0,
            settings: None,
            leases: vec![],
            refused_records: vec![],
            contact: None,
            refused: None,
            updates: 0,
            lists: 0,
        }
    }

    /// Opens it, announces the node of this number and waits for a list.
    pub(crate) async fn start(server: &Server, number: u8, net_conf: &str) -> Node {
        Node::start_with(server, announcement(number, net_conf)).await
    }

    pub(crate) async fn start_with(server: &Server, announcement: Announcement) -> Node {
        let mut node = Node::open(&config(server));
        node.announce(announcement);
        node.until("a list", |node| !node.leases.is_empty()).await;
        node
    }

    pub(crate) fn announce(&mut self, announcement: Announcement) {
        let PublicAddresses::V4(v4) = announcement.public else {
            self.registry.announce(announcement);
            return;
        };
        self.number = v4.octets()[3];
        self.registry.announce(announcement);
    }

    pub(crate) fn reread(&self) {
        self.registry.reread();
    }

    /// Takes updates until `done`, at most 10 seconds.
    pub(crate) async fn until(&mut self, what: &str, done: impl Fn(&Node) -> bool) {
        self.within(Duration::from_secs(10), what, done).await;
    }

    pub(crate) async fn within(
        &mut self,
        most: Duration,
        what: &str,
        done: impl Fn(&Node) -> bool,
    ) {
        let end = Instant::now() + most;
        while !done(self) {
            let Ok(update) = timeout_at(end, self.registry.next()).await else {
                panic!(
                    "no {what} within {most:?}: leases {:?}, refused {:?}, records {:?}, contact {:?}",
                    self.subnets(),
                    self.refused,
                    self.refused_records.iter().take(5).collect::<Vec<_>>(),
                    self.contact
                );
            };
            self.take(update);
        }
    }

    /// Takes updates for this long.
    pub(crate) async fn pause(&mut self, long: Duration) {
        let end = Instant::now() + long;
        while let Ok(update) = timeout_at(end, self.registry.next()).await {
            self.take(update);
        }
    }

    fn take(&mut self, update: Update) {
        self.updates += 1;
        match update {
            Update::Settings(settings) => {
                self.refused = None;
                self.settings = settings.net_conf;
            }
            Update::Leases(leases) => {
                let net_conf = NetConf::parse(self.settings.as_ref().unwrap()).unwrap();
                assert_eq!(parse(&render(&leases), &net_conf).unwrap(), leases);
                let own_name = leases[0].name.clone();
                assert!(own(&leases, &own_name).is_ok());
                self.refused = None;
                self.leases = leases;
                self.lists += 1;
            }
            Update::RefusedRecords(records) => self.refused_records = records,
            Update::Contact(contact) => self.contact = Some(contact),
            Update::Refused { place, reason } => self.refused = Some((place, reason)),
        }
    }

    /// This node's own subnets.
    pub(crate) fn own_subnets(&self) -> Vec<String> {
        let own = self.leases.first().expect("a list");
        own.subnets.iter().map(ToString::to_string).collect()
    }

    /// The key of its lease in a cluster of one family.
    pub(crate) fn own_key(&self) -> String {
        let subnets: Vec<_> = self
            .own_subnets()
            .iter()
            .map(|net| net.replace('/', "-"))
            .collect();
        format!("subnets/{}", subnets.join("&"))
    }

    /// Names and subnets of the list.
    pub(crate) fn subnets(&self) -> Vec<(String, String)> {
        let row = |lease: &Lease| (lease.name.clone(), format!("{:?}", lease.subnets));
        self.leases.iter().map(row).collect()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.leases
            .iter()
            .map(|lease| lease.name.as_str())
            .collect()
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.contact, Some(Contact::Lost { .. }))
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}
