//! A rule of any program, as far as it is understood.

use super::expression::Term;

/// One rule, as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct ParsedRule {
    /// What must hold of a packet.
    pub(in crate::host) terms: Vec<Term>,
    /// It has conditions that were not understood.
    pub(in crate::host) has_unknown: bool,
    pub(in crate::host) action: Action,
}

/// What a rule does with the packets it holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum Action {
    /// Nothing that ends their way through the chain.
    Nothing,
    Accept,
    /// It drops or rejects them; the name of its verdict.
    Drop(&'static str),
    /// They leave the chain.
    Return,
    Jump(String),
    Goto(String),
    /// Any of these, or a translation: by a verdict map, a queue to a program, or a target that is not understood.
    Unknown,
}

impl ParsedRule {
    /// One that holds for every packet and does nothing.
    pub(in crate::host) fn empty() -> ParsedRule {
        ParsedRule {
            terms: Vec::new(),
            has_unknown: false,
            action: Action::Nothing,
        }
    }

    /// The chain that its packets go to.
    pub(in crate::host) fn leads_to(&self) -> Option<&str> {
        match &self.action {
            Action::Jump(chain) | Action::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}
