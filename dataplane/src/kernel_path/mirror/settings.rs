//! The table `settings`.

use encap::Family;

use crate::kernel_path::layout::{BULK_TCP_PASSES, FLOWS, ON, PRIVATE_PORT, Settings, be};
use crate::kernel_path::tables::Tables;
use crate::kernel_path::{Facts, KernelPathError};
use crate::limits::{
    KERNEL_PATH_FLOW_AFTER, KERNEL_PATH_SOURCE_PORTS, KERNEL_PATH_SOURCE_PORTS_FROM,
};
use crate::spec::NodeSpec;

/// Takes away what the settings are not to have, and ends the epoch if `flows_end`. Where our own end is another, the
/// programs must not act by a part of the one and a part of the other.
pub(super) fn restrict(
    tables: &mut impl Tables,
    node: &NodeSpec,
    facts: &Facts,
    flows_end: bool,
) -> Result<(), KernelPathError> {
    tables.change_settings(&mut |settings| {
        let wanted = wanted(settings, node, facts);
        if flows_end {
            settings.end_epochs();
        }
        if settings.end() == wanted.end() {
            settings.flags &= wanted.flags | PRIVATE_PORT;
            settings.inner_mtu = settings.inner_mtu.min(wanted.inner_mtu);
        } else {
            settings.flags &= PRIVATE_PORT;
        }
    })?;
    Ok(())
}

/// Makes the settings what they are to be. The headers of flows hold our own end: where that is another, the epoch ends.
pub(super) fn extend(
    tables: &mut impl Tables,
    node: &NodeSpec,
    facts: &Facts,
) -> Result<(), KernelPathError> {
    tables.change_settings(&mut |settings| {
        let wanted = wanted(settings, node, facts);
        let is_same = settings.end() == wanted.end();
        *settings = wanted;
        if !is_same {
            settings.end_epochs();
        }
    })?;
    Ok(())
}

fn wanted(now: &Settings, node: &NodeSpec, facts: &Facts) -> Settings {
    let ours = node.public.of(Family::V4) == Some(facts.underlay.address.into());
    let flags = [
        (facts.on && ours, ON),
        (facts.on && ours && facts.flows, FLOWS),
        (facts.private_port.is_some(), PRIVATE_PORT),
        (facts.underlay.cuts_datagrams_alone, BULK_TCP_PASSES),
    ];
    Settings {
        flags: flags
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, flag)| flag)
            .sum(),
        epoch: now.epoch,
        lease_end: now.lease_end,
        underlay_ifindex: facts.underlay.ifindex,
        tunnel_ifindex: facts.tunnel.ifindex,
        local: be(facts.underlay.address),
        inner_mtu: node.inner_mtu.v4,
        vxlan_port: node.vxlan_port.to_be(),
        private_port: facts.private_port.unwrap_or_default().to_be(),
        source_port_base: KERNEL_PATH_SOURCE_PORTS_FROM,
        source_port_count: KERNEL_PATH_SOURCE_PORTS,
        flow_after: KERNEL_PATH_FLOW_AFTER,
        mark: now.mark,
        vni: (node.vni.get() << 8).to_be(),
        underlay_mac: facts.underlay.mac.0,
        vtep: node.vtep_mac.v4.0,
        tunnel_mac: facts.tunnel.mac.unwrap_or_default().0,
        pad: 0,
        oldest_epoch: now.oldest_epoch,
        rules_generation: now.rules_generation,
        unused: 0,
    }
}

impl Settings {
    /// Our own end of every path, and of the way to the host's stack.
    fn end(&self) -> Settings {
        Settings {
            flags: 0,
            epoch: 0,
            oldest_epoch: 0,
            rules_generation: 0,
            unused: 0,
            lease_end: 0,
            inner_mtu: 0,
            private_port: 0,
            flow_after: 0,
            mark: 0,
            ..*self
        }
    }
}
