//! Sets of addresses of the kernel (ipset(8)), over nfnetlink: `include/uapi/linux/netfilter/ipset/ip_set.h`.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};

use super::catalogue::{Catalogue, matching, reason};
use super::{Leftover, LeftoverError, LeftoverKind, Thing, refused};
use crate::host::firewall::nft::{NftError, Socket};
use crate::nfnetlink::attribute::{Attribute, text};
use crate::nfnetlink::message::{message_type, request};

pub(super) async fn find(catalogue: &Catalogue) -> Result<Vec<Leftover>, LeftoverError> {
    if catalogue.sets.is_empty() {
        return Ok(Vec::new());
    }
    let names = match names().await {
        // A kernel without ipset has no sets.
        Err(NftError::Unsupported) => Vec::new(),
        names => {
            names.map_err(|source| refused("list the sets of addresses".to_owned(), source))?
        }
    };
    let found = names.into_iter().filter_map(|name| {
        let named = matching(catalogue.sets, &name)?;
        Some(Leftover {
            kind: LeftoverKind::IpSet,
            place: name.clone(),
            why: reason("the name", named.name, named.source),
            effect: "the set goes; one that a rule still uses stays".to_owned(),
            rules: Vec::new(),
            kept: None,
            thing: Thing::IpSet(name),
        })
    });
    Ok(found.collect())
}

/// Destroys a set. One that is gone already is no error.
pub(super) async fn remove(name: &str) -> Result<(), LeftoverError> {
    let attributes = [protocol(), Attribute::text(SET_NAME, name)];
    let done = async {
        let mut socket = Socket::open()?;
        let order = |sequence| message(DESTROY, NLM_F_ACK, &attributes, sequence);
        socket.order_by(order).await
    };
    match done.await {
        Err(NftError::Refused { source }) if source == rustix::io::Errno::NOENT => Ok(()),
        done => done.map_err(|source| refused(format!("destroy the set {name}"), source)),
    }
}

async fn names() -> Result<Vec<String>, NftError> {
    let attributes = [protocol(), Attribute::number(FLAGS, NAMES_ALONE)];
    let mut socket = Socket::open()?;
    let question = |sequence| message(LIST, NLM_F_DUMP | NLM_F_ACK, &attributes, sequence);
    let listed = match socket.list_by(question).await {
        // Of a list without any set.
        Err(NftError::Refused { source }) if source == rustix::io::Errno::NOENT => Vec::new(),
        listed => listed?,
    };
    let mut names: Vec<String> = listed
        .iter()
        .filter_map(|set| text(&set.attributes, SET_NAME))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn message(kind: u8, flags: u16, attributes: &[Attribute], sequence: u32) -> Vec<u8> {
    // The kernel takes a set of any family by its name.
    let family = libc::NFPROTO_IPV4 as u8;
    request(
        message_type(SUBSYSTEM, kind),
        flags,
        family,
        attributes,
        sequence,
    )
}

/// The version that kernels from 2.6.39 on understand.
fn protocol() -> Attribute {
    Attribute::bytes(PROTOCOL, &[6])
}

const SUBSYSTEM: u8 = libc::NFNL_SUBSYS_IPSET as u8;
const DESTROY: u8 = 3;
const LIST: u8 = 7;
const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const FLAGS: u16 = 6;
/// `IPSET_FLAG_LIST_SETNAME`
const NAMES_ALONE: u32 = 1 << 1;
