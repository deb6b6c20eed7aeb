//! Collects the parts of a report.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use cni_shim::RunDir;
use serde_json::Value;

use super::files::{self, Listed};
use super::programs::{self, PROGRAMS};
use super::{Bundle, Keep, LONGEST_PART, Redactor};
use crate::api::client::call;
use crate::api::wire::{Request, Status};
use crate::causes::causes;
use crate::check;
use crate::config::{RunArgs, text_file};
use crate::configuration::Configuration;
use crate::doctor::Diagnosis;

/// Collects them for the node that `args` describe, in the calling thread's network namespace. `diagnosis` is what the
/// doctor found, as data and as text.
pub fn collect(args: &RunArgs, diagnosis: &Diagnosis, findings: &str) -> Bundle {
    let configuration = Configuration::load(args, None);
    let root = match &configuration {
        Ok(read) => read.config.root.clone(),
        Err(_) => args.root.clone().unwrap_or_else(|| PathBuf::from("/")),
    };
    let socket = RunDir::under(&root).socket();
    let status = call(&socket, &Request::Status);
    let pid = status.as_ref().ok().and_then(service_pid);
    let redactor = Redactor::new(secrets(configuration.as_ref().ok(), pid));
    let mut bundle = Bundle::default();
    let mut add = |path: &str, text: &str| bundle.add(&redactor, path, text, Keep::First);
    add("doctor.txt", findings);
    add("doctor.json", &pretty(diagnosis));
    add(
        "version",
        &format!("tartan {}\n", env!("CARGO_PKG_VERSION")),
    );
    for (name, request) in QUESTIONS {
        let path = format!("answers/{name}");
        match call(&socket, &request) {
            Ok(answer) => add(&format!("{path}.json"), &pretty(&answer)),
            Err(error) => add(&format!("{path}.error"), &causes(&error)),
        }
    }
    match drops(&root) {
        Ok(text) => bundle.add(&redactor, DROPS_NOW, &text, Keep::Last),
        Err(error) => bundle.lacks(DROPS_NOW, &error.to_string()),
    }
    let mut add = |path: &str, text: &str| bundle.add(&redactor, path, text, Keep::First);
    if let Ok(verdict) = check::check(args, &[]) {
        add("configuration/check.json", &pretty(&verdict));
    }
    if let Err(error) = &configuration {
        add("configuration/error", &error.to_string());
    }
    let of_node = configuration
        .as_ref()
        .map_or_else(|_| Vec::new(), files::of_node);
    for listed in of_node.into_iter().chain(files::of_host()) {
        file(&mut bundle, &redactor, &listed);
    }
    if let Some(pid) = pid {
        process(&mut bundle, &redactor, pid);
    }
    for program in &PROGRAMS {
        match programs::run(program.words, MOST_PRINTED, program.is_log) {
            Ok(text) => {
                let keep = match program.is_log {
                    true => Keep::Last,
                    false => Keep::First,
                };
                bundle.add(&redactor, program.part, &text, keep);
            }
            Err(error) => {
                let name = program.words.first().unwrap_or(&"");
                bundle.lacks(program.part, &format!("{name}: {error}"));
            }
        }
    }
    bundle
}

/// What is dropped while the report is made, a line each.
fn drops(root: &Path) -> io::Result<String> {
    let program = env::current_exe()?;
    let [program, root] = [&program, root].map(|path| path.to_string_lossy());
    let words = [
        &*program, "drops", "--follow", "-o", "json", "--root", &*root,
    ];
    programs::run_for(&words, MOST_PRINTED, FOLLOWED)
}

fn file(bundle: &mut Bundle, redactor: &Redactor, listed: &Listed) {
    match files::read(&listed.path, MOST_READ, false) {
        Ok(text) => bundle.add(redactor, &listed.part, &text, Keep::First),
        Err(error) => bundle.lacks(&listed.part, &format!("{}: {error}", listed.path.display())),
    }
}

/// The service's words, variables and log.
fn process(bundle: &mut Bundle, redactor: &Redactor, pid: u32) {
    for (part, file) in [
        ("service/words", "cmdline"),
        ("service/variables", "environ"),
        ("service/limits", "limits"),
        ("service/status", "status"),
        ("service/control-group", "cgroup"),
    ] {
        match files::words(pid, file, MOST_READ) {
            Ok(text) => bundle.add(redactor, part, &text, Keep::First),
            Err(error) => bundle.lacks(part, &error.to_string()),
        }
    }
    match files::log_of(pid) {
        Some(log) => match files::read(&log, MOST_READ, true) {
            Ok(text) => bundle.add(redactor, "log/service", &text, Keep::Last),
            Err(error) => bundle.lacks("log/service", &error.to_string()),
        },
        None => bundle.lacks(
            "log/service",
            "the service logs to no file; see log/journal",
        ),
    }
}

/// The values of the flag `etcd-password`, with one dash or two, in the words of a command line.
fn passwords(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = words.lines();
    while let Some(word) = words.next() {
        let Some(rest) = word.trim_start_matches('-').strip_prefix("etcd-password") else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => found.push(value.to_owned()),
            None => found.extend(words.next().map(str::to_owned)),
        }
    }
    found
}

/// The secrets of this node, to be looked for in everything.
fn secrets(configuration: Option<&Configuration>, pid: Option<u32>) -> Vec<String> {
    let mut known = Vec::new();
    known.extend(std::env::var("TARTAN_ETCD_PASSWORD").ok());
    if let Some(pid) = pid
        && let Ok(variables) = files::words(pid, "environ", MOST_READ)
    {
        let of_password = |line: &str| {
            line.strip_prefix("TARTAN_ETCD_PASSWORD=")
                .map(str::to_owned)
        };
        known.extend(variables.lines().filter_map(of_password));
    }
    if let Some(pid) = pid
        && let Ok(words) = files::words(pid, "cmdline", MOST_READ)
    {
        known.extend(passwords(&words));
    }
    let Some(Configuration { config, .. }) = configuration else {
        return known;
    };
    let registry = &config.registry;
    known.extend(
        registry
            .etcd
            .user
            .iter()
            .map(|(_, secret)| secret.0.clone()),
    );
    if let Some(path) = &registry.kubernetes.kubeconfig
        && let Ok(text) = text_file::read(path, MOST_READ)
    {
        known.extend(Redactor::secrets_of(&text));
    }
    // The token of a pod.
    known.extend(
        fs::read_to_string(POD_TOKEN)
            .ok()
            .map(|text| text.trim().to_owned()),
    );
    known
}

fn service_pid(answer: &Value) -> Option<u32> {
    let status: Status = serde_json::from_value(answer.clone()).ok()?;
    Some(status.service_pid)
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).map_or_else(|error| error.to_string(), |text| text + "\n")
}

const QUESTIONS: [(&str, Request); 5] = [
    ("status", Request::Status),
    ("peers", Request::Peers),
    ("routes", Request::Routes),
    ("pods", Request::Pods),
    ("drops", Request::Drops),
];
/// The part that has what was dropped meanwhile.
const DROPS_NOW: &str = "answers/drops-now";
/// For how long drops are followed: some of every reason are shown each tenth of a second.
const FOLLOWED: Duration = Duration::from_secs(1);
/// Of a file, in bytes: more than is kept, so that what is cut off is counted.
const MOST_READ: u64 = 4 * LONGEST_PART as u64;
/// Of what a program prints, in bytes.
const MOST_PRINTED: usize = 4 * LONGEST_PART;
/// Where Kubernetes gives a pod the token of its account.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_among_the_words_of_the_service_is_known() {
        let words =
            "tartan\nrun\n--etcd-password\na,b;c 99\n-etcd-password=x=y\n--etcd-username=u\n";
        assert_eq!(passwords(words), ["a,b;c 99", "x=y"]);
        assert_eq!(passwords("--etcd-password\n"), [""; 0]);
    }
}
