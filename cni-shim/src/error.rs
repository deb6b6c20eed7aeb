//! Every way a request can fail, as the specification's error result.

use std::error::Error as _;
use std::net::IpAddr;

use cni_shim::protocol::{Version, net_conf, request, result};
use cni_shim::{attachment, node_file, range};
use serde_json::{Value, json};

use crate::check_error::CheckError;
use crate::{agent, code, delegate, failpoint, netlink, netns, veth};

/// Why a request was not served. Each module words its own errors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Request(#[from] request::Error),
    #[error(transparent)]
    Conf(#[from] net_conf::Error),
    #[error("cannot use prevResult")]
    Previous { source: result::Error },
    #[error("CHECK needs the prevResult of the attachment's ADD")]
    NoPrevious,
    #[error(transparent)]
    Result(#[from] result::Error),
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error(transparent)]
    Node(#[from] node_file::Error),
    #[error(transparent)]
    Range(#[from] range::Error),
    /// The range is full, and what holds its addresses.
    #[error("{full}")]
    Full { full: range::Error, by: String },
    /// An address that was asked for and is in use.
    #[error("{address} was asked for and is taken: it is held by {holder}")]
    Taken { address: IpAddr, holder: String },
    /// An address that was asked for and that no pod of this node can have.
    #[error("{address} was asked for and is not for pods of this node: its subnets are {subnets}")]
    Foreign { address: IpAddr, subnets: String },
    #[error("an MTU of {mtu} is too small for IPv6: set \"mtu\" to 1280 or more")]
    SmallMtu { mtu: u16 },
    #[error("allowedSources has {prefix}, and the pod has no address of that family")]
    SourceFamily { prefix: ipnet::IpNet },
    /// Its route would attract traffic of other pods.
    #[error(
        "allowedSources has {prefix}, in which pods of the cluster live: list addresses outside the cluster network"
    )]
    SourceOfPods { prefix: ipnet::IpNet },
    #[error(transparent)]
    Record(#[from] attachment::Error),
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(transparent)]
    Veth(#[from] veth::Error),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    #[error(transparent)]
    Delegate(#[from] delegate::Error),
    /// CHECK: the attachment is not as ADD made it.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// STATUS: an ADD would fail now.
    #[error("pods cannot be attached now: {reason}")]
    NotAvailable {
        /// What an ADD would say.
        reason: Box<Error>,
    },
    /// STATUS: an ADD would fail now, and the pods of this node may be cut off.
    #[error("pods cannot be attached now, and those there are may be cut off: {reason}")]
    CutOff { reason: Box<Error> },
    /// GC: what could not be removed, all of it.
    #[error("{} of the stale attachments could not be removed", .0.len())]
    Several(Vec<String>),
    #[error("the attachment was removed while it was made: did a DEL run beside this ADD?")]
    Removed,
    #[error(transparent)]
    Failpoint(#[from] failpoint::Error),
}

impl Error {
    /// The code of SPEC section 5, "Error", or from 100 on one of ours.
    pub(crate) fn code(&self) -> u32 {
        match self {
            Error::Request(_) => code::ENVIRONMENT,
            Error::Conf(error) => match error {
                net_conf::Error::Read { .. } | net_conf::Error::TooLong => code::IO,
                net_conf::Error::Decode { .. } | net_conf::Error::Kind { .. } => code::DECODE,
                net_conf::Error::Version { .. } | net_conf::Error::NotInVersion { .. } => {
                    code::VERSION
                }
                net_conf::Error::Field { .. } => code::FIELD,
                net_conf::Error::NoName
                | net_conf::Error::Name { .. }
                | net_conf::Error::NoAttachments => code::CONFIGURATION,
            },
            Error::SmallMtu { .. } | Error::SourceFamily { .. } | Error::SourceOfPods { .. } => {
                code::FIELD
            }
            Error::Previous { .. } => code::DECODE,
            Error::NoPrevious | Error::Foreign { .. } | Error::Result(_) => code::CONFIGURATION,
            Error::Netns(_) => code::NETNS,
            Error::Node(node_file::Error::Missing { .. }) => code::TRY_LATER,
            Error::Range(range::Error::Exhausted { .. }) | Error::Full { .. } => code::EXHAUSTED,
            Error::Range(range::Error::NoSubnet | range::Error::Busy { .. })
            | Error::Record(attachment::Error::AtWork { .. }) => code::TRY_LATER,
            Error::Node(_) | Error::Record(_) | Error::Range(_) => code::IO,
            Error::Taken { .. } => code::BUSY,
            Error::Veth(veth::Error::Exists { .. }) => code::INTERFACE_EXISTS,
            Error::Veth(veth::Error::Routed { .. }) => code::BUSY,
            Error::Agent(agent::Error::Unreachable { .. }) => code::TRY_LATER,
            Error::Agent(agent::Error::Refused { .. }) => code::REFUSED,
            Error::Delegate(error) => error.code(),
            Error::Check(_) => code::NOT_AS_IT_SHOULD_BE,
            Error::NotAvailable { .. } => code::NOT_AVAILABLE,
            Error::CutOff { .. } => code::CUT_OFF,
            Error::Veth(_)
            | Error::Netlink(_)
            | Error::Several(_)
            | Error::Removed
            | Error::Failpoint(_) => code::KERNEL,
        }
    }

    /// The error result: `msg` says what is wrong, `details` why and what to do.
    pub(crate) fn to_json(&self, version: Version) -> Value {
        let mut details = self.details();
        let mut cause = match self {
            Error::NotAvailable { reason } | Error::CutOff { reason } => reason.source(),
            error => error.source(),
        };
        while let Some(error) = cause {
            details.push(error.to_string());
            cause = error.source();
        }
        details.retain(|part| !part.is_empty());
        json!({
            "cniVersion": version.name(),
            "code": self.code(),
            "msg": self.to_string(),
            "details": details.join(": "),
        })
    }

    fn details(&self) -> Vec<String> {
        let one = |text: &str| vec![text.to_owned()];
        match self {
            Error::NotAvailable { reason } | Error::CutOff { reason } => reason.details(),
            Error::Conf(error) => vec![error.details()],
            Error::Request(request::Error::Missing { .. }) => one(
                "the container runtime sets them; by hand, see the CNI specification, section 2",
            ),
            Error::Request(request::Error::UnknownVerb { .. }) => {
                one("ADD, DEL, CHECK, GC, STATUS and code::VERSION are spoken")
            }
            Error::Full { by, .. } => vec![by.clone()],
            Error::Taken { .. } => {
                one("ask for another address, or delete its holder; `tartan pods` lists them")
            }
            Error::Foreign { .. } => {
                one("ask for an address inside, not for the first two nor the broadcast address")
            }
            Error::NoPrevious => one("a runtime sends it; with cnitool, run `add` before `check`"),
            Error::Check(_) => one("delete the pod; its next start is attached anew"),
            Error::Several(errors) => errors.clone(),
            Error::Delegate(error) => vec![error.details()],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn an_error_says_what_where_and_why() {
        let refused = netlink::Error::Refused {
            doing: "set the default route",
            detail: "Nexthop has invalid gateway".to_owned(),
            source: io::Error::from_raw_os_error(22),
        };
        let error = Error::from(veth::Error::from(refused));
        let json = error.to_json(Version::V0_4_0);
        assert_eq!(json["cniVersion"], "0.4.0");
        assert_eq!(json["code"], 104);
        assert_eq!(
            json["details"],
            "the kernel refused to set the default route: Nexthop has invalid gateway: \
             Invalid argument (os error 22)"
        );
    }

    #[test]
    fn status_keeps_the_reason_and_its_causes() {
        let reason = Error::from(agent::Error::Unreachable {
            socket: "/run/tartan/tartan.sock".into(),
            source: io::Error::from_raw_os_error(111),
        });
        assert_eq!(reason.code(), code::TRY_LATER);
        let error = Error::NotAvailable {
            reason: Box::new(reason),
        };
        let json = error.to_json(Version::NEWEST);
        assert_eq!(json["code"], 50);
        assert!(json["msg"].as_str().unwrap().contains("tartan run"));
        assert!(json["details"].as_str().unwrap().contains("refused"));
    }

    /// Line A6 of the checklist, for the errors whose words are libcni's.
    #[test]
    fn a6_what_libcni_words_keeps_its_words_and_has_a_remedy() {
        let version = net_conf::Error::Version {
            config: "9".to_owned(),
        };
        let json = Error::from(version).to_json(Version::NEWEST);
        assert_eq!(
            (&json["code"], &json["msg"]),
            (&json!(1), &json!("incompatible CNI versions"))
        );
        assert!(
            json["details"]
                .as_str()
                .unwrap()
                .starts_with("config is \"9\"")
        );
        let missing = request::Error::Missing {
            names: vec!["CNI_PATH"],
        };
        let json = Error::from(missing).to_json(Version::NEWEST);
        assert_eq!(json["code"], 4);
        assert!(!json["details"].as_str().unwrap().is_empty());
    }
}
