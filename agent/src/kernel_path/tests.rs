use std::collections::HashSet;

use dataplane::counters::Counters;
use dataplane::engine::Engine;
use dataplane::kernel_path::TunnelFacts;
use encap::Mac;

use super::upkeep::narrow;
use super::user_space::incapable;
use super::*;
use crate::config::RunArgs;
use crate::control::model;
use crate::control::underlay::slot::ReceivePorts;
use crate::host::Host;
use crate::keeper::channel::{Channel, FromKeeper, FromService, PROTOCOL, TablePart};
use crate::test_run::run;

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

/// A keeper that holds nothing, and its service's end.
async fn keeper() -> (Channel, Descriptors) {
    let (keeper, ours) = Channel::pair().unwrap();
    let nothing = TablePart {
        names: Vec::new(),
        last: true,
        restarts: 0,
        last_end: None,
        protocol: PROTOCOL,
        beside: false,
        upgraded: None,
    };
    keeper.send(&FromKeeper::Table(nothing), &[]).await.unwrap();
    let table = Descriptors::receive(ours).await.unwrap();
    (keeper, table)
}

/// The workers may refuse the sockets at the other port. The keeper has those by then, and as long as it has, nothing else can
/// be bound there: the next try must go on with them, and what came to them waits.
#[test]
fn sockets_that_the_workers_refuse_stay_for_the_next_try() {
    run(async {
        let root = tempfile::tempdir().unwrap();
        let model = model::tests::model(root.path(), 0);
        let (known, spec) = (&model.known, &model.desired.spec);
        let host = Host::open(root.path()).await.unwrap();
        let picture = host.picture().await.unwrap();
        let (peer, keeper) = keeper().await;
        // An engine without workers, and so with no place for sockets.
        let counters = Counters::create(1).unwrap();
        counters.set_workers(0);
        let engine = Engine::start(Vec::new(), counters, spec).unwrap();
        let formats = ReceivePorts::of(&known.net_conf.backend);
        let at: std::net::IpAddr = [127, 61, 8, 1].into();
        let private = formats.with_private(Some(18_472));
        let (mut sockets, delay) = UnderlaySockets::none(1).follow(at.into(), &[at], private);
        assert!(delay.is_none(), "{delay:?}");
        let mut control = KernelPathControl::new(&known.config, Inherited::default());
        let mut with = Surroundings {
            host: &host,
            picture: &picture,
            known,
            model: &model,
            spec,
            engine: &engine,
            keeper: &keeper,
            sockets: &mut sockets,
        };
        let refused = control.move_sockets(&mut with, formats).await;
        assert!(matches!(refused, Err(OffReason::Refused(_))), "{refused:?}");
        let backend = &known.net_conf.backend;
        assert_eq!(with.sockets.private_port(backend), Some(18_472));
        let (given, _) = peer.receive::<FromService>().await.unwrap().unwrap();
        let name = "next-receive-vxlan-v4-0".to_owned();
        assert_eq!(given, FromService::Deposit(name.clone()));
        let next = control.inherited.next.take().expect("kept");
        assert_eq!(next.private_port(backend), None);
        let another = with.sockets.at_port(formats);
        assert!(another.is_err(), "they have the port");

        let refused = control.finish_move(&mut with, next).await;
        assert!(matches!(refused, Err(OffReason::Refused(_))), "{refused:?}");
        let next = control.inherited.next.take().expect("kept again");
        // The node gets another address before the workers take them: they are of no use then.
        let at: std::net::IpAddr = [127, 61, 8, 2].into();
        (*with.sockets, _) = UnderlaySockets::none(1).follow(at.into(), &[at], private);
        control.finish_move(&mut with, next).await.unwrap();
        assert!(control.inherited.next.is_none());
        let (given, _) = peer.receive::<FromService>().await.unwrap().unwrap();
        assert_eq!(given, FromService::Withdraw(name));
    });
}
