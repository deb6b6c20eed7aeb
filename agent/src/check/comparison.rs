//! What is compared with what this node remembers, and why it is not.

use std::path::Path;

use super::{Kind, Setting, Verdict};
use crate::causes::causes;
use crate::config::{ConfigFile, NodeConfig, difference, text_file};
use crate::last_good::{self, LastGoodError};

impl Verdict {
    /// What is read from `place`; why it cannot be used is a note.
    pub(super) fn remembered<T>(
        &mut self,
        place: &Path,
        read: Result<Option<T>, LastGoodError>,
    ) -> Option<T> {
        self.is_remembered |= !matches!(read, Ok(None));
        read.unwrap_or_else(|error| {
            self.note(place, format!("not compared: {}", causes(&error)));
            None
        })
    }

    /// Compares the configuration at `path` with the text that a service forwarded by.
    pub(super) fn compare_configuration(
        &mut self,
        usual: &ConfigFile,
        path: &Path,
        config: &NodeConfig,
    ) {
        let is_usable = |file: &super::Judged| file.path == path && file.usable;
        if !self.files.iter().any(is_usable) {
            return;
        }
        let state_dir = config.state_dir();
        let read = last_good::configuration::read(&state_dir, usual.path());
        let file = path.display();
        if self.is_remembered && matches!(read, Ok(None)) {
            let usual = usual.path().display();
            let sentence = format!("{file}: not compared: no text of {usual} is remembered");
            self.note(path, sentence);
        }
        let text = self.remembered(&state_dir, read);
        let before = text.and_then(|text| {
            let fault = match usual.interpret(&text) {
                Ok(before) => return Some(before),
                Err(error) => causes(&error),
            };
            let sentence =
                format!("{file}: not compared: the text that is remembered has a fault: {fault}");
            self.note(path, sentence);
            None
        });
        if let Some(before) = &before {
            self.compared.push(Kind::Configuration);
            let changes = difference::of_node(before, config);
            self.settings.extend(changes.into_iter().map(Setting::of));
        }
        let name = &config.device_name;
        let before = before.as_ref().map(|before| &*before.device_name);
        let interfaces = Path::new("/sys/class/net");
        let is_flannels = config.replace_flannel && is_vxlan(interfaces, name);
        if !is_flannels && is_name_taken(interfaces, name, before) {
            let sentence = format!("{file}: device-name is taken: another interface is {name}");
            self.fault(path, sentence);
            for file in self.files.iter_mut().filter(|file| file.path == path) {
                file.usable = false;
            }
        }
    }
}

/// Whether another interface has the name of the device, which is `before` now. `interfaces` is `/sys/class/net`.
fn is_name_taken(interfaces: &Path, name: &str, before: Option<&str>) -> bool {
    let interface = interfaces.join(name);
    let may_be_ours = match before {
        Some(before) => before == name,
        None => interface.join("tun_flags").exists(),
    };
    !may_be_ours && interface.join("ifindex").exists()
}

/// Whether the interface is a VXLAN device of the kernel, which a start that takes flannel's place replaces.
fn is_vxlan(interfaces: &Path, name: &str) -> bool {
    let described = text_file::read(&interfaces.join(name).join("uevent"), LONGEST_EVENT);
    described.is_ok_and(|text| text.lines().any(|line| line == "DEVTYPE=vxlan"))
}

/// The kernel has a page for it.
const LONGEST_EVENT: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_by_what_is_not_ours() {
        let interfaces = tempfile::tempdir().unwrap();
        for (name, file) in [
            ("eth0", "ifindex"),
            ("tun0", "ifindex"),
            ("tun0", "tun_flags"),
        ] {
            let interface = interfaces.path().join(name);
            std::fs::create_dir_all(&interface).unwrap();
            std::fs::write(interface.join(file), "2\n").unwrap();
        }
        for (name, before, expected) in [
            ("eth0", None, true),
            ("tun0", None, false),
            ("eth0", Some("tun0"), true),
            ("tun0", Some("tun0"), false),
            ("tun0", Some("tun1"), true),
            ("tun1", Some("tun0"), false),
        ] {
            let taken = is_name_taken(interfaces.path(), name, before);
            assert_eq!(taken, expected, "{name} {before:?}");
        }
    }
}
