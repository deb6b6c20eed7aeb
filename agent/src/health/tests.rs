use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::time::Instant;

use super::*;
use crate::callers::{CONNECTIONS, MOST_READ};
use crate::problems::{HostProblem, Severity};

/// An address of this host that was free a moment ago.
fn free() -> SocketAddr {
    StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn start(address: SocketAddr, run_dir: PathBuf) -> (Health, watch::Sender<Option<Arc<View>>>) {
    start_at(Some(address), None, run_dir)
}

fn start_at(
    probes: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    run_dir: PathBuf,
) -> (Health, watch::Sender<Option<Arc<View>>>) {
    let (published, view) = watch::channel(None);
    let endpoints = Endpoints {
        probes,
        metrics,
        metrics_limit: 256,
    };
    let health = Health::start(endpoints, Sources { view, run_dir }).unwrap();
    (health, published)
}

fn connect(address: SocketAddr) -> StdStream {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match StdStream::connect(address) {
            Ok(stream) => {
                stream
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Code and body.
fn get(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = connect(address);
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (code, body.to_owned())
}

#[test]
fn a_service_that_does_not_forward_yet_is_running_and_not_ready() {
    let run_dir = tempfile::tempdir().unwrap();
    let address = free();
    let (_health, _published) = start(address, run_dir.path().to_owned());
    for request in ["GET /healthz", "POST /healthz", "GET /healthz?verbose"] {
        assert_eq!(
            get(address, request),
            (200, "flanneld is running".to_owned())
        );
    }
    assert_eq!(
        get(address, "GET /readyz"),
        (
            503,
            "flanneld is not ready yet\nthis node does not forward yet: it is starting\n"
                .to_owned()
        )
    );
    start_failure::note(run_dir.path(), "it waits for the registry, etcd");
    let (code, body) = get(address, "GET /readyz");
    assert_eq!(code, 503);
    assert!(
        body.ends_with("\nit waits for the registry, etcd\n"),
        "{body}"
    );
    for other in ["GET /", "GET /metrics", "GET /healthz/"] {
        assert_eq!(get(address, other).0, 404, "{other}");
    }
}

#[test]
fn metrics_have_an_address_of_their_own_or_that_of_the_probes() {
    let run_dir = tempfile::tempdir().unwrap();
    let (probes, metrics) = (free(), free());
    let both = start_at(Some(probes), Some(metrics), run_dir.path().to_owned());
    assert_eq!(get(probes, "GET /healthz").0, 200);
    assert_eq!(get(probes, "GET /metrics").0, 404);
    assert_eq!(get(metrics, "GET /healthz").0, 404);
    let (code, page) = get(metrics, "GET /metrics");
    assert_eq!(code, 200);
    assert!(page.contains("\ntartan_ready 0\n") && page.ends_with("# EOF\n"));
    drop(both);
    let shared = free();
    let one = start_at(Some(shared), Some(shared), run_dir.path().to_owned());
    for path in ["GET /healthz", "GET /metrics"] {
        assert_eq!(get(shared, path).0, 200, "{path}");
    }
    assert!(one.0.problems().is_empty());
}

#[test]
fn a_port_of_metrics_that_is_taken_is_a_problem_of_its_own() {
    let run_dir = tempfile::tempdir().unwrap();
    let taken = StdListener::bind("127.0.0.1:0").unwrap();
    let (probes, metrics) = (free(), taken.local_addr().unwrap());
    let (health, _published) = start_at(Some(probes), Some(metrics), run_dir.path().to_owned());
    let deadline = Instant::now() + Duration::from_secs(20);
    while health.problems().is_empty() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
    let codes: Vec<&str> = health.problems().iter().map(Problem::code).collect();
    assert_eq!(codes, ["metrics-port"]);
    assert_eq!(get(probes, "GET /healthz").0, 200);
}

#[test]
fn a_node_is_ready_unless_pods_are_cut_off() {
    let host = |code, severity| {
        Problem::Host(HostProblem {
            code,
            subject: String::new(),
            sentence: "a rule drops\nall".to_owned(),
            remedy: "change it".to_owned(),
            severity,
            ends_first_start: false,
        })
    };
    let cut_off = host("firewall-cuts-pods-off", Severity::Error);
    let problems = [
        Problem::RegistryLost {
            registry: "etcd".to_owned(),
            reason: "refused".to_owned(),
        },
        cut_off.clone(),
        host("no-shaper", Severity::Error),
        host("settings-record-unwritable", Severity::Warning),
        Problem::WorkersBehind { version: 7 },
        Problem::PodsStranded { pods: Vec::new() },
        Problem::FlanneldRunning(crate::host::Flanneld {
            pid: 7,
            command: "/opt/bin/flanneld".to_owned(),
        }),
    ];
    let found = reasons(problems.iter());
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0], "a rule drops all: change it");
    assert!(
        found[1].starts_with("a worker has not adopted snapshot 7: "),
        "{found:?}"
    );
    assert_eq!(reasons(problems[..1].iter()), Vec::<String>::new());
}

#[test]
fn a_port_that_is_taken_is_a_problem_that_names_the_holder_and_passes() {
    let run_dir = tempfile::tempdir().unwrap();
    let taken = StdListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (health, _published) = start(address, run_dir.path().to_owned());
    let deadline = Instant::now() + Duration::from_secs(20);
    while health.problems().is_empty() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
    let text = health.problems()[0].to_string();
    let holder = format!("process {} (", std::process::id());
    assert!(
        text.contains(&holder) && text.contains(&address.to_string()),
        "{text}"
    );
    drop(taken);
    while !health.problems().is_empty() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(get(address, "GET /healthz").0, 200);
    // The end of the service frees the port.
    drop(health);
    while StdListener::bind(address).is_err() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn callers_that_say_nothing_or_too_much_keep_no_probe_out() {
    let run_dir = tempfile::tempdir().unwrap();
    let address = free();
    let (_health, _published) = start(address, run_dir.path().to_owned());
    let mut silent: Vec<StdStream> = (0..2 * CONNECTIONS).map(|_| connect(address)).collect();
    assert_eq!(get(address, "GET /healthz").0, 200);
    // The oldest was closed for the others at once, not when its time was over.
    let before = Instant::now();
    assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0);
    assert!(before.elapsed() < Duration::from_secs(2));
    // The last one when its time is over.
    let last = silent.last_mut().unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_or(0), 0);
    assert!(before.elapsed() < Duration::from_secs(9));
    // A head that does not end is not read for ever.
    let mut long = connect(address);
    let written = long
        .write_all(b"GET /healthz HTTP/1.1\r\nX: ")
        .and_then(|()| {
            let padding = vec![b'x'; MOST_READ];
            (0..64).try_for_each(|_| long.write_all(&padding))
        });
    let mut rest = Vec::new();
    let read = long.read_to_end(&mut rest);
    assert!(written.is_err() || read.is_err() || rest.is_empty());
    assert_eq!(get(address, "GET /healthz").0, 200);
}
