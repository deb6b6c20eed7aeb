//! Features of interfaces over generic netlink (`ethtool -k`, Documentation/networking/ethtool-netlink.rst), as far as
//! Tartan needs them: of pods' links GRO, and GRO of UDP for packets that are forwarded; of the underlay's what it cuts.
//!
//! Theory of operation. A veth hands each datagram that it is sent to the stack by itself. With GRO and
//! `rx-udp-gro-forwarding` at the end where they arrive, its NAPI joins consecutive datagrams of one flow and one length
//! into a super-packet, in their order (net/ipv4/udp_offload.c, `udp_gro_receive`), and the stack forwards that as one
//! packet. A super-packet that the sender made (TCP) passes as it is. Both features are off by default, and can be set
//! where a veth does GRO (Linux 5.12) and the kernel has ethtool's netlink family (`CONFIG_ETHTOOL_NETLINK`).
//!
//! A socket belongs to the network namespace of the thread that opened it. All requests are answered at once.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, protocols::NETLINK_GENERIC};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::nlmsg::{self, HEADER, NLA_F_NESTED, NLMSG_ERROR, append_attribute, attributes};

/// A socket for ethtool's netlink family.
#[derive(Debug)]
pub struct Ethtool {
    socket: Socket,
    /// The family's number, which the kernel chose at its start.
    family: u16,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Which interface a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device<'a> {
    /// The one of that index.
    Index(u32),
    /// The one of that name.
    Name(&'a str),
}

/// The two features of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathering {
    /// `rx-gro`: it joins packets that arrive.
    pub gro: bool,
    /// `rx-udp-gro-forwarding`: it joins UDP datagrams, whether or not a socket of this host receives them.
    pub udp_forwarding: bool,
}

impl Gathering {
    /// Both.
    pub const ON: Gathering = Gathering {
        gro: true,
        udp_forwarding: true,
    };

    /// Notes that the feature of that name is on.
    fn note(&mut self, name: &[u8]) {
        match name {
            RX_GRO => self.gro = true,
            RX_UDP_GRO_FORWARDING => self.udp_forwarding = true,
            _ => {}
        }
    }
}

/// Which super-packets an interface takes uncut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segmentation {
    /// `tx-udp-segmentation`: datagrams of UDP.
    pub udp: bool,
    /// `tx-udp_tnl-segmentation`: packets inside a tunnel over UDP.
    pub tunnel: bool,
}

impl Segmentation {
    /// Notes that the feature of that name is on.
    fn note(&mut self, name: &[u8]) {
        match name {
            TX_UDP_SEGMENTATION => self.udp = true,
            TX_TUNNEL_SEGMENTATION => self.tunnel = true,
            _ => {}
        }
    }
}

/// Why features could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no socket.
    #[error("cannot open a generic netlink socket")]
    Open {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no such family.
    #[error("the kernel has no ethtool over netlink (Linux 5.6 with CONFIG_ETHTOOL_NETLINK)")]
    NoFamily,
    /// The answer was not received.
    #[error("the netlink exchange ended early; the request was to {doing}")]
    Exchange {
        /// What was asked for.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The answer cannot be parsed.
    #[error("cannot parse the kernel's netlink answer; the request was to {doing}")]
    Nonsense {
        /// What was asked for.
        doing: &'static str,
    },
    /// The kernel did not do it.
    #[error("the kernel refused to {doing}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked for.
        doing: &'static str,
        /// The kernel's own words, if it had any.
        detail: String,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    /// Whether the kernel refused with this errno.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.raw_os_error() == Some(errno.raw_os_error()))
    }

    /// Whether the kernel lacks what is needed, so that asking again is no use.
    pub fn is_lack(&self) -> bool {
        matches!(self, Error::NoFamily) || self.is(Errno::OPNOTSUPP)
    }
}

impl Ethtool {
    /// Opens a socket in the calling thread's network namespace and asks for the family's number.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoFamily`], and whatever keeps the answer from us.
    pub fn open() -> Result<Ethtool, Error> {
        let open = || {
            let socket = Socket::new(NETLINK_GENERIC)?;
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok(socket)
        };
        let mut ethtool = Ethtool {
            socket: open().map_err(|source| Error::Open { source })?,
            family: GENL_ID_CTRL,
            sequence: 0,
            buffer: vec![0; LARGEST_DATAGRAM],
        };
        let mut family = None;
        let asked = ethtool.ask("find ethtool's netlink family", &family_request(), |body| {
            family = family.or_else(|| family_number(body));
        });
        match asked {
            Err(error) if error.is(Errno::NOENT) => Err(Error::NoFamily),
            Err(error) => Err(error),
            Ok(()) => {
                ethtool.family = family.ok_or(Error::NoFamily)?;
                Ok(ethtool)
            }
        }
    }

    /// The features of an interface.
    ///
    /// # Errors
    /// [`Error::Refused`] with ENODEV where there is none, and whatever keeps the answer from us.
    pub fn gathering(&mut self, device: Device<'_>) -> Result<Gathering, Error> {
        let mut found = Gathering::default();
        self.active(device, |name| found.note(name))?;
        Ok(found)
    }

    /// Which super-packets an interface takes uncut.
    ///
    /// # Errors
    /// As those of [`gathering`](Ethtool::gathering).
    pub fn segmentation(&mut self, device: Device<'_>) -> Result<Segmentation, Error> {
        let mut found = Segmentation::default();
        self.active(device, |name| found.note(name))?;
        Ok(found)
    }

    /// Calls `each` with the name of every feature that is on.
    fn active(&mut self, device: Device<'_>, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        self.ask("read features", &features_request(device), |body| {
            active(body, &mut each);
        })
    }

    /// Sets both features of an interface. The kernel sets both or none.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EOPNOTSUPP the kernel has no such feature. A feature that it has and this interface
    /// cannot have is no refusal: [`gathering`](Ethtool::gathering) shows it.
    pub fn set_gathering(&mut self, device: Device<'_>, wanted: Gathering) -> Result<(), Error> {
        self.ask("set features", &set_request(device, wanted), |_| {})
    }

    /// Sends one request and feeds the bodies of the answers, without headers, to `each` until the kernel has
    /// acknowledged it.
    fn ask(
        &mut self,
        doing: &'static str,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let exchange = |errno: Errno| Error::Exchange {
            doing,
            source: errno.into(),
        };
        let request = request(self.family, self.sequence, body);
        rustix::net::send(&self.socket, &request, SendFlags::empty()).map_err(exchange)?;
        loop {
            let received =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty());
            let length = match received {
                Ok((_, 0)) => return Err(Error::Nonsense { doing }),
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(exchange(errno)),
            };
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let (header, one, tail) = nlmsg::split(rest).ok_or(Error::Nonsense { doing })?;
                rest = tail;
                if header.sequence != self.sequence {
                    continue;
                }
                if header.kind != NLMSG_ERROR {
                    each(one.get(HEADER + GENL_HEADER..).unwrap_or_default());
                    continue;
                }
                let code = one.get(HEADER..).and_then(|body| body.first_chunk());
                let code = code.map(|code| i32::from_ne_bytes(*code));
                return match code.ok_or(Error::Nonsense { doing })? {
                    0 => Ok(()),
                    code => Err(Error::Refused {
                        doing,
                        detail: nlmsg::kernel_words(one),
                        source: io::Error::from_raw_os_error(code.saturating_neg()),
                    }),
                };
            }
        }
    }
}

/// A whole message: `struct nlmsghdr` in front of a generic netlink header and its attributes.
fn request(family: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The port is the kernel's to fill in.
    message.extend([0; 4]);
    message.extend(body);
    message
}

/// `struct genlmsghdr`: command, version, reserved.
fn genl_header(command: u8, version: u8) -> Vec<u8> {
    vec![command, version, 0, 0]
}

fn family_request() -> Vec<u8> {
    let mut body = genl_header(CTRL_CMD_GETFAMILY, CTRL_VERSION);
    append_attribute(&mut body, CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
    body
}

fn family_number(body: &[u8]) -> Option<u16> {
    let mut all = attributes(body);
    let (_, value) = all.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)?;
    Some(u16::from_ne_bytes(*value.first_chunk()?))
}

fn features_request(device: Device<'_>) -> Vec<u8> {
    let mut body = genl_header(ETHTOOL_MSG_FEATURES_GET, ETHTOOL_VERSION);
    append_device(&mut body, device, 0);
    body
}

fn set_request(device: Device<'_>, wanted: Gathering) -> Vec<u8> {
    let mut body = genl_header(ETHTOOL_MSG_FEATURES_SET, ETHTOOL_VERSION);
    append_device(&mut body, device, ETHTOOL_FLAG_OMIT_REPLY);
    let mut bits = Vec::new();
    for (name, value) in [
        (RX_GRO, wanted.gro),
        (RX_UDP_GRO_FORWARDING, wanted.udp_forwarding),
    ] {
        let mut bit = Vec::new();
        append_attribute(&mut bit, BIT_NAME, &[name, b"\0"].concat());
        // A bit that is named and has no value is cleared.
        if value {
            append_attribute(&mut bit, BIT_VALUE, &[]);
        }
        append_attribute(&mut bits, BITS_BIT | NLA_F_NESTED, &bit);
    }
    let mut bitset = Vec::new();
    append_attribute(&mut bitset, BITSET_BITS | NLA_F_NESTED, &bits);
    append_attribute(&mut body, FEATURES_WANTED | NLA_F_NESTED, &bitset);
    body
}

/// ETHTOOL_A_FEATURES_HEADER with the interface and the request's flags.
fn append_device(body: &mut Vec<u8>, device: Device<'_>, flags: u32) {
    let mut header = Vec::new();
    match device {
        Device::Index(index) => {
            append_attribute(&mut header, HEADER_DEV_INDEX, &index.to_ne_bytes())
        }
        Device::Name(name) => {
            append_attribute(
                &mut header,
                HEADER_DEV_NAME,
                &[name.as_bytes(), b"\0"].concat(),
            );
        }
    }
    if flags != 0 {
        append_attribute(&mut header, HEADER_FLAGS, &flags.to_ne_bytes());
    }
    append_attribute(body, FEATURES_HEADER | NLA_F_NESTED, &header);
}

/// The names in the list of active features: a list of names where no compact one was asked for.
fn active(body: &[u8], each: &mut impl FnMut(&[u8])) {
    let of = |bytes, wanted: u16| {
        let mut all = attributes(bytes).filter(move |(kind, _)| *kind == wanted);
        all.next().map_or(&[][..], |(_, value)| value)
    };
    let bits = of(of(body, FEATURES_ACTIVE), BITSET_BITS);
    for (_, bit) in attributes(bits).filter(|(kind, _)| *kind == BITS_BIT) {
        let name = of(bit, BIT_NAME).split(|byte| *byte == 0).next();
        each(name.unwrap_or_default());
    }
}

/// NETIF_F_GRO, as net/ethtool/common.c names it (`netdev_features_strings`).
const RX_GRO: &[u8] = b"rx-gro";
/// NETIF_F_GRO_UDP_FWD.
const RX_UDP_GRO_FORWARDING: &[u8] = b"rx-udp-gro-forwarding";
/// NETIF_F_GSO_UDP_L4.
const TX_UDP_SEGMENTATION: &[u8] = b"tx-udp-segmentation";
/// NETIF_F_GSO_UDP_TUNNEL.
const TX_TUNNEL_SEGMENTATION: &[u8] = b"tx-udp_tnl-segmentation";

/// The kernel answers at once; an answer this late will not come.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any answer has, in bytes: a list of all features by name takes 4 KiB.
const LARGEST_DATAGRAM: usize = 32 * 1024;

// linux/netlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;

// linux/genetlink.h.
const GENL_HEADER: usize = 4;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_VERSION: u8 = 2;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// linux/ethtool_netlink.h.
const ETHTOOL_VERSION: u8 = 1;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const HEADER_DEV_INDEX: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

#[cfg(test)]
mod tests;
