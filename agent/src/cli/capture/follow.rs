//! `tartan drops --follow`: drops while they happen, a sample that has every reason, and exact counts beside it.

use std::path::PathBuf;

use clap::Args;

use super::expression::Expression;
use super::feed::Feed;
use super::output::Output;
use super::{Order, note, reason_name, refuse, run, tell_of_kernel_path};
use crate::api::wire::Request;
use crate::cli::query::Target;
use crate::cli::{OK, Output as Form, PROBLEM, complain};

/// Arguments of `tartan drops` for what is followed.
#[derive(Args, Debug)]
pub(in crate::cli) struct FollowArgs {
    /// Print drops while they happen: some of every reason and sender, with exact counts beside them
    #[arg(short, long, conflicts_with_all = ["watch", "sort", "filter"])]
    pub(in crate::cli) follow: bool,
    /// With --follow, of this pod, by `NAMESPACE/NAME`, name or address
    #[arg(long, value_name = "NAME|ADDRESS", requires = "follow")]
    pod: Vec<String>,
    /// With --follow, to and from this node, by name or address
    #[arg(long, value_name = "NAME|ADDRESS", requires = "follow")]
    peer: Vec<String>,
    /// With --follow, for these reasons (docs/drops.md)
    #[arg(long, value_name = "REASONS", value_delimiter = ',', value_parser = reason_name, requires = "follow")]
    reason: Vec<String>,
}

/// Follows until a signal. Returns the exit code.
pub(in crate::cli) fn follow(args: &FollowArgs, target: &Target, before: Option<PathBuf>) -> u8 {
    let order = Order {
        request: Request::Capture {
            stages: vec!["dropped".to_owned()],
            pods: args.pod.clone(),
            peers: args.peer.clone(),
            reasons: args.reason.clone(),
            snap_length: SNAP_LENGTH,
            sampled: true,
        },
        expression: Expression::True,
        count: None,
    };
    let (start, feed) = match Feed::open(&target.socket(before), &order.request) {
        Ok(opened) => opened,
        Err(error) => return refuse(target.output, &error),
    };
    tell_of_kernel_path(&start);
    let output = match target.output {
        Form::Json => Output::json_follow(),
        Form::Table => Output::lines(true),
    };
    match run(feed, output, &order, &start) {
        Ok(tally) if tally.counts.is_final => {
            let dropped: u64 = tally.counts.drops.iter().map(|drop| drop.count).sum();
            note(&format!(
                "{dropped} packets dropped, {} of them shown",
                tally.shown
            ));
            OK
        }
        Ok(_) => {
            complain("the agent ended: it was stopped or restarted; start the command again");
            PROBLEM
        }
        Err(error) => {
            complain(format!("the drops are not followed any more: {error}"));
            PROBLEM
        }
    }
}

/// Enough for the headers of both packets.
const SNAP_LENGTH: u32 = 128;
