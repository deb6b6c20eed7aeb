//! Datagrams that leave as one message, and the sockets they leave through.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;

use dataplane::faults::{self, InjectedFault};
use dataplane::limits::{PROBATION, TRANSMIT_SOCKETS};
use dataplane::now::Now;
use encap::{Family, Format};

use crate::rig::{self, Rig};

/// Faults are of the whole process.
static FAULTS: Mutex<()> = Mutex::new(());

/// A packet of flow `flow`, its number in its payload.
fn numbered(family: Family, flow: u8, number: u16, length: u16) -> Vec<u8> {
    let (mut packet, ports) = match family {
        Family::V4 => (rig::packet(length, true), 20),
        Family::V6 => (rig::packet6_to(2, length), 40),
    };
    packet[ports + 1] = flow;
    packet[ports + 8..ports + 10].copy_from_slice(&number.to_be_bytes());
    packet
}

/// What the kernel cuts is what we put together: every datagram arrives, those of a flow in order, bit for bit.
#[test]
fn a_gso_batch_arrives_as_its_datagrams() {
    let _faults = FAULTS.lock();
    for (format, family) in [
        (Format::Vxlan, Family::V4),
        (Format::Vxlan, Family::V6),
        (Format::Udp, Family::V4),
        (Format::Udp, Family::V6),
    ] {
        let mut rig = Rig::new(format, family, 1500);
        let lengths: [&[u16]; 4] = [&[100], &[1_400], &[1_400, 1_400, 200], &[60, 70, 80, 80]];
        for lengths in lengths {
            let length = |n: u16| lengths[usize::from(n) % lengths.len()];
            let packets: Vec<_> = (0..50)
                .map(|n| numbered(family, n as u8 % 3, n, length(n)))
                .collect();
            rig.send(&packets, Now(0));
            let arrived = rig.arrived();
            let inner: Vec<_> = arrived.iter().map(|b| &b[format.header_len()..]).collect();
            assert_eq!(inner.len(), packets.len());
            let flow = if family == Family::V4 { 21 } else { 41 };
            for of in 0..3 {
                let sent: Vec<_> = packets.iter().filter(|p| p[flow] == of).collect();
                let came: Vec<_> = inner.iter().filter(|p| p[flow] == of).collect();
                assert!(sent.iter().zip(came).all(|(sent, came)| sent == came));
            }
        }
        let totals = rig.totals();
        assert!(totals.offloads.gso_sends);
        assert_eq!((totals.outbound.sent, totals.outbound.balance()), (200, 0));
    }
}

/// Each flow has its source port; there are several, and none is the port that receives.
#[test]
fn a_flow_keeps_its_transmit_socket() {
    for family in [Family::V4, Family::V6] {
        let mut rig = Rig::with_transmit_sockets(family);
        let mut ports: BTreeMap<u8, BTreeSet<u16>> = BTreeMap::new();
        for round in 0..5 {
            let packets: Vec<_> = (0..64)
                .map(|flow| numbered(family, flow, round, 100))
                .collect();
            rig.send(&packets, Now(0));
            let flow = Format::Vxlan.header_len() + if family == Family::V4 { 21 } else { 41 };
            for (from, bytes) in rig.arrived_from() {
                ports.entry(bytes[flow]).or_default().insert(from.port());
            }
        }
        assert_eq!(ports.len(), 64);
        assert!(ports.values().all(|used| used.len() == 1), "{ports:?}");
        let used: BTreeSet<u16> = ports.into_values().flatten().collect();
        let ours = rig.transmits.iter();
        let ours: BTreeSet<u16> = ours.map(|s| s.local_addr().unwrap().port()).collect();
        assert_eq!((used.len(), &used), (TRANSMIT_SOCKETS, &ours));
        assert!(!used.contains(&8472));
    }
}

/// Flows whose transmit socket is not there leave through the first one, and not from the port that receives.
#[test]
fn flows_without_a_transmit_socket_share_the_first() {
    for lanes in [1, 3] {
        let mut rig = Rig::with_lanes(Family::V4, lanes);
        let packets: Vec<_> = (0..64)
            .map(|flow| numbered(Family::V4, flow, 0, 100))
            .collect();
        rig.send(&packets, Now(0));
        let came = rig.arrived_from();
        assert_eq!(came.len(), 64);
        let used: BTreeSet<u16> = came.iter().map(|(from, _)| from.port()).collect();
        let ours = rig.transmits.iter();
        let ours: BTreeSet<u16> = ours.map(|s| s.local_addr().unwrap().port()).collect();
        assert_eq!(used, ours);
    }
}

/// Workers do not read transmit sockets, so the filter drops every datagram that comes to one.
#[test]
fn a_transmit_socket_receives_nothing() {
    let rig = Rig::with_transmit_sockets(Family::V4);
    for socket in &rig.transmits {
        rig.send_back(socket.local_addr().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(5));
        let came = socket.recv(&mut [0; 64]);
        assert_eq!(came.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

/// A kernel that refuses GSO batches: nothing is lost, the offload is given up after three failures, and tried again a
/// minute later.
#[test]
fn a_kernel_without_gso_loses_nothing() {
    let _faults = FAULTS.lock();
    let mut rig = Rig::new(Format::Vxlan, Family::V4, 1500);
    faults::set(InjectedFault::GsoSends, true);
    let mut send = |number: u16, now| {
        let packets: Vec<_> = (0..20)
            .map(|n| numbered(Family::V4, 1, number * 20 + n, 100))
            .collect();
        rig.send(&packets, now);
        let arrived = rig.arrived();
        let inner: Vec<_> = arrived.iter().map(|b| b[22..].to_vec()).collect();
        assert!(inner == packets);
        let totals = rig.totals();
        (totals.offloads.gso_sends, totals.given_up)
    };
    assert_eq!(send(0, Now(0)), (true, 0));
    assert_eq!(send(1, Now(1)), (true, 0));
    assert_eq!(send(2, Now(2)), (false, 1));
    assert_eq!(send(3, Now(3)), (false, 1));
    faults::set(InjectedFault::GsoSends, false);
    let later = Now(2).after(PROBATION);
    assert_eq!(send(4, Now(later.0 - 1)), (false, 1));
    assert_eq!(send(5, later), (true, 1));
}
