//! The parameters of a list or a watch: `ListOptions` of `k8s.io/apimachinery`.

use super::refusal::Refusal;
use super::store::Stored;
use serde_json::{Value, json};

/// What a list or a watch asks for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) watch: bool,
    pub(super) bookmarks: bool,
    /// Seconds until the end of a watch.
    pub(super) timeout: Option<u64>,
    /// Items of a page; 0 is all of them.
    pub(super) limit: usize,
    pub(super) go_on: String,
    /// As it was given: an empty one, "0" and other ones have a meaning each.
    pub(super) revision: String,
    /// `resourceVersionMatch`: Exact, or NotOlderThan.
    pub(super) exact: bool,
    pub(super) not_older: bool,
    pub(super) selectors: Vec<Selector>,
}

/// One term of a `fieldSelector`.
#[derive(Debug, PartialEq)]
pub(super) struct Selector {
    field: String,
    value: String,
    /// `!=` in place of `=`.
    not: bool,
}

impl Options {
    /// Reads the parameters of a request; unknown ones are ignored.
    pub(super) fn of(query: &str) -> Result<Self, Refusal> {
        let mut options = Options::default();
        let mut matching = String::new();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match key.as_ref() {
                "watch" => options.watch = truth(&value),
                "allowWatchBookmarks" => options.bookmarks = truth(&value),
                "timeoutSeconds" => options.timeout = Some(number(&value)?).filter(|&it| it > 0),
                "limit" => options.limit = usize::try_from(number(&value)?).unwrap_or(usize::MAX),
                "continue" => options.go_on = value.into_owned(),
                "resourceVersion" => options.revision = value.into_owned(),
                "resourceVersionMatch" => matching = value.into_owned(),
                "fieldSelector" => options.selectors = selectors(&value)?,
                "labelSelector" if !value.is_empty() => {
                    let message = "this API server is for tests and knows no labelSelector";
                    return Err(Refusal::bad_request(message));
                }
                _ => {}
            }
        }
        options.check_match(&matching)?;
        options.exact = matching == "Exact";
        options.not_older = matching == "NotOlderThan";
        Ok(options)
    }

    /// `ValidateListOptions`.
    fn check_match(&self, matching: &str) -> Result<(), Refusal> {
        let why = match matching {
            "" => return Ok(()),
            _ if self.watch => "Forbidden: resourceVersionMatch is forbidden for watch",
            _ if self.revision.is_empty() => {
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
            }
            _ if !self.go_on.is_empty() => {
                "Forbidden: resourceVersionMatch is forbidden when continue is provided"
            }
            "Exact" if self.revision == "0" => {
                "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
            }
            "Exact" | "NotOlderThan" => return Ok(()),
            _ => "Unsupported value: supported values: \"Exact\", \"NotOlderThan\", \"\"",
        };
        let cause = if why.starts_with("Forbidden") {
            "FieldValueForbidden"
        } else {
            "FieldValueNotSupported"
        };
        let details = json!({"group": "meta.k8s.io", "kind": "ListOptions"});
        let subject = "ListOptions.meta.k8s.io \"\"";
        Err(Refusal::invalid(
            subject,
            cause,
            "resourceVersionMatch",
            why,
            details,
        ))
    }

    /// The revision as a number; 0 for an empty one.
    pub(super) fn number(&self) -> Result<u64, Refusal> {
        if self.revision.is_empty() {
            return Ok(0);
        }
        self.revision.parse().map_err(|_| {
            let message = format!(
                "resourceVersion: Invalid value: {0:?}: strconv.ParseUint: parsing {0:?}: invalid syntax",
                self.revision
            );
            Refusal::new(500, "", message)
        })
    }

    /// Whether a Node is asked for.
    pub(super) fn select(&self, name: &str, node: &Stored) -> bool {
        self.selectors.iter().all(|selector| {
            let is = match selector.field.as_str() {
                "metadata.name" => selector.value == name,
                _ => selector.value == unschedulable(node),
            };
            is != selector.not
        })
    }

    /// The name of the only Node that can be asked for, which decides who may ask.
    pub(super) fn only(&self) -> Option<&str> {
        let named = |selector: &&Selector| selector.field == "metadata.name" && !selector.not;
        Some(&self.selectors.iter().find(named)?.value)
    }
}

fn selectors(text: &str) -> Result<Vec<Selector>, Refusal> {
    let terms = text.split(',').filter(|term| !term.is_empty());
    terms.map(|term| selector(text, term)).collect()
}

fn selector(whole: &str, term: &str) -> Result<Selector, Refusal> {
    let (field, value, not) = if let Some((field, value)) = term.split_once("!=") {
        (field, value, true)
    } else if let Some((field, value)) = term.split_once('=') {
        (field, value.strip_prefix('=').unwrap_or(value), false)
    } else {
        let message = format!("invalid selector: '{whole}'; can't understand '{term}'");
        return Err(Refusal::bad_request(message));
    };
    if !matches!(field, "metadata.name" | "spec.unschedulable") {
        let message = format!("field label not supported: {field}");
        return Err(Refusal::bad_request(message));
    }
    Ok(Selector {
        field: field.to_owned(),
        value: value.to_owned(),
        not,
    })
}

fn unschedulable(node: &Stored) -> &'static str {
    let node: Value = node.value();
    if node["spec"]["unschedulable"] == true {
        "true"
    } else {
        "false"
    }
}

/// A parameter without a value is true.
fn truth(value: &str) -> bool {
    !matches!(value.to_ascii_lowercase().as_str(), "false" | "0")
}

fn number(value: &str) -> Result<u64, Refusal> {
    let message = || format!("strconv.ParseInt: parsing {value:?}: invalid syntax");
    value.parse().map_err(|_| Refusal::bad_request(message()))
}
