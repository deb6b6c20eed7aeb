//! Takes secrets out of a text: passwords, tokens, private keys, credentials.
//!
//! By the form of the text (a key that names a secret, a private key of PEM, a JSON Web Token, a user in a URL), and by the
//! secrets of this node themselves, wherever they stand. In doubt a text is redacted: a report that lacks a harmless word is
//! still a report. No form is known by which a secret without a name in front of it could be told from a number; so nothing
//! is collected that holds such.

use regex::{Captures, Regex};

/// Knows what is a secret.
#[derive(Debug)]
pub struct Redactor {
    forms: Vec<(Regex, Replacement)>,
    /// Secrets of this node, the longest first.
    known: Vec<String>,
}

/// What stands in the place of a match.
#[derive(Clone, Copy, Debug)]
enum Replacement {
    /// All of it goes.
    Whole,
    /// The first group stays.
    AfterFirst,
}

impl Default for Redactor {
    fn default() -> Redactor {
        Redactor::new(Vec::new())
    }
}

impl Redactor {
    /// One that knows these secrets too. Of fewer than [`SHORTEST`] bytes none is looked for: it would be found everywhere.
    pub fn new(mut known: Vec<String>) -> Redactor {
        known.retain(|secret| secret.len() >= SHORTEST);
        known.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        known.dedup();
        let forms = FORMS.iter().filter_map(|(form, replacement)| {
            // A test compiles each.
            Some((
                Regex::new(&form.replace("NAMES", NAMES)).ok()?,
                *replacement,
            ))
        });
        Redactor {
            forms: forms.collect(),
            known,
        }
    }

    /// The text without secrets.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.known {
            if text.contains(secret) {
                text = text.replace(secret, REDACTED);
            }
        }
        for (form, replacement) in &self.forms {
            text = form
                .replace_all(&text, |found: &Captures<'_>| match replacement {
                    Replacement::Whole => REDACTED.to_owned(),
                    Replacement::AfterFirst => {
                        let kept = found.get(1).map_or("", |kept| kept.as_str());
                        format!("{kept}{REDACTED}")
                    }
                })
                .into_owned();
        }
        text
    }

    /// The values of keys that name a secret, as in a kubeconfig: to be looked for elsewhere.
    pub fn secrets_of(text: &str) -> Vec<String> {
        let Ok(form) = Regex::new(SECRET_LINES) else {
            return Vec::new();
        };
        form.captures_iter(text)
            .filter_map(|found| found.get(1))
            .map(|value| value.as_str().trim_matches(['"', '\'']).to_owned())
            .collect()
    }
}

/// What stands in the place of a secret.
const REDACTED: &str = "(redacted)";
const SHORTEST: usize = 6;

/// Words in a key that name a secret. In ASCII alone, so that letters of both cases need no tables.
const NAMES: &str = "(?i-u:password|passwd|passphrase|secret|token|credential|private[_-]?key|api[_-]?key|access[_-]?key|key-data|psk|cookie)";

/// Forms of secrets; [`NAMES`] stands for itself.
const FORMS: [(&str, Replacement); 7] = [
    // PEM, whole or cut off; also within a string with escaped line ends.
    (
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
        Replacement::Whole,
    ),
    // A string of several lines behind such a key.
    (
        r#"(?s)([a-zA-Z0-9_.-]*NAMES[a-zA-Z0-9_.-]*["']?[ \t]*[:=][ \t]*)(?:""".*?"""|'''.*?''')"#,
        Replacement::AfterFirst,
    ),
    // key = value, "key": "value", key: value, KEY=value.
    (
        r#"([a-zA-Z0-9_.-]*NAMES[a-zA-Z0-9_.-]*\\?["']?[ \t]*[:=][ \t]*)(?:\\?"(?:\\.|[^"\\\n])*\\?"?|'[^'\n]*'?|[^\s,;}\]"']+)"#,
        Replacement::AfterFirst,
    ),
    // --key value, also with a line end between the two.
    (
        r"((?:\A|\s)--?[a-zA-Z0-9-]*NAMES[a-zA-Z0-9-]*\s+)[^\s=:-][^\s]*",
        Replacement::AfterFirst,
    ),
    (
        r"(\b(?i-u:bearer|basic)[ \t]+)[a-zA-Z0-9._~+/=-]{8,}",
        Replacement::AfterFirst,
    ),
    // A JSON Web Token.
    (
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.?[A-Za-z0-9_-]*",
        Replacement::Whole,
    ),
    // The user of a URL.
    (r#"(://)[^/\s"'@]+@"#, Replacement::AfterFirst),
];

/// Lines of YAML and TOML that hold a secret.
const SECRET_LINES: &str = r#"(?m)^[\s-]*(?:token|password|client-key-data|etcd-password|id-token|refresh-token)[ \t]*[:=][ \t]*(\S+)[ \t]*$"#;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_compiles() {
        assert_eq!(Redactor::default().forms.len(), FORMS.len());
        assert!(Regex::new(SECRET_LINES).is_ok());
    }

    #[test]
    fn secrets_go_and_the_rest_stays() {
        let redactor = Redactor::new(vec!["the-node's-own".to_owned(), "ab".to_owned()]);
        for (text, expected) in [
            ("etcd-password = \"hunter2x\"", "etcd-password = (redacted)"),
            (
                "etcd-password='hunter2x'\nworkers = 2",
                "etcd-password=(redacted)\nworkers = 2",
            ),
            (
                "TARTAN_ETCD_PASSWORD=hunter2x",
                "TARTAN_ETCD_PASSWORD=(redacted)",
            ),
            (
                "--etcd-password hunter2x --workers 2",
                "--etcd-password (redacted) --workers 2",
            ),
            (
                "--etcd-password\nhunter2x\n--workers",
                "--etcd-password\n(redacted)\n--workers",
            ),
            ("--etcd-password=hunter2x", "--etcd-password=(redacted)"),
            (
                "flanneld -etcd-password hunter2x",
                "flanneld -etcd-password (redacted)",
            ),
            (
                "{\"token\": \"hun\\\"ter2x\", \"port\": 8472}",
                "{\"token\": (redacted), \"port\": 8472}",
            ),
            (
                "client-key-data: aHVudGVyMng=",
                "client-key-data: (redacted)",
            ),
            (
                "password = \"\"\"\nhunter2x\n\"\"\"\nvni = 1",
                "password = (redacted)\nvni = 1",
            ),
            (
                "Authorization: Bearer hunter2xhunter2x",
                "Authorization: Bearer (redacted)",
            ),
            (
                "https://root:hunter2x@192.0.2.1:2379",
                "https://(redacted)192.0.2.1:2379",
            ),
            (
                "seen eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM.sig-na in it",
                "seen (redacted) in it",
            ),
            (
                "-----BEGIN EC PRIVATE KEY-----\nhunter2x\n-----END EC PRIVATE KEY-----\nnext",
                "(redacted)\nnext",
            ),
            ("a -----BEGIN PRIVATE KEY-----\nhunter2x", "a (redacted)"),
            ("it said the-node's-own twice", "it said (redacted) twice"),
            ("ab stays: too short", "ab stays: too short"),
            (
                "the key etcd-prefix = \"/x\"",
                "the key etcd-prefix = \"/x\"",
            ),
            (
                "10.244.1.0/24 dev tartan0 src 10.244.1.0",
                "10.244.1.0/24 dev tartan0 src 10.244.1.0",
            ),
            (
                "vtep-mac = \"0a:74:c0:00:02:01\"",
                "vtep-mac = \"0a:74:c0:00:02:01\"",
            ),
        ] {
            assert_eq!(redactor.redact(text), expected);
        }
    }

    #[test]
    fn the_secrets_of_a_kubeconfig_are_known() {
        let found = Redactor::secrets_of(
            "users:\n- name: a\n  user:\n    token: abc.def\n    client-key-data: \"a2V5\"\n    client-certificate-data: xyz\n",
        );
        assert_eq!(found, ["abc.def", "a2V5"]);
    }

    proptest! {
        /// Wherever it stands in a text, and in whichever form.
        #[test]
        fn a_planted_secret_is_gone(
            before in "[ -~\n]{0,40}",
            after in "[ -~\n]{0,40}",
            secret in "[A-Za-z0-9]{12,20}",
            form in 0_usize..6,
        ) {
            let planted = match form {
                0 => format!("etcd-password = \"{secret}\""),
                1 => format!("\"password\": \"{secret}\""),
                2 => format!("TARTAN_ETCD_PASSWORD={secret}"),
                3 => format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----"),
                4 => format!("token: {secret}"),
                _ => format!("Bearer {secret}"),
            };
            let text = format!("{before}\n{planted}\n{after}");
            let redacted = Redactor::default().redact(&text);
            prop_assert!(!redacted.contains(&secret), "{redacted}");
        }

        #[test]
        fn any_text_ends(text in any::<String>()) {
            Redactor::default().redact(&text);
        }
    }
}
