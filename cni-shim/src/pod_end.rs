//! Which interface of the host is an attachment's end.
//!
//! A record says which, but a record can be damaged, and names can be anybody's. Before an interface is removed, or a record
//! is taken for one whose interface is gone, the interface itself is asked: it is a veth, it has a name of ours, and the alias
//! that the plugin gave it says which pod it is of (`ip link show` prints it).
//!
//! Between the making of a veth and its alias, and with a plugin that set none, it has no alias: then it is the attachment's
//! if its name is one that only this attachment's ends get, and its MAC is [`HOST_MAC`]. One with another alias is not ours.

use crate::attachment::HOST_IFNAME_PREFIX;
use crate::link_name::{HOST_MAC, host_ifname};
use crate::protocol::AttachmentKey;

/// An interface, as far as it is asked.
#[derive(Clone, Copy, Debug)]
pub struct SeenInterface<'a> {
    /// Its name.
    pub name: &'a str,
    /// The kernel's word for what it is: `veth`, `bridge`; empty for hardware.
    pub kind: &'a str,
    /// Its alias; empty for none.
    pub alias: &'a str,
    /// Its hardware address.
    pub mac: &'a [u8],
}

/// The alias of an attachment's end. At most 227 bytes; the kernel takes 255.
pub fn alias(key: &AttachmentKey) -> String {
    format!("{ALIAS}{}:{}", key.container, key.ifname)
}

/// Whether the interface is the end of the attachment `key`, of one of these networks.
pub fn is_end(seen: SeenInterface<'_>, key: &AttachmentKey, networks: &[&str]) -> bool {
    if !is_ours_by_kind(seen) {
        return false;
    }
    if !seen.alias.is_empty() {
        return seen.alias == alias(key);
    }
    seen.mac == HOST_MAC && networks.iter().any(|of| is_named_for(seen.name, key, of))
}

/// Whether the interface is a veth with a name that an attachment's end may have.
pub fn is_ours_by_kind(seen: SeenInterface<'_>) -> bool {
    seen.kind == VETH && has_form(seen.name)
}

/// Whether ADD gives that name to an end of `key` in `network`, and to no other's.
pub fn is_named_for(name: &str, key: &AttachmentKey, network: &str) -> bool {
    has_form(name) && (0..=u8::MAX).any(|attempt| host_ifname(network, key, attempt) == name)
}

/// Whether a name has the form of an end's.
pub fn has_form(name: &str) -> bool {
    let digits = name.strip_prefix(HOST_IFNAME_PREFIX);
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

/// How the alias of every attachment's end begins.
pub const ALIAS: &str = "Tartan pod ";

/// The kernel's word for a veth.
pub const VETH: &str = "veth";

/// Digits of a name behind its prefix.
const DIGITS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container: &str) -> AttachmentKey {
        AttachmentKey {
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
        }
    }

    #[test]
    fn an_end_is_known_by_kind_name_and_alias() {
        let (one, other) = (key("c1"), key("c2"));
        let name = host_ifname("pods", &one, 0);
        let end = SeenInterface {
            name: &name,
            kind: "veth",
            alias: "Tartan pod c1:eth0",
            mac: &[2; 6],
        };
        assert_eq!(alias(&one), end.alias);
        assert!(is_end(end, &one, &[]));
        assert!(!is_end(end, &other, &["pods"]));
        for stranger in [
            SeenInterface {
                kind: "bridge",
                ..end
            },
            SeenInterface { kind: "", ..end },
            SeenInterface {
                name: "eth0",
                ..end
            },
            SeenInterface {
                name: "ttveth0",
                ..end
            },
            SeenInterface {
                name: "tt012345678G",
                ..end
            },
            SeenInterface {
                alias: "Tartan pod c1:eth00",
                ..end
            },
            SeenInterface {
                alias: "tartan",
                ..end
            },
        ] {
            assert!(!is_end(stranger, &one, &["pods"]), "{stranger:?}");
        }
    }

    #[test]
    fn without_an_alias_name_and_mac_decide() {
        let one = key("c1");
        let second = host_ifname("pods", &one, 1);
        let end = SeenInterface {
            name: &second,
            kind: "veth",
            alias: "",
            mac: &HOST_MAC,
        };
        assert!(is_end(end, &one, &["other", "pods"]));
        assert!(!is_end(end, &one, &["other"]) && !is_end(end, &key("c2"), &["pods"]));
        assert!(!is_end(
            SeenInterface {
                mac: &[2; 6],
                ..end
            },
            &one,
            &["pods"]
        ));
        let longest = AttachmentKey {
            container: "c".repeat(200),
            ifname: "i".repeat(15),
        };
        assert_eq!(alias(&longest).len(), 227);
    }
}
