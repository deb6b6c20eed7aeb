//! The rules in a pod that outlive its interface.

use std::net::IpAddr;

use cni_shim::Attachment;
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;

use super::{Error, messages};
use crate::inventory;
use crate::netlink::Netlink;

/// Removes the rules of the attachment's own table from the pod, which the
/// kernel leaves behind when the interface goes. `interface` is the index of the attachment's interface in the pod. A rule
/// for an address that another interface has is another attachment's.
pub(crate) fn remove_rules(
    pod: &mut Netlink,
    record: &Attachment,
    interface: Option<u32>,
) -> Result<(), Error> {
    let held: Vec<(u32, IpAddr)> = inventory::all_addresses(pod)?;
    let is_own = |source: &IpAddr| {
        let mut given = record.addresses.iter().map(IpNet::addr);
        let is_on_another =
            |(index, address): &(u32, IpAddr)| address == source && Some(*index) != interface;
        given.any(|address| address == *source) && !held.iter().any(is_on_another)
    };
    for v4 in [true, false] {
        for rule in inventory::source_rules(pod, v4)? {
            if Some(rule.table) == record.table
                && rule.priority == messages::RULE_PRIORITY
                && is_own(&rule.source)
            {
                let message = RouteNetlinkMessage::DelRule(rule.message);
                match pod.change("remove the rule of the pod's interface", message, 0) {
                    Err(error) if error.is(Errno::NOENT) => {}
                    result => result?,
                }
            }
        }
    }
    Ok(())
}
