//! The tests' Kubernetes API server, asked over plain sockets: what goes wrong on request, and the library's calls. What it
//! answers beside the real one is compared by `scripts/tests.d/apiserver_oracle.sh`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::apiserver::ApiServer;
use testbed::eventually;

/// An answer whose body is read in chunks.
struct Answer {
    code: u16,
    headers: String,
    reader: BufReader<TcpStream>,
    chunked: bool,
}

fn connect(server: &ApiServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

fn send(server: &ApiServer, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = connect(server);
    let kind = "application/strategic-merge-patch+json";
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

fn answer(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut headers = String::new();
    while !headers.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut headers).unwrap(), 0, "{headers}");
    }
    let code = headers.split(' ').nth(1).unwrap().parse().unwrap();
    let headers = headers.to_lowercase();
    let chunked = headers.contains("transfer-encoding: chunked");
    Answer {
        code,
        headers,
        reader,
        chunked,
    }
}

impl Answer {
    /// The next chunk; nothing at the proper end of the body.
    fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let mut size = String::new();
        if self.reader.read_line(&mut size)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk)?;
        chunk.truncate(size);
        Ok((size > 0).then(|| String::from_utf8(chunk).unwrap()))
    }

    fn event(&mut self) -> Value {
        serde_json::from_str(&self.chunk().unwrap().unwrap()).unwrap()
    }

    fn body(mut self) -> Value {
        let mut text = String::new();
        if self.chunked {
            while let Some(chunk) = self.chunk().unwrap() {
                text.push_str(&chunk);
            }
        } else {
            self.reader.read_to_string(&mut text).unwrap();
        }
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }
}

fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    let answer = answer(send(server, "GET", path, ""));
    (answer.code, answer.body())
}

fn watch(server: &ApiServer, from: u64) -> Answer {
    let path = format!("/api/v1/nodes?watch=true&allowWatchBookmarks=true&resourceVersion={from}");
    let answer = answer(send(server, "GET", &path, ""));
    assert_eq!(answer.code, 200);
    answer
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"a": "b"}}, "spec": {"podCIDR": "10.244.1.0/24"}})
}

#[test]
fn a_watch_whose_connection_is_dropped_ends_improperly_and_another_one_goes_on() {
    let server = ApiServer::start();
    server.put_node(node("n1"));
    let before = server.revision();
    let mut first = watch(&server, before);
    server.put_node(node("n2"));
    assert_eq!(first.event()["object"]["metadata"]["name"], "n2");
    assert_eq!(server.watches(), 1);
    let seen = server.revision();
    server.drop_watches();
    first.chunk().unwrap_err();
    assert!(server.delete_node("n1"));
    let mut second = watch(&server, seen);
    let event = second.event();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("DELETED"), &json!("n1"))
    );
    drop(second);
    eventually("the watch whose client left is forgotten", || {
        server.watches() == 0
    });
}

#[test]
fn a_watch_is_cut_in_the_middle_of_a_line() {
    let server = ApiServer::start();
    let mut watch = watch(&server, server.revision());
    server.cut_watches();
    server.put_node(node("n1"));
    let half = watch.chunk().unwrap().unwrap();
    assert!(half.starts_with(r#"{"type":"ADDED","object":{"#), "{half}");
    assert!(serde_json::from_str::<Value>(&half).is_err(), "{half}");
    watch.chunk().unwrap_err();
}

#[test]
fn a_black_hole_takes_connections_and_answers_nothing_until_it_ends() {
    let server = ApiServer::start();
    let mut watch = watch(&server, server.revision());
    server.black_hole(true);
    server.put_node(node("n1"));
    let asked = send(&server, "GET", "/api/v1/nodes/n1", "");
    let short = Some(Duration::from_millis(300));
    for stream in [&asked, watch.reader.get_ref()] {
        stream.set_read_timeout(short).unwrap();
        let error = stream.peek(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
    }
    assert_eq!(server.requests().last().unwrap().code, None);
    server.black_hole(false);
    assert_eq!(answer(asked).code, 200);
    assert_eq!(watch.event()["type"], "ADDED");
    let began = Instant::now();
    server.black_hole_for(Duration::from_millis(500));
    assert_eq!(get(&server, "/healthz"), (200, json!("ok")));
    assert!(began.elapsed() >= Duration::from_millis(500));
}

#[test]
fn requests_fail_as_often_as_they_shall() {
    let server = ApiServer::start();
    server.fail(429, 1, Some(7));
    server.fail(500, 2, None);
    let refused = answer(send(&server, "GET", "/api/v1/nodes", ""));
    assert_eq!(refused.code, 429);
    assert!(
        refused.headers.contains("\r\nretry-after: 7\r\n"),
        "{}",
        refused.headers
    );
    // What is not about Nodes does not fail, and uses nothing up.
    assert_eq!(get(&server, "/version").0, 200);
    for _ in 0..2 {
        let (code, status) = get(&server, "/api/v1/nodes");
        assert_eq!((code, &status["reason"]), (500, &json!("InternalError")));
    }
    assert_eq!(get(&server, "/api/v1/nodes").0, 200);
}

#[test]
fn a_server_that_starts_again_has_its_nodes_and_no_history() {
    let server = ApiServer::start();
    server.put_node(node("n1"));
    let before = server.revision();
    server.put_node(node("n2"));
    let mut open = watch(&server, before);
    open.event();
    server.stop();
    open.chunk().unwrap_err();
    TcpStream::connect(server.address()).unwrap_err();
    server.start_again();
    assert_eq!(get(&server, "/api/v1/nodes/n1").1["metadata"]["name"], "n1");
    let event = watch(&server, before).event();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    let mut now = watch(&server, server.revision());
    server.bookmark();
    let bookmark = now.event();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"],
        server.revision().to_string()
    );
}

#[test]
fn so_many_writes_are_remembered() {
    let server = ApiServer::start();
    server.remember(3);
    for number in 0..6 {
        server.put_node(node(&format!("n{number}")));
    }
    let now = server.revision();
    let mut last = watch(&server, now - 3);
    assert_eq!(last.event()["object"]["metadata"]["name"], "n3");
    assert_eq!(watch(&server, now - 4).event()["object"]["code"], 410);
    server.write_elsewhere();
    assert_eq!(server.revision(), now + 1);
}

#[test]
fn generated_nodes_are_of_a_real_size_and_come_in_pages() {
    let server = ApiServer::start();
    server.generate(1200);
    let size = server.node("node-00700").unwrap().to_string().len();
    assert!((9_000..12_000).contains(&size), "{size}");
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let (code, page) = get(
            &server,
            &format!("/api/v1/nodes?limit=500&continue={token}"),
        );
        assert_eq!(code, 200);
        let items = page["items"].as_array().unwrap();
        names.extend(
            items
                .iter()
                .map(|item| item["metadata"]["name"].to_string()),
        );
        // What is written between two pages is in neither.
        server.delete_node("node-01199");
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    names.dedup();
    assert_eq!(names.len(), 1200);
    let pages = server
        .requests()
        .iter()
        .filter(|request| request.query.contains("limit=500"))
        .count();
    assert_eq!(pages, 3);
}

#[test]
fn a_node_that_is_put_again_keeps_its_identity_and_patches_are_written() {
    let server = ApiServer::start();
    server.put_node(node("n1"));
    let first = server.node("n1").unwrap();
    server.put_node(node("n1"));
    let second = server.node("n1").unwrap();
    assert_eq!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_ne!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
    let patch = r#"{"metadata":{"annotations":{"a":null,"c":"d"}}}"#;
    let patched = answer(send(&server, "PATCH", "/api/v1/nodes/n1/status", patch));
    assert_eq!(patched.code, 200);
    assert_eq!(
        server.node("n1").unwrap()["metadata"]["annotations"],
        json!({"c": "d"})
    );
    let request = server.requests().pop().unwrap();
    assert_eq!(
        (request.method.as_str(), request.code),
        ("PATCH", Some(200))
    );
}
