//! Theory of operation
//!
//! Applies a [`HostState`] to the kernel: the tunnel device up, with its
//! address and MTU; the routes of [`net::routes`]; the settings of
//! [`settings::sysctls`]. Everything goes over rtnetlink, nfnetlink and
//! `/proc/sys`; nothing is executed, but by [`previous`] where rules of
//! iptables-legacy are to go. [`Host::apply_firewall_and_subnet_env`]
//! does what forwarding between pods does not depend on: the packet filter
//! ([`firewall`]) and flannel's file ([`subnet_env`]).
//!
//! [`Host::apply`] is set-up and repair in one: it reads what is, does what is
//! missing, and reports what it did. Called again it does nothing, so the caller
//! may call it at every event of [`watch()`] and every few seconds besides.
//! [`Host::passes_quick_check`], which costs little, reads what the kernel does
//! not announce (`accept_local` and its like, `subnet.env`).
//!
//! Everything that can be refused is checked before the first change. A failure
//! after that leaves what was done: each step is right by itself, forwarding
//! goes on, and the next call continues. [`cleanup()`] takes it all away again,
//! without an agent and after a SIGKILL.
//!
//! How each trace is recognised as ours: the device by its alias, routes by
//! their protocol number [`PROTOCOL`], nft rules by table name or comment,
//! settings and `subnet.env` by the records in the state directory. Nothing else
//! is ever removed, but what a stopped flanneld left where the operator asks for
//! that ([`leftovers`]).
//!
//! All of it concerns the network namespace of the thread that calls
//! [`Host::open`]; the runtime must poll on that thread (`current_thread`).

mod apply;
mod change;
mod cleanup;
mod direct;
mod error;
pub mod external_interface;
mod firewall;
mod flannel_place;
mod flanneld;
mod foreign_devices;
mod gathered;
mod host_state;
mod idle_device;
mod ipsec;
pub mod kernel_path;
mod kernel_reader;
mod leftovers;
mod net;
mod picture;
mod pod_state;
mod port_holder;
pub mod previous;
mod quick_check;
mod routes_to_pods;
mod settings;
mod shaping;
pub mod subnet_env;
mod watch;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cni_shim::pod_link::PodNetworks;
use rtnetlink::Handle;
use tokio::task::JoinHandle;

pub use change::{Change, SettingChange};
pub use cleanup::{Outcome, Traces, cleanup};
pub use direct::{forwarding, reverse_path_filter};
pub use error::HostError;
pub use firewall::nft::NftError;
pub use firewall::{FilterVerdict, FirewallSurvey, NamedRule, PodDrops, ServiceFate};
pub use flannel_place::{note_flannel_place, takes_flannel_place};
pub use flanneld::Flanneld;
pub use foreign_devices::ForeignBridge;
pub use gathered::{GatheredEnd, GatheredPods};
pub use host_state::{Encapsulation, HostState};
pub use idle_device::{IdleDevice, Unserved};
pub use ipsec::{IpsecRules, read_ipsec_rules};
pub use kernel_reader::KernelReader;
pub use leftovers::{Leftovers, RouteOfFlannel};
pub use net::links::{LinkStats, OutOfService};
pub use net::pod_links::PodLinks;
pub use net::prefixes::Bypass;
pub use net::routes::PROTOCOL;
pub use net::routes::RoutesSeen;
pub use net::routes_of_packets::{KernelRoute, RoutedTo};
pub use picture::{Picture, Underlay};
pub use pod_state::MendedPods;
pub use port_holder::{PortHolder, tcp_port_holder};
pub use quick_check::{QuickFault, QuickLinks};
pub use subnet_env::contents::SubnetEnv;
pub use watch::{HostEvent, Watch, watch};

use crate::file_state::FileState;
use firewall::Firewall;
use settings::record::{RecordOnDisk, Scope, SettingsRecord};

/// The kernel's side of the node, and the record of what was changed there.
#[derive(Debug)]
pub struct Host {
    netlink: Netlink,
    /// Where records of what was changed lie.
    state_dir: PathBuf,
    record: SettingsRecord,
    firewall: Firewall,
    /// Changes made by calls that failed later on, not yet reported.
    unreported: Vec<Change>,
    /// Routes and addresses are added, never removed.
    add_only: bool,
    /// Where pods live, as far as the agent has said.
    pod_networks: PodNetworks,
    /// `subnet.env` when it last had the contents wanted.
    subnet_file: Option<FileState>,
    /// The ends of pods that gathered when they were looked at last, by index.
    gathering_ends: HashSet<u32>,
}

impl Host {
    /// Opens netlink in the calling thread's namespace and reads the record of
    /// earlier changes from `state_dir`, which need not exist. A record that
    /// cannot be parsed is not used, and the first [`apply`](Host::apply)
    /// reports that.
    ///
    /// # Errors
    /// When no netlink socket can be had, or `/proc` not be read.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn open(state_dir: &Path) -> Result<Host, HostError> {
        let scope = Scope::here()?;
        let mut unreported = Vec::new();
        let record = match SettingsRecord::read(state_dir, &scope) {
            Ok(RecordOnDisk::Current(record)) => record,
            Ok(
                RecordOnDisk::Nothing | RecordOnDisk::EarlierBoot | RecordOnDisk::OtherNamespace(_),
            ) => SettingsRecord::new(state_dir, scope),
            Err(reason) => {
                unreported.push(Change::RecordRefused(reason.to_string()));
                SettingsRecord::new(state_dir, scope)
            }
        };
        Ok(Host {
            netlink: Netlink::open()?,
            state_dir: state_dir.to_owned(),
            record,
            firewall: Firewall::default(),
            unreported,
            add_only: false,
            pod_networks: PodNetworks::default(),
            subnet_file: None,
            gathering_ends: HashSet::new(),
        })
    }

    /// Packet filter and `subnet.env`, as [`apply_firewall`](Host::apply_firewall) and
    /// [`write_subnet_env`](Host::write_subnet_env) make them; neither waits for
    /// the other. Returns what had to be changed, and the first refusal.
    pub async fn apply_firewall_and_subnet_env(
        &mut self,
        desired: &HostState,
    ) -> (Vec<Change>, Option<HostError>) {
        let mut changes = Vec::new();
        let mut refused = None;
        match self.apply_firewall(desired).await {
            Ok(more) => changes = more,
            Err(error) => refused = Some(error),
        }
        match self.write_subnet_env(desired) {
            Ok(more) => changes.extend(more),
            Err(error) => refused = refused.or(Some(error)),
        }
        (changes, refused)
    }
}

/// A netlink handle and the task that serves it, which ends with it.
#[derive(Debug)]
struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Netlink {
    fn open() -> Result<Netlink, HostError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| HostError::Socket { source })?;
        Ok(Netlink {
            handle,
            connection: tokio::spawn(connection),
        })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
