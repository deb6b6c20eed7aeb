//! Theory of operation
//!
//! The rules of iptables-legacy (ip_tables and ip6_tables), which the kernel
//! keeps apart from nf_tables: whether they cut pods off. They are only read. A
//! change would replace a whole table, and with it what another program changed
//! at the same moment.
//!
//! The kernel names the tables in use in `/proc/net/ip_tables_names`; where it
//! names none nothing else is asked, because to ask for a table makes it. It
//! announces no change of them, so they are read every few seconds.

mod table;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::net::AddressFamily;

use crate::config::text_file;
use crate::host::error::HostError;
use table::{Layout, Table};

/// What was found last, and when.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    looked: Option<Instant>,
    found: Option<Found>,
}

/// What cuts pods off, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    rule: String,
    remedy: String,
}

/// One of the two.
struct Family {
    command: &'static str,
    /// Where the kernel names its tables.
    names: &'static str,
    domain: AddressFamily,
    /// Level of its socket options.
    level: i32,
    layout: Layout,
}

impl Legacy {
    /// Whether [`check`](Legacy::check) says what it said last.
    pub(super) fn is_unchanged(&mut self, networks: &[IpNet]) -> bool {
        let before = self.found.clone();
        let _ = self.check(networks);
        self.found == before
    }

    /// # Errors
    /// [`HostError::CutOff`]: a table cuts pods of a network off from each other,
    /// or there is one that cannot be read.
    pub(super) fn check(&mut self, networks: &[IpNet]) -> Result<(), HostError> {
        if self.looked.is_none_or(|when| when.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            self.found = networks.iter().find_map(|network| look(*network));
        }
        match self.found.clone() {
            None => Ok(()),
            Some(Found { rule, remedy }) => Err(HostError::CutOff {
                rule,
                why: "it only reads those of iptables-legacy".to_owned(),
                remedy,
            }),
        }
    }
}

fn look(network: IpNet) -> Option<Found> {
    let family = match network {
        IpNet::V4(_) => V4,
        IpNet::V6(_) => V6,
    };
    let Family { command, .. } = family;
    let names = text_file::read(Path::new(family.names), LONGEST_NAMES).ok()?;
    names.lines().find_map(|table| {
        let rule = match read(&family, table) {
            Ok(read) => {
                let rule = read.and_then(|table| table.cuts_off(network))?;
                format!("{rule} of {command}'s chain FORWARD (table {table})")
            }
            Err(error) => {
                format!("{command}'s table {table} is not understood ({error}) and perhaps")
            }
        };
        let accept = |side| format!("`{command} -t {table} -I FORWARD {side} {network} -j ACCEPT`");
        let remedy = format!("run {} and {}", accept("-s"), accept("-d"));
        Some(Found { rule, remedy })
    })
}

/// A table, unless it has no chain FORWARD.
fn read(family: &Family, name: &str) -> io::Result<Option<Table>> {
    let mut result = Table::read(family.domain, family.level, &family.layout, name);
    for _ in 1..ATTEMPTS {
        match &result {
            // It has grown since its size was asked.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                result = Table::read(family.domain, family.level, &family.layout, name);
            }
            _ => break,
        }
    }
    result
}

const V4: Family = Family {
    command: "iptables-legacy",
    // Of this thread's network namespace.
    names: "/proc/thread-self/net/ip_tables_names",
    domain: AddressFamily::INET,
    level: 0,
    layout: table::V4,
};
const V6: Family = Family {
    command: "ip6tables-legacy",
    names: "/proc/thread-self/net/ip6_tables_names",
    domain: AddressFamily::INET6,
    level: 41,
    layout: table::V6,
};
const LONGEST_NAMES: u64 = 4096;
const LOOK_EVERY: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;
