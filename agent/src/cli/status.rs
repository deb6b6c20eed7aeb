//! `tartan status`: the node at a glance, what is wrong first.

use super::amount::duration;
use super::table::{list, printable};
use super::unix_now;
use super::view::View;
use crate::api::wire::{AttachedProgram, Gathering, Problem, Status, Upgraded, UserSpacePeers};

/// The node as text.
pub(super) fn render(status: &Status, view: &View) -> String {
    let mut text = String::new();
    for problem in &status.problems {
        let Problem {
            sentence, remedy, ..
        } = problem;
        let mark = match &problem.severity[..] {
            "warning" => view.warning("PROBLEM:"),
            _ => view.alarming("PROBLEM:"),
        };
        text.push_str(&format!(
            "{mark} {}: {}\n",
            printable(sentence),
            printable(remedy)
        ));
    }
    if !status.problems.is_empty() {
        text.push('\n');
    }
    let pairs = [
        (
            "node",
            format!("{}, tartan {}", status.node, status.version),
        ),
        ("service", service(status)),
        (
            "underlay",
            format!(
                "{} on {}, MTU {}",
                list([status.public_ip].into_iter().chain(status.public_ipv6)),
                status.underlay,
                status.underlay_mtu
            ),
        ),
        (
            "device",
            format!(
                "{} ({}, {}), MTU {}{}",
                status.device,
                status.device_type,
                status.device_kind,
                status.device_mtu,
                queue(status)
            ),
        ),
        ("workers", workers(status)),
        ("offloads", offloads(status)),
        (
            "subnets",
            format!("{} of {}", list(&status.subnets), list(&status.cluster)),
        ),
        ("format", status.format.clone()),
        (KERNEL_PATH, kernel_path(status)),
        ("peers", status.peers.to_string()),
        ("pods", pods(status)),
        ("gathering", gathering(&status.gathering)),
        ("leases", leases(status)),
        ("tables", tables(status)),
        ("repairs", repairs(status)),
        (
            "packets",
            format!(
                "{} sent, {} delivered, {} dropped",
                status.sent, status.delivered, status.dropped
            ),
        ),
    ];
    // Without it the line would say nothing.
    let is_shown = |(key, _): &(&str, String)| *key != KERNEL_PATH || has_kernel_path(status);
    text.push_str(&view.pairs(pairs.into_iter().filter(is_shown)));
    text
}

fn has_kernel_path(status: &Status) -> bool {
    let path = &status.kernel_path;
    path.in_use || !matches!(&path.mode[..], "" | "off")
}

fn kernel_path(status: &Status) -> String {
    let path = &status.kernel_path;
    if !path.in_use {
        return match &path.reason {
            Some(reason) if path.mode != "off" => format!("not in use: {reason}"),
            _ => "not in use yet".to_owned(),
        };
    }
    let program =
        |attached: &AttachedProgram| format!("{} at {}", attached.program, attached.device);
    // One line for each pod would hide the rest.
    let (pods, others): (Vec<_>, Vec<_>) = path
        .programs
        .iter()
        .partition(|attached| attached.program.starts_with("pod_"));
    let mut programs: Vec<String> = others.into_iter().map(program).collect();
    if !pods.is_empty() {
        programs.push(format!("{} at pods", pods.len()));
    }
    let flows = path.flows.as_ref().map_or_else(String::new, |flows| {
        let refused: u64 = flows.refused.iter().map(|refused| refused.count).sum();
        let revoked: u64 = flows.revoked.iter().map(|revoked| revoked.count).sum();
        format!(
            ", {} flows installed, {refused} refused, all revoked {}",
            flows.installed,
            times(revoked)
        )
    });
    let user_space = path.user_space_peers.iter().map(|peers| {
        let UserSpacePeers { count, gloss, .. } = peers;
        let noun = if *count == 1 { "peer" } else { "peers" };
        format!(", user space sends to {count} {noun} ({gloss})")
    });
    let user_space: String = user_space.collect();
    format!(
        "{}, tables version {}, {}{flows}{user_space}",
        path.mode,
        path.tables,
        programs.join(", ")
    )
}

/// Whether something is wrong.
pub(super) fn problem(status: &Status) -> bool {
    !status.problems.is_empty()
}

fn service(status: &Status) -> String {
    let mut up = format!(
        "process {}, up {}",
        status.service_pid,
        duration(status.uptime)
    );
    if let Some(Upgraded { from, at }) = &status.upgraded {
        let ago = duration(unix_now().saturating_sub(*at));
        up.push_str(&format!(", upgraded from {} {ago} ago", printable(from)));
    }
    match (status.restarts, &status.last_end) {
        (0, _) => format!("{up}, never restarted"),
        (restarts, None) => format!("{up}, restarted {}", times(restarts)),
        (restarts, Some(end)) => {
            format!("{up}, restarted {}: the one before {end}", times(restarts))
        }
    }
}

fn pods(status: &Status) -> String {
    let mut text = format!("{} attached", status.attachments);
    if status.stranded > 0 {
        text.push_str(&format!(", {} of them stranded", status.stranded));
    }
    if let Some(last) = &status.last_reclaimed {
        text.push_str(&format!(
            "; {} reclaimed, the last {last}",
            status.reclaimed
        ));
    }
    text
}

fn gathering(gathering: &Gathering) -> String {
    if !gathering.on {
        return "off (gather)".to_owned();
    }
    let mut text = match gathering.interfaces {
        1 => "at 1 pod's end".to_owned(),
        ends => format!("at {ends} pods' ends"),
    };
    if gathering.flooding > 0 {
        text.push_str(&format!(", {} of them flooding", gathering.flooding));
    }
    for (what, why) in [
        ("not everywhere", &gathering.refused),
        ("no queues in pods", &gathering.no_queues),
        ("no NAPI threads", &gathering.no_threads),
    ] {
        if let Some(why) = why {
            text.push_str(&format!("; {what}: {}", printable(why)));
        }
    }
    text
}

fn queue(status: &Status) -> String {
    let queue = status.device_queue;
    queue.map_or(String::new(), |queue| format!(", queue {queue}"))
}

fn workers(status: &Status) -> String {
    let number = match &status.fewer_workers {
        None => status.workers.to_string(),
        Some(reason) => format!("{}: {reason}", status.workers),
    };
    let cores: Vec<_> = status.cores.iter().flatten().collect();
    match cores.len() {
        0 => number,
        1 => format!("{number}, pinned to core {}", list(cores)),
        _ => format!("{number}, pinned to cores {}", list(cores)),
    }
}

fn offloads(status: &Status) -> String {
    let used = match &status.offloads[..] {
        [] => "none, packet by packet".to_owned(),
        used => used.join(", "),
    };
    match status.offloads_given_up {
        0 => used,
        given_up => format!("{used}; given up {}", times(given_up)),
    }
}

fn leases(status: &Status) -> String {
    let age = duration(status.registry_age);
    let source = match status.registry_cached {
        true => format!(
            "from cache, {age} old; no list yet from {}",
            status.registry
        ),
        false => format!("{}, {age} old", status.registry),
    };
    let source = match status.registry_since {
        _ if status.registry.starts_with("file ") => source,
        None => format!("{source}; not asked yet"),
        Some(since) => {
            let since = duration(since);
            match status.registry_answers {
                true => format!("{source}; in touch for {since}"),
                false => format!("{source}; out of touch for {since}"),
            }
        }
    };
    match &status.registry_last_refused {
        None => source,
        Some(last) => format!(
            "{source}; refused last, {} ago: {}",
            duration(last.age),
            printable(&last.reason)
        ),
    }
}

fn tables(status: &Status) -> String {
    let adopted = if status.snapshot_adopted {
        "used by every worker"
    } else {
        "not yet used by every worker"
    };
    format!("version {}, {adopted}", status.snapshot)
}

fn repairs(status: &Status) -> String {
    match (&status.last_repair, status.repairs) {
        (_, 0) => "none needed".to_owned(),
        (None, repairs) => repairs.to_string(),
        (Some(last), repairs) => format!("{repairs}, the last: {last}"),
    }
}

fn times(number: u64) -> String {
    if number == 1 {
        "once".to_owned()
    } else {
        format!("{number} times")
    }
}

const KERNEL_PATH: &str = "kernel path";

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::wire::KernelPath;

    pub(in crate::cli) fn example() -> Status {
        Status {
            problems: Vec::new(),
            version: "0.1.0".into(),
            node: "node1".into(),
            public_ip: "192.0.2.1".parse().unwrap(),
            public_ipv6: None,
            underlay: "eth0".into(),
            underlay_mtu: 1500,
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            cluster: vec!["10.244.0.0/16".parse().unwrap()],
            format: "vxlan".into(),
            device: "tartan0".into(),
            device_kind: "offload".into(),
            device_type: "tap".into(),
            device_mtu: 1450,
            device_queue: Some(2048),
            offloads: ["checksum", "tcp", "udp", "send"].map(String::from).into(),
            offloads_given_up: 0,
            workers: 1,
            fewer_workers: None,
            cores: vec![None],
            kernel_path: KernelPath::default(),
            peers: 2,
            attachments: 3,
            stranded: 0,
            registry: "file /etc/tartan/nodes.toml".into(),
            registry_age: 12,
            registry_cached: false,
            registry_answers: true,
            registry_since: Some(60),
            registry_last_refused: None,
            snapshot: 7,
            snapshot_adopted: true,
            service_pid: 4242,
            uptime: 3700,
            restarts: 0,
            last_end: None,
            upgraded: None,
            repairs: 0,
            last_repair: None,
            reclaimed: 0,
            last_reclaimed: None,
            gathering: Gathering {
                on: true,
                interfaces: 3,
                queues: true,
                ..Gathering::default()
            },
            sent: 10,
            delivered: 9,
            dropped: 1,
        }
    }

    pub(in crate::cli) fn problem_of(sentence: &str) -> Problem {
        Problem {
            code: "api-socket".into(),
            subject: String::new(),
            since: 0,
            severity: "error".into(),
            sentence: sentence.into(),
            remedy: "act".into(),
        }
    }

    #[test]
    fn a_healthy_node() {
        assert_eq!(
            render(&example(), &View::default()),
            "\
node       node1, tartan 0.1.0
service    process 4242, up 1 h 1 min, never restarted
underlay   192.0.2.1 on eth0, MTU 1500
device     tartan0 (tap, offload), MTU 1450, queue 2048
workers    1
offloads   checksum, tcp, udp, send
subnets    10.244.1.0/24 of 10.244.0.0/16
format     vxlan
peers      2
pods       3 attached
gathering  at 3 pods' ends
leases     file /etc/tartan/nodes.toml, 12 s old
tables     version 7, used by every worker
repairs    none needed
packets    10 sent, 9 delivered, 1 dropped
"
        );
        assert!(!problem(&example()));
    }

    #[test]
    fn what_is_wrong_comes_first_and_cannot_drive_the_terminal() {
        let status = Status {
            problems: vec![problem_of("line 3: \u{1b}[1mno"), problem_of("two")],
            device_kind: "plain".into(),
            device_type: "tun".into(),
            device_queue: None,
            fewer_workers: Some("the plain device has one queue".into()),
            cores: vec![Some(3)],
            offloads: Vec::new(),
            offloads_given_up: 2,
            restarts: 1,
            last_end: Some("was killed by signal 9 (SIGKILL) after 3.0 s".into()),
            upgraded: None,
            repairs: 2,
            last_repair: Some("address 10.244.1.0/32 was missing".into()),
            reclaimed: 0,
            last_reclaimed: None,
            snapshot_adopted: false,
            registry_age: 180,
            registry_cached: true,
            ..example()
        };
        let text = render(&status, &View::default());
        assert!(
            text.starts_with("PROBLEM: line 3: \\u{1b}[1mno: act\nPROBLEM: two: act\n\nnode"),
            "{text}"
        );
        for part in [
            "restarted once: the one before was killed by signal 9 (SIGKILL) after 3.0 s\n",
            "2, the last: address 10.244.1.0/32 was missing\n",
            "device     tartan0 (tun, plain), MTU 1450\n",
            "workers    1: the plain device has one queue, pinned to core 3\n",
            "offloads   none, packet by packet; given up 2 times\n",
            "version 7, not yet used by every worker\n",
            "leases     from cache, 3 min old; no list yet from file /etc/tartan/nodes.toml\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(problem(&status));
    }
}
