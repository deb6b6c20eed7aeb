//! Who may ask what: bearer tokens, each of a user with rights.

use axum::http::{HeaderMap, header};
use serde_json::json;

use super::refusal::Refusal;
use super::target::{Asked, Target};

/// The tokens; with none of them everybody may ask everything.
#[derive(Default)]
pub(super) struct Access {
    tokens: Vec<Token>,
}

struct Token {
    token: String,
    user: String,
    rights: Vec<String>,
}

impl Access {
    /// Adds a token, or changes what it may: each right is `VERB RESOURCE`, as in `get nodes` or `patch nodes/status`, or
    /// `*` for everything. The empty token is that of requests without one.
    pub(super) fn allow(&mut self, token: &str, user: &str, rights: &[&str]) {
        self.tokens.retain(|known| known.token != token);
        self.tokens.push(Token {
            token: token.to_owned(),
            user: user.to_owned(),
            rights: rights.iter().map(|&right| right.to_owned()).collect(),
        });
    }

    /// Whether a request may be answered.
    pub(super) fn check(&self, headers: &HeaderMap, asked: &Asked) -> Result<(), Refusal> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let token = text(headers, header::AUTHORIZATION.as_str())
            .and_then(|value| value.strip_prefix("Bearer "))
            .unwrap_or_default();
        let known = self.tokens.iter().find(|known| known.token == token);
        let (mut user, mut rights) = match known {
            Some(known) => (known.user.as_str(), known.rights.as_slice()),
            None if token.is_empty() => ("system:anonymous", &[] as &[String]),
            None => return Err(Refusal::unauthorized()),
        };
        if let Some(other) = text(headers, "impersonate-user") {
            if !rights.iter().any(|right| right == "*") {
                return Err(no_impersonation(user, other));
            }
            let known = self.tokens.iter().find(|known| known.user == other);
            (user, rights) = (
                other,
                known.map_or(&[] as &[String], |known| known.rights.as_slice()),
            );
        }
        let allowed = |right: &str| rights.iter().any(|known| known == right || known == "*");
        let resource = asked.target.resource();
        let open = match &asked.target {
            Target::Open => true,
            // Who is known may read what there is.
            Target::Discovery => user != "system:anonymous",
            _ => false,
        };
        if open || allowed(&format!("{} {resource}", asked.verb)) {
            return Ok(());
        }
        Err(forbidden(user, asked))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn no_impersonation(user: &str, other: &str) -> Refusal {
    let message = format!(
        "users {other:?} is forbidden: User {user:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
    Refusal::forbidden(message, json!({"name": other, "kind": "users"}))
}

fn forbidden(user: &str, asked: &Asked) -> Refusal {
    let verb = asked.verb;
    let Some(name) = asked.target.node_or(asked.only.as_deref()) else {
        let message = format!(
            "forbidden: User {user:?} cannot {verb} path {:?}",
            asked.path
        );
        return Refusal::forbidden(message, json!({}));
    };
    let resource = asked.target.resource();
    let what = format!(
        "User {user:?} cannot {verb} resource {resource:?} in API group \"\" at the cluster scope"
    );
    if name.is_empty() {
        let message = format!("nodes is forbidden: {what}");
        return Refusal::forbidden(message, json!({"kind": "nodes"}));
    }
    let message = format!("nodes {name:?} is forbidden: {what}");
    Refusal::forbidden(message, json!({"name": name, "kind": "nodes"}))
}
