use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use cni_shim::nlmsg::HEADER;

use super::*;

#[test]
fn the_kernel_answers_and_refuses_in_words() {
    let mut netlink = Netlink::open().unwrap();
    let lo = netlink.link("lo").unwrap().unwrap();
    assert_eq!(lo.mac, [0; 6]);
    assert_eq!(netlink.link("cs-none").unwrap(), None);
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::IfName("cs-none".to_owned()));
    let refused = netlink
        .change("delete it", RouteNetlinkMessage::DelLink(message), 0)
        .unwrap_err();
    assert!(refused.is(rustix::io::Errno::NODEV), "{refused}");
    assert!(!refused.is(rustix::io::Errno::EXIST));
    let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let dumped = netlink.dump("list the interfaces", &question, |_| Some(()));
    assert!(!dumped.unwrap().is_empty());
}

#[test]
fn what_is_done_in_turn_is_done_whatever_the_kernel_says() {
    let mut netlink = Netlink::open().unwrap();
    assert_eq!(netlink.in_turn(|| 7), 7);
    assert!(netlink.link("lo").unwrap().is_some());
    let (mut gone, kernel) = before(Vec::new());
    assert_eq!(kernel.join().unwrap(), 0);
    assert_eq!(gone.in_turn(|| 8), 8);
}

#[test]
fn of_several_changes_each_is_made_and_the_first_refusal_returned() {
    let mut netlink = Netlink::open().unwrap();
    let named = |name: &str| {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        message
    };
    let question = |doing, name: &str| ChangeRequest {
        doing,
        message: RouteNetlinkMessage::GetLink(named(name)),
        flags: 0,
        tolerance: Tolerance::Existing,
    };
    let all = vec![question("look", "lo"), question("look again", "lo")];
    assert_eq!(netlink.change_all(all).unwrap(), [true, true]);
    assert!(netlink.change_all(Vec::new()).unwrap().is_empty());
    let names = ["lo", "cs-none", "cs-nothing", "lo"];
    let doings = ["first", "second", "third", "fourth"];
    let some = doings
        .iter()
        .zip(names)
        .map(|(doing, name)| question(doing, name));
    let refused = netlink.change_all(some.collect()).unwrap_err();
    assert!(
        refused.is(rustix::io::Errno::NODEV) && refused.to_string().contains("second"),
        "{refused}"
    );
    // What was there is no refusal where it might be.
    let create = |tolerance| ChangeRequest {
        doing: "create",
        message: RouteNetlinkMessage::NewLink(named("lo")),
        flags: netlink_packet_core::NLM_F_CREATE | netlink_packet_core::NLM_F_EXCL,
        tolerance,
    };
    assert_eq!(
        netlink
            .change_all(vec![create(Tolerance::Existing), question("look", "lo")])
            .unwrap(),
        [false, true]
    );
    assert!(
        netlink
            .change_all(vec![create(Tolerance::Nothing)])
            .unwrap_err()
            .is(rustix::io::Errno::EXIST)
    );
    assert_eq!(
        netlink
            .change_all(vec![
                create(Tolerance::Anything),
                ChangeRequest {
                    tolerance: Tolerance::Anything,
                    ..question("look", "cs-none")
                },
                question("look", "lo")
            ])
            .unwrap(),
        [false, false, true]
    );
    // Nothing of an earlier exchange is left in the way of the next.
    assert!(netlink.link("lo").unwrap().is_some());
}

#[test]
fn the_kernels_own_words_are_found() {
    let mut message = vec![0; HEADER + 4 + HEADER];
    assert_eq!(kernel_words(&message), "");
    for (kind, value) in [(2u16, &[9u8, 9, 9, 9][..]), (1, b"no room\0")] {
        message.extend((value.len() as u16 + 4).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
    }
    assert_eq!(kernel_words(&message), "no room");
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic_or_loop(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        kernel_words(&bytes);
        let mut rest = bytes.as_slice();
        while let Ok((_, one, tail)) = split("test", rest) {
            prop_assert!(!one.is_empty());
            prop_assert!(tail.len() < rest.len());
            rest = tail;
        }
    }
}

/// A message of an answer: its type, flags and body.
type Said = (u16, u16, Vec<u8>);

const NEW_LINK: u16 = 16;
const REFUSED: u16 = 2;
const DONE: u16 = 3;

/// A kernel that says one of `answers` to each request, a datagram each, and
/// is gone then. It returns how many requests there were.
fn before(answers: Vec<Vec<Said>>) -> (Netlink<OwnedFd>, JoinHandle<usize>) {
    let (socket, kernel) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let answer = move || {
        let mut asked = 0;
        for answer in answers {
            let mut request = [0; 4096];
            let (_, length) = rustix::net::recv(&kernel, &mut request, RecvFlags::empty()).unwrap();
            if length == 0 {
                break;
            }
            asked += 1;
            let sequence = &request[8..12];
            let message = |(kind, flags, body): Said| {
                let length = (HEADER + body.len()) as u32;
                let mut bytes = length.to_ne_bytes().to_vec();
                bytes.extend(kind.to_ne_bytes());
                bytes.extend(flags.to_ne_bytes());
                bytes.extend(sequence);
                bytes.extend([0; 4]);
                bytes.extend(body);
                bytes
            };
            let datagram: Vec<u8> = answer.into_iter().flat_map(message).collect();
            rustix::net::send(&kernel, &datagram, SendFlags::empty()).unwrap();
        }
        asked
    };
    let netlink = Netlink {
        socket,
        sequence: 0,
        buffer: vec![0; LARGEST_DATAGRAM],
    };
    (netlink, std::thread::spawn(answer))
}

/// An interface in a dump. The name has four bytes with its end.
fn link(name: &str, flags: u16) -> Said {
    let mut body = vec![0; 16];
    body.extend(8u16.to_ne_bytes());
    body.extend(3u16.to_ne_bytes());
    body.extend(name.as_bytes());
    body.push(0);
    (NEW_LINK, 2 | flags, body)
}

/// The end of a dump, or an answer without one; 0 or an errno.
fn end(kind: u16, errno: i32) -> Said {
    let mut body = (-errno).to_ne_bytes().to_vec();
    if kind == REFUSED {
        body.extend([0; HEADER]);
    }
    (kind, 2, body)
}

#[test]
fn a_list_of_interfaces_is_whole_or_an_error() {
    let interrupted = || vec![link("tt1", NLM_F_DUMP_INTR), end(DONE, 0)];
    let whole = vec![link("tt2", 0), link("tt3", 0), end(DONE, 0)];
    let (mut netlink, kernel) = before(vec![interrupted(), interrupted(), whole]);
    let links = netlink.links().unwrap();
    let names: Vec<&str> = links.iter().map(|link| &*link.name).collect();
    assert_eq!(names, ["tt2", "tt3"]);
    assert_eq!(kernel.join().unwrap(), 3);

    let always = || (0..9).map(|_| interrupted()).collect();
    let (mut netlink, kernel) = before(always());
    let error = netlink.links().unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    drop(netlink);
    assert_eq!(kernel.join().unwrap(), DUMP_ATTEMPTS as usize);

    for broken in [
        vec![link("tt1", 0), end(REFUSED, 105)],
        vec![link("tt1", 0), end(DONE, 105)],
    ] {
        let (mut netlink, _) = before(vec![broken]);
        let error = netlink.links().unwrap_err();
        assert!(error.is(rustix::io::Errno::NOBUFS), "{error}");
    }
    // It falls silent in the middle.
    let (mut netlink, _) = before(vec![vec![link("tt1", 0)]]);
    assert!(netlink.links().is_err());
}

#[test]
fn an_interface_that_cannot_be_looked_up_is_not_one_that_is_not_there() {
    let (mut netlink, _) = before(vec![vec![end(REFUSED, 19)], vec![end(REFUSED, 12)]]);
    assert_eq!(netlink.link("tt1").unwrap(), None);
    let error = netlink.link("tt1").unwrap_err();
    assert!(error.is(rustix::io::Errno::NOMEM), "{error}");
}
