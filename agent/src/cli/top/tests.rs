//! What `tartan top` shows, drawn in memory.

use std::collections::BTreeMap;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::*;
use crate::api::wire::{
    self, Batches, Carried, KernelCounter, Problem, Reason, TopFlow, TopPeer, TopPod, TopSocket,
    TopWorker,
};

const SECOND: u64 = 1_000_000_000;

fn flow(packets: u64, dropped: u64) -> wire::Flow {
    let reasons: BTreeMap<_, _> = [("NoRoute".to_owned(), dropped)].into();
    wire::Flow {
        received: packets,
        sent: packets - dropped,
        delivered: packets - dropped,
        dropped: reasons,
        ..wire::Flow::default()
    }
}

fn carried(packets: u64) -> Carried {
    Carried {
        sent_packets: packets,
        sent_bytes: packets * 1_000,
        received_packets: packets / 2,
        received_bytes: packets * 500,
    }
}

fn worker(name: &str, packets: u64, seconds: u64) -> TopWorker {
    TopWorker {
        name: name.to_owned(),
        core: Some(3),
        outbound: flow(packets, packets / 100),
        inbound: flow(packets / 2, 0),
        outbound_batches: Some(Batches {
            count: packets / 32,
            packets,
            bytes: packets * 1_000,
        }),
        inbound_batches: Some(Batches::default()),
        busy: Some(seconds * SECOND / 4),
        idle: Some(seconds * SECOND / 4 * 3),
    }
}

fn peer(number: u64, packets: u64) -> TopPeer {
    TopPeer {
        name: format!("node{number}"),
        public_ip: format!("192.0.{}.{}", number / 200 + 2, number % 200 + 1)
            .parse()
            .unwrap(),
        format: "vxlan".to_owned(),
        state: "up".to_owned(),
        in_user_space: carried(packets),
        in_kernel: carried(packets / 4),
        refused: 0,
    }
}

/// A node with traffic, `seconds` after it started.
pub(super) fn busy(seconds: u64, peers: u64) -> Top {
    let packets = seconds * 12_800;
    Top {
        clock: 50 * SECOND + seconds * SECOND,
        node: "node1".to_owned(),
        version: "0.1.0".to_owned(),
        format: "vxlan".to_owned(),
        device: "tartan0".to_owned(),
        service_pid: 4242,
        uptime: seconds,
        problems: vec![],
        peers: (2..2 + peers)
            .map(|number| peer(number, packets * number))
            .collect(),
        pods: vec![TopPod {
            pod: "default/web-1".to_owned(),
            addresses: vec!["10.244.1.7".parse().unwrap()],
            host_ifname: "tartan8f2c".to_owned(),
            traffic: Some(carried(packets)),
            in_kernel: Some(carried(packets)),
        }],
        flows: vec![TopFlow {
            is_outbound: true,
            source: "10.244.1.7".parse().unwrap(),
            destination: "10.244.2.9".parse().unwrap(),
            protocol: 6,
            source_port: 40_000,
            destination_port: 5_201,
            pod: Some("default/web-1".to_owned()),
            peer: Some("node2".to_owned()),
            packets,
            bytes: packets * 1_400,
            age: seconds * SECOND,
            quiet: 0,
        }],
        workers: vec![worker("0", packets, seconds)],
        sockets: vec![TopSocket {
            name: "vxlan 192.0.2.1:8472 worker 0".to_owned(),
            worker: 0,
            queued: 65_536,
            limit: 8 << 20,
        }],
        in_rings: 0,
        drops: vec![Reason {
            reason: "NoRoute".to_owned(),
            direction: "outbound".to_owned(),
            count: packets / 100,
            gloss: "no node of the cluster owns the destination".to_owned(),
        }],
        passed: vec![],
        kernel: vec![KernelCounter {
            place: "tartan0".to_owned(),
            counter: "tx_dropped".to_owned(),
            count: 0,
            gloss: "packets lost before we read them: the queue was full".to_owned(),
        }],
    }
}

fn problem() -> Problem {
    Problem {
        code: "bypass-route".to_owned(),
        subject: String::new(),
        since: 1,
        severity: "error".to_owned(),
        sentence: "a route of the kernel takes 10.244.3.0/24 past the overlay".to_owned(),
        remedy: "remove it".to_owned(),
    }
}

/// A screen with two samples, one second apart.
fn screen_of(tab: Tab, peers: u64) -> Screen {
    let mut screen = Screen::new(tab, Duration::from_secs(1), true);
    let (before, now) = (busy(10, peers), busy(11, peers));
    screen.show(Picture::new(Some(&before), &now), Instant::now());
    screen
}

/// A screen of the path with a problem.
fn screen_with(problem: Problem) -> Screen {
    let mut screen = Screen::new(Tab::Path, Duration::from_secs(1), true);
    let sick = Top {
        problems: vec![problem],
        ..busy(11, 1)
    };
    screen.show(Picture::new(None, &sick), Instant::now());
    screen
}

/// The screen's lines, without blanks at their ends.
fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    drawn_later(screen, width, height, Duration::ZERO)
}

fn drawn_later(screen: &mut Screen, width: u16, height: u16, later: Duration) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = Instant::now() + later;
    terminal
        .draw(|frame| draw::draw(frame, screen, now))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(row).collect()
}

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn text(lines: &[String]) -> String {
    lines.join("\n")
}

/// Sentences that take several lines in one.
fn unwrapped(lines: &[String]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

#[test]
fn the_path_of_packets_fits_80_by_24() {
    let lines = drawn(&mut screen_of(Tab::Path, 3), 80, 24);
    let expected = "\
tartan top  node1  vxlan  up 11 s                                      every 1 s
no problem
 1 path  2 peers (3)  3 pods (1)  4 flows (1)  5 workers (1)  6 drops (1)
     ┌ tartan0 ─────────┐    ┌ workers ─────────┐    ┌ sockets ─────────┐
pods │ 12.8 k/s read    │ ─▶ │ 128/s dropped    │ ─▶ │ 12.7 k/s sent    │ peers
     │ 140800 in all    │    │ 1408 in all      │    │ 139392 in all    │
     └──────────────────┘    └──────────────────┘    └──────────────────┘
     ┌ tartan0 ─────────┐    ┌ workers ─────────┐    ┌ sockets ─────────┐
pods │ 6.40 k/s written │ ◀─ │ 0/s dropped      │ ◀─ │ 6.40 k/s read    │ peers
     │ 70400 in all     │    │ 0 in all         │    │ 70400 in all     │
     └──────────────────┘    └──────────────────┘    └──────────────────┘";
    assert_eq!(text(&lines[..11]), expected, "\n{}", text(&lines));
}

#[test]
fn each_tab_has_its_table() {
    for (tab, parts) in [
        (
            Tab::Peers,
            &["NODE", "TX", "node4", "192.0.2.5", "20 %"][..],
        ),
        (
            Tab::Pods,
            &["POD", "default/web-1", "102 Mbit/s", "10.244.1.7"],
        ),
        (
            Tab::Flows,
            &[
                "10.244.1.7:40000 > 10.244.2.9:5201",
                "tcp",
                "143 Mbit/s",
                "node2",
            ],
        ),
        (Tab::Workers, &["BUSY", "25 %", "32.0", "64.0 KiB"]),
        (
            Tab::Drops,
            &["NoRoute", "128", "1408", "no node of the cluster owns"],
        ),
    ] {
        let text = text(&drawn(&mut screen_of(tab, 3), 140, 24));
        for part in parts {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }
}

#[test]
fn no_line_is_wider_than_any_screen_and_the_first_columns_stay() {
    for tab in Tab::ALL {
        for (width, height) in [(80, 24), (40, 10), (20, 5), (200, 60), (1, 1), (80, 3)] {
            let lines = drawn(&mut screen_of(tab, 200), width, height);
            assert_eq!(lines.len(), usize::from(height));
            if width >= 80 && height >= 24 && tab == Tab::Peers {
                assert!(text(&lines).contains("node201"), "{}", text(&lines));
            }
        }
    }
}

#[test]
fn of_200_peers_the_busiest_come_first_and_the_rest_is_scrolled_to() {
    let mut screen = screen_of(Tab::Peers, 200);
    let lines = drawn(&mut screen, 80, 24);
    assert!(lines[4].starts_with("node201 "), "{}", text(&lines));
    assert_eq!(screen.drawn.height, 19);
    screen.react(&key(KeyCode::End));
    let lines = drawn(&mut screen, 80, 24);
    assert!(lines[22].starts_with("node2 "), "{}", text(&lines));
    screen.react(&key(KeyCode::Char('r')));
    screen.react(&key(KeyCode::Home));
    let lines = drawn(&mut screen, 80, 24);
    assert!(lines[4].starts_with("node2 "), "{}", text(&lines));
    screen.react(&key(KeyCode::Char('/')));
    "node17"
        .chars()
        .for_each(|letter| _ = screen.react(&key(KeyCode::Char(letter))));
    screen.react(&key(KeyCode::Enter));
    let lines = drawn(&mut screen, 80, 24);
    assert_eq!(screen.drawn.rows, 11, "{}", text(&lines));
    assert!(lines[23].contains("filter \"node17\""), "{}", text(&lines));
}

#[test]
fn an_empty_node_says_why_there_is_nothing() {
    let empty = Top {
        clock: 1,
        node: "node1".to_owned(),
        ..Top::default()
    };
    let mut screen = Screen::new(Tab::Path, Duration::from_secs(1), false);
    screen.show(Picture::new(None, &empty), Instant::now());
    for (tab, sentence) in [
        (Tab::Path, "-/s read"),
        (Tab::Peers, "no other node is known"),
        (Tab::Pods, "no pod is attached"),
        (Tab::Flows, "no flow between pods and peers"),
        (Tab::Workers, "no worker runs"),
        (Tab::Drops, "nothing was dropped"),
    ] {
        screen.tab = tab;
        let text = text(&drawn(&mut screen, 80, 24));
        assert!(text.contains(sentence) || tab == Tab::Path, "{text}");
    }
}

#[test]
fn an_agent_that_is_gone_is_named_with_the_age_of_what_is_shown_and_its_return_too() {
    let mut screen = screen_of(Tab::Peers, 3);
    screen.miss("no agent answers on /run/tartan/api.sock; start it with `tartan run`".to_owned());
    let lines = drawn_later(&mut screen, 80, 24, Duration::from_secs(75));
    let shown = unwrapped(&lines);
    assert!(shown.contains("NO ANSWER: no agent answers"), "{shown}");
    assert!(shown.contains("1 min 15 s ago"), "{shown}");
    assert!(shown.contains("node4"), "{shown}");
    let now = busy(12, 3);
    screen.show(Picture::new(Some(&busy(11, 3)), &now), Instant::now());
    let shown = text(&drawn(&mut screen, 80, 24));
    assert!(shown.contains("the agent answers again"), "{shown}");
}

#[test]
fn problems_come_first() {
    let mut screen = Screen::new(Tab::Path, Duration::from_secs(1), true);
    let sick = Top {
        problems: vec![problem(), problem()],
        ..busy(11, 1)
    };
    screen.show(Picture::new(None, &sick), Instant::now());
    let lines = drawn(&mut screen, 80, 24);
    assert!(
        lines[1].starts_with("PROBLEM (and 1 more: `tartan status`): a route of the kernel"),
        "{}",
        text(&lines)
    );
    let words = unwrapped(&lines);
    assert!(words.contains("(and 1 more: `tartan status`)"), "{words}");
    // A long sentence takes the lines that it needs, and says where it is cut.
    let mut long = sick.clone();
    long.problems[0].sentence = "word ".repeat(40) + "end";
    screen.show(Picture::new(None, &long), Instant::now());
    let words = unwrapped(&drawn(&mut screen, 80, 24));
    assert!(words.contains("word end 1 path"), "{words}");
    long.problems[0].sentence = "word ".repeat(100);
    screen.show(Picture::new(None, &long), Instant::now());
    let lines = drawn(&mut screen, 80, 24);
    assert!(lines[4].ends_with('…'), "{}", text(&lines));
    assert!(lines[5].starts_with(" 1 path"), "{}", text(&lines));
    // A short one takes one line.
    let short = drawn(&mut screen_with(problem()), 160, 24);
    assert!(short[2].starts_with(" 1 path"), "{}", text(&short));
}

#[test]
fn what_a_drop_means_is_shown_whole_at_80_columns() {
    let mut top = busy(11, 1);
    let gloss =
        "no node owns the destination; the sender gets ICMP net-unreachable, as from a router";
    for number in 0..30 {
        top.drops.push(Reason {
            reason: format!("Reason{number}"),
            gloss: gloss.to_owned(),
            ..top.drops[0].clone()
        });
    }
    let mut screen = Screen::new(Tab::Drops, Duration::from_secs(1), true);
    screen.show(Picture::new(None, &top), Instant::now());
    let meaning = |lines: &[String]| -> String {
        let at = lines.iter().find_map(|line| line.find("MEANING")).unwrap();
        let cut = lines.iter().skip(4).filter_map(|line| line.get(at - 2..));
        cut.map(str::trim).collect::<Vec<_>>().join(" ")
    };
    let lines = drawn(&mut screen, 80, 24);
    assert!(meaning(&lines).contains(gloss), "{}", text(&lines));
    assert!(!text(&lines).contains('…'), "{}", text(&lines));
    // The last line of the last row is scrolled to.
    screen.react(&key(KeyCode::End));
    let lines = drawn(&mut screen, 80, 24);
    assert!(lines[22].ends_with("router"), "{}", text(&lines));
    let wide = drawn(&mut screen, 200, 60);
    assert!(
        wide.iter().any(|line| line.ends_with(gloss)),
        "{}",
        text(&wide)
    );
}

#[test]
fn the_keys_are_explained_in_two_columns() {
    let mut screen = screen_of(Tab::Path, 1);
    screen.react(&key(KeyCode::Char('?')));
    let lines = drawn(&mut screen, 80, 24);
    let column = |words: &str| {
        let found = lines.iter().find_map(|line| line.split_once(words));
        found.map(|(before, _)| before.chars().count())
    };
    assert!(column("Tab, arrows").is_some(), "{}", text(&lines));
    assert_eq!(column("Tab, arrows"), column("s, S "), "{}", text(&lines));
    assert_eq!(column("another tab"), column("sort by"), "{}", text(&lines));
}

#[test]
fn control_characters_of_names_never_reach_the_terminal() {
    let mut top = busy(11, 1);
    top.node = "evil\u{1b}[2J".to_owned();
    top.peers[0].name = "no\u{1b}[31mde".to_owned();
    let mut screen = Screen::new(Tab::Peers, Duration::from_secs(1), true);
    screen.show(Picture::new(None, &top), Instant::now());
    let shown = text(&drawn(&mut screen, 80, 24));
    assert!(
        shown.contains("evil\\u{1b}[2J") && shown.contains("no\\u{1b}[31mde"),
        "{shown}"
    );
}

#[test]
fn keys_and_mouse_choose_tabs_and_columns() {
    let mut screen = screen_of(Tab::Path, 3);
    for (pressed, tab) in [
        (KeyCode::Tab, Tab::Peers),
        (KeyCode::Right, Tab::Pods),
        (KeyCode::BackTab, Tab::Peers),
        (KeyCode::Char('6'), Tab::Drops),
        (KeyCode::Char('9'), Tab::Drops),
        (KeyCode::Char('2'), Tab::Peers),
    ] {
        assert_eq!(screen.react(&key(pressed)), Action::Draw);
        assert_eq!(screen.tab, tab, "{pressed:?}");
    }
    drawn(&mut screen, 80, 24);
    let click = |column, row| {
        Event::Mouse(MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column,
            row,
            modifiers: KeyModifiers::NONE,
        })
    };
    screen.react(&click(1, 3));
    let lines = drawn(&mut screen, 80, 24);
    assert!(
        lines[3].starts_with("NODE▼") && lines[4].starts_with("node2 "),
        "{}",
        text(&lines)
    );
    screen.react(&click(1, 3));
    let lines = drawn(&mut screen, 80, 24);
    assert!(
        lines[3].starts_with("NODE▲") && lines[4].starts_with("node4 "),
        "{}",
        text(&lines)
    );
    screen.react(&click(4, 2));
    assert_eq!(screen.tab, Tab::Path);
    screen.react(&key(KeyCode::Char('?')));
    assert!(text(&drawn(&mut screen, 80, 24)).contains("another tab"));
    assert_eq!(screen.react(&key(KeyCode::Char('x'))), Action::Draw);
    assert!(!screen.is_helping);
    assert_eq!(
        screen.react(&key(KeyCode::Char('+'))),
        Action::Sample(Duration::from_secs(2))
    );
    for quit in [
        key(KeyCode::Char('q')),
        key(KeyCode::Esc),
        Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
    ] {
        assert_eq!(screen.react(&quit), Action::Quit);
    }
}

#[test]
fn a_paused_picture_stays() {
    let mut screen = screen_of(Tab::Peers, 3);
    screen.react(&key(KeyCode::Char('p')));
    screen.show(Picture::new(None, &busy(30, 7)), Instant::now());
    assert_eq!(screen.picture.as_ref().unwrap().peers.len(), 3);
    screen.react(&key(KeyCode::Char('p')));
    screen.show(Picture::new(None, &busy(31, 7)), Instant::now());
    assert_eq!(screen.picture.as_ref().unwrap().peers.len(), 7);
}

#[test]
fn rates_are_differences_by_the_time_between_them() {
    let (before, now) = (busy(10, 1), busy(14, 1));
    let picture = Picture::new(Some(&before), &now);
    assert_eq!(picture.interval, Some(4.0));
    let peer = &picture.peers[0];
    assert_eq!(peer.traffic.sent_packets.per_second, Some(12_800.0 * 2.5));
    assert_eq!(peer.in_kernel.sent_packets.per_second, Some(12_800.0 / 2.0));
    assert_eq!(picture.path.outbound.dropped.per_second, Some(128.0));
    let worker = &picture.workers[0];
    assert_eq!(worker.busy, Some(0.25));
    let batches = worker.outbound_batches.unwrap();
    assert_eq!(
        (batches.packets_of_one, batches.bytes_of_one),
        (Some(32.0), Some(32_000.0))
    );
    assert_eq!(worker.inbound_batches.unwrap().packets_of_one, None);
    let flow = &picture.flows[0];
    assert_eq!(flow.bytes.per_second, Some(12_800.0 * 1_400.0));
}

#[test]
fn a_counter_that_began_anew_has_no_rate_until_the_next_sample() {
    // Another service: what counts since its start has no rate, what the page keeps has.
    let before = busy(10, 1);
    let restarted = Top {
        service_pid: 4343,
        ..busy(11, 1)
    };
    let picture = Picture::new(Some(&before), &restarted);
    assert_eq!(picture.peers[0].traffic.sent_bytes.per_second, None);
    assert_eq!(picture.peers[0].refused.per_second, None);
    assert_eq!(picture.path.outbound.received.per_second, Some(12_800.0));
    // Another keeper: all counters are smaller.
    let anew = Top {
        clock: before.clock + SECOND,
        service_pid: 4344,
        ..busy(1, 1)
    };
    let picture = Picture::new(Some(&before), &anew);
    assert_eq!(picture.path.outbound.received.per_second, None);
    assert_eq!(picture.workers[0].busy, None);
    assert_eq!(picture.pods[0].traffic.unwrap().sent_bytes.per_second, None);
    assert_eq!(picture.drops[0].count.per_second, None);
}

#[test]
fn a_flow_that_began_between_two_samples_has_a_rate() {
    let (mut before, mut now) = (busy(10, 1), busy(11, 1));
    before.flows.clear();
    now.flows[0].age = SECOND / 2;
    now.flows[0].packets = 100;
    let picture = Picture::new(Some(&before), &now);
    assert_eq!(picture.flows[0].packets.per_second, Some(100.0));
    // One that was counted before, and was not among the heaviest: its part of the interval is not known.
    now.flows[0].age = 5 * SECOND;
    let picture = Picture::new(Some(&before), &now);
    assert_eq!(picture.flows[0].packets.per_second, None);
}

#[test]
fn a_snapshot_is_plain_text_with_all_parts() {
    let picture = Picture::new(Some(&busy(10, 30)), &busy(11, 30));
    let text = snapshot::text(&picture, &Tab::ALL, 20, None);
    for part in [
        "node1  vxlan  up 11 s, over 1.0 s",
        "─▶",
        "NODE",
        "and 10 more peers",
        "10.244.1.7:40000 > 10.244.2.9:5201",
        "NoRoute",
        "BATCH OUT",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
    let narrow = snapshot::text(&picture, &[Tab::Peers], 20, Some(80));
    let widest = narrow.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{narrow}");
}

#[test]
fn intervals_are_bounded() {
    for (text, seconds) in [("1", Some(1.0)), ("0.25", Some(0.25)), ("8", Some(8.0))] {
        assert_eq!(interval(text).ok(), seconds.map(Duration::from_secs_f64));
    }
    for wrong in ["0", "9", "-1", "NaN", "x", ""] {
        assert!(interval(wrong).is_err(), "{wrong}");
    }
}
