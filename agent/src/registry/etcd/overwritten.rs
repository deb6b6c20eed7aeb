//! How often another process has overwritten this node's key with this node's address: a flanneld that was left running
//! beside us. It is undone a few times, for it may be on its way out, and then left alone and reported: two processes that
//! write one key in turn would wake every node of the cluster for ever.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::super::place::RegistryPlace;
use super::acquire::same_node;
use super::table::Record;
use super::value::LeaseAttrs;

/// When it happened.
#[derive(Debug, Default)]
pub(super) struct Overwritten {
    at: VecDeque<Instant>,
}

impl Overwritten {
    /// Counts one more time. The error is one sentence for the operator: it is not to be undone.
    pub(super) fn count(
        &mut self,
        now: Instant,
        place: &RegistryPlace,
        record: &Record,
        wanted: &LeaseAttrs,
    ) -> Result<(), String> {
        let is_old = |at: &Instant| now.duration_since(*at) > WITHIN;
        while self.at.front().is_some_and(is_old) {
            self.at.pop_front();
        }
        let found = match &record.attrs {
            Some(attrs) if record.is_sound() => attrs.render(),
            _ => "text that is no lease".to_owned(),
        };
        let wanted_public = wanted.public();
        let wanted = wanted.render();
        if self.at.len() >= MOST {
            let remedy = match &record.attrs {
                Some(attrs) if !same_node(attrs.public(), wanted_public) => {
                    "look for a node that was made as a copy of this one, and give it a state directory of its own"
                }
                _ => "stop flanneld on this node",
            };
            return Err(format!(
                "another process keeps writing {found} where this node announces {wanted}: {remedy}"
            ));
        }
        self.at.push_back(now);
        warn!(
            %place,
            found,
            wanted,
            "another process has overwritten this node's lease; writing it back: stop flanneld if it runs on this node"
        );
        Ok(())
    }
}

/// How often it is undone, and within which time.
const MOST: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::super::table::{Table, Written};
    use super::*;

    #[test]
    fn it_is_undone_three_times_in_ten_minutes() {
        let mut table = Table::new("/p");
        let text = br#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;
        let key = b"/p/subnets/10.244.1.0-24";
        table.put(Written {
            key: key.to_vec(),
            value: text.to_vec(),
            create_revision: 1,
            mod_revision: 1,
            lease: 0,
        });
        let (place, record) = (Table::place(key), table.get(key).unwrap());
        let wanted = LeaseAttrs::parse(text).unwrap();
        let mut overwritten = Overwritten::default();
        let start = Instant::now();
        let mut at = |seconds| {
            let now = start + Duration::from_secs(seconds);
            overwritten.count(now, &place, record, &wanted)
        };
        assert!(at(0).is_ok() && at(1).is_ok() && at(300).is_ok());
        let reason = at(600).unwrap_err();
        assert!(reason.ends_with("stop flanneld on this node"), "{reason}");
        assert!(at(601).is_ok(), "the first is forgotten");
        assert!(at(601).is_err());
    }
}
