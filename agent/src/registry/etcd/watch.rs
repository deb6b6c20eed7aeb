//! The changes of the leases and of the configuration, as etcd reports them.

use etcd_client::{WatchOptions, WatchResponse, WatchStream};

use super::super::foreign_text::excerpt;
use super::session::{Failure, Session};
use super::table::Written;

/// Two streams: one of the leases, one of the configuration. A user that may not read other keys below the prefix can use
/// them.
pub(super) struct Watch {
    leases: WatchStream,
    config: WatchStream,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A lease was written.
    Put(Written),
    /// A lease was deleted or has ended, at this revision.
    Deleted {
        /// Its key.
        key: Vec<u8>,
        /// The revision.
        revision: i64,
    },
    /// The configuration was written, or deleted.
    Config(Option<Vec<u8>>),
}

/// Why there are no further changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// Some changes can no longer be had: everything is to be listed again.
    Compacted,
    /// The connection is of no use any more.
    Failed(Failure),
}

impl From<Failure> for Interruption {
    fn from(failure: Failure) -> Interruption {
        Interruption::Failed(failure)
    }
}

impl Watch {
    /// Watches the keys below `below` and the key `config`, from `revision` on.
    pub(super) async fn open(
        session: &mut Session,
        below: &str,
        config: &str,
        revision: i64,
    ) -> Result<Watch, Interruption> {
        let from = WatchOptions::new()
            .with_start_revision(revision)
            .with_fragment();
        let leases = Some(from.clone().with_prefix());
        let mut client = session
            .client
            .watch_client()
            .max_decoding_message_size(MOST_BYTES);
        let mut watch = Watch {
            leases: session.call(client.watch(below, leases)).await?,
            config: session.call(client.watch(config, Some(from))).await?,
        };
        // The first answer on each says whether it is watched, and holds no change.
        for stream in [&mut watch.leases, &mut watch.config] {
            match session.call(stream.message()).await? {
                Some(answer) => drop(changes(&answer, false)?),
                None => return Err(ended().into()),
            }
        }
        Ok(watch)
    }

    /// Waits for changes; at least one. Dropping the future loses nothing.
    pub(super) async fn next(&mut self, session: &Session) -> Result<Vec<Change>, Interruption> {
        loop {
            let (answer, is_config) = tokio::select! {
                answer = self.leases.message() => (answer, false),
                answer = self.config.message() => (answer, true),
            };
            let answer = match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(ended().into()),
                Err(error) => return Err(session.failure(&error).into()),
            };
            let changes = changes(&answer, is_config)?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

fn changes(answer: &WatchResponse, is_config: bool) -> Result<Vec<Change>, Interruption> {
    if answer.compact_revision() > 0 {
        return Err(Interruption::Compacted);
    }
    if answer.canceled() {
        return Err(canceled(answer).into());
    }
    let read = |kv: &etcd_client::KeyValue| {
        // A deleted key has version 0.
        let is_deleted = kv.version() == 0;
        match (is_config, is_deleted) {
            (true, true) => Change::Config(None),
            (true, false) => Change::Config(Some(kv.value().to_vec())),
            (false, true) => Change::Deleted {
                key: kv.key().to_vec(),
                revision: kv.mod_revision(),
            },
            (false, false) => Change::Put(Written::from(kv)),
        }
    };
    let events = answer.events().iter();
    Ok(events.filter_map(|event| event.kv()).map(read).collect())
}

fn canceled(answer: &WatchResponse) -> Failure {
    let why = excerpt(answer.cancel_reason(), LONGEST_REASON);
    Failure::Lost(format!(
        "etcd ended the watch ({why}): check that the user may read the keys"
    ))
}

fn ended() -> Failure {
    Failure::Lost("etcd ended the watch".to_owned())
}

/// Of one answer. etcd's default limit of a request is 1.5 MiB, and fragments are not much larger.
const MOST_BYTES: usize = 16 << 20;
/// Characters of etcd's words that a message repeats.
const LONGEST_REASON: usize = 200;
