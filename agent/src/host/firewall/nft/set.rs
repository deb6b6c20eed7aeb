//! Sets of a table: made with it, their elements changed in place.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;

use super::expression::DATA_VALUE;
use super::{BatchStep, INET, NftError, Socket};
use crate::nfnetlink::attribute::{Attribute, find, walk};

/// A set of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Set {
    pub(in crate::host) name: &'static str,
    pub(in crate::host) key: SetKey,
    pub(in crate::host) content: SetContent,
}

/// What its elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum SetKey {
    Ipv4,
    Ipv6,
    InterfaceName,
    /// An address and a port.
    Ipv4AndPort,
    Ipv6AndPort,
}

/// Where its elements come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum SetContent {
    /// From us: exactly these, as the kernel compares them.
    Fixed(BTreeSet<Vec<u8>>),
    /// From packets: at most `most`, each for `milliseconds` from the last packet on.
    FromPackets { most: u32, milliseconds: u64 },
}

impl SetKey {
    /// nft's number of the type, for listings, and its length in bytes.
    fn of_kernel(self) -> (u32, u32) {
        match self {
            SetKey::Ipv4 => (7, 4),
            SetKey::Ipv6 => (8, 16),
            SetKey::InterfaceName => (41, 16),
            SetKey::Ipv4AndPort => (7 << 6 | 13, 8),
            SetKey::Ipv6AndPort => (8 << 6 | 13, 20),
        }
    }
}

/// An address as an element.
pub(in crate::host) fn address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The name of an interface as an element: padded with zeros.
pub(in crate::host) fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

impl Socket {
    /// The elements of one of our sets.
    pub(in crate::host) async fn elements(
        &mut self,
        table: &str,
        set: &str,
    ) -> Result<BTreeSet<Vec<u8>>, NftError> {
        let of = [
            Attribute::text(LIST_TABLE, table),
            Attribute::text(LIST_SET, set),
        ];
        let listed = self.list(GET_ELEMENTS, INET, &of).await?;
        let lists = listed
            .iter()
            .filter_map(|list| find(&list.attributes, LIST_ELEMENTS));
        let keys = lists.flat_map(|list| {
            walk(list).filter_map(|(_, element)| find(find(element, ELEMENT_KEY)?, DATA_VALUE))
        });
        Ok(keys.map(<[u8]>::to_vec).collect())
    }
}

/// Makes a set and fills it.
pub(in crate::host) fn add_set(table: &str, set: &Set, id: u32) -> Vec<BatchStep> {
    let (kind, length) = set.key.of_kernel();
    let mut attributes = vec![
        Attribute::text(SET_TABLE, table),
        Attribute::text(SET_NAME, set.name),
        Attribute::number(SET_KEY_TYPE, kind),
        Attribute::number(SET_KEY_LEN, length),
        Attribute::number(SET_ID, id),
    ];
    if set.key == SetKey::InterfaceName {
        // For nft, which takes names for numbers of the network otherwise.
        let order = [[KEY_BYTE_ORDER, 4].as_slice(), &HOST_ORDER.to_ne_bytes()].concat();
        attributes.push(Attribute::bytes(SET_USERDATA, &order));
    }
    let mut elements = None;
    match &set.content {
        SetContent::Fixed(fixed) => elements = Some(fixed),
        SetContent::FromPackets { most, milliseconds } => attributes.extend([
            Attribute::number(SET_FLAGS, TIMEOUT | EVAL),
            Attribute::nest(SET_DESC, vec![Attribute::number(DESC_SIZE, *most)]),
            Attribute::long(SET_TIMEOUT, *milliseconds),
        ]),
    }
    let mut steps = vec![BatchStep::new(NEW_SET, NLM_F_CREATE, INET, attributes)];
    steps.extend(
        elements
            .into_iter()
            .flat_map(|elements| add_elements(table, set.name, elements.iter())),
    );
    steps
}

pub(in crate::host) fn add_elements<'a>(
    table: &str,
    set: &str,
    elements: impl Iterator<Item = &'a Vec<u8>>,
) -> Vec<BatchStep> {
    element_steps(NEW_ELEMENTS, NLM_F_CREATE, table, set, elements)
}

pub(in crate::host) fn delete_elements<'a>(
    table: &str,
    set: &str,
    elements: impl Iterator<Item = &'a Vec<u8>>,
) -> Vec<BatchStep> {
    element_steps(DELETE_ELEMENTS, 0, table, set, elements)
}

fn element_steps<'a>(
    kind: u8,
    flags: u16,
    table: &str,
    set: &str,
    elements: impl Iterator<Item = &'a Vec<u8>>,
) -> Vec<BatchStep> {
    let element = |key: &Vec<u8>| {
        let key = vec![Attribute::bytes(DATA_VALUE, key)];
        Attribute::nest(LIST_ELEM, vec![Attribute::nest(ELEMENT_KEY, key)])
    };
    let all: Vec<Attribute> = elements.map(element).collect();
    let step = |part: &[Attribute]| {
        let attributes = vec![
            Attribute::text(LIST_TABLE, table),
            Attribute::text(LIST_SET, set),
            Attribute::nest(LIST_ELEMENTS, part.to_vec()),
        ];
        BatchStep::new(kind, flags, INET, attributes)
    };
    all.chunks(MOST_IN_A_STEP).map(step).collect()
}

/// An attribute is at most 64 KiB long, and an element at most 32 bytes.
const MOST_IN_A_STEP: usize = 1024;

const NEW_SET: u8 = libc::NFT_MSG_NEWSET as u8;
const NEW_ELEMENTS: u8 = libc::NFT_MSG_NEWSETELEM as u8;
pub(super) const GET_ELEMENTS: u8 = libc::NFT_MSG_GETSETELEM as u8;
const DELETE_ELEMENTS: u8 = libc::NFT_MSG_DELSETELEM as u8;
// Attributes (NFTA_*) and flags of include/uapi/linux/netfilter/nf_tables.h, which the libc crate lacks.
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DESC: u16 = 9;
const SET_ID: u16 = 10;
const SET_TIMEOUT: u16 = 11;
const SET_USERDATA: u16 = 13;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`, of libnftnl's udata.h.
const KEY_BYTE_ORDER: u8 = 0;
/// `BYTEORDER_HOST_ENDIAN`, of nft's datatype.h.
const HOST_ORDER: u32 = 1;
const DESC_SIZE: u16 = 1;
/// `NFT_SET_TIMEOUT`
const TIMEOUT: u32 = 0x10;
/// `NFT_SET_EVAL`: packets add elements.
const EVAL: u32 = 0x20;
pub(super) const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
pub(super) const LIST_ELEMENTS: u16 = 3;
const LIST_ELEM: u16 = 1;
pub(super) const ELEMENT_KEY: u16 = 1;
