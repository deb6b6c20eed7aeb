//! The directory of network configurations, as libcni reads it: every file with one of three extensions, by name. A
//! runtime that is given no network by name takes the first (go-cni `loadFromConfDir`, ocicni `loadNetworks`).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cni_shim::Json;
use cni_shim::atomic_file::Replacement;

/// A configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its last part.
    pub name: String,
    /// What is in it; none where that is no JSON object, or cannot be read.
    pub content: Option<Conf>,
}

/// What one says.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The network's name.
    pub network: String,
    /// The versions that it offers runtimes, those of both keys.
    pub versions: Vec<String>,
    /// Its plugins, in the order of a list; a file with one plugin has one.
    pub plugins: Vec<Plugin>,
}

/// One plugin of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plugin {
    /// The name of its program.
    pub kind: String,
    /// What it asks the runtime for.
    pub capabilities: Vec<String>,
}

impl Plugin {
    /// Whether it asks the runtime for that.
    pub fn asks_for(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|asked| asked == capability)
    }
}

impl Conf {
    /// Whether one of its plugins is ours.
    pub fn is_ours(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.kind == OUR_PLUGIN)
    }

    /// Reads one as Go does.
    pub fn parse(text: &[u8]) -> Option<Conf> {
        let conf = Json::parse(text).ok()?;
        if !matches!(conf, Json::Object(_)) {
            return None;
        }
        let plugins = match conf.get("plugins") {
            Some(Json::List(plugins)) => plugins.iter().map(plugin).collect(),
            _ => vec![plugin(&conf)],
        };
        let mut versions = vec![word(&conf, "cniVersion")];
        if let Some(Json::List(more)) = conf.get("cniVersions") {
            versions.extend(more.iter().filter_map(Json::text).map(str::to_owned));
        }
        versions.retain(|version| !version.is_empty());
        Some(Conf {
            network: word(&conf, "name"),
            versions,
            plugins,
        })
    }
}

/// The files in the order in which runtimes take them. A directory that is not there holds none.
///
/// # Errors
/// Where it cannot be listed.
pub fn read(directory: &Path) -> io::Result<Vec<ConfFile>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some("conf" | "conflist" | "json"), Some(name)) = (extension, name) else {
            continue;
        };
        let small = path
            .metadata()
            .is_ok_and(|found| found.is_file() && found.len() <= MOST_BYTES);
        let text = if small { fs::read(&path).ok() } else { None };
        files.push(ConfFile {
            name: name.to_owned(),
            content: text.and_then(|text| Conf::parse(&text)),
            path,
        });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Replaces the configuration at `path`, with mode 0644, so that a container runtime that watches the directory takes
/// notice. containerd 1.6 takes notice of a write inside it and of a rename inside it, but not of a rename into it (and
/// of the second of two close events not always), so the file comes from outside, complete, and then its first byte is
/// written once more.
///
/// # Errors
/// What the system calls give.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let replacement = Replacement::of(path).mode(0o644).synced();
    let outside = path.ancestors().nth(2).unwrap_or(Path::new("/"));
    let placed = replacement.from_directory(outside).write(text.as_bytes());
    match placed {
        // The directory may be a mount of its own.
        Err(error) if matches!(error.kind(), CROSSES_DEVICES | DENIED | READ_ONLY) => {
            replacement.write(text.as_bytes())?;
        }
        placed => placed?,
    }
    let file = OpenOptions::new().write(true).open(path)?;
    let first = text.as_bytes().get(..1).unwrap_or_default();
    file.write_all_at(first, 0)?;
    file.sync_all()
}

fn plugin(conf: &Json) -> Plugin {
    let capabilities = conf.object("capabilities").unwrap_or_default();
    // A map of Go's: its keys are exact.
    let members = capabilities.members().unwrap_or_default();
    let mut asked: Vec<String> = Vec::new();
    for (at, (name, wanted)) in members.iter().enumerate() {
        let mut later = members.iter().skip(at + 1);
        if *wanted == Json::Bool(true) && !later.any(|(other, _)| other == name) {
            asked.push(name.clone());
        }
    }
    Plugin {
        kind: word(conf, "type"),
        capabilities: asked,
    }
}

fn word(conf: &Json, key: &str) -> String {
    let found = conf.get(key).and_then(Json::text);
    found.unwrap_or_default().to_owned()
}

/// The name of our plugin's program.
pub const OUR_PLUGIN: &str = "tartan-cni";
/// A configuration has a few hundred.
const MOST_BYTES: u64 = 1 << 20;
const CROSSES_DEVICES: io::ErrorKind = io::ErrorKind::CrossesDevices;
const DENIED: io::ErrorKind = io::ErrorKind::PermissionDenied;
const READ_ONLY: io::ErrorKind = io::ErrorKind::ReadOnlyFilesystem;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_the_order_in_which_runtimes_take_them() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("20-b.conf", r#"{"name":"b","type":"ptp"}"#),
            ("10-a.conflist", "{"),
            (
                "30-c.json",
                r#"{"Name":"c","cniversion":"0.4.0","CNIVersions":["1.0.0",null],"Plugins":[{"Type":"tartan-cni"}]}"#,
            ),
            ("05-not", "{}"),
            (".10-hidden.tmp", "{}"),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let files = read(directory.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["10-a.conflist", "20-b.conf", "30-c.json"]);
        assert_eq!(files[0].content, None);
        let ptp = files[1].content.as_ref().unwrap();
        assert_eq!((ptp.network.as_str(), ptp.is_ours()), ("b", false));
        let ours = files[2].content.as_ref().unwrap();
        assert_eq!((ours.network.as_str(), ours.is_ours()), ("c", true));
        assert_eq!(
            (ptp.versions.len(), ours.versions.join(" ")),
            (0, "0.4.0 1.0.0".to_owned())
        );
        assert!(read(&directory.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_configuration_comes_from_outside_and_nothing_is_left_there() {
        let directory = tempfile::tempdir().unwrap();
        let watched = directory.path().join("net.d");
        fs::create_dir(&watched).unwrap();
        let path = watched.join("10-x.conflist");
        write(&path, "{}").unwrap();
        write(&path, "{ }").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{ }");
        let names = |directory: &Path| -> Vec<_> {
            let entries = fs::read_dir(directory).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(&watched), ["10-x.conflist"]);
        assert_eq!(names(directory.path()), ["net.d"]);
    }
}
