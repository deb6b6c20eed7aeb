//! The name of this node's Node, where no variable says it: that of the pod that flanneld runs in.
//!
//! flannel's manifest gives a pod its own name, and flanneld asks the API which Node it runs on, at every start. A node
//! whose API is away must forward too, from its last good state, which is found by the node's name. So the answer is kept
//! in the state directory, and stands in for one that does not come.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use cni_shim::atomic_file;

use super::super::run::{RunError, runtime};
use super::complain;
use crate::causes::causes;
use crate::config::RunArgs;
use crate::configuration::{Configuration, Unusable};
use crate::registry::kubernetes::{PodNodeError, node_of_pod};

/// Why the name is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnNodeError {
    /// flannel: "env variables POD_NAME and POD_NAMESPACE must be set".
    #[error(
        "the name of this node is not known: set the variable NODE_NAME to the name of its Node (spec.nodeName of the pod), or POD_NAME and POD_NAMESPACE to those of the pod"
    )]
    NoVariables,
    /// The credentials are in there.
    #[error(transparent)]
    Configuration(Unusable),
    /// No event loop.
    #[error(transparent)]
    Runtime(RunError),
    /// Neither an answer nor an earlier one.
    #[error(
        "cannot find out the name of this node; give the service account the right to get pods, or set the variable NODE_NAME"
    )]
    Unknown(#[source] PodNodeError),
}

/// Asks the API for it. An earlier answer stands in for one that does not come within 10 s.
pub(super) fn name(args: &RunArgs) -> Result<String, OwnNodeError> {
    let variable = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
    let (Some(pod), Some(namespace)) = (variable("POD_NAME"), variable("POD_NAMESPACE")) else {
        return Err(OwnNodeError::NoVariables);
    };
    let mut args = args.clone();
    // Only to have a configuration: the host may have no name that can be one.
    args.node_name = Some("unknown".to_owned());
    let loaded = Configuration::load(&args, None).map_err(OwnNodeError::Configuration)?;
    let kept = loaded.config.state_dir().join(FILE);
    let kubernetes = &loaded.config.registry.kubernetes;
    let runtime = runtime().map_err(OwnNodeError::Runtime)?;
    match runtime.block_on(node_of_pod(kubernetes, &namespace, &pod, PATIENCE)) {
        Ok(name) => {
            if let Err(error) = keep(&kept, &name) {
                complain(format!("cannot write {}: {error}", kept.display()));
            }
            Ok(name)
        }
        Err(error) => match earlier(&kept) {
            Some(name) => {
                let reason = causes(&error);
                complain(format!(
                    "this node is {name}, as the API said before: {reason}"
                ));
                Ok(name)
            }
            None => Err(OwnNodeError::Unknown(error)),
        },
    }
}

/// Writes it where that differs: most starts find it there.
fn keep(path: &Path, name: &str) -> io::Result<()> {
    match earlier(path).as_deref() == Some(name) {
        true => Ok(()),
        false => atomic_file::replace_for_good(path, format!("{name}\n").as_bytes()),
    }
}

/// Another check follows where it is used: it is a name like any other.
fn earlier(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let name = text.trim();
    (!name.is_empty() && name.len() <= LONGEST).then(|| name.to_owned())
}

/// Below the state directory, with which it goes.
const FILE: &str = "node-name";
const PATIENCE: Duration = Duration::from_secs(10);
/// Of a Node's name, bytes.
const LONGEST: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_for_the_next_start() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("var/lib/tartan").join(FILE);
        assert_eq!(earlier(&path), None);
        keep(&path, "worker-1").unwrap();
        assert_eq!(earlier(&path).as_deref(), Some("worker-1"));
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        keep(&path, "worker-1").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        keep(&path, "worker-2").unwrap();
        assert_eq!(earlier(&path).as_deref(), Some("worker-2"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(earlier(&path), None);
    }
}
