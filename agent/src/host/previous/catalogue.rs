//! What a CNI leaves, as its own source names it.

use std::fmt;

/// Everything known of one CNI.
#[derive(Debug)]
pub(super) struct Catalogue {
    /// The project's name.
    pub(super) project: &'static str,
    /// Names of its daemons' processes.
    pub(super) daemons: &'static [&'static str],
    /// Names of processes that have its daemon in them, unless an argument says that they have not.
    pub(super) embedders: &'static [&'static str],
    /// That argument: option and value.
    pub(super) switched_off: (&'static str, &'static str),
    /// TCP ports that its daemons listen on, and for what.
    pub(super) ports: &'static [(u16, &'static str)],
    /// Network interfaces.
    pub(super) devices: &'static [Device],
    /// Tables of nf_tables that are its own, by family.
    pub(super) tables: &'static [(u8, &'static str, &'static str)],
    /// Chains, whatever table they are in.
    pub(super) chains: &'static [Named],
    /// Comments of rules in chains of others.
    pub(super) comments: &'static [Named],
    /// Rules in the chain `FORWARD` of IPv4's table `filter`, whole: their words as iptables-save prints them.
    pub(super) forward_rules: &'static [(&'static str, &'static str)],
    /// Sets of addresses.
    pub(super) sets: &'static [Named],
    /// BPF programs at devices, by the name of the filter.
    pub(super) filters: &'static [Named],
    /// Rules of the routing policy.
    pub(super) rules: &'static [PolicyRule],
    /// Routes.
    pub(super) routes: &'static [RouteForm],
    /// Files and directories.
    pub(super) files: &'static [FileForm],
}

/// A name, and where the project's source has it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: Name,
    pub(super) source: &'static str,
}

/// A network interface.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: Name,
    /// The kernel's words for its kind; any where there are none.
    pub(super) kinds: &'static [&'static str],
    pub(super) source: &'static str,
}

/// A rule of the routing policy.
#[derive(Debug)]
pub(super) struct PolicyRule {
    pub(super) priority: u32,
    /// The table that it leads to; any of 1 to 250 where there is none.
    pub(super) table: Option<u32>,
    /// It holds for packets without the mark.
    pub(super) inverted: bool,
    pub(super) source: &'static str,
}

/// Which routes are the CNI's.
#[derive(Debug)]
pub(super) enum RouteForm {
    /// Those of a protocol number that no other program is known to use.
    Protocol(u8, &'static str),
    /// Those of a protocol number that belongs to a program of that name, which is not the CNI's alone: through Calico's
    /// devices, or blocks of addresses that are refused.
    ProtocolOf(u8, &'static [&'static str], &'static str),
    /// All of a table.
    Table(u32, &'static str),
    /// Of protocol `boot` with a gateway, inside the networks that `subnet.env` names.
    InFlannelNetwork(&'static str),
}

/// A file or a directory.
#[derive(Debug)]
pub(super) struct FileForm {
    pub(super) at: FilePlace,
    pub(super) source: &'static str,
}

/// Where a file is.
#[derive(Debug)]
pub(super) enum FilePlace {
    /// A configuration that runtimes read.
    Configuration(&'static str),
    /// A directory with all that it holds.
    Tree(&'static str),
    /// Files of that name in a directory that others use too.
    In(&'static str, Name),
}

/// The form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// This one.
    Exact(&'static str),
    /// All that begin so and go on.
    Prefix(&'static str),
    /// This beginning and a decimal number.
    Number(&'static str),
    /// This beginning and so many hexadecimal digits in small letters.
    Hex(&'static str, usize),
}

impl Name {
    pub(super) fn matches(self, name: &str) -> bool {
        let rest = |prefix| {
            name.strip_prefix(prefix)
                .filter(|rest: &&str| !rest.is_empty())
        };
        match self {
            Name::Exact(exact) => name == exact,
            Name::Prefix(prefix) => rest(prefix).is_some(),
            Name::Number(prefix) => {
                rest(prefix).is_some_and(|rest| rest.bytes().all(|digit| digit.is_ascii_digit()))
            }
            Name::Hex(prefix, digits) => rest(prefix).is_some_and(|rest| {
                let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
                rest.len() == digits && rest.bytes().all(is_digit)
            }),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Exact(name) => f.write_str(name),
            Name::Prefix(prefix) => write!(f, "{prefix}*"),
            Name::Number(prefix) => write!(f, "{prefix}NUMBER"),
            Name::Hex(prefix, digits) => write!(f, "{prefix} and {digits} hexadecimal digits"),
        }
    }
}

/// The first of the list that matches.
pub(super) fn matching<'a>(list: &'a [Named], name: &str) -> Option<&'a Named> {
    list.iter().find(|named| named.name.matches(name))
}

/// Why a thing is taken for the CNI's.
pub(super) fn reason(what: &str, form: impl fmt::Display, source: &str) -> String {
    format!("{what} {form} ({source})")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{calico, cilium, flannel, weave};
    use super::*;

    const ALL: [&Catalogue; 4] = [
        &flannel::CATALOGUE,
        &calico::CATALOGUE,
        &cilium::CATALOGUE,
        &weave::CATALOGUE,
    ];

    fn names(catalogue: &Catalogue) -> Vec<Name> {
        let lists = [
            catalogue.chains,
            catalogue.comments,
            catalogue.sets,
            catalogue.filters,
        ];
        let files = catalogue.files.iter().filter_map(|form| match form.at {
            FilePlace::In(_, name) => Some(name),
            FilePlace::Configuration(_) | FilePlace::Tree(_) => None,
        });
        let devices = catalogue.devices.iter().map(|device| device.name);
        let listed = lists
            .iter()
            .flat_map(|list| list.iter().map(|named| named.name));
        devices.chain(listed).chain(files).collect()
    }

    #[test]
    fn tartans_own_names_match_nothing() {
        let own = [
            "tartan0",
            "tartan0-gro",
            "flannel-old",
            "tartan",
            "tartan:underlay_in",
            "tartan:pod_out",
            "tartan: pod traffic",
            "tartan-cni",
            "forward",
            "postrouting",
            "prerouting",
            "tns0123456789ab",
            "",
        ];
        let end = cni_shim::pod_end::has_form;
        for catalogue in ALL {
            for name in names(catalogue) {
                for ours in own {
                    assert!(
                        !name.matches(ours),
                        "{}: {name} and {ours}",
                        catalogue.project
                    );
                }
                if let Name::Exact(exact) = name {
                    assert!(!end(exact), "{exact}");
                }
            }
            assert!(
                catalogue
                    .tables
                    .iter()
                    .all(|(_, name, _)| *name != "tartan")
            );
            for form in catalogue.routes {
                if let RouteForm::Protocol(number, _) | RouteForm::ProtocolOf(number, ..) = form {
                    assert_ne!(*number, crate::host::PROTOCOL);
                }
            }
            for form in catalogue.files {
                let (FilePlace::Configuration(path)
                | FilePlace::Tree(path)
                | FilePlace::In(path, _)) = form.at;
                assert!(
                    !path.contains("tartan") && path.matches('/').count() > 1,
                    "{path}"
                );
                assert!(!["/etc/cni/net.d", "/opt/cni/bin", "/run", "/var/lib"].contains(&path));
            }
        }
    }

    /// A name of a host that is none of a CNI's.
    #[test]
    fn names_of_a_host_match_nothing() {
        let hosts = [
            "eth0",
            "lo",
            "bond0",
            "docker0",
            "lxcbr0",
            "lxdbr0",
            "virbr0",
            "br0",
            "veth0a1b2c3",
            "vxlan0",
            "vxlan-1",
            "calico",
            "cali",
            "cali0123456789",
            "cali0123456789abc",
            "caliXYZ45678901",
            "flannel.",
            "flannel.1a",
            "flannel",
            "weave2",
            "INPUT",
            "KUBE-SERVICES",
            "WEAVEX",
            "wg0",
            "docker",
            "cni1",
            "lxc",
            "cilium_",
        ];
        for catalogue in ALL {
            for host in hosts {
                let devices = catalogue.devices.iter().map(|device| device.name);
                let chains = catalogue.chains.iter().map(|named| named.name);
                let found = devices.chain(chains).find(|name| name.matches(host));
                assert_eq!(found, None, "{}: {host}", catalogue.project);
            }
        }
    }

    #[test]
    fn names_as_the_projects_give_them_match() {
        for (catalogue, names) in [
            (
                &flannel::CATALOGUE,
                &[
                    "flannel.1",
                    "flannel.4096",
                    "flannel-v6.1",
                    "cni0",
                    "flannel-wg",
                ][..],
            ),
            (
                &calico::CATALOGUE,
                &["cali82111e10a96", "vxlan.calico", "vxlan-v6.calico"],
            ),
            (
                &cilium::CATALOGUE,
                &[
                    "cilium_host",
                    "cilium_net",
                    "cilium_vxlan",
                    "lxc0123456789ab",
                    "lxc_health",
                ],
            ),
            (
                &weave::CATALOGUE,
                &["weave", "vethwe-bridge", "vethwepl1a2b3c4", "vxlan-6784"],
            ),
        ] {
            for name in names {
                let found = catalogue
                    .devices
                    .iter()
                    .any(|device| device.name.matches(name));
                assert!(found, "{}: {name}", catalogue.project);
            }
        }
    }

    proptest! {
        #[test]
        fn what_matches_begins_as_the_form_says(name in ".{0,40}") {
            for catalogue in ALL {
                for form in names(catalogue) {
                    let (Name::Exact(start) | Name::Prefix(start) | Name::Number(start) | Name::Hex(start, _)) = form;
                    prop_assert!(!form.matches(&name) || name.starts_with(start));
                }
            }
        }
    }
}
