//! `tartan manual`: man pages and completions of every command, written from the same definitions as `--help`.
//!
//! A command of the program itself, so that no build step can leave the pages behind the program. It is hidden: an
//! installation calls it once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::{Cli, OK, PROBLEM, complain, print};

#[derive(Args, Debug)]
pub(super) struct ManualArgs {
    /// Write below DIR: man/man1, bash-completion/completions, zsh/site-functions, fish/vendor_completions.d
    #[arg(long, value_name = "DIR", default_value = "/usr/local/share")]
    dir: PathBuf,
}

pub(super) fn execute(args: &ManualArgs) -> u8 {
    match write(&args.dir) {
        Ok(files) => {
            print(format!("{files} files below {}\n", args.dir.display()));
            OK
        }
        Err(error) => {
            complain(format!(
                "cannot write below {}: {error}: name a directory that can be written (--dir)",
                args.dir.display()
            ));
            PROBLEM
        }
    }
}

/// Returns how many files were written.
fn write(dir: &Path) -> io::Result<usize> {
    let man = dir.join("man/man1");
    fs::create_dir_all(&man)?;
    let mut files = 0;
    for (name, command) in pages(Cli::command()) {
        let mut text = Vec::new();
        Man::new(command)
            .title(name.to_uppercase())
            .section("1")
            .source(format!("tartan {}", env!("CARGO_PKG_VERSION")))
            .manual("Tartan")
            .render(&mut text)?;
        fs::write(man.join(format!("{name}.1")), text)?;
        files += 1;
    }
    // Written under the final name, so that scripts/uninstall also finds what a killed run left.
    for (shell, folder, file) in [
        (Shell::Bash, "bash-completion/completions", "tartan"),
        (Shell::Zsh, "zsh/site-functions", "_tartan"),
        (Shell::Fish, "fish/vendor_completions.d", "tartan.fish"),
    ] {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder)?;
        let mut text = Vec::new();
        generate(shell, &mut Cli::command(), NAME, &mut text);
        fs::write(folder.join(file), text)?;
        files += 1;
    }
    Ok(files)
}

/// Each command that is shown, by the name of its page: `tartan`, `tartan-cni-install`.
fn pages(mut root: Command) -> Vec<(String, Command)> {
    root.build();
    let mut pages = Vec::new();
    let mut left = vec![(NAME.to_owned(), root)];
    while let Some((name, command)) = left.pop() {
        let children = command.get_subcommands();
        let children = children.filter(|child| !child.is_hide_set() && child.get_name() != "help");
        left.extend(children.map(|child| (format!("{name}-{}", child.get_name()), child.clone())));
        let words = name.replace('-', " ");
        // The page of a command of a command is found by its own name.
        let page = command.clone().bin_name(words).display_name(name.clone());
        pages.push((name, page));
    }
    pages.sort_by(|(a, _), (b, _)| a.cmp(b));
    pages
}

const NAME: &str = "tartan";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_each_shell_its_completions() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path()).unwrap();
        let man = dir.path().join("man/man1");
        for page in [
            "tartan",
            "tartan-doctor",
            "tartan-cni-install",
            "tartan-report",
        ] {
            let text = fs::read_to_string(man.join(format!("{page}.1"))).unwrap();
            assert!(text.contains(".SH NAME"), "{page}: {text}");
        }
        assert!(!man.join("tartan-service.1").exists());
        assert!(!man.join("tartan-manual.1").exists());
        for completion in [
            "bash-completion/completions/tartan",
            "zsh/site-functions/_tartan",
            "fish/vendor_completions.d/tartan.fish",
        ] {
            assert!(dir.path().join(completion).exists(), "{completion}");
        }
        assert_eq!(fs::read_dir(man).unwrap().count(), files - 3);
    }
}
