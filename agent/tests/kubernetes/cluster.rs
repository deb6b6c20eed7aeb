//! A cluster of Nodes in an API server, and the registry of one of them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dataplane::families::{PerFamily, PublicAddresses};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tartan::config::NetConf;
use tartan::config::node::registry::{KubernetesConfig, RegistryConfig};
use tartan::lease::Lease;
use tartan::registry::{
    Announcement, Contact, RefusedRecord, RegistryPlace, RegistrySettings, RemoteRegistry, Update,
    kubernetes,
};
use tempfile::TempDir;
use testbed::apiserver::ApiServer;
use tokio::time::timeout;

pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(crate) const UDP: &str = r#"{"Network":"10.244.0.0/16"}"#;
pub(crate) const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
pub(crate) const PREFIX: &str = "flannel.alpha.coreos.com";
/// Longer than anything takes that is not waiting for a fault.
const SOON: Duration = Duration::from_secs(10);

/// Nodes in an API server.
pub(crate) struct Cluster {
    directory: TempDir,
    kubeconfig: PathBuf,
    nodes: Api<Node>,
    test_server: Option<ApiServer>,
}

impl Cluster {
    /// An empty cluster: in the server that `TARTAN_TEST_KUBECONFIG` names, else in one of the testbed.
    pub(crate) async fn start() -> Cluster {
        match std::env::var_os("TARTAN_TEST_KUBECONFIG") {
            None => Cluster::of_testbed().await,
            Some(path) => {
                let cluster = Cluster::at(path.into(), tempfile::tempdir().unwrap(), None).await;
                let found = cluster.nodes.list(&Default::default()).await.unwrap();
                for node in found {
                    cluster.delete(&node.metadata.name.unwrap()).await;
                }
                cluster
            }
        }
    }

    /// An empty cluster in a server that has faults on request.
    pub(crate) async fn of_testbed() -> Cluster {
        let (server, directory) = (outside(ApiServer::start), tempfile::tempdir().unwrap());
        let kubeconfig = server.kubeconfig(directory.path());
        Cluster::at(kubeconfig, directory, Some(server)).await
    }

    async fn at(
        kubeconfig: PathBuf,
        directory: TempDir,
        test_server: Option<ApiServer>,
    ) -> Cluster {
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        Cluster {
            directory,
            kubeconfig,
            nodes: Api::all(client),
            test_server,
        }
    }

    /// The testbed's server.
    pub(crate) fn server(&self) -> &ApiServer {
        self.test_server.as_ref().unwrap()
    }

    /// A configuration with the credentials of an administrator.
    pub(crate) fn config(&self) -> KubernetesConfig {
        KubernetesConfig {
            kubeconfig: Some(self.kubeconfig.clone()),
            ..RegistryConfig::default().kubernetes
        }
    }

    /// A configuration with a bearer token.
    pub(crate) fn config_with(&self, token: &str) -> KubernetesConfig {
        let path = self.server().kubeconfig_with(self.directory.path(), token);
        KubernetesConfig {
            kubeconfig: Some(path),
            ..self.config()
        }
    }

    /// The registry of the node `name`.
    pub(crate) fn open(&self, name: &str) -> Observed {
        self.open_with(&self.config(), name)
    }

    pub(crate) fn open_with(&self, config: &KubernetesConfig, name: &str) -> Observed {
        Observed::of(kubernetes::open(config, name).unwrap())
    }

    pub(crate) async fn create(&self, node: Value) {
        let node = serde_json::from_value(node).unwrap();
        let params = PostParams::default();
        self.nodes.create(&params, &node).await.unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        let params = DeleteParams::default();
        self.nodes.delete(name, &params).await.unwrap();
    }

    /// Sets annotations below the default prefix; null removes one.
    pub(crate) async fn annotate(&self, name: &str, pairs: &[(&str, Value)]) {
        let full = pairs
            .iter()
            .map(|(key, value)| (format!("{PREFIX}/{key}"), value.clone()));
        let full: serde_json::Map<_, _> = full.collect();
        let patch = json!({"metadata": {"annotations": full}});
        self.patch(name, patch).await;
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        let patch = Patch::Strategic(patch);
        self.nodes.patch(name, &params, &patch).await.unwrap();
    }

    pub(crate) async fn patch_status(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        let patch = Patch::Strategic(patch);
        let patched = self.nodes.patch_status(name, &params, &patch).await;
        patched.unwrap();
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        self.nodes.get(name).await.unwrap()
    }

    /// The annotations below the default prefix, `NAME=VALUE`, sorted.
    pub(crate) async fn annotations(&self, name: &str) -> Vec<String> {
        let found = self.node(name).await.metadata.annotations;
        let found = found.unwrap_or_default();
        found
            .iter()
            .filter_map(|(key, value)| {
                let key = key.strip_prefix(PREFIX)?.strip_prefix('/')?;
                Some(format!("{key}={value}"))
            })
            .collect()
    }

    /// Waits until the annotation of `name` is `value`.
    pub(crate) async fn wait_for(&self, name: &str, annotation: &str, value: &str) {
        let wanted = format!("{annotation}={value}");
        let began = Instant::now();
        while !self.annotations(name).await.contains(&wanted) {
            assert!(began.elapsed() < SOON, "{wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How often a page of the list was asked for, and how often a watch. (A page of one Node tells the latest version.)
    pub(crate) fn lists_and_watches(&self) -> (usize, usize) {
        let requests = self.server().requests();
        let all = requests
            .iter()
            .filter(|r| r.method == "GET" && r.path == "/api/v1/nodes")
            .filter(|r| !r.query.split('&').any(|part| part == "limit=1"));
        let watches = all.clone().filter(|r| r.query.contains("watch="));
        let pages = all.clone().filter(|r| r.query.contains("limit=500"));
        (pages.count(), watches.count())
    }
}

/// Runs something that blocks on an event loop of its own.
pub(crate) fn outside<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A Node as the kubelet registers it, without annotations.
pub(crate) fn bare(name: &str, pod_cidrs: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
    })
}

/// The Node of number `i` under flannel's `vxlan`.
pub(crate) fn flannel_node(i: u8) -> Value {
    let mut node = bare(&format!("n{i}"), &[&format!("10.244.{i}.0/24")]);
    node["metadata"]["annotations"] = json!({
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/backend-data": data(4, i),
        "flannel.alpha.coreos.com/public-ip": format!("192.0.2.{i}"),
    });
    node
}

/// The same with both families.
pub(crate) fn dual_node(i: u8) -> Value {
    let mut node = flannel_node(i);
    let v6 = format!("fd00:244:0:{i:x}::/64");
    node["spec"]["podCIDRs"] = json!([format!("10.244.{i}.0/24"), v6]);
    let annotations = &mut node["metadata"]["annotations"];
    annotations["flannel.alpha.coreos.com/backend-v6-data"] = json!(data(6, i));
    annotations["flannel.alpha.coreos.com/public-ipv6"] = json!(format!("2001:db8::{i:x}"));
    node
}

/// `backend-data` with the MAC of a family and node.
pub(crate) fn data(family: u8, i: u8) -> String {
    format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:{family:02x}:{i:02x}"}}"#)
}

/// What node `i` announces under a network configuration.
pub(crate) fn announcement(i: u8, net_conf: &str) -> Announcement {
    let net_conf = NetConf::parse(net_conf).unwrap();
    let (v4, v6) = ([192, 0, 2, i].into(), format!("2001:db8::{i:x}"));
    Announcement {
        node_name: format!("n{i}"),
        public: match net_conf.ipv6_network {
            None => PublicAddresses::V4(v4),
            Some(_) => PublicAddresses::Dual(v4, v6.parse().unwrap()),
        },
        vtep_mac: PerFamily {
            v4: encap::Mac([2, 0, 0, 0, 4, i]),
            v6: encap::Mac([2, 0, 0, 0, 6, i]),
        },
        previous: Vec::new(),
        net_conf,
        forwarding: true,
    }
}

/// A registry, and what it reported last.
pub(crate) struct Observed {
    pub(crate) registry: RemoteRegistry,
    pub(crate) settings: Option<RegistrySettings>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) refused_records: Vec<RefusedRecord>,
    pub(crate) contact: Option<Contact>,
    pub(crate) refusal: Option<(RegistryPlace, String)>,
}

impl Observed {
    fn of(registry: RemoteRegistry) -> Observed {
        Observed {
            registry,
            settings: None,
            leases: Vec::new(),
            refused_records: Vec::new(),
            contact: None,
            refusal: None,
        }
    }

    /// Opens and announces node 1, and waits for the first list.
    pub(crate) async fn joined(cluster: &Cluster, net_conf: &str) -> Observed {
        let mut observed = cluster.open("n1");
        observed
            .until("settings", |now| now.settings.is_some())
            .await;
        observed.registry.announce(announcement(1, net_conf));
        observed.until("leases", |now| !now.leases.is_empty()).await;
        observed
    }

    /// Takes updates until something holds. Returns how long that took.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        holds: impl FnMut(&Observed) -> bool,
    ) -> Duration {
        self.within(SOON, what, holds).await
    }

    pub(crate) async fn within(
        &mut self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut(&Observed) -> bool,
    ) -> Duration {
        let began = Instant::now();
        while !holds(self) {
            let left = limit.saturating_sub(began.elapsed());
            let Ok(update) = timeout(left, self.registry.next()).await else {
                panic!(
                    "no {what} within {limit:?}: {:?} {:?} {:?} {:?}",
                    self.names(),
                    self.refused_records,
                    self.contact,
                    self.refusal
                );
            };
            self.take(update);
        }
        began.elapsed()
    }

    /// Takes the updates of a time.
    pub(crate) async fn for_a_while(&mut self, time: Duration) -> usize {
        let (began, mut taken) = (Instant::now(), 0);
        while let Ok(update) =
            timeout(time.saturating_sub(began.elapsed()), self.registry.next()).await
        {
            self.take(update);
            taken += 1;
        }
        taken
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Settings(settings) => self.settings = Some(settings),
            Update::Leases(leases) => {
                assert_ne!(
                    (self.leases == leases, &self.refusal),
                    (true, &None),
                    "twice"
                );
                self.leases = leases;
                self.refusal = None;
            }
            Update::RefusedRecords(records) => self.refused_records = records,
            Update::Contact(contact) => {
                assert_ne!(self.contact.as_ref(), Some(&contact), "twice");
                self.contact = Some(contact);
            }
            Update::Refused { place, reason } => self.refusal = Some((place, reason)),
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.leases
            .iter()
            .map(|lease| lease.name.as_str())
            .collect()
    }

    pub(crate) fn lease(&self, name: &str) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.name == name)
    }

    /// Why the content is refused; empty where it is not.
    pub(crate) fn reason(&self) -> &str {
        self.refusal.as_ref().map_or("", |(_, reason)| reason)
    }

    /// Why there is no contact; empty where there is.
    pub(crate) fn lost(&self) -> &str {
        match &self.contact {
            Some(Contact::Lost { reason }) => reason,
            _ => "",
        }
    }

    pub(crate) fn is_in_touch(&self) -> bool {
        self.contact == Some(Contact::InTouch)
    }
}
