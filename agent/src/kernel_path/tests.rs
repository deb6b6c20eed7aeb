use std::collections::HashSet;

use dataplane::kernel_path::TunnelFacts;
use encap::Mac;

use super::upkeep::narrow;
use super::user_space::incapable;
use super::*;
use crate::config::RunArgs;

const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 99);

/// In use, but for programs and tables.
fn control() -> KernelPathControl {
    let root = tempfile::tempdir().unwrap();
    let args = RunArgs {
        root: Some(root.path().to_owned()),
        ..RunArgs::default()
    };
    let config = NodeConfig::load(&args).unwrap();
    KernelPathControl {
        facts: Some(Facts {
            on: true,
            underlay: UnderlayFacts {
                ifindex: 2,
                mac: Mac([2, 0, 0, 0, 0, 1]),
                address: Ipv4Addr::new(192, 0, 2, 1),
                cuts_datagrams_alone: false,
            },
            tunnel: TunnelFacts {
                ifindex: 3,
                mac: None,
            },
            private_port: Some(18_472),
            next_hops: HashMap::new(),
            unusable: HashSet::new(),
            path_mtu: HashMap::new(),
            pods: Vec::new(),
            flows: true,
        }),
        is_live: true,
        ways: HashMap::from([(PEER, Way::Unknown)]),
        ..KernelPathControl::new(&config, Inherited::default())
    }
}

#[test]
fn no_publication_after_a_fault_switches_the_programs_on_again() {
    let mut control = control();
    let reason = OffReason::Refused("a table is full".to_owned());
    control.note_fault(reason.clone());
    assert!(!control.is_live && control.refused.is_some());
    assert_eq!(control.off, Some(reason));
    assert!(!control.facts.unwrap().on, "what is followed next");
}

#[test]
fn a_report_makes_an_entry_of_a_peer_alone_and_prolongs_none() {
    let mut control = control();
    control.note_report(STRANGER, 1_400);
    assert!(control.reported.is_empty());
    control.note_report(PEER, 1_400);
    let since = control.reported.clone();
    assert_eq!(since.len(), 1);
    std::thread::sleep(Duration::from_millis(2));
    control.note_report(PEER, 1_300);
    assert_eq!(control.reported, since);
}

#[test]
fn a_peer_whose_path_is_known_to_be_narrow_is_user_spaces() {
    let paths = [(PEER, 1_400), (STRANGER, 1_500)];
    assert!(narrow(paths.into_iter(), 1_500).eq([PEER]));
    assert_eq!(narrow(paths.into_iter(), 1_400).next(), None);
}

#[test]
fn a_peer_is_sent_what_the_kernel_encapsulates_where_it_or_the_operator_says_so() {
    use UserSpaceReason::{Announced, Unannounced, Written};
    for (written, announced, has_derived_mac, expected) in [
        // Another node of Tartan's, and one that took over the MAC of flannel's device.
        (None, Some(true), true, None),
        (None, Some(true), false, None),
        (None, Some(false), true, Some(Announced)),
        (None, Some(false), false, Some(Announced)),
        // No probe: flannel has a MAC of its own.
        (None, None, true, Some(Unannounced)),
        (None, None, false, None),
        (Some(true), None, true, None),
        (Some(true), Some(false), true, Some(Announced)),
        (Some(false), Some(true), false, Some(Written)),
        (Some(false), None, false, Some(Written)),
    ] {
        assert_eq!(
            incapable(written, announced, has_derived_mac),
            expected,
            "{written:?} {announced:?} {has_derived_mac}"
        );
    }
}

/// A service that takes over from one whose programs act goes on announcing them, until it has decided.
#[test]
fn a_service_that_has_not_decided_announces_the_programs_that_act() {
    let root = tempfile::tempdir().unwrap();
    let args = RunArgs {
        root: Some(root.path().to_owned()),
        kernel_path: Some("auto".to_owned()),
        ..RunArgs::default()
    };
    let config = NodeConfig::load(&args).unwrap();
    let inherited = || Inherited {
        descriptors: vec![(
            "settings".to_owned(),
            std::fs::File::open("/").unwrap().into(),
        )],
        ..Inherited::default()
    };
    // Of a service that was killed with its keeper.
    let port_alone = || Inherited {
        is_at_private_port: true,
        ..Inherited::default()
    };
    for inherited in [inherited(), port_alone()] {
        let mut control = KernelPathControl::new(&config, inherited);
        assert!(control.is_announced());
        control.off = Some(OffReason::UdpBackend);
        assert!(!control.is_announced());
    }
    let nothing = KernelPathControl::new(&config, Inherited::default());
    assert!(!nothing.is_announced());
    let config = NodeConfig {
        kernel_path: KernelPathMode::Off,
        ..config
    };
    for inherited in [inherited(), port_alone()] {
        assert!(!KernelPathControl::new(&config, inherited).is_announced());
    }
}
