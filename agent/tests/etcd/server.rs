//! An etcd of one member with a temporary data directory.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, CompactionOptions, ConnectOptions, GetOptions, Identity, PutOptions,
    TlsOptions,
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

pub(crate) const PREFIX: &str = "/coreos.com/network";

pub(crate) struct Server {
    directory: TempDir,
    ports: (u16, u16),
    scheme: &'static str,
    arguments: Vec<String>,
    /// How the test itself connects.
    pub(crate) options: ConnectOptions,
    child: Option<Child>,
}

impl Server {
    /// Starts one without TLS, and waits until it answers.
    pub(crate) async fn start() -> Server {
        let mut server = Server::new("http", Vec::new(), ConnectOptions::new());
        server.run().await;
        server
    }

    /// Starts one that asks for certificates.
    pub(crate) async fn start_tls(certificates: &TempDir) -> Server {
        let mut server = Server::new_tls(certificates, true);
        server.run().await;
        server
    }

    /// One with a certificate, which may ask for them: the directory has `ca.pem`, `server.pem`, `server.key`,
    /// `client.pem` and `client.key`.
    pub(crate) fn new_tls(certificates: &TempDir, asks: bool) -> Server {
        let path = |name: &str| certificates.path().join(name);
        let argument = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
        let mut arguments = vec![
            argument("cert-file", "server.pem"),
            argument("key-file", "server.key"),
        ];
        if asks {
            arguments.push(argument("trusted-ca-file", "ca.pem"));
            arguments.push("--client-cert-auth=true".to_owned());
        }
        let read = |name: &str| std::fs::read(path(name)).unwrap();
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read("ca.pem")))
            .identity(Identity::from_pem(read("client.pem"), read("client.key")));
        Server::new("https", arguments, ConnectOptions::new().with_tls(tls))
    }

    /// One that does not run yet.
    pub(crate) fn new(
        scheme: &'static str,
        arguments: Vec<String>,
        options: ConnectOptions,
    ) -> Server {
        Server {
            directory: tempfile::tempdir().unwrap(),
            ports: (free_port(), free_port()),
            scheme,
            arguments,
            options,
            child: None,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.ports.0)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) async fn run(&mut self) {
        let peer = format!("http://127.0.0.1:{}", self.ports.1);
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let child = Command::new("/usr/bin/etcd")
            .args(["--name", "test", "--log-level", "error", "--logger", "zap"])
            .arg("--data-dir")
            .arg(self.data())
            .args(["--listen-client-urls", &self.url()])
            .args(["--advertise-client-urls", &self.url()])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            // Nothing here has to survive a power failure.
            .arg("--unsafe-no-fsync")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("/usr/bin/etcd (Debian package etcd-server) starts");
        self.child = Some(child);
        let start = Instant::now();
        loop {
            if let Some(mut client) = self.connect().await
                && let Ok(Ok(_)) = timeout(Duration::from_secs(1), client.get("x", None)).await
            {
                return;
            }
            if start.elapsed() > Duration::from_secs(30) {
                let log = std::fs::read_to_string(self.directory.path().join("log"));
                panic!("etcd does not answer: {}", log.unwrap_or_default());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Lets the server run at other ports meanwhile: a node that knows the usual one does not see what is done.
    pub(crate) async fn elsewhere(&mut self, what: impl AsyncFnOnce(&Server)) {
        let usual = std::mem::replace(&mut self.ports, (free_port(), free_port()));
        self.run().await;
        what(self).await;
        self.kill();
        self.ports = usual;
    }

    /// Deletes what a server that does not run has stored.
    pub(crate) fn wipe(&mut self) {
        assert!(self.child.is_none());
        std::fs::remove_dir_all(self.data()).unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(status.success());
    }

    async fn connect(&self) -> Option<Client> {
        let connect = Client::connect([self.url()], Some(self.options.clone()));
        timeout(Duration::from_secs(1), connect).await.ok()?.ok()
    }

    /// Of a server that runs: it answers, be the machine ever so busy.
    pub(crate) async fn client(&self) -> Client {
        for _ in 0..30 {
            if let Some(client) = self.connect().await {
                return client;
            }
        }
        panic!("no connection to etcd");
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        self.client()
            .await
            .put(path(key), value, None)
            .await
            .unwrap();
    }

    /// Puts a key that ends after `ttl` seconds. Returns its etcd lease.
    pub(crate) async fn put_for(&self, key: &str, value: &str, ttl: i64) -> i64 {
        let mut client = self.client().await;
        let lease = client.lease_grant(ttl, None).await.unwrap().id();
        let options = PutOptions::new().with_lease(lease);
        client.put(path(key), value, Some(options)).await.unwrap();
        lease
    }

    pub(crate) async fn delete(&self, key: &str) {
        self.client().await.delete(path(key), None).await.unwrap();
    }

    pub(crate) async fn configure(&self, net_conf: &str) {
        self.put("config", net_conf).await;
    }

    /// Value, etcd lease and revision of the last change.
    pub(crate) async fn get(&self, key: &str) -> Option<(String, i64, i64)> {
        let answer = self.client().await.get(path(key), None).await.unwrap();
        let kv = answer.kvs().first()?;
        let value = kv.value_str().unwrap().to_owned();
        Some((value, kv.lease(), kv.mod_revision()))
    }

    pub(crate) async fn time_to_live(&self, lease: i64) -> i64 {
        let answer = self.client().await.lease_time_to_live(lease, None).await;
        answer.unwrap().ttl()
    }

    /// Keys of leases and their values.
    pub(crate) async fn leases(&self) -> Vec<(String, String)> {
        let options = GetOptions::new().with_prefix();
        let answer = self
            .client()
            .await
            .get(path("subnets/"), Some(options))
            .await;
        let answer = answer.unwrap();
        let pair = |kv: &etcd_client::KeyValue| {
            let key = kv.key_str().unwrap();
            let key = key.strip_prefix(&path("subnets/")).unwrap().to_owned();
            (key, kv.value_str().unwrap().to_owned())
        };
        answer.kvs().iter().map(pair).collect()
    }

    /// Forgets all revisions before this one.
    pub(crate) async fn compact(&self) {
        let mut client = self.client().await;
        let revision = client
            .get("x", None)
            .await
            .unwrap()
            .header()
            .unwrap()
            .revision();
        let physical = Some(CompactionOptions::new().with_physical());
        client.compact(revision, physical).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn path(key: &str) -> String {
    format!("{PREFIX}/{key}")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
