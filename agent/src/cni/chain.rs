//! What is chained behind our plugin and would do its work a second time.

use std::fmt;
use std::path::{Path, PathBuf};

use super::conf_dir::{self, Conf, OUR_PLUGIN};

/// Where runtimes look for configurations, below the root.
pub const CONF_DIR: &str = "etc/cni/net.d";
/// Where they look for plugins, below the root.
pub const BIN_DIR: &str = "opt/cni/bin";

/// A network whose pods two plugins would limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedTwice {
    /// The file that says so.
    pub file: PathBuf,
    /// The network.
    pub network: String,
}

impl fmt::Display for LimitedTwice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the network {} in {} gives the pod's bandwidth to {OUR_PLUGIN} and to the plugin {CHAINED}, and both would limit the same traffic: delete \"bandwidth\" from the capabilities of one of them",
            self.network,
            self.file.display()
        )
    }
}

/// The first file of the directory by which both our plugin and the reference one limit pods of the network. A directory
/// that cannot be read says nothing.
pub fn limited_twice(conf_dir: &Path, network: &str) -> Option<LimitedTwice> {
    let files = conf_dir::read(conf_dir).unwrap_or_default();
    let named = files.into_iter().find(|file| {
        let conf = file.content.as_ref();
        conf.is_some_and(|conf| conf.network == network && conf.is_ours())
    })?;
    named
        .content
        .filter(is_limited_twice)
        .map(|conf| LimitedTwice {
            file: named.path,
            network: conf.network,
        })
}

/// Whether both are given the pod's bandwidth.
pub fn is_limited_twice(conf: &Conf) -> bool {
    let given = |kind| {
        let mut plugins = conf.plugins.iter();
        plugins.any(|plugin| plugin.kind == kind && plugin.asks_for(CAPABILITY))
    };
    given(OUR_PLUGIN) && given(CHAINED)
}

const CHAINED: &str = "bandwidth";
const CAPABILITY: &str = "bandwidth";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ours: &str, chained: &str) -> Option<LimitedTwice> {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            r#"{{"name":"tartan","plugins":[{{"type":"tartan-cni"{ours}}},{{"type":"portmap"}},{chained}]}}"#
        );
        std::fs::write(directory.path().join("10-tartan.conflist"), text).unwrap();
        assert_eq!(limited_twice(directory.path(), "another"), None);
        limited_twice(directory.path(), "tartan")
    }

    #[test]
    fn only_two_that_are_both_given_it_are_one_too_many() {
        let on = r#","capabilities":{"bandwidth":true}"#;
        let chained = r#"{"type":"bandwidth","capabilities":{"bandwidth":true}}"#;
        let twice = found(on, chained).unwrap();
        assert!(
            twice.to_string().contains("the plugin bandwidth"),
            "{twice}"
        );
        assert_eq!(found("", chained), None);
        assert_eq!(found(on, r#"{"type":"bandwidth"}"#), None);
        assert_eq!(
            found(
                on,
                r#"{"type":"bandwidth","capabilities":{"bandwidth":false}}"#
            ),
            None
        );
        // Capabilities are a map of Go's, whose keys are exact.
        assert_eq!(
            found(
                on,
                r#"{"type":"bandwidth","capabilities":{"Bandwidth":true}}"#
            ),
            None
        );
        assert_eq!(found(on, r#"{"type":"tuning"}"#), None);
    }
}
