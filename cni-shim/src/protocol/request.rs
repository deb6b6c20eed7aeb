//! What the runtime asks for: the verb and its environment variables.
//!
//! Parsed once, before standard input is read; what a verb does not need is
//! not looked at (SPEC section 2, "Parameters"; libcni pkg/skel/skel.go,
//! `getCmdArgsFromEnv`).

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::PodName;
use crate::attachment::{self, check_container, check_ifname};

/// One request, its parameters proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Attach a pod.
    Add(Target),
    /// Detach it.
    Del(Target),
    /// Say whether it is attached as it should be.
    Check(Target),
    /// Detach whatever the runtime no longer knows.
    Gc(SearchPath),
    /// Say whether ADD could be served.
    Status(SearchPath),
    /// Say which versions are spoken.
    Version,
}

/// A verb that comes with a network configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// ADD.
    Add,
    /// DEL.
    Del,
    /// CHECK.
    Check,
    /// GC.
    Gc,
    /// STATUS.
    Status,
}

/// The attachment a request is about, and what else the runtime says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which attachment.
    pub key: AttachmentKey,
    /// Path of the pod's network namespace; for DEL it may be empty or lead nowhere.
    pub netns: String,
    /// `CNI_ARGS`; only ADD looks at it.
    pub arguments: Arguments,
    /// Where delegated plugins are.
    pub path: SearchPath,
}

/// What names an attachment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentKey {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
}

/// `CNI_PATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath(String);

/// What of `CNI_ARGS` the plugin uses. It ignores unknown keys, which other plugins
/// may use, whether `IgnoreUnknown` says so or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The Kubernetes pod, where the runtime names one.
    pub pod: Option<PodName>,
    /// `IP=`, without a length that it may have; several, with commas (Multus).
    pub ips: Vec<IpAddr>,
    /// `MAC=`.
    pub mac: Option<[u8; 6]>,
}

/// Why the environment is no request. All are of code 4.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Some that the verb requires are not set; all of them are named.
    #[error("required env variables [{}] missing", names.join(","))]
    Missing {
        /// Their names, in the specification's order.
        names: Vec<&'static str>,
    },
    /// No verb of the specification.
    #[error("unknown CNI_COMMAND: {value}")]
    UnknownVerb {
        /// What it says.
        value: String,
    },
    /// One that breaks the specification's rule.
    #[error("invalid {name}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// The rule.
        source: attachment::Error,
    },
    /// One that is no text.
    #[error("{name} is not UTF-8")]
    NotText {
        /// The variable.
        name: &'static str,
    },
    /// Something between semicolons that is no pair.
    #[error("invalid CNI_ARGS: {part:?} is not KEY=VALUE")]
    Arguments {
        /// What it says.
        part: String,
    },
    /// A pair whose value cannot be used.
    #[error("invalid CNI_ARGS: {key}={value} is not {rule}")]
    Argument {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it would have to be.
        rule: &'static str,
    },
}

impl Verb {
    /// The word in `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
        }
    }

    /// The first version of the specification that has it, where not all have.
    pub fn since(self) -> Option<[u32; 3]> {
        match self {
            Verb::Add | Verb::Del => None,
            Verb::Check => Some([0, 4, 0]),
            Verb::Gc | Verb::Status => Some([1, 1, 0]),
        }
    }
}

impl Request {
    /// Reads the request through `variable`, which looks up one environment
    /// variable. `Ok(None)` when there is no CNI_COMMAND at all.
    ///
    /// # Errors
    /// [`Error`], all of code 4.
    pub fn parse(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Option<Request>, Error> {
        let environment = Environment { variable };
        let Some(verb) = environment.text("CNI_COMMAND")? else {
            return Ok(None);
        };
        match verb.as_str() {
            "VERSION" => Ok(Request::Version),
            "ADD" => environment.target(Verb::Add).map(Request::Add),
            "DEL" => environment.target(Verb::Del).map(Request::Del),
            "CHECK" => environment.target(Verb::Check).map(Request::Check),
            "GC" => environment.path().map(Request::Gc),
            "STATUS" => environment.path().map(Request::Status),
            _ => Err(Error::UnknownVerb { value: verb }),
        }
        .map(Some)
    }

    /// The verb, where a network configuration comes with it.
    pub fn verb(&self) -> Option<Verb> {
        match self {
            Request::Add(_) => Some(Verb::Add),
            Request::Del(_) => Some(Verb::Del),
            Request::Check(_) => Some(Verb::Check),
            Request::Gc(_) => Some(Verb::Gc),
            Request::Status(_) => Some(Verb::Status),
            Request::Version => None,
        }
    }
}

/// `container ID, interface IFNAME`.
impl fmt::Display for AttachmentKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "container {}, interface {}",
            self.container, self.ifname
        )
    }
}

impl SearchPath {
    /// `CNI_PATH` as given.
    pub fn new(path: String) -> SearchPath {
        SearchPath(path)
    }

    /// Where the plugin `kind` may be, in order of preference. A type that is
    /// more than a file's name is nowhere.
    pub fn candidates(&self, kind: &str) -> Vec<PathBuf> {
        if kind.is_empty() || kind.contains('/') || kind == "." || kind == ".." {
            return Vec::new();
        }
        self.0
            .split(':')
            .filter(|directory| !directory.is_empty())
            .map(|directory| PathBuf::from(directory).join(kind))
            .collect()
    }
}

struct Environment<F> {
    variable: F,
}

impl<F: Fn(&'static str) -> Option<OsString>> Environment<F> {
    fn target(&self, verb: Verb) -> Result<Target, Error> {
        let mut missing = Vec::new();
        let invalid = |name| move |source| Error::Invalid { name, source };
        // Each is checked in turn, and all that are missing are reported at the end:
        // the order of the reference plugins.
        let container = self.required("CNI_CONTAINERID", &mut missing)?;
        if !container.is_empty() {
            check_container(&container).map_err(invalid("CNI_CONTAINERID"))?;
        }
        let netns = match verb {
            Verb::Del => self.text("CNI_NETNS")?.unwrap_or_default(),
            _ => self.required("CNI_NETNS", &mut missing)?,
        };
        let ifname = self.required("CNI_IFNAME", &mut missing)?;
        if !ifname.is_empty() {
            check_ifname(&ifname).map_err(invalid("CNI_IFNAME"))?;
        }
        let path = SearchPath(self.required("CNI_PATH", &mut missing)?);
        if !missing.is_empty() {
            return Err(Error::Missing { names: missing });
        }
        let arguments = match verb {
            Verb::Add => Arguments::parse(&self.text("CNI_ARGS")?.unwrap_or_default())?,
            _ => Arguments::default(),
        };
        Ok(Target {
            key: AttachmentKey { container, ifname },
            netns,
            arguments,
            path,
        })
    }

    fn path(&self) -> Result<SearchPath, Error> {
        let mut missing = Vec::new();
        let path = self.required("CNI_PATH", &mut missing)?;
        if missing.is_empty() {
            return Ok(SearchPath(path));
        }
        Err(Error::Missing { names: missing })
    }

    /// The variable, or an empty text and its name among the missing.
    fn required(
        &self,
        name: &'static str,
        missing: &mut Vec<&'static str>,
    ) -> Result<String, Error> {
        let text = self.text(name)?;
        if text.is_none() {
            missing.push(name);
        }
        Ok(text.unwrap_or_default())
    }

    /// An empty variable counts as none, as in the Go plugins.
    fn text(&self, name: &'static str) -> Result<Option<String>, Error> {
        match (self.variable)(name) {
            Some(value) if !value.is_empty() => value
                .into_string()
                .map(Some)
                .map_err(|_| Error::NotText { name }),
            _ => Ok(None),
        }
    }
}

impl Arguments {
    /// Reads `K=V;K=V`.
    ///
    /// # Errors
    /// [`Error::Arguments`], [`Error::Argument`].
    pub fn parse(text: &str) -> Result<Arguments, Error> {
        let (mut namespace, mut name) = (String::new(), String::new());
        let mut arguments = Arguments::default();
        for part in text.split(';').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| Error::Arguments {
                part: part.to_owned(),
            })?;
            let refuse = |key, rule| Error::Argument {
                key,
                value: value.to_owned(),
                rule,
            };
            match key {
                "K8S_POD_NAMESPACE" => namespace = value.to_owned(),
                "K8S_POD_NAME" => name = value.to_owned(),
                "IP" if !value.is_empty() => {
                    let ips: Option<Vec<IpAddr>> = value.split(',').map(address).collect();
                    arguments.ips = ips.ok_or_else(|| refuse("IP", "an address"))?;
                }
                "MAC" if !value.is_empty() => {
                    let mac = parse_mac(value);
                    arguments.mac = Some(mac.ok_or_else(|| refuse("MAC", MAC_RULE))?);
                }
                _ => {}
            }
        }
        arguments.pod = (!name.is_empty()).then_some(PodName { namespace, name });
        Ok(arguments)
    }
}

/// `10.0.0.5` or `10.0.0.5/24`; the length is not ours to follow.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    match text.split_once('/') {
        None => text.parse().ok(),
        Some(_) => text.parse().ok().map(|net: ipnet::IpNet| net.addr()),
    }
}

/// Six bytes in hexadecimal, `:` or `-` between them; not all zero, and not a
/// group's address, neither of which an interface can have.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split([':', '-']);
    for byte in &mut mac {
        let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let part = parts.next().filter(is_byte)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    let unicast = mac.first().is_some_and(|first| first & 1 == 0);
    (parts.next().is_none() && unicast && mac != [0; 6]).then_some(mac)
}

/// What [`parse_mac`] accepts.
pub(super) const MAC_RULE: &str = "a unicast MAC address such as 02:00:00:00:00:01";

#[cfg(test)]
mod tests;
