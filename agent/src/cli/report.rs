//! `tartan report`: one file with all that is known of this node, for support.

use std::path::{Path, PathBuf};

use clap::Args;

use super::run::runtime;
use super::view::{Color, View};
use super::{OK, PROBLEM, complain, complain_with_causes, doctor, print, unix_now, with_root};
use crate::config::RunArgs;
use crate::doctor::{OtherNodes, diagnose};
use crate::report;

#[derive(Args, Debug)]
pub(super) struct ReportArgs {
    /// Write to this new file, or with `-` to standard output [default: tartan-report-NODE-TIME.tar.gz here]
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn execute(args: ReportArgs, root: Option<PathBuf>) -> u8 {
    let run = with_root(args.run, root);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain_with_causes(&error);
            return PROBLEM;
        }
    };
    let diagnosis = runtime.block_on(diagnose(&run, false, &OtherNodes::None));
    let text = doctor::render(&diagnosis, &View::of_color(Color::Never));
    let bundle = report::collect(&run, &diagnosis, &text);
    let now = unix_now();
    let name = format!("tartan-report-{}-{now}", node(diagnosis.node.as_deref()));
    let is_given = args.write.is_some();
    let place = args
        .write
        .unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    if let Err(error) = report::write(&bundle, &place, &name, now) {
        complain_with_causes(&error);
        return PROBLEM;
    }
    if is_given && place == Path::new("-") {
        return OK;
    }
    print(format!(
        "{}: {} parts, {} bytes before compression; read it before you hand it on\n",
        place.display(),
        bundle.parts.len(),
        bundle.bytes()
    ));
    if !diagnosis.answers {
        complain("the agent does not answer: the report has what is known without it");
    }
    OK
}

/// A name that can be part of a file's.
fn node(name: Option<&str>) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = name.unwrap_or("node").chars().filter(is_plain).collect();
    match name.is_empty() {
        true => "node".to_owned(),
        false => name,
    }
}
