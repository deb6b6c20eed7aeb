//! The settings of an interface that the kernel lists with it: the files of `/proc/sys/net/ipv4/conf/NAME` and
//! `/proc/sys/net/ipv6/conf/NAME`, without opening one of them.

use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, Inet6DevConf, InetDevConf, LinkAttribute, LinkMessage,
};

/// Those of one interface; `None` where it has none of that family.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::host) struct DevConf<'a> {
    pub(in crate::host) v4: Option<&'a InetDevConf>,
    pub(in crate::host) v6: Option<&'a Inet6DevConf>,
}

impl DevConf<'_> {
    /// As a message about the interface has them.
    pub(in crate::host) fn of(message: &LinkMessage) -> DevConf<'_> {
        let mut found = DevConf::default();
        let specs = message
            .attributes
            .iter()
            .filter_map(|attribute| match attribute {
                LinkAttribute::AfSpecUnspec(specs) => Some(specs),
                _ => None,
            });
        for spec in specs.flatten() {
            match spec {
                AfSpecUnspec::Inet(list) => {
                    found.v4 = list.iter().find_map(|entry| match entry {
                        AfSpecInet::DevConf(conf) => Some(conf),
                        _ => None,
                    });
                }
                AfSpecUnspec::Inet6(list) => {
                    found.v6 = list.iter().find_map(|entry| match entry {
                        AfSpecInet6::DevConf(conf) => Some(conf),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        found
    }
}

/// The setting of IPv4 of that file name.
pub(in crate::host) fn value4(conf: &InetDevConf, name: &str) -> i32 {
    match name {
        "forwarding" => conf.forwarding,
        "rp_filter" => conf.rp_filter,
        "accept_local" => conf.accept_local,
        "accept_redirects" => conf.accept_redirects,
        "send_redirects" => conf.send_redirects,
        "accept_source_route" => conf.accept_source_route,
        "arp_ignore" => conf.arp_ignore,
        "ignore_routes_with_linkdown" => conf.ignore_routes_with_linkdown,
        _ => UNREAD,
    }
}

/// The setting of IPv6 of that file name.
pub(in crate::host) fn value6(conf: &Inet6DevConf, name: &str) -> i32 {
    match name {
        "accept_ra" => conf.accept_ra,
        "accept_redirects" => conf.accept_redirects,
        "addr_gen_mode" => conf.addr_gen_mode,
        "force_mld_version" => conf.force_mld_version,
        "forwarding" => conf.forwarding,
        "disable_ipv6" => conf.disable_ipv6,
        "ignore_routes_with_linkdown" => conf.ignore_routes_with_linkdown,
        _ => UNREAD,
    }
}

/// Of a setting that is not read here: no value of any.
pub(in crate::host) const UNREAD: i32 = i32::MIN;
