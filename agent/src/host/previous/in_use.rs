//! What of flannel's is in use beside Tartan.
//!
//! flannel's plugin reads `subnet.env` at every pod. A flanneld and Tartan write the same bytes there, so the file does not
//! tell who wrote it, and a note of Tartan's is missing where flannel's file was right already. What counts is that a file
//! names this node's subnet. That subnet is known by the route that refuses its absent pods. Where there is no such route, as
//! before an agent's first start, every file that names a subnet counts, if there is any sign of Tartan or a pod at `cni0`.

use std::fs;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use netlink_packet_route::route::RouteType;
use rtnetlink::Handle;

use crate::cni::installed::Installed;
use crate::host::cleanup::Traces;
use crate::host::net::links::{self, Link};
use crate::host::net::routes::{self, Route};
use crate::host::subnet_env;

/// What of flannel's Tartan uses on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct InUse {
    /// Tartan takes flannel's place at its next start.
    pub(super) takes_place: bool,
    /// The device that it then has.
    pub(super) device: String,
    /// Files that name this node's subnet, with no symbolic link in their paths.
    pub(super) subnet_files: Vec<PathBuf>,
    /// flannel's plugin attaches pods by one of these: Tartan's own is not installed.
    pub(super) stock_plugin: bool,
}

/// What the kernel says of Tartan and of flannel's pods.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Prefixes that Tartan refuses where there is no pod.
    refused: Vec<IpNet>,
    /// A device is at the bridge of flannel's plugin.
    has_pods: bool,
}

impl InUse {
    pub(super) async fn read(root: &Path, traces: &Traces, handle: &Handle) -> InUse {
        let (Ok(listed), Ok(messages)) =
            (routes::list(handle).await, links::messages(handle).await)
        else {
            return InUse::of(root, traces, None);
        };
        let links: Vec<Link> = messages.iter().map(links::parse).collect();
        let is_refusal = |route: &&Route| {
            route.protocol == routes::PROTOCOL
                && route.kind == RouteType::Unreachable
                && route.table == routes::MAIN
        };
        let refused = listed.iter().filter(is_refusal).map(|route| route.prefix);
        let seen = Seen {
            refused: refused.collect(),
            has_pods: links
                .iter()
                .filter(|link| link.name == BRIDGE)
                .any(|bridge| links.iter().any(|port| port.master == Some(bridge.index))),
        };
        InUse::of(root, traces, Some(&seen))
    }

    /// Where nothing is known of the kernel, every file that names a subnet counts.
    pub(super) fn of(root: &Path, traces: &Traces, seen: Option<&Seen>) -> InUse {
        let noted = subnet_env::written(&traces.state_dir);
        let is_here = match seen {
            Some(seen) => seen.has_pods || noted.is_some() || traces.state_dir.exists(),
            None => true,
        };
        let refused = seen.map(|seen| seen.refused.as_slice()).unwrap_or_default();
        let names_ours = |path: &PathBuf| {
            let subnets = subnet_env::subnets(&fs::read_to_string(path).unwrap_or_default());
            match refused {
                [] => is_here && !subnets.is_empty(),
                refused => subnets.iter().any(|subnet| refused.contains(subnet)),
            }
        };
        let candidates = [
            root.join("run/flannel/subnet.env"),
            traces.subnet_file.clone(),
        ];
        let mut subnet_files: Vec<PathBuf> = candidates.into_iter().filter(names_ours).collect();
        subnet_files.extend(noted);
        for file in &mut subnet_files {
            *file = canonical(file);
        }
        subnet_files.sort_unstable();
        subnet_files.dedup();
        let is_installed = Installed::read(root).is_ok_and(|installed| !installed.lists.is_empty());
        InUse {
            takes_place: traces.for_flannel,
            device: traces.device.clone(),
            stock_plugin: !subnet_files.is_empty() && !is_installed,
            subnet_files,
        }
    }

    /// A file in use at or below that path, whatever symbolic links lead to either.
    pub(super) fn below(&self, path: &Path) -> Option<&Path> {
        let path = canonical(path);
        let found = self
            .subnet_files
            .iter()
            .find(|file| file.starts_with(&path));
        found.map(PathBuf::as_path)
    }
}

/// The path without symbolic links. Of what is not there its nearest directory counts.
pub(super) fn canonical(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        if let Ok(found) = there.canonicalize() {
            return missing
                .iter()
                .rev()
                .fold(found, |path, name| path.join(name));
        }
        let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
            return path.to_owned();
        };
        missing.push(name);
        there = parent;
    }
}

/// The bridge of flannel's plugin.
pub(super) const BRIDGE: &str = "cni0";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn traces(root: &Path) -> Traces {
        Traces {
            device: "tartan0".to_owned(),
            run_dir: cni_shim::RunDir::under(root),
            state_dir: root.join("var/lib/tartan"),
            subnet_file: root.join("run/flannel/subnet.env"),
            pins: dataplane::kernel_path::Pins::below(root),
            for_flannel: false,
        }
    }

    fn node() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/flannel")).unwrap();
        let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n";
        fs::write(root.path().join("run/flannel/subnet.env"), text).unwrap();
        root
    }

    fn seen(refused: &[&str], has_pods: bool) -> Seen {
        Seen {
            refused: refused.iter().map(|net| net.parse().unwrap()).collect(),
            has_pods,
        }
    }

    /// flanneld wrote the file, Tartan found it right: there is no note.
    #[test]
    fn a_file_that_names_the_subnet_is_in_use_whatever_wrote_it() {
        let root = node();
        let traces = traces(root.path());
        let of = |seen: Option<&Seen>| InUse::of(root.path(), &traces, seen);
        let ours = seen(&["10.244.0.0/16", "10.244.1.0/24"], false);
        assert!(of(Some(&ours)).stock_plugin);
        assert!(
            of(Some(&seen(&[], true))).stock_plugin,
            "pods, and no agent"
        );
        assert!(of(None).stock_plugin, "nothing is known");
        for other in [seen(&[], false), seen(&["10.244.2.0/24"], true)] {
            let other = of(Some(&other));
            assert!(!other.stock_plugin && other.subnet_files.is_empty());
        }
        fs::create_dir_all(&traces.state_dir).unwrap();
        assert!(of(Some(&seen(&[], false))).stock_plugin, "Tartan was here");
    }

    #[test]
    fn a_path_by_another_name_is_the_same() {
        let root = node();
        fs::create_dir_all(root.path().join("var")).unwrap();
        symlink(root.path().join("run"), root.path().join("var/run")).unwrap();
        let mut traces = traces(root.path());
        traces.subnet_file = root.path().join("var/run/flannel/subnet.env");
        let in_use = InUse::of(root.path(), &traces, None);
        assert_eq!(in_use.subnet_files.len(), 1);
        for name in ["run/flannel", "var/run/flannel", "var/../run/flannel"] {
            assert!(in_use.below(&root.path().join(name)).is_some(), "{name}");
        }
        assert!(in_use.below(&root.path().join("run/fla")).is_none());
        assert!(in_use.below(&root.path().join("var/lib")).is_none());
    }
}
