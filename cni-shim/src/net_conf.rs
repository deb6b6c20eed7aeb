//! The network configuration on standard input.
//!
//! Read as Go reads it: keys match whatever their case, `null` is absence,
//! the last of several equal keys wins, unknown keys are ignored. What this
//! plugin knows but does not offer is refused by name, never ignored.

use std::io::{self, Read};
use std::path::PathBuf;

use cni_shim::attachment::is_identifier;
use serde_json::{Map, Value};

/// A network configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetConf {
    /// The version the runtime speaks, which the answer repeats.
    pub(crate) version: Version,
    /// The network's name.
    pub(crate) name: String,
    /// What every path hangs off; `/` by default, and where the configuration says nothing usable.
    pub(crate) root: PathBuf,
    /// Upper limit for the pod's MTU, in bytes, where one is configured.
    pub(crate) mtu: Option<u16>,
    /// The `dns` object, handed through to the result.
    pub(crate) dns: Value,
    /// Keys of ours that ask ADD for what it does not offer, with their values.
    unsupported: Vec<(&'static str, Value)>,
    /// The first value that cannot be used.
    malformed: Option<Malformed>,
}

/// A value that is none of its key's.
#[derive(Clone, Debug, PartialEq)]
struct Malformed {
    key: &'static str,
    value: Value,
    rule: &'static str,
}

/// Input that is no configuration, and the version in which to say so: the request's own once that is known.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) error: Error,
    pub(crate) version: Version,
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Rejection {
        let version = Version::NEWEST;
        Rejection { error, version }
    }
}

/// A version of the CNI specification that this plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

/// Why standard input is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read the network configuration from standard input")]
    Read { source: io::Error },
    #[error("the network configuration is longer than {LONGEST} bytes")]
    TooLong,
    #[error("the network configuration is no JSON object: check the file in /etc/cni/net.d")]
    Decode { source: serde_json::Error },
    #[error(
        "incompatible CNI versions: config is {config:?}, plugin supports {:?}",
        Version::names()
    )]
    Version { config: String },
    #[error("the network configuration has no name")]
    NoName,
    #[error(
        "invalid network name {name:?}: letters, digits, '_', '.', '-', the first a letter or digit"
    )]
    Name { name: String },
    #[error("unsupported field {key} = {value}: {rule}")]
    Field {
        key: &'static str,
        value: Value,
        rule: &'static str,
    },
    #[error("prevResult is set: tartan-cni must be the first plugin of its list")]
    NotFirst,
    #[error("{verb} needs cniVersion {needed} or later, the configuration says {config}")]
    TooOld {
        verb: &'static str,
        needed: &'static str,
        config: &'static str,
    },
}

impl Version {
    const ALL: [Version; 5] = [
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The string the specification knows it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Every version spoken, oldest first.
    pub(crate) fn names() -> [&'static str; 5] {
        Version::ALL.map(Version::name)
    }

    /// The newest version spoken.
    pub(crate) const NEWEST: Version = Version::V1_1_0;

    fn parse(name: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|v| v.name() == name)
    }
}

impl NetConf {
    /// Reads and checks the configuration.
    pub(crate) fn read(input: impl Read) -> Result<NetConf, Rejection> {
        let mut bytes = Vec::new();
        input
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Read { source })?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::TooLong.into());
        }
        NetConf::parse(&bytes)
    }

    /// What ADD cannot do or understand is refused here, so that DEL never is.
    pub(crate) fn check_for_add(&self) -> Result<(), Error> {
        self.check_values()?;
        let Some((key, value)) = self.unsupported.first() else {
            return Ok(());
        };
        if *key == "prevResult" {
            return Err(Error::NotFirst);
        }
        Err(Error::Field {
            key,
            value: value.clone(),
            rule: "this version of tartan-cni does not offer it; remove it from the configuration",
        })
    }

    /// STATUS exists since 1.1.0.
    pub(crate) fn check_for_status(&self) -> Result<(), Error> {
        if self.version >= Version::V1_1_0 {
            return self.check_values();
        }
        Err(Error::TooOld {
            verb: "STATUS",
            needed: "1.1.0",
            config: self.version.name(),
        })
    }

    fn check_values(&self) -> Result<(), Error> {
        match self.malformed.clone() {
            Some(Malformed { key, value, rule }) => Err(Error::Field { key, value, rule }),
            None => Ok(()),
        }
    }

    fn parse(bytes: &[u8]) -> Result<NetConf, Rejection> {
        let object: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|source| Error::Decode { source })?;
        let mut fields = fold(object);
        let name = name(fields.remove("name"));
        let config = match fields.remove("cniversion") {
            Some(Value::String(version)) => version,
            // SPEC: a configuration without a version is of version 0.1.0.
            _ => "0.1.0".to_owned(),
        };
        let version = Version::parse(&config);
        let name = name.map_err(|error| Rejection {
            error,
            version: version.unwrap_or(Version::NEWEST),
        })?;
        let version = version.ok_or(Error::Version { config })?;
        let root = root(fields.remove("root"));
        let mtu = mtu(fields.remove("mtu"));
        let malformed = root.as_ref().err().or(mtu.as_ref().err()).cloned();
        Ok(NetConf {
            version,
            name,
            root: root.unwrap_or_else(|_| PathBuf::from("/")),
            mtu: mtu.unwrap_or_default(),
            dns: match fields.remove("dns") {
                Some(dns @ Value::Object(_)) => dns,
                _ => Value::Object(Map::new()),
            },
            unsupported: unsupported(fields),
            malformed,
        })
    }
}

/// Keys in lower case, nulls gone. Of keys equal but for case the last in
/// alphabetical order wins.
fn fold(object: Map<String, Value>) -> Map<String, Value> {
    object
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_ascii_lowercase(), value))
        .collect()
}

fn name(value: Option<Value>) -> Result<String, Error> {
    match value {
        Some(Value::String(name)) if is_identifier(&name) => Ok(name),
        Some(Value::String(name)) if !name.is_empty() => Err(Error::Name { name }),
        _ => Err(Error::NoName),
    }
}

fn root(value: Option<Value>) -> Result<PathBuf, Malformed> {
    match value {
        None => Ok(PathBuf::from("/")),
        Some(Value::String(root)) if root.starts_with('/') => Ok(PathBuf::from(root)),
        Some(value) => Err(Malformed {
            key: "root",
            value,
            rule: "an absolute path",
        }),
    }
}

/// 0 means unset, as in the reference plugins.
fn mtu(value: Option<Value>) -> Result<Option<u16>, Malformed> {
    let Some(value) = value else {
        return Ok(None);
    };
    // Go maps carry numbers as floats: 1e+03 is an integer.
    match value.as_f64() {
        Some(0.0) => Ok(None),
        Some(mtu) if mtu.fract() == 0.0 && (576.0..=65535.0).contains(&mtu) => Ok(Some(mtu as u16)),
        _ => Err(Malformed {
            key: "mtu",
            value,
            rule: "an integer from 576 to 65535",
        }),
    }
}

/// Requests that would have to change what ADD makes.
fn unsupported(mut fields: Map<String, Value>) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    let mut note = |key, value: Option<Value>| {
        if let Some(value) = value.filter(asks_for_something) {
            found.push((key, value));
        }
    };
    note("prevResult", fields.remove("prevresult"));
    note("ipam", fields.remove("ipam"));
    if let Some(Value::Object(config)) = fields.remove("runtimeconfig") {
        let mut config = fold(config);
        note("runtimeConfig.ips", config.remove("ips"));
        note("runtimeConfig.mac", config.remove("mac"));
        note("runtimeConfig.ipRanges", config.remove("ipranges"));
        note("runtimeConfig.bandwidth", config.remove("bandwidth"));
    }
    if let Some(Value::Object(args)) = fields.remove("args")
        && let Some(Value::Object(cni)) = fold(args).remove("cni")
    {
        let mut cni = fold(cni);
        note("args.cni.ips", cni.remove("ips"));
        note("args.cni.mac", cni.remove("mac"));
    }
    found
}

fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => items.iter().any(asks_for_something),
        Value::Object(fields) => fields.values().any(asks_for_something),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(set) => *set,
    }
}

/// Bytes of configuration accepted; pod annotations alone may be 256 KiB.
const LONGEST: u64 = 4 * 1024 * 1024;

#[cfg(test)]
mod tests;
