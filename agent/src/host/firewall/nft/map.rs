//! The elements of other programs' maps, as the kernel lists them.

use super::expression::{DATA_VALUE, DATA_VERDICT, VERDICT_CODE};
use super::parse::VERDICT_CHAIN;
use super::set::{ELEMENT_KEY, GET_ELEMENTS, LIST_ELEMENTS, LIST_SET, LIST_TABLE};
use super::{NftError, Socket};
use crate::nfnetlink::attribute::{Attribute, find, number, text, walk};

/// What a map has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct MapElement {
    /// The parts of the key, each padded to 4 bytes.
    pub(in crate::host) key: Vec<u8>,
    pub(in crate::host) data: MapData,
}

/// What a key leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum MapData {
    /// Another chain, by a jump or a goto.
    Chain(String),
    /// The packet is dropped.
    Drop,
    /// Bytes for a register, as a key has them.
    Value(Vec<u8>),
    /// Any other verdict, or what is not understood.
    Other,
}

impl Socket {
    /// The elements of a map in a table of that family. One that says nothing of a key is left out.
    pub(in crate::host) async fn map_elements(
        &mut self,
        family: u8,
        table: &str,
        map: &str,
    ) -> Result<Vec<MapElement>, NftError> {
        let of = [
            Attribute::text(LIST_TABLE, table),
            Attribute::text(LIST_SET, map),
        ];
        let listed = self.list(GET_ELEMENTS, family, &of).await?;
        let parts = listed.iter();
        Ok(parts.flat_map(|part| parse(&part.attributes)).collect())
    }
}

/// The elements in the attributes of one part of the kernel's list.
pub(in crate::host) fn parse(attributes: &[u8]) -> Vec<MapElement> {
    let list = find(attributes, LIST_ELEMENTS).unwrap_or_default();
    let parsed = walk(list).filter_map(|(_, element)| {
        let key = find(find(element, ELEMENT_KEY)?, DATA_VALUE)?.to_vec();
        let data = find(element, ELEMENT_DATA).unwrap_or_default();
        let data = match (find(data, DATA_VERDICT), find(data, DATA_VALUE)) {
            (Some(verdict), _) => of_verdict(verdict),
            (None, Some(value)) => MapData::Value(value.to_vec()),
            (None, None) => MapData::Other,
        };
        Some(MapElement { key, data })
    });
    parsed.collect()
}

fn of_verdict(verdict: &[u8]) -> MapData {
    let code = number(verdict, VERDICT_CODE).map(u32::cast_signed);
    match (code, text(verdict, VERDICT_CHAIN)) {
        (Some(libc::NFT_JUMP | libc::NFT_GOTO), Some(chain)) => MapData::Chain(chain),
        (Some(libc::NF_DROP), _) => MapData::Drop,
        _ => MapData::Other,
    }
}

// Of include/uapi/linux/netfilter/nf_tables.h.
const ELEMENT_DATA: u16 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse(&bytes).len() <= bytes.len() / 4);
        }
    }
}
