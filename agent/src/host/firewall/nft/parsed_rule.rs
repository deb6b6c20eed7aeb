//! A rule of anybody's, as far as it is understood.

use super::expression::Term;

/// One rule, as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Line {
    /// What must hold of a packet.
    pub(in crate::host) terms: Vec<Term>,
    /// More must hold, of which nothing is known here.
    pub(in crate::host) more: bool,
    pub(in crate::host) deed: Deed,
}

/// What a rule does with the packets it holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum Deed {
    /// Nothing that ends their way through the chain.
    Nothing,
    Accept,
    /// They come no further; the rule's word for it.
    Cut(&'static str),
    /// They leave the chain.
    Return,
    Jump(String),
    Goto(String),
}

impl Line {
    /// One that says nothing about any packet.
    pub(in crate::host) fn empty() -> Line {
        Line {
            terms: Vec::new(),
            more: false,
            deed: Deed::Nothing,
        }
    }

    /// The chain that its packets go to.
    pub(in crate::host) fn leads_to(&self) -> Option<&str> {
        match &self.deed {
            Deed::Jump(chain) | Deed::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}
