//! One connection to one etcd server, and the calls made over it.
//!
//! Every call ends within [`PATIENCE`]. HTTP/2 pings notice a server that no longer answers, or a path that drops
//! everything, within [`PING_EVERY`] and [`PING_PATIENCE`] together, whether a call is under way or not. The etcd client's
//! own choice among servers is not used: a session has one server, and the next session takes the next one.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, Identity,
    LeaseTimeToLiveOptions, PutOptions, TlsOptions, Txn, TxnOp,
};
use tokio::time::timeout;

use super::super::foreign_text::excerpt;
use super::super::transport::{Remedies, in_words, no_answer};
use super::table::Written;
use crate::config::node::registry::EtcdConfig;

/// A connection.
pub(super) struct Session {
    pub(super) client: Client,
    hints: Hints,
}

/// What the sentence on a fault goes by.
struct Hints {
    /// How to allow what etcd denies.
    permission: String,
    /// The connection is for TLS.
    is_tls: bool,
}

impl Hints {
    fn of(config: &EtcdConfig, endpoint: &str) -> Hints {
        let prefix = &config.prefix;
        let permission = match &config.user {
            Some((name, _)) => format!(
                "allow the user {name} to read and write the keys below {prefix}/ (etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/; etcdctl user grant-role {name} ROLE)"
            ),
            None => ASKS_FOR_USER.to_owned(),
        };
        Hints {
            permission,
            is_tls: endpoint.starts_with("https://"),
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No answer, so whether it took effect is unknown. The session is of no use any more.
    Lost(String),
    /// etcd answered that it does not do it.
    Denied(String),
}

impl Failure {
    /// One sentence for the operator.
    pub(super) fn reason(self) -> String {
        match self {
            Failure::Lost(reason) | Failure::Denied(reason) => reason,
        }
    }
}

/// When a write takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The key does not exist.
    Absent,
    /// The key was changed last at this revision.
    Unchanged(i64),
}

/// The value of a key and the store's revision.
pub(super) struct Read {
    pub(super) found: Option<Written>,
    pub(super) revision: i64,
}

impl Session {
    /// Connects to `endpoint`. Certificates and keys are read anew, so renewed ones are used.
    pub(super) async fn open(config: &EtcdConfig, endpoint: &str) -> Result<Session, Failure> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_PATIENCE)
            .with_keep_alive(PING_EVERY, PING_PATIENCE)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let hints = Hints::of(config, endpoint);
        if hints.is_tls {
            options = options.with_tls(tls(config).map_err(Failure::Lost)?);
        }
        let connect = |options| async {
            let connect = Client::connect([endpoint], Some(options));
            call(&hints, connect).await
        };
        let with_user = match &config.user {
            Some((name, password)) => options.clone().with_user(name, &password.0),
            None => options.clone(),
        };
        let client = match connect(with_user).await {
            // As etcd's own client, and so flannel: a user's name is no fault where etcd asks for none.
            Err(Failure::Denied(reason)) if reason.contains(NO_AUTH) => connect(options).await,
            outcome => outcome,
        };
        let client = client?;
        Ok(Session { client, hints })
    }

    /// Reads one key.
    pub(super) async fn get(&mut self, key: &[u8]) -> Result<Read, Failure> {
        let answer = call(&self.hints, self.client.get(key, None)).await?;
        Ok(Read {
            found: answer.kvs().first().map(Written::from),
            revision: answer.header().map_or(0, |header| header.revision()),
        })
    }

    /// Reads all keys that begin with `prefix` as of `revision`, in pages, at most `most`.
    pub(super) async fn list(
        &mut self,
        prefix: &str,
        revision: i64,
        most: usize,
    ) -> Result<Vec<Written>, Failure> {
        let end = end_of(prefix.as_bytes());
        let (mut from, mut found) = (prefix.as_bytes().to_vec(), Vec::new());
        let mut page = PAGE;
        loop {
            let options = GetOptions::new()
                .with_range(end.as_slice())
                .with_revision(revision)
                .with_limit(page);
            let answer = call(&self.hints, self.client.get(from.as_slice(), Some(options)));
            let answer = match answer.await {
                // Huge values: fewer at a time. The largest that etcd takes fits into one answer.
                Err(failure) if page > 1 && failure.clone().reason().contains(TOO_LARGE) => {
                    page = (page / 8).max(1);
                    continue;
                }
                outcome => outcome?,
            };
            let written = answer.kvs().iter().map(Written::from);
            found.extend(written.map(Written::bounded));
            let Some(last) = answer
                .kvs()
                .last()
                .filter(|_| answer.more() && found.len() < most)
            else {
                return Ok(found);
            };
            from = [last.key(), &[0]].concat();
        }
    }

    /// Writes a key under a condition. Returns the revision of the write, `None` where the condition does not hold.
    pub(super) async fn put(
        &mut self,
        key: &[u8],
        value: &str,
        lease: i64,
        condition: Condition,
    ) -> Result<Option<i64>, Failure> {
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        self.commit(key, condition, put).await
    }

    /// Deletes a key under a condition. Returns the revision, `None` where the condition does not hold.
    pub(super) async fn delete(
        &mut self,
        key: &[u8],
        condition: Condition,
    ) -> Result<Option<i64>, Failure> {
        self.commit(key, condition, TxnOp::delete(key, None)).await
    }

    async fn commit(
        &mut self,
        key: &[u8],
        condition: Condition,
        operation: TxnOp,
    ) -> Result<Option<i64>, Failure> {
        let compare = match condition {
            Condition::Absent => Compare::version(key, CompareOp::Equal, 0),
            Condition::Unchanged(revision) => {
                Compare::mod_revision(key, CompareOp::Equal, revision)
            }
        };
        let txn = Txn::new().when([compare]).and_then([operation]);
        let answer = call(&self.hints, self.client.txn(txn)).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(answer.succeeded().then_some(revision))
    }

    /// Grants an etcd lease of `ttl`. Returns its number and what was granted.
    pub(super) async fn grant(&mut self, ttl: Duration) -> Result<(i64, Duration), Failure> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let answer = call(&self.hints, self.client.lease_grant(seconds, None)).await?;
        Ok((answer.id(), seconds_of(answer.ttl())))
    }

    /// How long the etcd lease `id` lasts, and the keys that end with it.
    pub(super) async fn time_to_live(
        &mut self,
        id: i64,
    ) -> Result<(Duration, Vec<Vec<u8>>), Failure> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let asked = self.client.lease_time_to_live(id, Some(options));
        let answer = call(&self.hints, asked).await?;
        Ok((seconds_of(answer.ttl()), answer.keys().to_vec()))
    }

    /// Ends the etcd lease `id` where no key depends on it but such as begin with `companions`.
    pub(super) async fn revoke_unused(&mut self, id: i64, companions: &str) -> Result<(), Failure> {
        let (_, keys) = self.time_to_live(id).await?;
        if keys
            .iter()
            .all(|key| key.starts_with(companions.as_bytes()))
        {
            self.revoke(id).await?;
        }
        Ok(())
    }

    /// Ends the etcd lease `id`.
    pub(super) async fn revoke(&mut self, id: i64) -> Result<(), Failure> {
        call(&self.hints, self.client.lease_revoke(id)).await?;
        Ok(())
    }
}

/// Makes a call, within [`PATIENCE`].
async fn call<T>(
    hints: &Hints,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    match timeout(PATIENCE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failure(&error, hints)),
        Err(_) => Err(Failure::Lost(no_answer(PATIENCE.as_secs()))),
    }
}

impl Session {
    /// Makes a call that this module does not know.
    pub(super) async fn call<T>(
        &self,
        made: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        call(&self.hints, made).await
    }

    /// What failed, for a stream.
    pub(super) fn failure(&self, error: &Error) -> Failure {
        failure(error, &self.hints)
    }
}

fn failure(error: &Error, hints: &Hints) -> Failure {
    let known = |words: &str| in_words(words, hints.is_tls, CONNECT_PATIENCE.as_secs(), &REMEDIES);
    let Error::GRpcStatus(status) = error else {
        let words = causes(error);
        return Failure::Lost(known(&words).unwrap_or_else(|| format!("{words}; {CHECK_ALL}")));
    };
    let message = status.message();
    let mut words = match message.is_empty() {
        true => format!("status {:?}", status.code()),
        false => message.to_owned(),
    };
    let mut source = status.source();
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        source = cause.source();
    }
    // Without a cause the words are etcd's own.
    if let Some(known) = status.source().and_then(|_| known(&words)) {
        return Failure::Lost(known);
    }
    let words = excerpt(&words, LONGEST_REASON);
    let remedy = if message.contains("permission denied") {
        &hints.permission
    } else if message.contains("user name is empty") {
        ASKS_FOR_USER
    } else if message.contains("authentication failed") || message.contains("auth token") {
        "check etcd-username and etcd-password"
    } else if message.contains("database space exceeded") {
        "etcd's database is full: compact and defragment it, then disarm the alarm (etcdctl compact, defrag, alarm disarm)"
    } else {
        CHECK_ALL
    };
    let reason = format!("{words}; {remedy}");
    // The numbers of gRPC's status codes: invalid argument, not found, permission denied, resource exhausted, failed
    // precondition, out of range. With them etcd answers that it has not done it.
    match status.code() as i32 {
        3 | 5 | 7 | 8 | 9 | 11 => Failure::Denied(reason),
        _ => Failure::Lost(reason),
    }
}

fn causes(error: &Error) -> String {
    let mut words = error.to_string();
    let inner = match error {
        Error::TransportError(inner) => inner.source(),
        other => other.source(),
    };
    let mut source = inner;
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    excerpt(&words, LONGEST_REASON)
}

fn tls(config: &EtcdConfig) -> Result<TlsOptions, String> {
    let mut tls = TlsOptions::new();
    tls = match &config.cafile {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("etcd-cafile", path)?)),
        None => tls.with_native_roots(),
    };
    if let Some((certificate, key)) = &config.identity {
        let certificate = read("etcd-certfile", certificate)?;
        tls = tls.identity(Identity::from_pem(certificate, read("etcd-keyfile", key)?));
    }
    Ok(tls)
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| {
        format!(
            "cannot read {key} {}: {error}; name a PEM file that the agent may read",
            path.display()
        )
    })
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// The end of the range of keys that begin with `prefix`, which ends with a slash.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a TCP connection may take: a server that returns is found soon.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(5);
/// Keys of one answer: 1,000 leases are a quarter of a megabyte, and an answer has at most 4.
const PAGE: i64 = 1000;
/// tonic's words where an answer is larger than 4 MiB.
const TOO_LARGE: &str = "message length too large";
/// etcd's words.
const NO_AUTH: &str = "authentication is not enabled";
/// Characters of an error that a message repeats.
const LONGEST_REASON: usize = 400;
const ASKS_FOR_USER: &str = "etcd asks for a user: set etcd-username and etcd-password";
const REMEDIES: Remedies = Remedies {
    trust: "etcd-cafile",
    identity: "etcd-certfile and etcd-keyfile",
    server: "etcd-endpoints",
};
const CHECK_ALL: &str = "check that etcd runs and that etcd-endpoints, and for https etcd-cafile, etcd-certfile and etcd-keyfile, are right";
