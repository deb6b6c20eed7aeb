//! A delegated IPAM plugin (SPEC section 4): host-local, static, or any other
//! that the configuration names in `ipam.type`. It is run with our own
//! environment and standard input, its standard error is ours, and what it
//! refuses we refuse in its words.
//!
//! It goes on when we are killed. What it gives then would be lost if a DEL had
//! asked it to give back before, and what it takes back could be a later ADD's:
//! so it inherits the attachment's lock ([`Lock`]), and later calls wait for it.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cni_shim::Json;
use cni_shim::attachment::Lock;
use cni_shim::protocol::request::SearchPath;
use cni_shim::protocol::{AttachmentKey, CniResult, NetConf, Verb, result};

use crate::child::{self, Ended};
use crate::code;

/// An IPAM plugin that was found.
#[derive(Debug)]
pub(crate) struct Delegate<'a> {
    kind: &'a str,
    program: PathBuf,
    conf: &'a NetConf,
    /// How long it may take.
    patience: Duration,
}

/// Why it gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "failed to find plugin {kind:?} of \"ipam\" in CNI_PATH: install it, or remove \"ipam\""
    )]
    NotFound { kind: String },
    #[error("cannot run the ipam plugin {program}")]
    Run { program: PathBuf, source: io::Error },
    #[error(
        "ipam plugin {kind} was ended, {} s after it was asked ({verb}): see what it waits for; the pod will be tried again",
        patience.as_secs()
    )]
    Late {
        kind: String,
        verb: &'static str,
        patience: Duration,
    },
    #[error(
        "ipam plugin {kind} was ended ({verb}): it printed more than {} KiB, and a result is far shorter",
        LONGEST_ANSWER / 1024
    )]
    TooLong { kind: String, verb: &'static str },
    #[error("ipam plugin {kind} failed ({verb}): {message}")]
    Failed {
        kind: String,
        verb: &'static str,
        code: u64,
        message: String,
        details: String,
    },
    #[error("the result of ipam plugin {kind} is no JSON")]
    NoJson {
        kind: String,
        source: serde_json::Error,
    },
    #[error("the result of ipam plugin {kind} cannot be used")]
    Result { kind: String, source: result::Error },
    #[error("ipam plugin {kind} gave no address: see its configuration")]
    NoAddress { kind: String },
}

impl Error {
    /// Its own code, where the specification has one for it; else ours.
    pub(crate) fn code(&self) -> u32 {
        match self {
            Error::NotFound { .. } => code::CONFIGURATION,
            Error::Late { .. } => code::TRY_LATER,
            Error::Failed { code, .. } if *code == u64::from(code::TRY_LATER) => code::TRY_LATER,
            _ => code::DELEGATE_FAILED,
        }
    }

    /// Whether there is no such plugin.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::NotFound { .. })
    }

    /// Whether it refused by itself, so that it gave nothing.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Error::Failed { code, .. } if *code != 0)
    }

    /// Its own details.
    pub(crate) fn details(&self) -> String {
        match self {
            Error::Failed { details, .. } => details.clone(),
            _ => String::new(),
        }
    }
}

impl<'a> Delegate<'a> {
    /// Looks `kind` up in `path`.
    pub(crate) fn find(
        kind: &'a str,
        path: &SearchPath,
        conf: &'a NetConf,
    ) -> Result<Delegate<'a>, Error> {
        let mut found = path.candidates(kind).into_iter();
        let program = found
            .find(|program| program.is_file())
            .ok_or_else(|| Error::NotFound {
                kind: kind.to_owned(),
            })?;
        Ok(Delegate {
            kind,
            program,
            conf,
            patience: PATIENCE,
        })
    }

    /// Runs it with ADD; returns its result.
    pub(crate) fn add(&self, lock: &Lock) -> Result<CniResult, Error> {
        let output = self.run(Verb::Add, None, lock)?;
        let kind = || self.kind.to_owned();
        let json = Json::parse(&output).map_err(|source| Error::NoJson {
            kind: kind(),
            source,
        })?;
        let result =
            CniResult::parse(&json, self.conf.version).map_err(|source| Error::Result {
                kind: kind(),
                source,
            })?;
        if result.ips.is_empty() {
            return Err(Error::NoAddress { kind: kind() });
        }
        Ok(result)
    }

    /// Runs it with DEL of one attachment, which need not be that of the request: no
    /// host-local knows GC yet.
    pub(crate) fn delete(&self, key: &AttachmentKey, lock: &Lock) -> Result<(), Error> {
        self.run(Verb::Del, Some(key), lock).map(|_| ())
    }

    /// Runs it with the request's own verb, where that has no answer.
    pub(crate) fn forward(&self, verb: Verb) -> Result<(), Error> {
        self.run(verb, None, &Lock::none()).map(|_| ())
    }

    fn run(&self, verb: Verb, key: Option<&AttachmentKey>, lock: &Lock) -> Result<Vec<u8>, Error> {
        let ended = self.execute(verb, key, lock).map_err(|source| Error::Run {
            program: self.program.clone(),
            source,
        })?;
        let (kind, verb) = (self.kind.to_owned(), verb.name());
        let (status, output) = match ended {
            Ended::Itself { status, output } => (status, output),
            Ended::Late => {
                let patience = self.patience;
                return Err(Error::Late {
                    kind,
                    verb,
                    patience,
                });
            }
            Ended::TooLong => return Err(Error::TooLong { kind, verb }),
        };
        if status.success() {
            return Ok(output);
        }
        let said = Json::parse(&output).unwrap_or_default();
        let text = |key| said.get(key).and_then(Json::text).map(str::to_owned);
        Err(Error::Failed {
            kind,
            verb,
            code: said.get("code").and_then(Json::integer).unwrap_or_default(),
            message: text("msg").unwrap_or_else(|| status.to_string()),
            details: text("details").unwrap_or_default(),
        })
    }

    fn execute(&self, verb: Verb, key: Option<&AttachmentKey>, lock: &Lock) -> io::Result<Ended> {
        let _inherited = lock.pass_to_child()?;
        let mut command = Command::new(&self.program);
        if let Some(key) = key {
            command.env("CNI_CONTAINERID", &key.container);
            command.env("CNI_IFNAME", &key.ifname);
        }
        command.env("CNI_COMMAND", verb.name());
        child::run(command, &self.conf.input, LONGEST_ANSWER, self.patience)
    }
}

/// Longer than a plugin that asks a server over the network takes, shorter than
/// a runtime waits for us.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of an answer: many times what a result has.
const LONGEST_ANSWER: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn conf() -> NetConf {
        let text = r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"x"}}"#;
        NetConf::parse(text.into(), Verb::Add).unwrap()
    }

    /// An IPAM plugin that is this shell script.
    fn with_script<T>(script: &str, work: impl FnOnce(Delegate<'_>) -> T) -> T {
        with_patience(PATIENCE, script, work)
    }

    fn with_patience<T>(
        patience: Duration,
        script: &str,
        work: impl FnOnce(Delegate<'_>) -> T,
    ) -> T {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("x");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = SearchPath::new(format!("/nonexistent:{}", directory.path().display()));
        let conf = conf();
        let found = Delegate::find("x", &path, &conf).unwrap();
        work(Delegate { patience, ..found })
    }

    #[test]
    fn it_gets_our_input_and_its_result_is_read() {
        let script = r#"in=$(cat); [ "$CNI_COMMAND" = ADD ] || exit 3
            case $in in *'"type":"x"'*) echo '{"ips":[{"address":"10.1.0.5/24"}]}';; esac"#;
        let result = with_script(script, |delegate| delegate.add(&Lock::none())).unwrap();
        assert_eq!(result.ips[0].address, "10.1.0.5/24".parse().unwrap());
        with_script("cat >/dev/null", |delegate| delegate.forward(Verb::Gc)).unwrap();
    }

    #[test]
    fn its_refusal_is_passed_on_in_its_words() {
        let script = r#"echo '{"code":11,"msg":"later","details":"much"}'; exit 1"#;
        let error = with_script(script, |delegate| delegate.add(&Lock::none())).unwrap_err();
        assert_eq!(error.to_string(), "ipam plugin x failed (ADD): later");
        assert_eq!((error.code(), error.details()), (11, "much".to_owned()));
        for (script, code) in [
            ("exit 4", 107),
            ("echo nonsense", 107),
            ("echo '{}'", 107),
            ("echo '{\"ips\":7}'", 107),
            ("kill -9 $$", 107),
        ] {
            let error = with_script(script, |delegate| delegate.add(&Lock::none())).unwrap_err();
            assert_eq!(error.code(), code, "{script}: {error}");
        }
    }

    #[test]
    fn one_that_hangs_or_prints_without_end_is_ended() {
        let start = std::time::Instant::now();
        let soon = Duration::from_millis(300);
        // The second leaves its output open to another that hangs.
        for script in ["sleep 60", "sleep 60 & exec sleep 61", "exec <&-; sleep 60"] {
            let error =
                with_patience(soon, script, |delegate| delegate.add(&Lock::none())).unwrap_err();
            assert!(matches!(error, Error::Late { .. }), "{script}: {error}");
            assert_eq!(error.code(), 11);
        }
        let error = with_script("while :; do echo aaaaaaaaaaaaaaaa; done", |d| {
            d.add(&Lock::none())
        })
        .unwrap_err();
        assert!(matches!(error, Error::TooLong { .. }), "{error}");
        assert_eq!(error.code(), 107);
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn one_that_is_nowhere_or_no_name_is_not_run() {
        let conf = conf();
        let path = SearchPath::new("/bin".to_owned());
        for kind in ["no-such-plugin", "../bin/sh", "/bin/sh"] {
            let error = Delegate::find(kind, &path, &conf).unwrap_err();
            assert_eq!(error.code(), 7, "{kind}");
        }
    }
}
