//! The configuration that we install.

use std::path::Path;

use serde_json::{Value, json};

use super::conf_dir::OUR_PLUGIN;

/// What it is to say.
#[derive(Clone, Copy, Debug)]
pub struct ConfList<'a> {
    /// The network's name.
    pub network: &'a str,
    /// What the agent's paths hang off.
    pub root: &'a Path,
    /// The versions of CNI that every plugin of it speaks: some of [`VERSIONS`], in that order.
    pub versions: &'a [&'static str],
    /// Whether Kubernetes' host ports are served, by the reference plugin `portmap` behind ours.
    pub portmap: bool,
}

/// Those of [`VERSIONS`] that a plugin behind ours speaks too.
pub fn common(theirs: &[String]) -> Vec<&'static str> {
    let both = |version: &&str| theirs.iter().any(|theirs| theirs == version);
    VERSIONS.into_iter().filter(both).collect()
}

/// Whether a file is as an installation wrote it, with whatever options.
pub fn is_as_installed(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        return false;
    };
    let plugins = value.get("plugins").and_then(Value::as_array);
    let plugins = plugins.map(Vec::as_slice).unwrap_or_default();
    let root = plugins.first().and_then(|ours| ours.get("root"));
    let offered = value.get("cniVersions").and_then(Value::as_array);
    let offered = offered.map(Vec::as_slice).unwrap_or_default();
    let offered: Vec<String> = offered
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let written = ConfList {
        network: value
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default(),
        root: Path::new(root.and_then(Value::as_str).unwrap_or("/")),
        versions: &common(&offered),
        portmap: plugins.len() > 1,
    };
    written.text().as_bytes() == bytes
}

impl ConfList<'_> {
    /// As it is written. `cniVersion` is the newest that libcni before 1.2 knows, which ignores `cniVersions`; a newer
    /// libcni takes the newest of both.
    pub fn text(&self) -> String {
        let mut plugin = json!({
            "type": OUR_PLUGIN,
            "capabilities": {
                "bandwidth": true,
                "io.kubernetes.cri.pod-annotations": true,
                "ips": true,
                "mac": true,
            },
        });
        if self.root != Path::new("/")
            && let Value::Object(fields) = &mut plugin
        {
            fields.insert("root".to_owned(), json!(self.root));
        }
        let mut plugins = vec![plugin];
        if self.portmap {
            plugins.push(json!({"type": PORTMAP, "capabilities": {"portMappings": true}}));
        }
        let old = self.versions.iter().rfind(|version| **version != NEW);
        let list = json!({
            "cniVersion": old.unwrap_or(&NEW),
            "cniVersions": self.versions,
            "name": self.network,
            "plugins": plugins,
        });
        format!("{list:#}\n")
    }
}

/// What we offer where every plugin of the list speaks it, the oldest first.
pub const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", NEW];
/// The version that libcni knows since 1.2.
const NEW: &str = "1.1.0";
/// The reference plugin for host ports.
pub const PORTMAP: &str = "portmap";

#[cfg(test)]
mod tests {
    use super::super::chain::is_limited_twice;
    use super::super::conf_dir::Conf;
    use super::*;

    #[test]
    fn it_is_a_list_of_ours_that_old_and_new_runtimes_read() {
        let list = ConfList {
            network: "tartan",
            root: Path::new("/"),
            versions: &VERSIONS,
            portmap: true,
        };
        let value: Value = serde_json::from_str(&list.text()).unwrap();
        assert_eq!(value["cniVersion"], "1.0.0");
        assert_eq!(value["cniVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
        assert_eq!(value["plugins"][1]["type"], "portmap");
        assert!(value["plugins"][0].get("root").is_none());
        let conf = Conf::parse(list.text().as_bytes()).unwrap();
        assert!(conf.is_ours() && !is_limited_twice(&conf));
        let elsewhere = ConfList {
            root: Path::new("/srv/n1"),
            portmap: false,
            ..list
        };
        let value: Value = serde_json::from_str(&elsewhere.text()).unwrap();
        assert_eq!(value["plugins"][0]["root"], "/srv/n1");
        assert_eq!(value["plugins"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn only_what_all_plugins_speak_is_offered() {
        let theirs = ["0.1.0", "0.4.0", "1.0.0"].map(str::to_owned);
        let versions = common(&theirs);
        assert_eq!(versions, ["0.4.0", "1.0.0"]);
        let text = |versions| {
            let list = ConfList {
                network: "n",
                root: Path::new("/"),
                versions,
                portmap: true,
            };
            serde_json::from_str::<Value>(&list.text()).unwrap()
        };
        let value = text(&versions);
        assert_eq!(value["cniVersion"], "1.0.0");
        assert_eq!(value["cniVersions"], json!(["0.4.0", "1.0.0"]));
        assert_eq!(text(&["0.4.0"])["cniVersion"], "0.4.0");
        assert_eq!(text(&[NEW])["cniVersion"], NEW);
        assert!(common(&["0.3.1".to_owned()]).is_empty());
    }

    #[test]
    fn an_edited_list_is_not_as_installed() {
        let list = |network, root, portmap| ConfList {
            network,
            root: Path::new(root),
            versions: &VERSIONS,
            portmap,
        };
        for list in [list("tartan", "/", true), list("x", "/srv/n1", false)] {
            let text = list.text();
            assert!(is_as_installed(text.as_bytes()), "{text}");
            for (from, to) in [
                ("\"type\"", "\"mtu\": 1400, \"type\""),
                ("\"mac\": true", "\"mac\": false"),
                ("1.0.0", "0.3.1"),
                ("}\n", "} \n"),
            ] {
                let changed = text.replacen(from, to, 1);
                assert_ne!(changed, text);
                assert!(!is_as_installed(changed.as_bytes()), "{changed}");
            }
        }
        assert!(!is_as_installed(b"{") && !is_as_installed(b"{}"));
    }
}
