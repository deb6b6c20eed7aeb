//! `tartan top --web`: the same live picture in a browser.
//!
//! Theory of operation. One thread answers HTTP: the page, its style and its script, which are in this program, and
//! `/events`, a stream of server-sent events (WHATWG HTML, 9.2) with a [`frame`] a sample. Another thread asks the agent
//! while a browser reads that stream, and only then ([`feed`]): a page that nothing shows costs the node nothing.
//!
//! What it tells (peers, pods, flows) is for those who operate the node, and HTTP asks for no password. It listens on
//! loopback unless told otherwise. A page of another site cannot read it: no answer allows another origin, and on loopback a
//! request whose `Host` is a name other than `localhost` is refused, so that a name that an attacker points at 127.0.0.1
//! (DNS rebinding) does not serve either. Nothing is taken from a request but its path.

mod feed;
mod frame;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use axum::http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{Stream, unfold};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::callers::Connections;
use crate::signals::Signals;
use feed::{Feed, Latest};

/// Where the page is if no address is given.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:9892";

/// Shows the node of the agent at `socket` at `address`, with a sample every `interval`, until a signal asks to end.
/// `announce` is called with the address once it is there.
///
/// # Errors
/// When the address cannot be had, or the kernel refuses a thread, a timer or a signal handler.
pub(super) fn serve(
    address: SocketAddr,
    socket: PathBuf,
    interval: Duration,
    announce: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let feed = feed::start(socket, interval)?;
        let answers = axum::serve(
            Connections::without_end(listener),
            router(feed, address.ip()),
        );
        announce(address);
        tokio::select! {
            // It has no end of its own.
            ended = answers => ended,
            // A page that shows the node does not outlive the terminal that it was started from.
            _ = signals.stop_or_reload() => Ok(()),
        }
    })
}

fn router(feed: Arc<Feed>, listens_at: IpAddr) -> Router {
    Router::new()
        .route(
            "/",
            get(|| async { file("text/html; charset=utf-8", PAGE) }),
        )
        .route(
            "/top.css",
            get(|| async { file("text/css; charset=utf-8", STYLE) }),
        )
        .route(
            "/top.js",
            get(|| async { file("text/javascript; charset=utf-8", SCRIPT) }),
        )
        .route("/events", get(events))
        .with_state(feed)
        .layer(from_fn_with_state(listens_at, guard))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind)], text)
}

/// Refuses what another site's page may have asked for, and tells the browser to load nothing from elsewhere.
async fn guard(State(listens_at): State<IpAddr>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if listens_at.is_loopback() && !is_of_this_host(headers) {
        return (StatusCode::MISDIRECTED_REQUEST, NOT_THIS_HOST).into_response();
    }
    // It could read nothing, but take the place of those who watch (Fetch Metadata).
    let is_foreign = |site: &HeaderValue| site == "cross-site";
    if headers.get(FETCH_SITE).is_some_and(is_foreign) && request.uri().path() != "/" {
        return (StatusCode::FORBIDDEN, NOT_THIS_HOST).into_response();
    }
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Whether `Host` is an address or `localhost`: what a browser says that was told to open this host, or the near end of a
/// tunnel to it.
fn is_of_this_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host else { return false };
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    // An IPv6 address without a port is in brackets too (RFC 3986, 3.2.2).
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    is_address
        || name.eq_ignore_ascii_case("localhost")
        || bare.is_some_and(|address| address.parse::<IpAddr>().is_ok())
}

/// The samples from now on, one event each.
async fn events(State(feed): State<Arc<Feed>>) -> Response {
    let Some(latest) = feed.subscribe() else {
        return (StatusCode::SERVICE_UNAVAILABLE, TOO_MANY).into_response();
    };
    Sse::new(stream(latest))
        .keep_alive(KeepAlive::default())
        .into_response()
}

fn stream(latest: watch::Receiver<Latest>) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold(latest, |mut latest| async move {
        // The sampler ends only with the program.
        latest.changed().await.ok()?;
        let event = match &*latest.borrow_and_update() {
            Latest::Nothing => Event::default().comment(""),
            Latest::Frame(text) => Event::default().event("frame").data(text.as_ref()),
            Latest::Fault(reason) => Event::default().event("fault").data(reason.as_ref()),
        };
        Some((Ok(event), latest))
    })
}

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing but this page's own style, script and events, and no frame around it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
/// Which site's page asks, in the words of a browser.
const FETCH_SITE: &str = "sec-fetch-site";
const NOT_THIS_HOST: &str = "this page answers to an address of this host and to localhost alone: open it by one of those\n";
const TOO_MANY: &str = "too many browsers watch this node: close one of them\n";
