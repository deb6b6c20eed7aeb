//! A table of iptables-legacy as the kernel gives it out: one piece of bytes,
//! laid out as its `struct ipt_entry` and `struct ip6t_entry`, one rule after
//! the other, each with its matches and its target behind it. Read as hostile
//! bytes all the same: what does not fit ends the reading.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketType};

use crate::host::firewall::chain_walk::{Chains, End, Packets};
use crate::host::firewall::nft::Term;
use crate::host::firewall::nft::{Deed, Line};

/// Where the parts of an entry lie, bytes from its start
/// (include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h).
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Length of an address. Source, destination and their masks are in front.
    address: usize,
    /// The masks of both interfaces' names, 32 bytes.
    interfaces: usize,
    protocol: usize,
    flags: usize,
    /// The flag that makes a jump a goto; any other is a condition.
    goto: u8,
    inversions: usize,
    /// Where the target begins; two bytes behind it, where the next entry does.
    target: usize,
    /// Where the matches begin.
    matches: usize,
}

/// The chain FORWARD of one table, and what it leads to.
#[derive(Debug)]
pub(super) struct Table {
    chains: Chains,
    forward: String,
    /// The number in FORWARD of the entry that stands for the policy.
    policy: usize,
}

impl Table {
    /// Asks the kernel. `None`: the table has no chain FORWARD.
    ///
    /// # Errors
    /// The kernel's, `WouldBlock` among them when the table changed meanwhile;
    /// `InvalidData` for what does not look like a table.
    pub(super) fn read(
        domain: AddressFamily,
        level: i32,
        layout: &Layout,
        name: &str,
    ) -> io::Result<Option<Table>> {
        // Any socket of the family does.
        let socket = rustix::net::socket(domain, SocketType::DGRAM, None)?;
        let mut info = question(name, INFO)?;
        dataplane::read_socket_option(&socket, level, GET_INFO, &mut info)?;
        let field = |place| {
            let number = long(&info, place).and_then(|number| usize::try_from(number).ok());
            number.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        if field(INFO_HOOKS)? & 1 << FORWARD == 0 {
            return Ok(None);
        }
        let size = field(INFO_SIZE)?;
        if size > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut entries = question(name, ENTRIES + size)?;
        if let Some(place) = entries.get_mut(NAME..NAME + 4) {
            place.copy_from_slice(info.get(INFO_SIZE..INFO_SIZE + 4).unwrap_or_default());
        }
        dataplane::read_socket_option(&socket, level, GET_ENTRIES, &mut entries)?;
        let blob = entries.get(ENTRIES..).unwrap_or_default();
        let start = field(INFO_ENTRIES + 4 * FORWARD)?;
        let policy = field(INFO_POLICIES + 4 * FORWARD)?;
        let table = Table::parse(layout, blob, start, policy);
        table
            .map(Some)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// `start`, `policy`: the entries that FORWARD begins and ends with.
    fn parse(layout: &Layout, blob: &[u8], start: usize, policy: usize) -> Option<Table> {
        let mut chains = BTreeMap::new();
        let mut unread = vec![start];
        let mut ends = None;
        while let Some(start) = unread.pop() {
            if chains.contains_key(&start.to_string()) || chains.len() == MOST_CHAINS {
                continue;
            }
            let mut lines = Vec::new();
            let mut offset = start;
            while let Some(entry) = Entry::parse(layout, blob, offset) {
                if entry.begins_chain {
                    break;
                }
                if offset == policy {
                    ends.get_or_insert(lines.len());
                }
                unread.extend(
                    entry
                        .line
                        .leads_to()
                        .and_then(|to| to.parse::<usize>().ok()),
                );
                lines.push(entry.line);
                offset = entry.next;
            }
            chains.insert(start.to_string(), lines);
        }
        Some(Table {
            chains: Chains(chains),
            forward: start.to_string(),
            policy: ends?,
        })
    }

    /// What cuts off packets from pod to pod, if anything does.
    pub(super) fn cuts_off(&self, network: IpNet) -> Option<String> {
        let packets = Packets::between(network);
        let End::Cut(cut) = self.chains.end(&self.forward, &packets) else {
            return None;
        };
        Some(if cut.line == self.policy {
            format!("the policy {}", cut.word)
        } else {
            format!("rule {} ({})", cut.line + 1, cut.word)
        })
    }
}

/// One rule, or the head of a chain.
struct Entry {
    line: Line,
    begins_chain: bool,
    /// Where the next one begins.
    next: usize,
}

impl Entry {
    fn parse(layout: &Layout, blob: &[u8], offset: usize) -> Option<Entry> {
        let bytes = blob.get(offset..)?;
        let target = usize::from(short(bytes, layout.target)?);
        let length = usize::from(short(bytes, layout.target + 2)?);
        let bytes = bytes.get(..length)?;
        let next = offset + length;
        if target < layout.matches || next == offset {
            return None;
        }
        let mut line = Line::empty();
        line.more = layout.asks_more(bytes)? || has_match(bytes.get(layout.matches..target)?);
        for source in [true, false] {
            match layout.term(bytes, source)? {
                Some(Ok(term)) => line.terms.push(term),
                Some(Err(NoPrefix)) => line.more = true,
                None => {}
            }
        }
        let name = name(bytes, target)?;
        let verdict = || Some(long(bytes, target + EXTENSION)?.cast_signed());
        line.deed = match name {
            // The policy and `-j ACCEPT` and its like.
            b"" => match verdict()? {
                -1 => Deed::Cut("DROP"),
                -2 => Deed::Accept,
                -5 => Deed::Return,
                to if to < 0 => Deed::Nothing,
                // A rule without a target.
                to if to.cast_unsigned() as usize == next => Deed::Nothing,
                to if byte(bytes, layout.flags)? & layout.goto != 0 => Deed::Goto(to.to_string()),
                to => Deed::Jump(to.to_string()),
            },
            b"REJECT" => Deed::Cut("REJECT"),
            _ => Deed::Nothing,
        };
        Some(Entry {
            line,
            begins_chain: name == b"ERROR",
            next,
        })
    }
}

/// A mask with a hole.
struct NoPrefix;

impl Layout {
    /// Whether more is asked of a packet than its addresses, matches aside.
    fn asks_more(&self, entry: &[u8]) -> Option<bool> {
        let interfaces = entry.get(self.interfaces..self.interfaces + INTERFACES)?;
        Some(
            interfaces.iter().any(|byte| *byte != 0)
                || short(entry, self.protocol)? != 0
                || byte(entry, self.flags)? & !self.goto != 0,
        )
    }

    /// What is asked of the source or the destination.
    fn term(&self, entry: &[u8], source: bool) -> Option<Option<Result<Term, NoPrefix>>> {
        let part = |number: usize| {
            let start = number * self.address;
            address(entry.get(start..start + self.address)?)
        };
        let (address, mask) = if source {
            (part(0)?, part(2)?)
        } else {
            (part(1)?, part(3)?)
        };
        let inverted = byte(entry, self.inversions)? & if source { NOT_FROM } else { NOT_TO } != 0;
        if mask.is_unspecified() && !inverted {
            return Some(None);
        }
        let Ok(prefix) = IpNet::with_netmask(address, mask) else {
            return Some(Some(Err(NoPrefix)));
        };
        Some(Some(Ok(match (source, inverted) {
            (true, false) => Term::From(prefix),
            (true, true) => Term::NotFrom(prefix),
            (false, false) => Term::To(prefix),
            (false, true) => Term::NotTo(prefix),
        })))
    }
}

/// Whether any of the matches is a condition; one that does not fit is.
fn has_match(matches: &[u8]) -> bool {
    let mut rest = matches;
    while !rest.is_empty() {
        let size = short(rest, 0).map_or(0, usize::from);
        if size == 0 || name(rest, 0) != Some(b"comment") {
            return true;
        }
        let Some(after) = rest.get(size..) else {
            return true;
        };
        rest = after;
    }
    false
}

/// The name in the head of a match or target, which is: length, name of 29
/// bytes, revision.
fn name(bytes: &[u8], head: usize) -> Option<&[u8]> {
    let name = bytes.get(head + 2..head + EXTENSION - 1)?;
    name.split(|byte| *byte == 0).next()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|v6| Ipv6Addr::from(v6).into())
}

/// A question's room, with the table's name in front.
fn question(table: &str, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    match bytes.get_mut(..table.len()) {
        Some(place) if table.len() < NAME => place.copy_from_slice(table.as_bytes()),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    Ok(bytes)
}

fn byte(bytes: &[u8], place: usize) -> Option<u8> {
    bytes.get(place).copied()
}

/// Numbers are the machine's own.
fn short(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(place..)?.first_chunk()?))
}

fn long(bytes: &[u8], place: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(place..)?.first_chunk()?))
}

pub(super) const V4: Layout = Layout {
    address: 4,
    interfaces: 48,
    protocol: 80,
    flags: 82,
    goto: 0x02,
    inversions: 83,
    target: 88,
    matches: 112,
};
pub(super) const V6: Layout = Layout {
    address: 16,
    interfaces: 96,
    protocol: 128,
    flags: 131,
    goto: 0x04,
    inversions: 132,
    target: 140,
    matches: 168,
};
const INTERFACES: usize = 32;
/// `IPT_INV_SRCIP`, and `IPT_INV_DSTIP`; the same for IPv6.
const NOT_FROM: u8 = 0x08;
const NOT_TO: u8 = 0x10;
/// Length of a match's or target's head.
const EXTENSION: usize = 32;
/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`; the same for IPv6.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Room for a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: its length, and where its fields lie.
const INFO: usize = 84;
const INFO_HOOKS: usize = 32;
const INFO_ENTRIES: usize = 36;
const INFO_POLICIES: usize = 56;
const INFO_SIZE: usize = 80;
/// `struct ipt_get_entries`: where the entries begin.
const ENTRIES: usize = 40;
/// `NF_INET_FORWARD`
const FORWARD: usize = 2;
/// More than any table has, in bytes.
const LARGEST: usize = 16 << 20;
/// More chains than a firewall sends packets through.
const MOST_CHAINS: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_end(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            lengths in proptest::collection::vec(0..300_u16, 8),
            start in 0..300_usize,
            policy in 0..2000_usize,
        ) {
            let pods = ["10.244.0.0/16", "fd00:244::/48"].map(|net| net.parse().unwrap());
            for layout in [&V4, &V6] {
                let mut bytes = bytes.clone();
                // Often plausible enough to be read on.
                let mut offset = start;
                for length in &lengths {
                    for (place, value) in [
                        (layout.target, layout.matches as u16),
                        (layout.target + 2, layout.matches as u16 + length),
                    ] {
                        if let Some(field) = bytes.get_mut(offset + place..offset + place + 2) {
                            field.copy_from_slice(&value.to_ne_bytes());
                        }
                    }
                    offset += layout.matches + usize::from(*length);
                }
                if let Some(table) = Table::parse(layout, &bytes, start, policy) {
                    pods.iter().for_each(|net| drop(table.cuts_off(*net)));
                }
            }
        }
    }
}
