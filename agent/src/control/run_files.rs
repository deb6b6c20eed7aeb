//! What callers of the agent find in the run directory: the API socket, the node file for the plugin, and the locks. Another
//! process that empties `/run` removes all of them; they are checked at every refresh.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use cni_shim::{NodeFile, RunDir};

use super::model::Model;
use crate::api::server::{self, Listeners};
use crate::causes::causes;
use crate::control::view::queries::{Queries, QueryService};
use crate::keeper::LOCK_FILE;
use crate::keeper::descriptors::{Descriptors, LISTENER, PLUGIN_LISTENER};
use crate::keeper::lock::{Lock, LockError};
use crate::problems::Problem;
use crate::service::take_service_lock;

/// The files in the run directory.
pub struct RunFiles {
    run_dir: RunDir,
    /// What keeps a second service out.
    lock: Option<Lock>,
    /// The node file as it was written last.
    node_file: Option<NodeFile>,
    /// Answers on the API socket; none where it could not be started, and once the service stops.
    service: Option<QueryService>,
    /// What it answers on, for when it starts again.
    listeners: Option<Listeners>,
    queries: Queries,
}

impl RunFiles {
    /// Those of a service that answers already; `service` is none where that cannot start yet.
    pub fn new(
        run_dir: RunDir,
        lock: Lock,
        node_file: Option<NodeFile>,
        (service, listeners): (Option<QueryService>, Option<Listeners>),
        queries: Queries,
    ) -> RunFiles {
        RunFiles {
            run_dir,
            lock: Some(lock),
            node_file,
            service,
            listeners,
            queries,
        }
    }

    /// Ends the answers. The locks stay.
    pub fn stop_answering(&mut self) {
        self.service = None;
    }

    /// Ends the answers until [`answer_again`](RunFiles::answer_again): callers wait meanwhile.
    pub fn pause_answering(&mut self) {
        self.service = None;
    }

    /// Answers again. Where that fails, the next refresh opens the sockets anew.
    pub fn answer_again(&mut self) {
        let listeners = self.listeners.as_ref().and_then(Listeners::duplicate);
        let started = listeners.map(|it| QueryService::start(it, self.queries.clone()));
        self.service = started.and_then(Result::ok);
    }

    /// Gives up the lock: another service is to read.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// Takes the lock again.
    ///
    /// # Errors
    /// As [`take_service_lock`].
    pub fn lock_again(&mut self) -> Result<(), LockError> {
        self.lock = Some(take_service_lock(self.run_dir.path())?);
        Ok(())
    }

    /// Whether callers find the API socket and are answered.
    pub fn is_answering(&self) -> bool {
        let is_running = self.service.as_ref().is_some_and(QueryService::is_running);
        let sockets = [self.run_dir.socket(), self.run_dir.plugin_socket()];
        is_running && sockets.iter().all(|path| server::is_socket(path))
    }

    /// Opens the API sockets anew where a name is gone or no thread answers. Returns what was repaired, and why not.
    pub async fn restore_socket(
        &mut self,
        keeper: &Descriptors,
    ) -> (Option<String>, Option<Problem>) {
        if self.is_answering() {
            return (None, None);
        }
        let general = open(keeper, LISTENER, self.run_dir.socket()).await;
        let plugin = open(keeper, PLUGIN_LISTENER, self.run_dir.plugin_socket()).await;
        let (general, plugin) = match (general, plugin) {
            (Ok(general), Ok(plugin)) => (general, plugin),
            (Err(problem), _) | (_, Err(problem)) => return (None, Some(problem)),
        };
        let path = self.run_dir.path();
        let listeners = Listeners { general, plugin };
        self.listeners = listeners.duplicate();
        match QueryService::start(listeners, self.queries.clone()) {
            Ok(service) => {
                self.service = Some(service);
                let repair = format!("a socket in {} was not answered", path.display());
                (Some(repair), None)
            }
            Err(error) => {
                self.service = None;
                let reason = error.to_string();
                (None, Some(Problem::ApiThread { reason }))
            }
        }
    }

    /// Writes what the plugin should know, where the file does not hold it. Returns what was repaired, and why not.
    pub fn write_node_file(&mut self, model: &Model) -> (Option<String>, Option<Problem>) {
        let node_file = model.node_file();
        let is_written = self.node_file.as_ref() == Some(&node_file);
        if is_written && NodeFile::read(&self.run_dir).is_ok_and(|found| found == node_file) {
            return (None, None);
        }
        let path = self.run_dir.node();
        // Another process that empties /run removes the directory too.
        let made = self.run_dir.make().map_err(|error| causes(&error));
        let written = made.and_then(|()| {
            let written = node_file.write(&self.run_dir);
            written.map_err(|error| causes(&error))
        });
        if let Err(reason) = written {
            return (None, Some(Problem::NodeFile { path, reason }));
        }
        self.node_file = Some(node_file);
        let repair = is_written.then(|| format!("{} was not as written", path.display()));
        (repair, None)
    }

    /// Checks the files of the locks, the keeper's and ours. The next process makes new ones; the keeper's cannot be taken
    /// anew from here.
    pub fn check_locks(&self) -> Option<Problem> {
        let run_dir = self.run_dir.path();
        let is_whole =
            self.lock.as_ref().is_some_and(Lock::is_in_force) && run_dir.join(LOCK_FILE).exists();
        (!is_whole).then(|| Problem::LocksRemoved {
            run_dir: run_dir.to_owned(),
        })
    }
}

/// Opens a socket and deposits it with the keeper.
async fn open(keeper: &Descriptors, name: &str, path: PathBuf) -> Result<UnixListener, Problem> {
    let opened = match server::bind(&path) {
        Err(error) => Err(causes(&error)),
        // Where this fails the keeper has ended, and so will we.
        Ok(listener) => match keeper.deposit(name, listener.as_fd()).await {
            Ok(()) => Ok(listener),
            Err(error) => Err(causes(&error)),
        },
    };
    opened.map_err(|reason| Problem::ApiSocket { path, reason })
}
