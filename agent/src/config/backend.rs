//! The `Backend` of flannel's configuration: how nodes talk.

use cni_shim::Json;
use encap::{Format, Vni};

use super::net_conf_error::NetConfError;
use super::unknown_key::UnknownKey;

/// How nodes talk: the cluster's default format and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// flannel `udp`.
    Udp {
        /// UDP port of every node, 1 to 65,535.
        port: u16,
    },
    /// flannel `vxlan`.
    Vxlan {
        /// VXLAN network identifier.
        vni: Vni,
        /// UDP port of every node, 1 to 65,535 (0 in the file is the kernel's default).
        port: u16,
        /// Accept group-policy bits in received headers.
        gbp: bool,
        /// MTU of the *underlay*, bytes of outer packet, if the file sets one.
        mtu: Option<u16>,
        /// flannel nodes send to nodes on their own link without outer headers. Tartan itself does not.
        direct_routing: bool,
    },
}

impl Backend {
    /// The format of nodes whose lease names no other.
    pub fn format(&self) -> Format {
        match self {
            Backend::Udp { .. } => Format::Udp,
            Backend::Vxlan { .. } => Format::Vxlan,
        }
    }

    /// UDP port of the `udp` format: as configured, or flannel's default in a cluster of another backend.
    pub fn udp_port(&self) -> u16 {
        match self {
            Backend::Udp { port } => *port,
            Backend::Vxlan { .. } => DEFAULT_UDP_PORT,
        }
    }

    /// UDP port of the `vxlan` format: as configured, or the default in a cluster of another backend.
    pub fn vxlan_port(&self) -> u16 {
        match self {
            Backend::Udp { .. } => DEFAULT_VXLAN_PORT,
            Backend::Vxlan { port, .. } => *port,
        }
    }

    /// Every node receives both formats, each on its port.
    pub(super) fn check_ports(&self) -> Result<(), NetConfError> {
        if self.udp_port() != self.vxlan_port() {
            return Ok(());
        }
        let (format, other) = match self {
            Backend::Udp { .. } => (Format::Udp, Format::Vxlan),
            Backend::Vxlan { .. } => (Format::Vxlan, Format::Udp),
        };
        let port = self.udp_port();
        Err(NetConfError::PortOfOther {
            port,
            format,
            other,
        })
    }

    /// The VXLAN network identifier: as configured, or flannel's default in a cluster of another backend.
    pub fn vni(&self) -> Vni {
        match self {
            Backend::Udp { .. } => DEFAULT_VNI,
            Backend::Vxlan { vni, .. } => *vni,
        }
    }

    /// Whether group-policy bits are accepted in received headers.
    pub fn gbp(&self) -> bool {
        matches!(self, Backend::Vxlan { gbp: true, .. })
    }

    /// Whether flannel nodes send to nodes on their own link past the overlay.
    pub fn direct_routing(&self) -> bool {
        matches!(
            self,
            Backend::Vxlan {
                direct_routing: true,
                ..
            }
        )
    }

    /// The `MTU` of the file, bytes, if it names one.
    pub fn configured_mtu(&self) -> Option<u16> {
        match self {
            Backend::Vxlan { mtu, .. } => *mtu,
            Backend::Udp { .. } => None,
        }
    }

    /// The lower of `mtu`, that of the underlay interface, and the `MTU` of the file.
    pub fn cap_underlay_mtu(&self, mtu: u16) -> u16 {
        match self {
            Backend::Vxlan { mtu: Some(cap), .. } => mtu.min(*cap),
            _ => mtu,
        }
    }

    /// Reads the value of `Backend` and adds unknown keys to `unknown`.
    ///
    /// A missing value is `udp`, as in flannel's code (not its documentation). Null and `{}` have the type "",
    /// which is an unknown backend.
    pub(super) fn parse(
        value: Option<&Json>,
        unknown: &mut Vec<UnknownKey>,
    ) -> Result<Backend, NetConfError> {
        let fields = match value {
            None => {
                return Ok(Backend::Udp {
                    port: DEFAULT_UDP_PORT,
                });
            }
            Some(fields @ (Json::Object(_) | Json::Null)) => fields,
            Some(_) => {
                return Err(NetConfError::Type {
                    key: "Backend",
                    expected: "an object",
                });
            }
        };
        let kind = fields.text_of("Type")?.unwrap_or_default();
        let (backend, known): (_, &[&'static str]) = match kind.to_lowercase().as_str() {
            "udp" => (udp(fields)?, &["Type", "Port"]),
            "vxlan" => (
                vxlan(fields)?,
                &[
                    "Type",
                    "VNI",
                    "Port",
                    "MTU",
                    "GBP",
                    "Learning",
                    "DirectRouting",
                ],
            ),
            _ => return Err(NetConfError::UnknownBackend(kind.to_owned())),
        };
        let more = fields.unknown_keys(known);
        unknown.extend(more.map(|key| UnknownKey::new("Backend.", key, known.iter().copied())));
        Ok(backend)
    }
}

fn udp(fields: &Json) -> Result<Backend, NetConfError> {
    let port = fields
        .whole_of("Port")?
        .unwrap_or(i64::from(DEFAULT_UDP_PORT));
    Ok(Backend::Udp {
        port: in_range("Port", port, 1)?,
    })
}

fn vxlan(fields: &Json) -> Result<Backend, NetConfError> {
    let vni = fields
        .whole_of("VNI")?
        .unwrap_or(i64::from(DEFAULT_VNI.get()));
    let vni = u32::try_from(vni)
        .ok()
        .and_then(Vni::new)
        .ok_or(NetConfError::Range {
            key: "VNI",
            value: vni,
            least: 0,
            most: (1 << 24) - 1,
        })?;
    let port = match fields.whole_of("Port")?.unwrap_or(0) {
        0 => DEFAULT_VXLAN_PORT,
        port => in_range("Port", port, 1)?,
    };
    // Checked as flannel checks it; it has no effect here.
    fields.flag_of("Learning")?;
    let mtu = match fields.whole_of("MTU")?.unwrap_or(0) {
        0 => None,
        mtu => Some(in_range("MTU", mtu, LEAST_MTU)?),
    };
    Ok(Backend::Vxlan {
        vni,
        port,
        gbp: fields.flag_of("GBP")?.unwrap_or(false),
        mtu,
        direct_routing: fields.flag_of("DirectRouting")?.unwrap_or(false),
    })
}

fn in_range(key: &'static str, value: i64, least: u16) -> Result<u16, NetConfError> {
    u16::try_from(value)
        .ok()
        .filter(|number| *number >= least)
        .ok_or(NetConfError::Range {
            key,
            value,
            least: i64::from(least),
            most: i64::from(u16::MAX),
        })
}

/// flannel `pkg/backend/udp/udp_amd64.go`, `defaultPort`.
const DEFAULT_UDP_PORT: u16 = 8285;
/// The Linux kernel's default, which flannel requests with port 0.
const DEFAULT_VXLAN_PORT: u16 = 8472;
/// flannel `pkg/backend/vxlan/vxlan.go`, `defaultVNI`.
const DEFAULT_VNI: Vni = match Vni::new(1) {
    Some(vni) => vni,
    None => unreachable!(),
};
/// The packet that every host accepts (576 bytes, RFC 791 section 3.1) and 50 bytes of headers.
const LEAST_MTU: u16 = 626;
