//! Theory of operation
//!
//! Makes the kernel agree with a [`HostState`]: the tunnel device up, with its
//! address and MTU; the routes of [`net::routes`]; the settings of [`settings::sysctls`].
//! Everything goes over rtnetlink, nfnetlink and `/proc/sys`; nothing is
//! executed. [`Host::apply_beside`] does what forwarding between pods does not
//! depend on: the packet filter ([`firewall`]) and flannel's file
//! ([`subnet_env`]).
//!
//! [`Host::apply`] is set-up and repair in one: it reads what is, does what is
//! missing, and says what it did. Called again it does nothing, so the caller
//! may call it at every hint from [`watch()`] and every few seconds besides. What
//! the kernel announces to nobody (`accept_local` and its like, `subnet.env`,
//! iptables-legacy) is looked at by [`Host::is_undisturbed`], which costs little.
//!
//! Everything that can be refused is checked before the first change. A failure
//! after that leaves what was done: each step is right by itself, forwarding
//! goes on, and the next call continues. [`cleanup()`] takes it all away again,
//! without an agent and after a SIGKILL.
//!
//! How each trace is recognised as ours: the device by its alias, routes by
//! their protocol number [`PROTOCOL`], nft rules by table name or comment,
//! settings and `subnet.env` by the records in the state directory. Nothing else
//! is ever removed.
//!
//! All of it concerns the network namespace of the thread that calls
//! [`Host::open`]; the runtime must poll on that thread (`current_thread`).

mod apply;
mod change;
mod cleanup;
mod error;
mod firewall;
mod host_state;
mod kernel_reader;
mod net;
mod picture;
mod port_holder;
mod quick_check;
mod settings;
mod shaping;
mod subnet_env;
mod watch;

use std::path::Path;

use rtnetlink::Handle;
use tokio::task::JoinHandle;

pub use change::{Change, SettingChange};
pub use cleanup::{Outcome, Traces, cleanup};
pub use error::HostError;
pub use firewall::nft::NftError;
pub use host_state::HostState;
pub use kernel_reader::KernelReader;
pub use net::links::{LinkStats, OutOfService};
pub use net::pod_links::PodLinks;
pub use net::prefixes::Bypass;
pub use net::routes::PROTOCOL;
pub use picture::{Picture, Underlay};
pub use port_holder::PortHolder;
pub use subnet_env::contents::SubnetEnv;
pub use watch::{HostEvent, Watch, watch};

use crate::file_state::FileState;
use firewall::Firewall;
use settings::record::{Found, Place, Record};

/// The kernel's side of the node, and the memory of what was changed there.
#[derive(Debug)]
pub struct Host {
    netlink: Netlink,
    record: Record,
    firewall: Firewall,
    /// Changes made by calls that failed later on, not yet told.
    untold: Vec<Change>,
    /// Nothing is withdrawn.
    only_adds: bool,
    /// `subnet.env` when it was last as it should be.
    subnet_file: Option<FileState>,
}

impl Host {
    /// Opens netlink in the calling thread's namespace and reads the memory of
    /// earlier changes from `state_dir`, which need not exist. A memory that
    /// cannot be understood is set aside, and the first [`apply`](Host::apply)
    /// says so.
    ///
    /// # Errors
    /// When no netlink socket can be had, or `/proc` not be read.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn open(state_dir: &Path) -> Result<Host, HostError> {
        let place = Place::here()?;
        let mut untold = Vec::new();
        let record = match Record::read(state_dir, &place) {
            Ok(Found::Current(record)) => record,
            Ok(Found::Nothing | Found::EarlierBoot | Found::Elsewhere(_)) => {
                Record::new(state_dir, place)
            }
            Err(reason) => {
                untold.push(Change::MemoryRefused(reason.to_string()));
                Record::new(state_dir, place)
            }
        };
        Ok(Host {
            netlink: Netlink::open()?,
            record,
            firewall: Firewall::default(),
            untold,
            only_adds: false,
            subnet_file: None,
        })
    }

    /// Packet filter and `subnet.env`, as [`apply_rules`](Host::apply_rules) and
    /// [`write_subnet_env`](Host::write_subnet_env) make them; neither waits for
    /// the other. Returns what had to be changed, and the first refusal.
    pub async fn apply_beside(&mut self, desired: &HostState) -> (Vec<Change>, Option<HostError>) {
        let mut changes = Vec::new();
        let mut refused = None;
        match self.apply_rules(desired).await {
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
