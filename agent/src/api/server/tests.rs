use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Caller;
use std::thread;

use super::*;
use crate::api::client::{ClientError, call};

/// Serves on a path, answering each call by `answer`, while `body` runs beside it.
fn while_serving(
    answer: impl Fn(Request) -> Option<Reply> + Send + 'static,
    body: impl FnOnce(&Path) + Send + 'static,
) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        let listener = bind(&path).unwrap();
        let (sender, mut calls) = mpsc::channel(4);
        tokio::spawn(serve(listener, Socket::General, sender));
        tokio::spawn(async move {
            while let Some(call) = calls.recv().await {
                if let Some(reply) = answer(call.request) {
                    call.answer.send(reply).unwrap();
                }
            }
        });
        tokio::task::spawn_blocking(move || body(&path))
            .await
            .unwrap();
    });
}

#[test]
fn a_request_is_answered_and_an_error_stays_an_error() {
    let answer = |request| match request {
        Request::Status => Some(Reply::Ok(serde_json::json!({"node": "n1"}))),
        Request::Adopt { container, .. } => Some(Reply::Error(format!("no record of {container}"))),
        // A dropped answer is an agent that is stopping.
        _ => None,
    };
    while_serving(answer, |path| {
        assert_eq!(call(path, &Request::Status).unwrap()["node"], "n1");
        let adopt = Request::Adopt {
            container: "c9".into(),
            ifname: "eth0".into(),
        };
        let refused = call(path, &adopt).unwrap_err();
        assert!(matches!(&refused, ClientError::Refused(reason) if reason == "no record of c9"));
        let refused = call(path, &Request::Peers).unwrap_err().to_string();
        assert!(refused.contains("stopping"), "{refused}");
    });
}

/// Both ends of a capture go on with the connection: the agent behind its line, and the caller by ending its side.
#[test]
fn a_capture_gets_the_connection_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let request = Request::Capture {
        stages: vec!["sent".to_owned()],
        pods: vec![],
        peers: vec![],
        reasons: vec![],
        snap_length: 256,
        sampled: false,
    };
    runtime.block_on(async move {
        let (sender, mut calls) = mpsc::channel(1);
        tokio::spawn(serve(bind(&path).unwrap(), Socket::General, sender));
        let asked = request.clone();
        let caller = tokio::task::spawn_blocking(move || {
            let (value, mut reader) = crate::api::client::open(&path, &request).unwrap();
            assert_eq!(value["node"], "n1");
            let mut next = [0; 4];
            reader.read_exact(&mut next).unwrap();
            assert_eq!(&next, b"rest");
            reader
                .get_ref()
                .shutdown(std::net::Shutdown::Write)
                .unwrap();
            let mut last = String::new();
            reader.read_to_string(&mut last).unwrap();
            last
        });
        let call = calls.recv().await.unwrap();
        assert_eq!(call.request, asked);
        let serving = tokio::task::spawn_blocking(move || {
            let mut connection = call.connection.unwrap();
            connection
                .write_all(b"{\"ok\":{\"node\":\"n1\"}}\nrest")
                .unwrap();
            assert_eq!(connection.read(&mut [0; 8]).unwrap(), 0);
            connection.write_all(b"end").unwrap();
        });
        serving.await.unwrap();
        assert_eq!(caller.await.unwrap(), "end");
    });
}

#[test]
fn what_is_no_request_is_told_so() {
    while_serving(
        |_| None,
        |path| {
            let long = format!("{{\"call\":\"{}\"}}\n", "x".repeat(5000));
            for (line, expected) in [
                ("\n", "not a request"),
                ("nonsense\n", "not a request"),
                ("{\"call\":\"fly\"}\n", "unknown variant `fly`"),
                ("\u{0}\u{0}\n", "not a request"),
                (long.as_str(), "at most 4096 bytes"),
            ] {
                let mut caller = Caller::connect(path).unwrap();
                caller.write_all(line.as_bytes()).unwrap();
                let mut reply = String::new();
                // The rest of an overlong line is never read, so the end may come as a reset.
                let ended = caller.read_to_string(&mut reply);
                assert!(
                    reply.contains("\"error\"") && reply.contains(expected),
                    "{line:.20} {reply} {ended:?}"
                );
            }
        },
    );
}

#[test]
fn more_callers_than_seats_are_served_in_turn() {
    while_serving(
        |_| Some(Reply::Ok(serde_json::Value::Null)),
        |path| {
            thread::scope(|scope| {
                for _ in 0..CONNECTIONS * 2 {
                    scope.spawn(|| call(path, &Request::Status).unwrap());
                }
            });
        },
    );
}

#[test]
fn who_says_nothing_keeps_nobody_waiting() {
    while_serving(
        |_| Some(Reply::Ok(serde_json::Value::Null)),
        |path| {
            let mut idle: Vec<Caller> = Vec::new();
            for _ in 0..WAITING + 50 {
                idle.push(Caller::connect(path).unwrap());
            }
            // Half a request is no request.
            for caller in &mut idle[WAITING..] {
                caller.write_all(b"{").unwrap();
            }
            let began = Instant::now();
            call(path, &Request::Status).unwrap();
            assert!(began.elapsed() < FIRST_BYTE, "{:?}", began.elapsed());
            // The first to come is the first to go, without an answer.
            let mut reply = Vec::new();
            idle[0].read_to_end(&mut reply).unwrap();
            assert!(reply.is_empty());
        },
    );
}

#[test]
fn callers_that_wait_for_a_seat_are_bounded_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async move {
        // No call is taken, so no seat becomes free.
        let (sender, _calls) = mpsc::channel(1);
        tokio::spawn(serve(bind(&path).unwrap(), Socket::General, sender));
        let beyond = 50;
        let closed = tokio::task::spawn_blocking(move || {
            let callers = (0..CONNECTIONS + WAITING + beyond).map(|_| {
                let mut caller = Caller::connect(&path).unwrap();
                caller.write_all(b"{\"call\":\"status\"}\n").unwrap();
                caller.set_nonblocking(true).unwrap();
                caller
            });
            let mut callers: Vec<Caller> = callers.collect();
            let all = callers.len();
            let is_open = |caller: &mut Caller| {
                let read = caller.read(&mut [0]);
                matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            };
            let began = Instant::now();
            while all - callers.len() < beyond && began.elapsed() < LINE_PATIENCE {
                callers.retain_mut(is_open);
                thread::sleep(Duration::from_millis(10));
            }
            all - callers.len()
        });
        assert_eq!(closed.await.unwrap(), beyond);
    });
}

#[test]
fn root_and_the_agents_own_user_may_call_and_nobody_else() {
    assert!(may_call(0, 1000));
    assert!(may_call(1000, 1000));
    assert!(!may_call(1001, 1000));
    assert!(!may_call(1001, 0));
}

#[test]
fn the_socket_is_private_replaces_a_stale_one_and_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    drop(bind(&path).unwrap());
    let listener = bind(&path).unwrap();
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(bind(&file), Err(ServerError::Bind { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let kept: OwnedFd = listener.into();
    adopt(kept.try_clone().unwrap(), &path).unwrap();
    let other = directory.path().join("other.sock");
    assert!(matches!(
        adopt(kept.try_clone().unwrap(), &other),
        Err(ServerError::Stale { .. })
    ));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(adopt(kept, &path), Err(ServerError::Stale { .. })));
    let no_socket = tempfile::tempfile().unwrap();
    assert!(matches!(
        adopt(no_socket.into(), &path),
        Err(ServerError::Stale { .. })
    ));
}
