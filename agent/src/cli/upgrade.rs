//! `tartan upgrade`: the running agent replaced by another program, while packets pass.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::query::{Target, code_of, failure};
use super::table::printable;
use super::{OK, Output, PROBLEM, USAGE, complain, json, print};
use crate::api::client::{ClientError, open};
use crate::api::wire::Request;
use crate::keeper::LONGEST_UPGRADE;
use crate::keeper::progress::{Ended, Outcome, Step};

/// Arguments of `tartan upgrade`.
#[derive(Args, Debug)]
pub(super) struct UpgradeArgs {
    #[command(flatten)]
    target: Target,
    /// Upgrade to the program in FILE [default: the file by which the agent was started]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Asks for the upgrade, prints each step, and returns the exit code.
pub(super) fn execute(args: &UpgradeArgs, before: Option<PathBuf>) -> u8 {
    let program = match args.program.as_deref().map(absolute).transpose() {
        Ok(program) => program,
        Err(misuse) => {
            complain(misuse);
            return USAGE;
        }
    };
    let output = args.target.output;
    let request = Request::Upgrade { program };
    let opened = open(&args.target.socket(before), &request).map_err(of_an_older_agent);
    let ended = opened.and_then(|(_, reader)| follow(reader, output));
    match ended {
        Ok(ended) => {
            print(match output {
                Output::Json => json(&serde_json::to_value(&ended).unwrap_or_default()),
                Output::Table => render(&ended),
            });
            match (ended.outcome, ended.keeper) {
                (Outcome::Upgraded, true) => OK,
                _ => PROBLEM,
            }
        }
        Err(error) => {
            match output {
                Output::Json => drop(print(failure(output, &error))),
                Output::Table => super::complain_with_causes(&error),
            }
            code_of(&error)
        }
    }
}

/// The agent goes by its own working directory.
fn absolute(program: &Path) -> Result<String, String> {
    let named = program.display();
    let found = program.canonicalize();
    let found = found.map_err(|error| format!("--program {named}: {error}: name a file"))?;
    let text = found.into_os_string().into_string();
    text.map_err(|_| format!("--program {named}: its path is not UTF-8: copy it elsewhere"))
}

/// Prints each step but the last, which is returned.
fn follow(mut reader: BufReader<UnixStream>, output: Output) -> Result<Ended, ClientError> {
    let deadline = Instant::now() + PATIENCE;
    let unknown = |source| {
        ClientError::Refused(format!(
            "the agent did not tell what became of the upgrade ({source}): see `tartan status` and its log"
        ))
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        reader
            .get_ref()
            .set_read_timeout(Some(left))
            .map_err(unknown)?;
        let mut line = Vec::new();
        let read = (&mut reader).take(LONGEST).read_until(b'\n', &mut line);
        if read.map_err(unknown)? == 0 {
            return Err(unknown(std::io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&line).map_err(ClientError::Answer)? {
            Step::Ended(ended) => return Ok(ended),
            step if output == Output::Table => drop(print(sentence(&step))),
            _ => {}
        }
    }
}

fn sentence(step: &Step) -> String {
    match step {
        Step::Starting { program, version } => format!(
            "starting {} of version {} beside the service that runs\n",
            printable(program),
            printable(version)
        ),
        Step::Ready => "it is ready; the service that runs is paused\n".to_owned(),
        Step::Forwarding { pause_us } => {
            format!(
                "it forwards; packets waited for {}\n",
                milliseconds(*pause_us)
            )
        }
        Step::Ended(_) => String::new(),
    }
}

fn render(ended: &Ended) -> String {
    let to = ended.to.as_deref().unwrap_or("the new program");
    let what = match ended.outcome {
        Outcome::Upgraded if ended.keeper => {
            format!("upgraded from {} to {to}, service and keeper", ended.from)
        }
        Outcome::Upgraded => format!("upgraded from {} to {to}, the service alone", ended.from),
        Outcome::Unchanged => "not upgraded; the service that runs was not touched".to_owned(),
        Outcome::Returned => format!(
            "not upgraded; the service that ran forwards again, after {}",
            milliseconds(ended.pause_us.unwrap_or_default())
        ),
        Outcome::Restarted => {
            "not upgraded; the service that ran is gone, and another is started in its place"
                .to_owned()
        }
    };
    let what = printable(&what);
    match &ended.reason {
        Some(reason) => format!("{what}: {}\n", printable(reason)),
        None => format!("{what}\n"),
    }
}

fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// An agent of a release before upgrades does not know the request.
fn of_an_older_agent(error: ClientError) -> ClientError {
    match error {
        ClientError::Refused(reason) if reason.contains("unknown variant") => ClientError::Refused(
            "the agent that runs is of a release that cannot be upgraded while it runs: restart it once (systemctl restart tartan)"
                .to_owned(),
        ),
        error => error,
    }
}

/// Longer than the keeper takes.
const PATIENCE: Duration = LONGEST_UPGRADE.saturating_add(Duration::from_secs(5));
/// Bytes of a line.
const LONGEST: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(outcome: Outcome, keeper: bool, reason: Option<&str>) -> Ended {
        Ended {
            outcome,
            from: "1".to_owned(),
            to: Some("2".to_owned()),
            pause_us: Some(12_345),
            keeper,
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn each_outcome_says_what_runs_now() {
        let of = |outcome, keeper, reason| render(&ended(outcome, keeper, reason));
        assert_eq!(
            of(Outcome::Upgraded, true, None),
            "upgraded from 1 to 2, service and keeper\n"
        );
        assert_eq!(
            of(Outcome::Upgraded, false, Some("no")),
            "upgraded from 1 to 2, the service alone: no\n"
        );
        assert_eq!(
            of(Outcome::Unchanged, false, Some("no\x1b")),
            format!(
                "not upgraded; the service that runs was not touched: {}\n",
                printable("no\x1b")
            )
        );
        assert_eq!(
            of(Outcome::Returned, false, Some("no")),
            "not upgraded; the service that ran forwards again, after 12.3 ms: no\n"
        );
        assert_eq!(
            of(Outcome::Restarted, false, Some("no")),
            "not upgraded; the service that ran is gone, and another is started in its place: no\n"
        );
    }

    #[test]
    fn an_older_agent_is_named_with_the_remedy() {
        let refused = ClientError::Refused("not a request: unknown variant `upgrade`".to_owned());
        let said = of_an_older_agent(refused).to_string();
        assert!(said.contains("systemctl restart tartan"), "{said}");
    }

    #[test]
    fn what_is_no_file_is_a_wrong_command_line() {
        assert!(absolute(Path::new("/no/such/file")).is_err());
        assert!(
            absolute(Path::new("/proc/../proc/self/exe"))
                .unwrap()
                .starts_with('/')
        );
    }
}
