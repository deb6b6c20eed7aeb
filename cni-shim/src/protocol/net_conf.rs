//! The network configuration on standard input.
//!
//! What is wrong with it and concerns only what ADD would make is kept until
//! ADD asks ([`NetConf::check`]): the DEL of a pod must not fail because its
//! configuration was edited since.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;

use ipnet::IpNet;

use super::request::{AttachmentKey, Verb};
use super::result::Dns;
use super::version::{self, Version};
use crate::attachment::is_identifier;
use crate::{Bandwidth, Json};

use reader::{Malformed, Reader};

mod reader;

/// A network configuration, read.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// The version the runtime speaks, which the answer repeats.
    pub version: Version,
    /// The network's name.
    pub name: String,
    /// What every path hangs off; `/` by default, and where the configuration says nothing usable.
    pub root: PathBuf,
    /// Upper limit for the pod's MTU, in bytes, where one is configured.
    pub mtu: Option<u16>,
    /// The `dns` object.
    pub dns: Dns,
    /// Type of the delegated IPAM plugin; none: the node's own range.
    pub ipam: Option<String>,
    /// The capabilities `ips` and `mac`.
    pub runtime: Requested,
    /// `args.cni.ips` and `args.cni.mac`.
    pub args: Requested,
    /// The capability `bandwidth`.
    pub bandwidth: Option<Bandwidth>,
    /// The capability `io.kubernetes.cri.pod-annotations`, less what is too long.
    pub annotations: BTreeMap<String, String>,
    /// `allowedSources`: what the pod may send from beside its addresses.
    pub allowed_sources: Vec<IpNet>,
    /// What the plugins before us made (ADD) or the whole list made (CHECK).
    pub previous: Option<Json>,
    /// The attachments the runtime knows; none: the request has no list.
    pub valid: Option<Vec<AttachmentKey>>,
    /// Standard input as it came, for delegated plugins.
    pub input: Vec<u8>,
    malformed: Vec<Malformed>,
}

/// The addresses and the MAC that a runtime or a user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Addresses, in the order given.
    pub ips: Vec<std::net::IpAddr>,
    /// The MAC of the pod's end.
    pub mac: Option<[u8; 6]>,
}

/// Input that is no configuration, and the version in which to say so: the request's own once that is known.
#[derive(Debug)]
pub struct Rejection {
    /// Why.
    pub error: Error,
    /// What the answer's `cniVersion` is to be.
    pub version: Version,
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Rejection {
        let version = Version::NEWEST;
        Rejection { error, version }
    }
}

/// Why standard input is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Code 5.
    #[error("cannot read the network configuration from standard input")]
    Read {
        /// What the kernel said.
        source: io::Error,
    },
    /// Code 5.
    #[error("the network configuration is longer than {LONGEST} bytes")]
    TooLong,
    /// Code 6.
    #[error("the network configuration is no JSON object: check the file in /etc/cni/net.d")]
    Decode {
        /// Where it stops being JSON.
        source: serde_json::Error,
    },
    /// Code 6: JSON of the wrong kind.
    #[error("the network configuration's {key} is no {expected}: check the file in /etc/cni/net.d")]
    Kind {
        /// Which value.
        key: &'static str,
        /// What it would have to be.
        expected: &'static str,
    },
    /// Code 1, with libcni's words (pkg/version/reconcile.go).
    #[error("incompatible CNI versions")]
    Version {
        /// What the configuration says.
        config: String,
    },
    /// Code 1, with libcni's words (pkg/skel/skel.go).
    #[error("{whose} version does not allow {verb}")]
    NotInVersion {
        /// `config` or `plugin`: which of the two is too old.
        whose: &'static str,
        /// The verb.
        verb: &'static str,
        /// What the configuration says.
        config: String,
    },
    /// Code 7.
    #[error("missing network name")]
    NoName,
    /// Code 7.
    #[error("invalid characters found in network name {name:?}")]
    Name {
        /// What it says.
        name: String,
    },
    /// Code 2.
    #[error("unsupported field {key} = {value}: {rule}")]
    Field {
        /// The key, from the top.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it would have to be.
        rule: &'static str,
    },
    /// Code 7: GC without a list, as `cnitool gc` sends it.
    #[error("GC without cni.dev/valid-attachments: nothing was removed")]
    NoAttachments,
}

impl Error {
    /// What the details of the answer say beside the causes.
    pub fn details(&self) -> String {
        match self {
            // libcni's own words: Go prints a list without commas.
            Error::Version { config } => {
                let names: Vec<String> =
                    Version::names().iter().map(|n| format!("{n:?}")).collect();
                format!(
                    "config is {config:?}, plugin supports [{}]",
                    names.join(" ")
                )
            }
            Error::NotInVersion { config, verb, .. } => format!(
                "config is {config:?}; {verb} needs \"cniVersion\" or \"cniVersions\" to name a \
                 version that has it"
            ),
            Error::NoName => "give the configuration in /etc/cni/net.d a \"name\"".to_owned(),
            Error::Name { .. } => {
                "use letters, digits, '_', '.', '-', the first a letter or digit".to_owned()
            }
            Error::NoAttachments => {
                "name the attachments to keep; an empty list or null keeps none".to_owned()
            }
            _ => String::new(),
        }
    }
}

impl NetConf {
    /// Reads the configuration that comes with `verb`.
    ///
    /// # Errors
    /// The error and the version in which to answer it.
    pub fn read(input: impl Read, verb: Verb) -> Result<NetConf, Rejection> {
        let mut bytes = Vec::new();
        input
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Read { source })?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::TooLong.into());
        }
        NetConf::parse(bytes, verb)
    }

    /// Reads the configuration from memory.
    ///
    /// # Errors
    /// As [`NetConf::read`].
    pub fn parse(input: Vec<u8>, verb: Verb) -> Result<NetConf, Rejection> {
        let conf = Json::parse(&input).map_err(|source| Error::Decode { source })?;
        if conf.members().is_none() {
            let (key, expected) = ("text", "object");
            return Err(Error::Kind { key, expected }.into());
        }
        let config = match conf.get("cniVersion") {
            None => OLDEST.to_owned(),
            Some(Json::Text(config)) if config.is_empty() => OLDEST.to_owned(),
            Some(Json::Text(config)) => config.clone(),
            Some(_) => {
                let (key, expected) = ("cniVersion", "text");
                return Err(Error::Kind { key, expected }.into());
            }
        };
        let known = Version::named(&config);
        let reject = |error| Rejection {
            error,
            version: known.unwrap_or(Version::NEWEST),
        };
        let name = name(&conf).map_err(reject)?;
        knows_verb(&config, verb).map_err(reject)?;
        let version = known.ok_or_else(|| reject(Error::Version { config }))?;
        let valid = match verb {
            Verb::Gc => valid_attachments(&conf).map_err(reject)?,
            _ => None,
        };
        Ok(NetConf::collect(&conf, version, name, valid, input))
    }

    /// What is malformed and concerns what is to be made.
    ///
    /// # Errors
    /// [`Error::Field`] with the first.
    pub fn check(&self) -> Result<(), Error> {
        match self.malformed.first() {
            None => Ok(()),
            Some(Malformed { key, value, rule }) => Err(Error::Field {
                key,
                value: value.to_string(),
                rule,
            }),
        }
    }

    fn collect(
        conf: &Json,
        version: Version,
        name: String,
        valid: Option<Vec<AttachmentKey>>,
        input: Vec<u8>,
    ) -> NetConf {
        let runtime = conf.object("runtimeConfig").unwrap_or_default();
        let args = conf.object("args").and_then(|args| args.object("cni"));
        let args = args.unwrap_or_default();
        let mut reader = Reader::default();
        NetConf {
            version,
            name,
            root: reader.root(conf),
            mtu: reader.mtu(conf),
            dns: reader.dns(conf),
            ipam: reader.ipam(conf, &runtime),
            runtime: reader.requested(&runtime, ["runtimeConfig.ips", "runtimeConfig.mac"]),
            args: reader.requested(&args, ["args.cni.ips", "args.cni.mac"]),
            bandwidth: reader.bandwidth(&runtime),
            annotations: annotations(&runtime),
            allowed_sources: reader.sources(conf),
            previous: conf.object("prevResult"),
            valid,
            input,
            malformed: reader.malformed,
        }
    }
}

fn name(conf: &Json) -> Result<String, Error> {
    let (key, expected) = ("name", "text");
    match conf.get("name") {
        Some(Json::Text(name)) if is_identifier(name) => Ok(name.clone()),
        Some(Json::Text(name)) if !name.is_empty() => Err(Error::Name { name: name.clone() }),
        None | Some(Json::Text(_)) => Err(Error::NoName),
        Some(_) => Err(Error::Kind { key, expected }),
    }
}

/// First whether the configuration's version has the verb, then whether we
/// have one at least as new (pkg/skel/skel.go, `pluginMain`).
fn knows_verb(config: &str, verb: Verb) -> Result<(), Error> {
    let Some(since) = verb.since() else {
        return Ok(());
    };
    let (key, expected) = ("cniVersion", "version");
    let asked = version::parts(config).ok_or(Error::Kind { key, expected })?;
    let refuse = |whose| Error::NotInVersion {
        whose,
        verb: verb.name(),
        config: config.to_owned(),
    };
    if asked < since {
        return Err(refuse("config"));
    }
    match version::parts(Version::NEWEST.name()) {
        Some(newest) if newest >= asked => Ok(()),
        _ => Err(refuse("plugin")),
    }
}

/// The list under either of its names; `valid-attachments` is the newer.
/// Null is an empty list, absence is no list.
fn valid_attachments(conf: &Json) -> Result<Option<Vec<AttachmentKey>>, Error> {
    let key = ["cni.dev/valid-attachments", "cni.dev/attachments"]
        .into_iter()
        .find(|key| conf.has(key));
    let Some(key) = key else { return Ok(None) };
    let expected = "list of containerID and ifname";
    let refused = || Error::Kind { key, expected };
    let list = conf.get(key).unwrap_or(&Json::Null).list();
    let text = |item: &Json, key| item.get(key).and_then(Json::text).map(str::to_owned);
    list.ok_or_else(refused)?
        .iter()
        .map(|item| {
            let container = text(item, "containerID").ok_or_else(refused)?;
            let ifname = text(item, "ifname").ok_or_else(refused)?;
            Ok(AttachmentKey { container, ifname })
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// The pod's annotations. Long values (a whole manifest, kept by
/// kubectl) are left out, so that a record stays small.
fn annotations(runtime: &Json) -> BTreeMap<String, String> {
    let Some(Json::Object(members)) = runtime.object("io.kubernetes.cri.pod-annotations") else {
        return BTreeMap::new();
    };
    let mut room = ANNOTATIONS;
    members
        .iter()
        .filter_map(|(key, value)| Some((key, value.text()?)))
        .filter(|(key, value)| key.len() + value.len() <= LONGEST_ANNOTATION)
        .take_while(|(key, value)| {
            let length = key.len() + value.len();
            room = room.saturating_sub(length);
            room > 0
        })
        .map(|(key, value)| (key.clone(), value.to_owned()))
        .collect()
}

/// SPEC: a configuration without a version is of version 0.1.0.
const OLDEST: &str = "0.1.0";

/// Bytes of configuration accepted; pod annotations alone may be 256 KiB.
const LONGEST: u64 = 4 * 1024 * 1024;

/// Bytes of one annotation recorded, key and value.
const LONGEST_ANNOTATION: usize = 4 * 1024;

/// Bytes of annotations recorded in all.
const ANNOTATIONS: usize = 32 * 1024;

#[cfg(test)]
mod tests;
