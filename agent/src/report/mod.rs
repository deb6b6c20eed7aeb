//! `tartan report`: one file from which others understand this node, without its secrets.
//!
//! Theory of operation. A [`Bundle`] is a list of [`Part`]s, each a text of at most [`LONGEST_PART`] bytes, all together at
//! most [`LONGEST_BUNDLE`]; what is cut off or cannot be had is said in the part itself and in the list of contents. Parts
//! come from three places: the agent's answers, files of Tartan and of `/proc`, and programs of the host (`ip`, `nft`, `tc`,
//! `ss`, `journalctl`) that say what the kernel holds also where Tartan does not understand it. The programs are run by this
//! command and never by the service, with fixed words, without a shell, and for [`PATIENCE`] at most.
//!
//! Every text passes the [`Redactor`] before it is kept. Files that hold nothing but secrets (keys, kubeconfig) are not read
//! into a part at all: their secrets are only read to be looked for elsewhere.

mod archive;
mod collect;
mod files;
mod programs;
mod redact;

use std::time::Duration;

pub use archive::{ArchiveError, write};
pub use collect::collect;
pub use redact::Redactor;

/// All that is known of a node.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

/// One file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its path within the bundle.
    pub path: String,
    /// Its text, redacted.
    pub text: String,
    /// What is missing of it, in words.
    pub missing: Option<String>,
}

/// Which end of a long text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

impl Bundle {
    /// Bytes of all texts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.text.len()).sum()
    }

    /// Adds a text as far as there is room for it.
    fn add(&mut self, redactor: &Redactor, path: &str, text: &str, keep: Keep) {
        let room = LONGEST_PART.min(LONGEST_BUNDLE.saturating_sub(self.bytes()));
        // Redacted before it is cut: half a secret is one, too.
        let text = redactor.redact(text);
        let (kept, cut) = cut(&text, room, keep);
        self.parts.push(Part {
            path: path.to_owned(),
            text: kept.to_owned(),
            missing: (cut > 0).then(|| format!("{cut} bytes are cut off")),
        });
    }

    /// Notes a part that cannot be had.
    fn lacks(&mut self, path: &str, why: &str) {
        self.parts.push(Part {
            path: path.to_owned(),
            text: String::new(),
            missing: Some(why.to_owned()),
        });
    }

    /// The list of contents.
    fn contents(&self) -> String {
        let mut text = String::from(
            "A report of a Tartan node. Passwords, tokens and keys are replaced by (redacted).\n\n",
        );
        for part in &self.parts {
            let missing = match &part.missing {
                Some(missing) => format!(": {missing}"),
                None => String::new(),
            };
            text.push_str(&format!("{:>9}  {}{missing}\n", part.text.len(), part.path));
        }
        text
    }
}

/// The first or last `room` bytes of a text, on the boundary of a character, and how many are not among them.
fn cut(text: &str, room: usize, keep: Keep) -> (&str, usize) {
    if text.len() <= room {
        return (text, 0);
    }
    let kept = match keep {
        Keep::First => {
            let end = (0..=room).rev().find(|end| text.is_char_boundary(*end));
            text.get(..end.unwrap_or(0))
        }
        Keep::Last => {
            let from = text.len() - room;
            let start = (from..=text.len()).find(|start| text.is_char_boundary(*start));
            text.get(start.unwrap_or(text.len())..)
        }
    };
    let kept = kept.unwrap_or_default();
    (kept, text.len() - kept.len())
}

/// Of one part, in bytes.
const LONGEST_PART: usize = 1 << 20;
/// Of all parts, in bytes, before they are compressed.
const LONGEST_BUNDLE: usize = 32 << 20;
/// For a program of the host.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bundle_is_bounded_and_says_what_is_missing() {
        let mut bundle = Bundle::default();
        let redactor = Redactor::default();
        let long = "x".repeat(LONGEST_PART + 7);
        for number in 0..40 {
            bundle.add(&redactor, &format!("part{number}"), &long, Keep::First);
        }
        assert!(bundle.bytes() <= LONGEST_BUNDLE, "{}", bundle.bytes());
        assert_eq!(
            bundle.parts[0].missing.as_deref(),
            Some("7 bytes are cut off")
        );
        bundle.lacks("log", "no log was found");
        assert!(bundle.contents().contains("0  log: no log was found\n"));
    }

    proptest! {
        #[test]
        fn a_cut_keeps_characters_whole(text in any::<String>(), room in 0_usize..40) {
            for keep in [Keep::First, Keep::Last] {
                let (kept, lost) = cut(&text, room, keep);
                prop_assert!(kept.len() <= room || text.len() <= room);
                prop_assert_eq!(kept.len() + lost, text.len());
                prop_assert!(text.starts_with(kept) || text.ends_with(kept));
            }
        }
    }
}
