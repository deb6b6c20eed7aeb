//! Every way a request can fail, as the specification's error result.

use std::error::Error as _;

use cni_shim::{attachment, node_file, range};
use serde_json::{Value, json};

use crate::net_conf::Version;
use crate::{agent, net_conf, netlink, netns, request, veth};

/// Why a request was not served. What each says, its module says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Request(#[from] request::Error),
    #[error(transparent)]
    Conf(#[from] net_conf::Error),
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error(transparent)]
    Node(#[from] node_file::Error),
    #[error(transparent)]
    Range(#[from] range::Error),
    #[error(transparent)]
    Record(#[from] attachment::Error),
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error(transparent)]
    Veth(#[from] veth::Error),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// STATUS: an ADD would fail now.
    #[error("pods cannot be attached now: {reason}")]
    NotAvailable {
        /// What an ADD would say.
        reason: Box<Error>,
    },
}

impl Error {
    /// The code of SPEC section 5, "Error", or from 100 on one of ours.
    pub(crate) fn code(&self) -> u32 {
        match self {
            Error::Request(_) => ENVIRONMENT,
            Error::Conf(error) => match error {
                net_conf::Error::Read { .. } | net_conf::Error::TooLong => IO,
                net_conf::Error::Decode { .. } => DECODE,
                net_conf::Error::Version { .. } | net_conf::Error::TooOld { .. } => VERSION,
                net_conf::Error::Field { .. } => FIELD,
                net_conf::Error::NoName
                | net_conf::Error::Name { .. }
                | net_conf::Error::NotFirst => CONFIGURATION,
            },
            Error::Netns(_) => NETNS,
            Error::Node(node_file::Error::Missing { .. }) => TRY_LATER,
            Error::Node(_) | Error::Record(_) => IO,
            Error::Range(range::Error::Exhausted { .. }) => EXHAUSTED,
            Error::Range(range::Error::NoSubnet) => TRY_LATER,
            Error::Range(_) => IO,
            Error::Veth(veth::Error::Exists { .. }) => INTERFACE_EXISTS,
            Error::Veth(_) | Error::Netlink(_) => KERNEL,
            Error::Agent(agent::Error::Unreachable { .. }) => TRY_LATER,
            Error::Agent(agent::Error::Refused { .. }) => REFUSED,
            Error::NotAvailable { .. } => NOT_AVAILABLE,
        }
    }

    /// The error result: message and remedy in `msg`, the causes in `details`.
    pub(crate) fn to_json(&self, version: Version) -> Value {
        let mut causes = Vec::new();
        let mut cause = match self {
            Error::NotAvailable { reason } => reason.source(),
            error => error.source(),
        };
        while let Some(error) = cause {
            causes.push(error.to_string());
            cause = error.source();
        }
        json!({
            "cniVersion": version.name(),
            "code": self.code(),
            "msg": self.to_string(),
            "details": causes.join(": "),
        })
    }
}

const VERSION: u32 = 1;
const FIELD: u32 = 2;
const ENVIRONMENT: u32 = 4;
const IO: u32 = 5;
const DECODE: u32 = 6;
const CONFIGURATION: u32 = 7;
const NETNS: u32 = 8;
const TRY_LATER: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
const EXHAUSTED: u32 = 100;
const REFUSED: u32 = 103;
const KERNEL: u32 = 104;
const INTERFACE_EXISTS: u32 = 105;

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
        assert_eq!(reason.code(), TRY_LATER);
        let error = Error::NotAvailable {
            reason: Box::new(reason),
        };
        let json = error.to_json(Version::NEWEST);
        assert_eq!(json["code"], 50);
        assert!(json["msg"].as_str().unwrap().contains("tartan run"));
        assert!(json["details"].as_str().unwrap().contains("refused"));
    }
}
