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
    /// Whether Kubernetes' host ports are served, by the reference plugin `portmap` behind ours.
    pub portmap: bool,
}

impl ConfList<'_> {
    /// As it is written. `cniVersion` is what libcni before 1.2 knows, which ignores `cniVersions`; a newer one takes the
    /// newest of both.
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
        let list = json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
            "name": self.network,
            "plugins": plugins,
        });
        format!("{list:#}\n")
    }
}

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
}
