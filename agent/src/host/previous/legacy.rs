//! Rules of iptables-legacy, read and removed by its own programs: the kernel hands a table out and takes it as one block,
//! which `iptables-legacy-restore` does under the lock that all of these programs share.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::catalogue::{Catalogue, matching};
use super::chains::{known_by, of_table};
use super::{Leftover, LeftoverError, Thing};

/// What is to go from one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LegacyTable {
    /// `iptables-legacy` or `ip6tables-legacy`.
    program: &'static str,
    name: String,
    chains: Vec<String>,
    /// Rules in chains of others, as `-A CHAIN ...`, with what each was known by.
    rules: Vec<(String, String)>,
}

impl LegacyTable {
    /// What `iptables-legacy-restore --noflush` is to read.
    fn script(&self) -> String {
        let rules = self
            .rules
            .iter()
            .filter_map(|(rule, _)| rule.strip_prefix("-A "));
        let rules: String = rules.map(|rule| format!("-D {rule}\n")).collect();
        let flushed: String = self
            .chains
            .iter()
            .map(|chain| format!("-F {chain}\n"))
            .collect();
        let deleted: String = self
            .chains
            .iter()
            .map(|chain| format!("-X {chain}\n"))
            .collect();
        format!("*{}\n{rules}{flushed}{deleted}COMMIT\n", self.name)
    }
}

pub(super) async fn find(catalogue: &Catalogue) -> Result<Vec<Leftover>, LeftoverError> {
    let mut found = Vec::new();
    for (program, list) in FAMILIES {
        // The programs would make the tables: they are asked only where there is one.
        let tables = crate::config::text_file::read(Path::new(list), LONGEST_LIST);
        if tables.is_ok_and(|tables| tables.trim().is_empty()) || !Path::new(list).exists() {
            continue;
        }
        let text = run(&format!("{program}-save"), &[], "").await?;
        for table in parse(catalogue, program, &text) {
            let names: Vec<&str> = table.chains.iter().map(String::as_str).collect();
            let place = format!("{program} {}", table.name);
            let thing = Thing::Legacy(table.clone());
            found.extend(of_table(catalogue, place, &names, &table.rules, thing));
        }
    }
    Ok(found)
}

/// Removes what is there now of a table, all at once. One that holds nothing of the CNI's any more is no error.
pub(super) async fn remove(
    catalogue: &Catalogue,
    table: &LegacyTable,
) -> Result<(), LeftoverError> {
    let program = format!("{}-restore", table.program);
    let mut last = Ok(());
    // Other programs may change the table in between.
    for _ in 0..ATTEMPTS {
        let text = run(&format!("{}-save", table.program), &[], "").await?;
        let Some(now) = remaining(catalogue, table, &text) else {
            return Ok(());
        };
        last = run(&program, &["--noflush", "--wait"], &now.script())
            .await
            .map(drop);
        if last.is_ok() {
            return Ok(());
        }
    }
    last
}

/// What of the CNI's is in the same table of what `iptables-save` prints.
fn remaining(catalogue: &Catalogue, table: &LegacyTable, text: &str) -> Option<LegacyTable> {
    let found = parse(catalogue, table.program, text);
    found.into_iter().find(|now| now.name == table.name)
}

/// The tables of what `iptables-save` prints that hold something of the CNI's.
fn parse(catalogue: &Catalogue, program: &'static str, text: &str) -> Vec<LegacyTable> {
    let mut tables: Vec<LegacyTable> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(LegacyTable {
                program,
                name: name.to_owned(),
                chains: Vec::new(),
                rules: Vec::new(),
            });
        }
        let Some(table) = tables.last_mut() else {
            continue;
        };
        // A policy of `-` is that of a chain without a hook.
        if let Some((name, "-")) = line.strip_prefix(':').and_then(|rest| {
            let mut words = rest.split(' ');
            Some((words.next()?, words.next()?))
        }) {
            if matching(catalogue.chains, name).is_some() {
                table.chains.push(name.to_owned());
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let words = words(rule);
            let chain = words.first().map(String::as_str).unwrap_or_default();
            let behind = |option: &[&str]| {
                let pairs = words.iter().zip(words.iter().skip(1));
                let mut found = pairs.filter(|(word, _)| option.contains(&word.as_str()));
                found.next().map(|(_, value)| value.as_str())
            };
            let is_forward = (program, table.name.as_str()) == (IPV4_PROGRAM, "filter");
            let known = known_by(
                catalogue,
                behind(&["-j", "-g"]),
                behind(&["--comment"]),
                rule.strip_prefix("FORWARD ").filter(|_| is_forward),
            );
            if let Some(by) = known.filter(|_| matching(catalogue.chains, chain).is_none()) {
                table.rules.push((line.to_owned(), by));
            }
        }
    }
    tables.retain(|table| !table.chains.is_empty() || !table.rules.is_empty());
    tables
}

/// The words of a rule: those in double quotes may hold spaces, and a backslash takes the meaning of what follows.
fn words(rule: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.extend(characters.next()),
            '"' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            other => word.push(other),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Runs a program with `input`; what it printed.
async fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, LeftoverError> {
    let failed = |said: String| LeftoverError::Program {
        program: program.to_owned(),
        said,
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut pipe) = child.stdin.take() {
        // One that ends without reading says why below.
        let _ = pipe.write_all(input.as_bytes()).await;
    }
    let ended = child.wait_with_output().await;
    let output = ended.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(failed(format!("{}: {said}", output.status)))
        }
    }
}

/// The programs of each family, and where the kernel lists the tables of this thread's network namespace.
const FAMILIES: [(&str, &str); 2] = [
    (IPV4_PROGRAM, "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];
const IPV4_PROGRAM: &str = "iptables-legacy";
const ATTEMPTS: usize = 3;
/// Longest list read, in bytes: there are five tables.
const LONGEST_LIST: u64 = 4096;
/// Where a host has these programs, whatever the caller's shell has set.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{calico, flannel, weave};
    use super::*;

    const SAVED: &str = "\
# Generated by iptables-save
*nat
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-SERVICES - [0:0]
-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG
-A POSTROUTING -s 10.0.0.0/8 -m comment --comment \"a \\\"quoted\\\" FLANNEL-POSTRTG\" -j MASQUERADE
-A FLANNEL-POSTRTG -m comment --comment \"flanneld masq\" -j RETURN
COMMIT
*filter
:FORWARD ACCEPT [0:0]
:cali-FORWARD - [0:0]
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -o weave -j DROP
-A FORWARD -o weave2 -j DROP
-A FORWARD -s 192.0.2.0/24 -o weave -j DROP
-A FORWARD -i weave -j LOG
-A FORWARD -i weave ! -o weave -j ACCEPT
-A INPUT -i weave -j ACCEPT
COMMIT
";

    #[test]
    fn what_is_the_cnis_goes_and_what_is_not_stays() {
        let of = |catalogue| -> Vec<String> {
            let tables = parse(catalogue, "iptables-legacy", SAVED);
            tables.iter().map(LegacyTable::script).collect()
        };
        assert_eq!(
            of(&flannel::CATALOGUE),
            [
                "*nat\n-D POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
              -F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n"
            ]
        );
        assert_eq!(
            of(&calico::CATALOGUE),
            [
                "*filter\n-D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n\
              -D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
              -F cali-FORWARD\n-X cali-FORWARD\nCOMMIT\n"
            ]
        );
        assert_eq!(
            of(&weave::CATALOGUE),
            [
                "*filter\n-D FORWARD -o weave -j DROP\n-D FORWARD -i weave ! -o weave -j ACCEPT\nCOMMIT\n"
            ]
        );
        assert!(
            parse(&weave::CATALOGUE, "ip6tables-legacy", SAVED).is_empty(),
            "Weave writes no rules for IPv6"
        );
    }

    #[test]
    fn what_went_meanwhile_is_not_removed_again() {
        let before = parse(&calico::CATALOGUE, "iptables-legacy", SAVED);
        let table = before.first().unwrap();
        let gone = SAVED.replace(
            "-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n",
            "",
        );
        let now = remaining(&calico::CATALOGUE, table, &gone).unwrap();
        assert!(
            !now.script().contains("-j cali-FORWARD"),
            "{}",
            now.script()
        );
        assert!(now.script().contains("-X cali-FORWARD"), "{}", now.script());
        for nothing in ["", "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"] {
            assert_eq!(remaining(&calico::CATALOGUE, table, nothing), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_ends(text in ".{0,300}", lines in "([*:]?[A-Za-z -]{0,20}\n){0,20}") {
            for catalogue in [&flannel::CATALOGUE, &weave::CATALOGUE] {
                parse(catalogue, "iptables-legacy", &text);
                parse(catalogue, "iptables-legacy", &lines);
            }
        }

        #[test]
        fn words_are_split_as_they_were_joined(list in proptest::collection::vec("[a-z\"\\\\ ]{1,8}", 0..6)) {
            let quote = |word: &String| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
            let joined: Vec<String> = list.iter().map(quote).collect();
            prop_assert_eq!(words(&joined.join(" ")), list);
        }
    }
}
