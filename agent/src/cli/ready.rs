//! `tartan ready`: whether an agent forwards, and is the one that is meant.

use std::path::PathBuf;

use clap::Args;

use super::query::{Target, code_of, failure};
use super::table::printable;
use super::{OK, Output, PROBLEM, complain, complain_with_causes, json, print};
use crate::api::client::{ClientError, call};
use crate::api::wire::{Readiness, Request};

/// Arguments of `tartan ready`.
#[derive(Args, Debug)]
pub(super) struct ReadyArgs {
    #[command(flatten)]
    target: Target,
    /// Ask for the agent of this NAME, as `tartan run` was given it [default: any]
    #[arg(long, env = "TARTAN_TAKE_OVER", value_name = "NAME")]
    take_over: Option<String>,
}

/// Asks, prints the answer, and returns the exit code.
pub(super) fn execute(args: &ReadyArgs, before: Option<PathBuf>) -> u8 {
    let output = args.target.output;
    let answer = call(&args.target.socket(before), &Request::Ready);
    let answer = answer.and_then(|value| {
        let mut readiness: Readiness =
            serde_json::from_value(value).map_err(ClientError::Answer)?;
        readiness.not_ready = reasons(&readiness, args.take_over.as_deref());
        Ok(readiness)
    });
    match (answer, output) {
        (Ok(readiness), output) => {
            let reasons = &readiness.not_ready;
            match output {
                Output::Json => {
                    print(json(&serde_json::to_value(&readiness).unwrap_or_default()));
                }
                Output::Table if reasons.is_empty() => {
                    print("ready\n");
                }
                Output::Table => {
                    for reason in reasons {
                        complain(format_args!("not ready: {}", printable(reason)));
                    }
                }
            }
            if reasons.is_empty() { OK } else { PROBLEM }
        }
        (Err(error), Output::Json) => {
            print(failure(output, &error));
            code_of(&error)
        }
        (Err(error), Output::Table) => {
            complain_with_causes(&error);
            code_of(&error)
        }
    }
}

/// Why it is not ready.
fn reasons(readiness: &Readiness, wanted: Option<&str>) -> Vec<String> {
    let answers = readiness.instance.as_deref();
    let another = match wanted {
        Some(wanted) if answers != Some(wanted) => Some(format!(
            "the agent that runs is {}, and not {wanted}, which waits or has handed over: see its log",
            answers.unwrap_or("one without a name"),
        )),
        _ => None,
    };
    another
        .into_iter()
        .chain(readiness.not_ready.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_agent_s_answer_is_none_of_ours() {
        let of = |instance: Option<&str>, problems: &[&str], wanted| {
            let readiness = Readiness {
                attachments: 0,
                instance: instance.map(str::to_owned),
                not_ready: problems.iter().map(|it| (*it).to_owned()).collect(),
            };
            reasons(&readiness, wanted)
        };
        assert!(of(Some("a"), &[], Some("a")).is_empty());
        assert!(of(Some("a"), &[], None).is_empty());
        assert!(of(None, &[], None).is_empty());
        let another = of(Some("a"), &[], Some("b"));
        assert!(another[0].contains("is a, and not b"), "{another:?}");
        assert_eq!(of(None, &["no"], Some("b")).len(), 2);
        assert_eq!(of(Some("b"), &["no"], Some("b")), ["no"]);
    }
}
