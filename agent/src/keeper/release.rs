//! What a program says of itself before it is started beside the service that runs: `PROGRAM version -o json`.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::VARIABLES;
use super::channel::UPGRADE_SINCE;
use super::handed_state::FORMAT;

/// A program that can take the place of the one that runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Release {
    /// Its version.
    pub(super) version: String,
    /// The protocol between keeper and service; none before there were upgrades.
    protocol: Option<u32>,
    /// What a keeper hands to the next.
    keeper_state: Option<u32>,
}

/// Asks the program.
///
/// # Errors
/// Why it cannot take the place, with the remedy.
pub(super) async fn ask(program: &Path) -> Result<Release, String> {
    let path = program.display();
    let mut command = Command::new(program);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    let child = command
        .arg0("tartan")
        .args(["version", "-o", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| {
        let unseen = match error.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                ", outside of /root, /home and /tmp, which the systemd unit does not see"
            }
            _ => "",
        };
        format!(
            "{path} cannot be started ({error}): name a `tartan` that runs on this machine{unseen}"
        )
    })?;
    let output = child.stdout.take();
    let asked = async {
        let mut text = Vec::new();
        if let Some(output) = output {
            output.take(LONGEST).read_to_end(&mut text).await?;
        }
        Ok::<_, std::io::Error>((text, child.wait().await?))
    };
    let (text, status) = match timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(format!("{path} cannot be asked for its version: {error}")),
        Err(_elapsed) => {
            return Err(format!(
                "{path} does not tell its version within {} s: name a `tartan`",
                PATIENCE.as_secs()
            ));
        }
    };
    if !status.success() {
        return Err(format!(
            "{path} does not tell its version ({status}): name a `tartan` that runs on this machine"
        ));
    }
    fit(&path.to_string(), &text)
}

fn fit(path: &str, text: &[u8]) -> Result<Release, String> {
    let release: Release = serde_json::from_slice(text)
        .map_err(|_| format!("{path} does not tell a version: name a `tartan`"))?;
    if release
        .protocol
        .is_none_or(|protocol| protocol < UPGRADE_SINCE)
        || release.keeper_state != Some(FORMAT)
    {
        return Err(format!(
            "{path} is of release {}, which cannot take the place of a running one: restart the agent instead (systemctl restart tartan)",
            release.version
        ));
    }
    Ok(release)
}

/// A program on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the answer.
const LONGEST: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_before_upgrades_is_refused_with_the_remedy() {
        let old = fit("/x", br#"{"schema":1,"version":"0.1.0"}"#).unwrap_err();
        assert!(
            old.contains("0.1.0") && old.contains("systemctl restart"),
            "{old}"
        );
        let other = format!(r#"{{"version":"9","protocol":{UPGRADE_SINCE},"keeper_state":0}}"#);
        assert!(fit("/x", other.as_bytes()).is_err());
        let older = UPGRADE_SINCE - 1;
        let older = format!(r#"{{"version":"9","protocol":{older},"keeper_state":{FORMAT}}}"#);
        assert!(fit("/x", older.as_bytes()).is_err());
        let newer = UPGRADE_SINCE + 2;
        let newer = format!(r#"{{"version":"9","protocol":{newer},"keeper_state":{FORMAT}}}"#);
        assert_eq!(fit("/x", newer.as_bytes()).unwrap().version, "9");
        assert!(fit("/x", b"hello").unwrap_err().contains("name a `tartan`"));
    }

    #[test]
    fn what_is_no_tartan_is_refused_in_time() {
        crate::test_run::run(async {
            for program in ["/bin/true", "/bin/false", "/dev/null", "/no/such/program"] {
                assert!(ask(Path::new(program)).await.is_err(), "{program}");
            }
            let unseen = ask(Path::new("/tmp/no-such-program")).await.unwrap_err();
            assert!(unseen.contains("the systemd unit does not see"), "{unseen}");
        });
    }
}
