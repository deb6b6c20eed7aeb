//! Netlink attributes as netfilter nests them: built as a tree, written as bytes, and searched for in what the kernel
//! answers.

use std::iter;

use netlink_packet_core::{NLA_F_NESTED, NLA_HEADER_SIZE, NLA_TYPE_MASK};

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    kind: u16,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Bytes(Vec<u8>),
    Nest(Vec<Attribute>),
}

impl Attribute {
    pub(crate) fn bytes(kind: u16, bytes: &[u8]) -> Attribute {
        Attribute {
            kind,
            value: Value::Bytes(bytes.to_vec()),
        }
    }

    /// Netfilter has its numbers in network byte order.
    pub(crate) fn number(kind: u16, number: u32) -> Attribute {
        Attribute::bytes(kind, &number.to_be_bytes())
    }

    pub(crate) fn long(kind: u16, number: u64) -> Attribute {
        Attribute::bytes(kind, &number.to_be_bytes())
    }

    pub(crate) fn text(kind: u16, text: &str) -> Attribute {
        Attribute {
            kind,
            value: Value::Bytes(text.bytes().chain([0]).collect()),
        }
    }

    pub(crate) fn nest(kind: u16, inside: Vec<Attribute>) -> Attribute {
        Attribute {
            kind,
            value: Value::Nest(inside),
        }
    }

    /// Appends it to `out`, padded to four bytes.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self.value {
            Value::Bytes(_) => self.kind,
            Value::Nest(_) => self.kind | NLA_F_NESTED,
        };
        out.extend([0, 0]);
        out.extend(kind.to_ne_bytes());
        match &self.value {
            Value::Bytes(bytes) => out.extend(bytes),
            Value::Nest(inside) => inside.iter().for_each(|attribute| attribute.write(out)),
        }
        // The longest that Tartan writes is a rule, of a few hundred bytes.
        let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
        if let Some(field) = out.get_mut(start..start + 2) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
        out.resize(out.len().next_multiple_of(4), 0);
    }

    /// Whether the attributes in `found` hold this one. What a nest holds
    /// beyond ours does not matter: newer kernels list more.
    pub(crate) fn is_in(&self, found: &[u8]) -> bool {
        let Some(value) = find(found, self.kind) else {
            return false;
        };
        match &self.value {
            Value::Bytes(bytes) => bytes == value,
            Value::Nest(inside) => inside.iter().all(|attribute| attribute.is_in(value)),
        }
    }

    /// What it nests; nothing in one that nests none.
    pub(crate) fn inside(&self) -> &[Attribute] {
        match &self.value {
            Value::Bytes(_) => &[],
            Value::Nest(inside) => inside,
        }
    }
}

/// The attributes in some bytes, as kind and value; ends at the first that does
/// not fit.
pub(crate) fn walk(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(NLA_HEADER_SIZE..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// The value of the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    walk(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

/// A number of 32 bits.
pub(crate) fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(find(bytes, kind)?.try_into().ok()?))
}

/// A number of 64 bits.
pub(crate) fn long(bytes: &[u8], kind: u16) -> Option<u64> {
    Some(u64::from_be_bytes(find(bytes, kind)?.try_into().ok()?))
}

/// A name, without the zero that ends it.
pub(crate) fn text(bytes: &[u8], kind: u16) -> Option<String> {
    let value = find(bytes, kind)?;
    let name = value.split(|byte| *byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree() -> impl Strategy<Value = Attribute> {
        let leaf = (0..100_u16, proptest::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(kind, bytes)| Attribute::bytes(kind, &bytes));
        leaf.prop_recursive(3, 20, 4, |inner| {
            (0..100_u16, proptest::collection::vec(inner, 0..4)).prop_map(|(kind, mut inside)| {
                inside.dedup_by_key(|attribute| attribute.kind);
                Attribute::nest(kind, inside)
            })
        })
    }

    fn written(attributes: &[Attribute]) -> Vec<u8> {
        let mut bytes = Vec::new();
        attributes.iter().for_each(|a| a.write(&mut bytes));
        bytes
    }

    #[test]
    fn an_attribute_is_written_as_the_kernel_reads_it() {
        let rule = Attribute::nest(4, vec![Attribute::text(1, "cmp"), Attribute::number(2, 5)]);
        let mut expected = Vec::new();
        expected.extend(20_u16.to_ne_bytes());
        expected.extend(0x8004_u16.to_ne_bytes());
        expected.extend(8_u16.to_ne_bytes());
        expected.extend(1_u16.to_ne_bytes());
        expected.extend(b"cmp\0");
        expected.extend(8_u16.to_ne_bytes());
        expected.extend(2_u16.to_ne_bytes());
        expected.extend([0, 0, 0, 5]);
        assert_eq!(written(&[rule]), expected);
    }

    #[test]
    fn what_is_told_beyond_ours_does_not_matter_and_what_differs_does() {
        let ours = Attribute::nest(4, vec![Attribute::number(2, 5)]);
        let more = Attribute::nest(4, vec![Attribute::number(9, 1), Attribute::number(2, 5)]);
        let other = Attribute::nest(4, vec![Attribute::number(2, 6)]);
        assert!(ours.is_in(&written(&[Attribute::number(1, 1), more])));
        assert!(!ours.is_in(&written(&[other])));
        assert!(!ours.is_in(&[]));
    }

    proptest! {
        #[test]
        fn what_is_written_is_found(first in tree(), second in tree()) {
            prop_assume!(first.kind != second.kind);
            let bytes = written(&[first.clone(), second.clone()]);
            prop_assert_eq!(bytes.len() % 4, 0);
            prop_assert_eq!(walk(&bytes).count(), 2);
            prop_assert_eq!(find(&bytes, second.kind), walk(&bytes).nth(1).map(|(_, v)| v));
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(walk(&bytes).count() <= bytes.len() / 4);
        }
    }
}
