//! `tartan doctor`: what is wrong with this node, with evidence and remedy; and with others, as they say.

use std::path::PathBuf;

use clap::Args;

use super::run::runtime;
use super::table::printable;
use super::view::{Color, View};
use super::{OK, Output, PROBLEM, UNREACHABLE, complain_with_causes, print, with_root};
use crate::api::wire::PeerReport;
use crate::config::RunArgs;
use crate::doctor::{AGENT_NOT_RUNNING, Check, Diagnosis, Finding, OtherNodes, diagnose};
use crate::problems::Severity;

#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    /// Repair what is Tartan's while no agent runs: forwarding and accept rules
    #[arg(long)]
    fix: bool,
    /// Ask every other node, too, what is wrong with it
    #[arg(long)]
    all: bool,
    /// Ask this other node, too; may be repeated
    #[arg(long, value_name = "NODE", conflicts_with = "all")]
    peer: Vec<String>,
    /// Select the output form
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Use colours; `auto`: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn execute(args: DoctorArgs, root: Option<PathBuf>) -> u8 {
    let run = with_root(args.run, root);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain_with_causes(&error);
            return PROBLEM;
        }
    };
    let others = match (args.all, args.peer.is_empty()) {
        (true, _) => OtherNodes::All,
        (false, true) => OtherNodes::None,
        (false, false) => OtherNodes::Named(args.peer),
    };
    let diagnosis = runtime.block_on(diagnose(&run, args.fix, &others));
    print(match args.output {
        Output::Table => render(&diagnosis, &View::of_color(args.color)),
        // It has neither maps with other keys than text nor numbers that JSON lacks.
        Output::Json => {
            serde_json::to_value(&diagnosis).map_or_else(|_| String::new(), |v| super::json(&v))
        }
    });
    code(&diagnosis)
}

/// That no agent answers is the code of its own only where nothing else is wrong.
fn code(diagnosis: &Diagnosis) -> u8 {
    let is_refused = diagnosis.answers && diagnosis.others_not_asked.is_some();
    if diagnosis.problems_elsewhere() > 0 || is_refused {
        return PROBLEM;
    }
    let mut findings = diagnosis.checks.iter().flat_map(|check| &check.findings);
    match (diagnosis.answers, diagnosis.findings()) {
        (true, 0) => OK,
        (false, 0) => UNREACHABLE,
        (false, _) if findings.all(|finding| finding.code == AGENT_NOT_RUNNING) => UNREACHABLE,
        _ => PROBLEM,
    }
}

pub(super) fn render(diagnosis: &Diagnosis, view: &View) -> String {
    let mut text = String::new();
    for line in &diagnosis.repairs {
        text.push_str(&format!("{}\n", printable(line)));
    }
    if !diagnosis.repairs.is_empty() {
        text.push('\n');
    }
    let width = diagnosis.checks.iter().map(|check| check.check.len()).max();
    for check in &diagnosis.checks {
        text.push_str(&of_check(check, width.unwrap_or_default(), view));
    }
    let found = match diagnosis.findings() {
        0 => "nothing is wrong that this node can see".to_owned(),
        1 => "1 finding".to_owned(),
        several => format!("{several} findings"),
    };
    text.push_str(&format!("\n{found}\n"));
    if let Some(others) = &diagnosis.others {
        text.push_str(&of_others(others, view));
    }
    if let Some(reason) = &diagnosis.others_not_asked {
        let mark = view.warning("?");
        text.push_str(&format!(
            "\n{mark} other nodes  not asked: {}\n",
            printable(reason)
        ));
    }
    text
}

/// What other nodes say: those with problems one by one, then those that did not say, then those that are well.
fn of_others(others: &[PeerReport], view: &View) -> String {
    let width = others.iter().map(|other| other.name.chars().count()).max();
    let width = width.unwrap_or_default();
    let named =
        |mark: &str, other: &PeerReport| format!("{mark} {:width$}", printable(&other.name));
    let mut text = "\nother nodes, as they say\n".to_owned();
    for other in others.iter().filter(|other| other.problem_count > 0) {
        let count = match other.problem_count {
            1 => "1 problem".to_owned(),
            several => format!("{several} problems"),
        };
        let head = named(&view.alarming("✗"), other);
        text.push_str(&format!("{head}  {count}: run `tartan doctor` there\n"));
        for problem in &other.problems {
            let mark = match &problem.severity[..] {
                warning if warning == Severity::Warning.name() => view.warning("WARNING"),
                _ => view.alarming("ERROR"),
            };
            let subject = match problem.subject.is_empty() {
                true => String::new(),
                false => format!(" ({})", printable(&problem.subject)),
            };
            text.push_str(&format!(
                "    {mark} {}{subject}\n",
                printable(&problem.code)
            ));
        }
        let rest = (other.problem_count as usize).saturating_sub(other.problems.len());
        if rest > 0 {
            text.push_str(&format!("    and {rest} more\n"));
        }
    }
    for other in others.iter().filter(|other| !other.told) {
        let head = named(&view.warning("?"), other);
        text.push_str(&format!(
            "{head}  not known: {}\n",
            printable(&other.reason)
        ));
    }
    let well: Vec<&str> = others
        .iter()
        .filter(|other| other.told && other.problem_count == 0)
        .map(|other| &*other.name)
        .collect();
    if !well.is_empty() {
        let shown: Vec<String> = well
            .iter()
            .take(MOST_NAMED)
            .map(|name| printable(name))
            .collect();
        let rest = match well.len().saturating_sub(shown.len()) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let mark = view.strong("✓");
        text.push_str(&format!(
            "{mark} nothing is wrong: {}{rest}\n",
            shown.join(", ")
        ));
    }
    text
}

fn of_check(check: &Check, width: usize, view: &View) -> String {
    let mark = match (check.findings.is_empty(), check.unknown.is_empty()) {
        (false, _) => view.alarming("✗"),
        (true, false) => view.warning("?"),
        (true, true) => view.strong("✓"),
    };
    let name = check.check;
    let mut lines = check.facts.iter().map(|fact| printable(fact)).chain(
        check
            .unknown
            .iter()
            .map(|what| format!("not known: {}", printable(what))),
    );
    // A finding has the facts as its evidence.
    let first = match check.findings.len() {
        0 => lines.next().unwrap_or_default(),
        1 => "1 finding".to_owned(),
        several => format!("{several} findings"),
    };
    let mut text = format!("{mark} {name:width$}  {first}\n");
    if check.findings.is_empty() {
        for line in lines {
            text.push_str(&format!("  {:width$}  {line}\n", ""));
        }
    }
    for finding in &check.findings {
        text.push_str(&of_finding(finding, view));
    }
    text
}

fn of_finding(finding: &Finding, view: &View) -> String {
    let mark = match &finding.severity[..] {
        warning if warning == Severity::Warning.name() => view.warning("WARNING"),
        _ => view.alarming("ERROR"),
    };
    let subject = match finding.subject.is_empty() {
        true => String::new(),
        false => format!(" ({})", printable(&finding.subject)),
    };
    let mut text = format!(
        "    {mark} {}{subject}: {}\n",
        finding.code,
        printable(&finding.sentence)
    );
    for (number, seen) in finding.evidence.iter().enumerate() {
        let heading = if number == 0 { "evidence" } else { "" };
        text.push_str(&format!("      {heading:8}  {}\n", printable(seen)));
    }
    text.push_str(&format!("      remedy    {}\n", printable(&finding.remedy)));
    text.push_str(&format!(
        "      see       {}\n",
        finding.reference.join(", ")
    ));
    text
}

/// Nodes that are well and are named.
const MOST_NAMED: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::PeerProblem;

    fn check(name: &'static str, findings: Vec<Finding>, unknown: &[&str]) -> Check {
        Check {
            check: name,
            facts: vec!["eth0, MTU 1400".to_owned()],
            unknown: unknown.iter().map(|what| (*what).to_owned()).collect(),
            findings,
        }
    }

    fn finding(code: &str) -> Finding {
        Finding {
            code: code.to_owned(),
            subject: "eth0".to_owned(),
            severity: "error".to_owned(),
            sentence: "it is narrow\u{1b}".to_owned(),
            evidence: vec!["MTU 1400".to_owned(), "MTU 1500 wanted".to_owned()],
            remedy: "widen it".to_owned(),
            reference: vec!["docs/problems.md".to_owned()],
        }
    }

    fn diagnosis(answers: bool, checks: Vec<Check>) -> Diagnosis {
        Diagnosis {
            node: Some("node1".to_owned()),
            version: "0.1.0".to_owned(),
            answers,
            checks,
            repairs: Vec::new(),
            others: None,
            others_not_asked: None,
        }
    }

    fn other(name: &str, told: bool, count: u32, codes: &[&str]) -> PeerReport {
        let problem = |code: &&str| PeerProblem {
            code: (*code).to_owned(),
            subject: "eth0\u{1b}".to_owned(),
            severity: "error".to_owned(),
        };
        PeerReport {
            name: name.to_owned(),
            address: None,
            state: "up".to_owned(),
            told,
            reason: if told {
                String::new()
            } else {
                "it does not answer".to_owned()
            },
            round_trip: None,
            problem_count: count,
            problems: codes.iter().map(problem).collect(),
        }
    }

    #[test]
    fn other_nodes_are_told_apart() {
        let mut asked = diagnosis(true, Vec::new());
        asked.others = Some(vec![
            other("a", true, 0, &[]),
            other("node2", true, 3, &["underlay-down"]),
            other("c", false, 0, &[]),
            other("d", true, 0, &[]),
        ]);
        assert_eq!(
            render(&asked, &View::default()),
            "
nothing is wrong that this node can see

other nodes, as they say
✗ node2  3 problems: run `tartan doctor` there
    ERROR underlay-down (eth0\\u{1b})
    and 2 more
? c      not known: it does not answer
✓ nothing is wrong: a, d
"
        );
        assert_eq!(code(&asked), PROBLEM);
        asked.others = Some(vec![other("a", true, 0, &[]), other("c", false, 0, &[])]);
        assert_eq!(code(&asked), OK);
        // What was asked for and refused is a fault of its own; where no agent answers, that is said already.
        asked.others = None;
        asked.others_not_asked = Some("no peer is called x".to_owned());
        assert_eq!(code(&asked), PROBLEM);
        asked.answers = false;
        assert_eq!(code(&asked), UNREACHABLE);
    }

    #[test]
    fn ticks_findings_and_what_is_not_known_are_told_apart() {
        let checks = vec![
            check("agent", Vec::new(), &[]),
            check("underlay", vec![finding("underlay-narrow")], &[]),
            check("clock", Vec::new(), &["no state"]),
        ];
        assert_eq!(
            render(&diagnosis(true, checks), &View::default()),
            "\
✓ agent     eth0, MTU 1400
✗ underlay  1 finding
    ERROR underlay-narrow (eth0): it is narrow\\u{1b}
      evidence  MTU 1400
                MTU 1500 wanted
      remedy    widen it
      see       docs/problems.md
? clock     eth0, MTU 1400
            not known: no state

1 finding
"
        );
    }

    #[test]
    fn the_exit_code_tells_a_stopped_agent_from_a_sick_node() {
        let with = |answers, codes: &[&str]| {
            let findings = codes.iter().map(|code| finding(code)).collect();
            code(&diagnosis(answers, vec![check("agent", findings, &[])]))
        };
        assert_eq!(with(true, &[]), OK);
        assert_eq!(with(true, &["underlay-narrow"]), PROBLEM);
        assert_eq!(with(false, &[AGENT_NOT_RUNNING]), UNREACHABLE);
        assert_eq!(with(false, &[AGENT_NOT_RUNNING, "tun-denied"]), PROBLEM);
    }
}
