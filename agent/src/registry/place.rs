//! Where in a registry's content something is wrong.

use std::fmt;
use std::path::PathBuf;

use super::foreign_text::excerpt;

/// A place in a registry's content, in the terms of that registry. Its `Display` is what an operator looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryPlace {
    /// In the file of the `file` registry: `/etc/tartan/nodes.toml line 3`.
    File {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1; `None` for the file as a whole.
        line: Option<usize>,
    },
    /// A key of etcd, or the prefix of all: `etcd key /coreos.com/network/subnets/10.244.1.0-24`.
    Etcd {
        /// The key.
        key: String,
    },
    /// A Node of Kubernetes, or all of them: `Kubernetes node worker-1`.
    Kubernetes {
        /// Its name; `None` for all.
        node: Option<String>,
    },
}

impl fmt::Display for RegistryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryPlace::File { path, line: None } => write!(f, "{}", path.display()),
            RegistryPlace::File {
                path,
                line: Some(line),
            } => write!(f, "{} line {line}", path.display()),
            RegistryPlace::Etcd { key } => write!(f, "etcd key {key}"),
            RegistryPlace::Kubernetes { node: None } => f.write_str("the nodes of Kubernetes"),
            RegistryPlace::Kubernetes { node: Some(node) } => {
                write!(f, "Kubernetes node {}", excerpt(node, LONGEST_NAME))
            }
        }
    }
}

/// Octets of a Node's name (RFC 1123 subdomain).
const LONGEST_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_the_api_is_not_obeyed() {
        let name = format!("a\u{1b}[31m\nERROR {}", "x".repeat(1 << 20));
        let node = Some(name);
        let shown = RegistryPlace::Kubernetes { node }.to_string();
        assert!(shown.starts_with("Kubernetes node a [31m ERROR x"));
        assert!(shown.len() < 300, "{}", shown.len());
    }
}
