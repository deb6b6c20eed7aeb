//! A small Kubernetes API server for tests: Nodes alone, as `kube-apiserver` serves them, and faults on request.
//!
//! Theory of operation. [`ApiServer`] holds the Nodes in memory and serves them over HTTP from a thread of its own. Every
//! write gets the next `resourceVersion` of one counter and is remembered, up to a limit or [`ApiServer::compact`]; a
//! list in pages is of one revision, and a watch that begins before what is remembered ends with 410, as with the real
//! server. Lists, gets, watches, creations, updates, merge patches, strategic merge patches and deletions answer with
//! the status codes and objects of the real one. `scripts/tests.d/apiserver_oracle.sh` compares the two.
//!
//! It serves no TLS, no protobuf, no label selectors, no server-side apply, no JSON patches (RFC 6902) and no deletion of
//! all Nodes at once, and of what the real server refuses in a Node it knows only the name and the change of `podCIDRs`.
//! It adds no taints and no `managedFields`.
//!
//! The faults are calls here, and `POST /test/...` for programs in other languages: `compact`, `bookmark`, `drop-watches`,
//! `cut-watches`, `black-hole?seconds=N`, `fail?code=CODE&times=N&retry-after=SECONDS`, `nodes?count=N`.

mod access;
mod answers;
mod discovery;
mod faults;
mod list;
mod object;
mod patch;
mod query;
mod refusal;
mod sample;
mod store;
mod target;
mod watch;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use serde_json::Value;
use tokio::sync::oneshot;

use access::Access;
use faults::Faults;
use store::Store;

/// A request that was asked, except those of `/test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// As in `GET`.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// As it was sent, escaped; empty without one.
    pub query: String,
    /// The status code of the answer; nothing while there is none, as in a black hole.
    pub code: Option<u16>,
}

/// An API server. It stops when it is dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

struct Shared {
    store: Mutex<Store>,
    access: Mutex<Access>,
    faults: Faults,
    requests: Mutex<Vec<Request>>,
}

impl ApiServer {
    /// Starts a server without Nodes on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start() -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts a server on an address, in the network namespace of this thread.
    ///
    /// # Panics
    /// When the address is not free.
    pub fn start_on(address: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new()),
            access: Mutex::default(),
            faults: Faults::none(),
            requests: Mutex::default(),
        });
        let (running, address) = serve(shared.clone(), address);
        ApiServer {
            shared,
            address,
            running: Mutex::new(Some(running)),
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As in `http://127.0.0.1:41234`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig without credentials into a folder and returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        self.write_kubeconfig(folder, "kubeconfig", "{}")
    }

    /// The same with a bearer token, in a file of another name.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn kubeconfig_with(&self, folder: &Path, token: &str) -> PathBuf {
        self.write_kubeconfig(folder, "kubeconfig-token", &format!("{{token: {token:?}}}"))
    }

    /// The same in the name of a user, in a file of another name: Go's clients send tokens over TLS alone.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn kubeconfig_as(&self, folder: &Path, user: &str) -> PathBuf {
        self.write_kubeconfig(folder, "kubeconfig-as", &format!("{{as: {user:?}}}"))
    }

    fn write_kubeconfig(&self, folder: &Path, name: &str, user: &str) -> PathBuf {
        let path = folder.join(name);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"{}\"}}}}]\n\
             users: [{{name: test, user: {user}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
            self.url()
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Creates or replaces a Node, status and all. `kind`, `apiVersion`, `uid` and `creationTimestamp` may be missing;
    /// `resourceVersion` is the server's.
    ///
    /// # Panics
    /// When it has no name.
    pub fn put_node(&self, node: Value) {
        self.shared.put(node);
    }

    /// A Node as it is served.
    pub fn node(&self, name: &str) -> Option<Value> {
        let stored = self.shared.store().get(name)?.whole();
        serde_json::from_slice(&stored).ok()
    }

    /// Deletes a Node; returns whether there was one.
    pub fn delete_node(&self, name: &str) -> bool {
        self.shared.store().delete(name).is_some()
    }

    /// Creates the Nodes `node-00000` and so on, of 10 KB each, with subnets of 10.0.0.0/8 and flannel's annotations.
    pub fn generate(&self, count: u32) {
        self.shared.generate(count);
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.shared.store().revision()
    }

    /// Counts a write to something that is no Node, as a cluster makes many of: the revision grows.
    pub fn write_elsewhere(&self) {
        self.shared.store().write_elsewhere();
    }

    /// Forgets all writes: lists and watches that begin at an older revision get 410. Open watches go on.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Remembers no more than so many writes from the next one on.
    pub fn remember(&self, writes: usize) {
        self.shared.store().remember(writes);
    }

    /// Sends a bookmark to every watch that asked for bookmarks.
    pub fn bookmark(&self) {
        self.shared.store().bookmark();
    }

    /// How many watches are open.
    pub fn watches(&self) -> usize {
        self.shared.store().watches()
    }

    /// Breaks the connections of all watches.
    pub fn drop_watches(&self) {
        self.shared.store().drop_watches();
    }

    /// Breaks the connections of all watches at the next write, in the middle of its line.
    pub fn cut_watches(&self) {
        self.shared.store().cut_watches();
    }

    /// Answers nothing any more, or again. Connections stay open and new ones are accepted; what is asked meanwhile is
    /// answered afterwards, if the client still waits.
    pub fn black_hole(&self, on: bool) {
        self.shared.faults.black_hole(on.then_some(FOREVER));
    }

    /// Answers nothing for a time.
    pub fn black_hole_for(&self, time: Duration) {
        self.shared.faults.black_hole(Some(time));
    }

    /// Answers the next requests for Nodes with a status code, 400 to 599, and perhaps a header `Retry-After`, seconds.
    pub fn fail(&self, code: u16, times: usize, retry_after: Option<u64>) {
        self.shared.faults.fail(code, times, retry_after);
    }

    /// Allows a bearer token of a user some rights, each `VERB RESOURCE` as in `list nodes` or `patch nodes/status`, or `*`.
    /// From the first token on, what no token allows is refused: 401 to unknown tokens, 403 else. The empty token is that of
    /// requests without one. Who may everything may ask in the name of another user (`Impersonate-User`).
    pub fn allow(&self, token: &str, user: &str, rights: &[&str]) {
        self.shared.access().allow(token, user, rights);
    }

    /// What was asked, in this order.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests().clone()
    }

    /// Stops: closes all connections and the port. The Nodes stay.
    ///
    /// # Panics
    /// When the server did.
    pub fn stop(&self) {
        let running = self.running.lock().unwrap().take();
        if let Some(running) = running {
            // An error says that it has stopped by itself; then the join says why.
            let _ = running.stop.send(());
            running.thread.join().unwrap();
        }
    }

    /// Starts again on the same address, with the same Nodes; like a real server it remembers no write.
    ///
    /// # Panics
    /// When the address is no longer free.
    pub fn start_again(&self) {
        self.stop();
        self.compact();
        let (running, _) = serve(self.shared.clone(), self.address);
        *self.running.lock().unwrap() = Some(running);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let Ok(running) = self.running.get_mut() else {
            return;
        };
        if let Some(running) = running.take() {
            let _ = running.stop.send(());
            let _ = running.thread.join();
        }
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap()
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap()
    }

    fn put(&self, node: Value) {
        let mut store = self.store();
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let old = store.get(name).map(store::Stored::value);
        let (name, node) = object::given(node, old.as_ref());
        store.put(&name, node);
    }

    fn generate(&self, count: u32) {
        for number in 0..count.min(MOST_NODES) {
            self.put(sample::node(number));
        }
    }

    /// Notes a request; returns its place.
    fn note(&self, request: Request) -> usize {
        let mut requests = self.requests();
        requests.push(request);
        requests.len() - 1
    }

    fn answered(&self, place: usize, code: u16) {
        if let Some(request) = self.requests().get_mut(place) {
            request.code = Some(code);
        }
    }
}

/// Serves on an address from a new thread, until it is told to stop.
fn serve(shared: Arc<Shared>, address: SocketAddr) -> (Running, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // tokio's listener sets SO_REUSEADDR, without which a port stays taken for a minute by connections that were closed.
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
    let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let router = Router::new().fallback(answers::handle).with_state(shared);
    let thread = thread::spawn(move || {
        // The runtime ends with the thread, and with it every connection.
        runtime.block_on(async {
            tokio::select! {
                ended = axum::serve(listener, router) => ended.unwrap(),
                _ = stopped => {}
            }
        });
    });
    (Running { stop, thread }, address)
}

/// A test has ended long before.
const FOREVER: Duration = Duration::from_secs(86_400);
/// As many as 10.0.0.0/8 has /24s.
const MOST_NODES: u32 = 65_536;
