//! What callers of the agent find, the plugin first: its socket, and the node file where they need no answer.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use cni_shim::NodeFile;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{error, warn};

use crate::api::server::{self, Call};
use crate::causes::causes;
use crate::control::event_loop::Control;
use crate::keeper::LOCK_FILE;
use crate::keeper::descriptors::LISTENER;

impl Control {
    /// Somebody who empties /run takes the socket's name away; callers get a new one.
    pub(crate) async fn reopen_api(&mut self) {
        let path = self.node.known.config.run_dir().socket();
        if server::is_socket(&path) {
            return;
        }
        let opened = match server::bind(&path) {
            Ok(listener) => {
                let told = self.table.deposit(LISTENER, listener.as_fd()).await;
                self.server.abort();
                self.server = serve(listener, self.sender.clone());
                self.note_repair(format!("the socket {} was gone", path.display()));
                told.map_err(|error| causes(&error))
            }
            Err(error) => Err(causes(&error)),
        };
        self.api_problem = opened.err();
    }

    /// Writes what the plugin should know, where it is not there.
    pub(crate) fn write_node_file(&mut self) {
        let run_dir = self.node.known.config.run_dir();
        let node_file = self.node.node_file();
        let is_told = self.node_file.as_ref() == Some(&node_file);
        if is_told && NodeFile::read(&run_dir).is_ok_and(|found| found == node_file) {
            return;
        }
        // Somebody who empties /run takes it all.
        let made = run_dir.make().map_err(|error| causes(&error));
        let written = made.and_then(|()| {
            let written = node_file.write(&run_dir);
            written.map_err(|error| causes(&error))
        });
        let problem = written.err();
        if problem.is_none() {
            if is_told {
                self.note_repair(format!("{} was not as written", run_dir.node().display()));
            }
            self.node_file = Some(node_file);
        } else if problem != self.node_file_problem {
            warn!("{}", problem.as_deref().unwrap_or_default());
        }
        self.node_file_problem = problem;
    }

    /// Somebody who empties /run takes the files of the locks away too, the keeper's and ours, and who comes next makes
    /// new ones. The keeper's cannot be taken anew from here.
    pub(crate) fn look_at_locks(&mut self) {
        let run_dir = self.node.known.config.run_dir();
        let run_dir = run_dir.path();
        let is_whole = self.lock.is_in_force() && run_dir.join(LOCK_FILE).exists();
        let problem = (!is_whole).then(|| {
            format!(
                "somebody has emptied {}, so nothing keeps a second agent or a clean-up from this node: restart the agent (`systemctl restart tartan`)",
                run_dir.display()
            )
        });
        if let Some(problem) = problem.as_ref().filter(|_| self.lock_problem.is_none()) {
            warn!("{problem}");
        }
        self.lock_problem = problem;
    }
}

pub(crate) fn serve(listener: UnixListener, calls: mpsc::Sender<Call>) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Err(error) = server::serve(listener, calls).await {
            error!("{}", causes(&error));
        }
    })
}
