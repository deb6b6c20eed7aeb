//! The calling side, for the command line: blocking, bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::wire::{Reply, Request};

/// Why a call brought no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no agent answers on {path}; start it with `tartan run`, or name its directory with --root"
    )]
    Unreachable {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody listens and does not answer.
    #[error("the agent on {path} does not answer; see its log")]
    Silent {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The answer is none.
    #[error("the agent's answer is not understood; use the `tartan` of the agent's version")]
    Answer(#[source] serde_json::Error),
    /// The agent said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the agent that listens on `path`.
///
/// # Errors
/// [`ClientError`]; `Unreachable` is the one that means "no agent".
pub fn call(path: &Path, request: &Request) -> Result<serde_json::Value, ClientError> {
    let unreachable = |source| ClientError::Unreachable {
        path: path.to_owned(),
        source,
    };
    let silent = |source| ClientError::Silent {
        path: path.to_owned(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(unreachable)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
    let mut line = serde_json::to_vec(request).map_err(ClientError::Answer)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(silent)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(ANSWER_LIMIT))
        .read_until(b'\n', &mut answer)
        .map_err(silent)?;
    if answer.is_empty() {
        return Err(silent(io::ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_slice(&answer).map_err(ClientError::Answer)? {
        Reply::Ok(value) => Ok(value),
        Reply::Error(reason) => Err(ClientError::Refused(reason)),
    }
}

const PATIENCE: Duration = Duration::from_secs(35);
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nobody_silence_and_nonsense_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let nobody = call(&path, &Request::Status).unwrap_err();
        assert!(matches!(nobody, ClientError::Unreachable { .. }));
        assert!(nobody.to_string().contains("tartan run"), "{nobody}");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(listener.accept().unwrap().0)
                .read_line(&mut line)
                .unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"maybe\":1}\n").unwrap();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        });
        assert!(matches!(
            call(&path, &Request::Peers),
            Err(ClientError::Silent { .. })
        ));
        assert!(matches!(
            call(&path, &Request::Drops),
            Err(ClientError::Answer(_))
        ));
        assert_eq!(
            server.join().unwrap(),
            "{\"call\":\"peers\"}\n{\"call\":\"drops\"}\n"
        );
        // The listener is gone, its file is not: still nobody.
        assert!(matches!(
            call(&path, &Request::Status),
            Err(ClientError::Unreachable { .. })
        ));
    }
}
