use axum::body::Body;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HeaderName};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::super::tests::busy;
use super::*;
use crate::cli::top::picture::Picture;

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn runtime() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// An agent that is not there.
fn feed() -> (tempfile::TempDir, Arc<Feed>) {
    let dir = tempfile::tempdir().unwrap();
    let feed = feed::start(dir.path().join("api.sock"), Duration::from_millis(250)).unwrap();
    (dir, feed)
}

fn ask(path: &str, host: &str, listens_at: IpAddr) -> Response {
    let (_dir, feed) = feed();
    let request = Request::get(path).header(HOST, host);
    let request = request.body(Body::empty()).unwrap();
    runtime()
        .block_on(router(feed, listens_at).oneshot(request))
        .unwrap()
}

fn header(answer: &Response, name: HeaderName) -> &str {
    answer.headers().get(name).unwrap().to_str().unwrap()
}

#[test]
fn the_page_and_what_it_loads_are_there_and_nothing_else() {
    for (path, kind) in [
        ("/", "text/html"),
        ("/top.css", "text/css"),
        ("/top.js", "text/javascript"),
    ] {
        let answer = ask(path, "127.0.0.1:9892", LOOPBACK);
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert!(header(&answer, CONTENT_TYPE).starts_with(kind), "{path}");
        assert!(header(&answer, CONTENT_SECURITY_POLICY).starts_with("default-src 'none'"));
        assert!(answer.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).is_none());
    }
    for path in ["/x", "/../top.js", "/events/"] {
        let answer = ask(path, "127.0.0.1:9892", LOOPBACK);
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    for text in [PAGE, STYLE, SCRIPT] {
        assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("url("));
        assert!(!text.contains("innerHTML"), "a name is never markup");
    }
}

#[test]
fn on_loopback_a_foreign_name_is_refused() {
    for host in [
        "127.0.0.1:9892",
        "localhost:80",
        "LocalHost",
        "[::1]:9892",
        "[::1]",
        "127.0.0.1",
    ] {
        let answer = ask("/", host, LOOPBACK);
        assert_eq!(answer.status(), StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:9892",
        "localhost.evil.example",
        "",
        "[::1",
        "127.0.0.1.evil.example:80",
    ] {
        for path in ["/", "/events"] {
            let answer = ask(path, host, LOOPBACK);
            assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
    }
    // Told to listen elsewhere, it cannot know its names.
    let answer = ask("/", "node1.example", "192.0.2.1".parse().unwrap());
    assert_eq!(answer.status(), StatusCode::OK);
}

#[test]
fn another_sites_page_takes_no_watchers_place() {
    let (_dir, feed) = feed();
    for (path, site, expected) in [
        ("/events", "cross-site", StatusCode::FORBIDDEN),
        ("/top.js", "cross-site", StatusCode::FORBIDDEN),
        // A link to the page may be followed.
        ("/", "cross-site", StatusCode::OK),
        ("/top.js", "same-origin", StatusCode::OK),
    ] {
        let request = Request::get(path).header(HOST, "localhost");
        let request = request.header(FETCH_SITE, site).body(Body::empty());
        let answer = router(Arc::clone(&feed), LOOPBACK).oneshot(request.unwrap());
        assert_eq!(
            runtime().block_on(answer).unwrap().status(),
            expected,
            "{path}"
        );
    }
}

#[test]
fn an_agent_that_does_not_answer_is_said_to_the_browser() {
    let (_dir, feed) = feed();
    let request = Request::get("/events").header(HOST, "localhost");
    let request = request.body(Body::empty()).unwrap();
    let text = runtime().block_on(async {
        let answer = router(feed, LOOPBACK).oneshot(request).await.unwrap();
        assert!(header(&answer, CONTENT_TYPE).starts_with("text/event-stream"));
        let mut body = answer.into_body();
        let next = tokio::time::timeout(Duration::from_secs(10), body.frame());
        let frame = next.await.unwrap().unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    });
    assert!(text.starts_with("event: fault\ndata: "), "{text}");
}

#[test]
fn only_so_many_browsers_watch() {
    let (_dir, feed) = feed();
    let watching: Vec<_> = (0..feed::WATCHERS)
        .map(|_| feed.subscribe().unwrap())
        .collect();
    assert!(feed.subscribe().is_none());
    drop(watching);
    assert!(feed.subscribe().is_some());
}

#[test]
fn a_frame_has_the_tables_of_the_terminal_and_no_more_rows_than_a_browser_needs() {
    let picture = Picture::new(Some(&busy(10, 1_000)), &busy(12, 1_000));
    let frame = serde_json::to_value(frame::Frame::of(&picture)).unwrap();
    let tables = frame["tables"].as_array().unwrap();
    let names: Vec<_> = tables
        .iter()
        .map(|table| table["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["peers", "pods", "flows", "workers", "drops"]);
    let peers = &tables[0];
    let rows = peers["sheet"]["rows"].as_array().unwrap();
    assert_eq!(rows.len() as u64 + peers["more"].as_u64().unwrap(), 1_000);
    let shown = super::super::sheet::peers(&picture);
    let texts = |row: &serde_json::Value| -> Vec<String> {
        let cells = row.as_array().unwrap().iter();
        cells
            .map(|cell| cell["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = shown.order(shown.sorted_by, false, "")[0];
    let first: Vec<_> = shown.rows[first]
        .iter()
        .map(|cell| cell.text.clone())
        .collect();
    assert_eq!(texts(&rows[0]), first);
    assert!(frame["sent"].as_f64().unwrap() > 0.0);
    let bytes = serde_json::to_vec(&frame).unwrap().len();
    assert!(bytes < 300_000, "{bytes} bytes a sample");
}
