//! The fast TUN or TAP device: super-packets both ways, and as many queues as workers.
//!
//! Theory of operation: each worker owns one *queue*, a descriptor to read from, and where there are several a *writer*,
//! a descriptor that was attached after all queues and then detached. The kernel delivers what is written through a
//! writer like anything else but records no flow, so which queue a flow's packets come to stays a constant of the flow.
//! Written through a queue that is also read they would move the flow's other direction there, and two nodes would chase
//! each other for ever. A single queue has nowhere to move flows, and is written through itself.
//!
//! A small header beside each packet ([`Offload`]) says what is left to do: the kernel hands over up to 64 KB of one flow
//! under one header and takes the same from us. How much it may hand over is a property of the device, set again at
//! every take-over; packets that queued before came under the setting of the service before, so a reader takes what
//! comes. What we may hand over is known from the same probe, and given up after failures ([`crate::probation`]).
//!
//! A TAP differs by the Ethernet header of its frames ([`super::ethernet`]), which is read and written beside the packet
//! like the small header: no byte is moved for it.
//!
//! The device lives as long as the service or the keeper holds a descriptor, and beyond that once it was made persistent
//! ([`super::make_persistent`]): [`reopen`] then attaches to it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use encap::Mac;

use super::{
    Content, Device, DeviceError, GsoType, Offload, Offloads, Read, error, ethernet, vnet,
};
use crate::limits::{FRAME, PIECES};
use crate::now::Now;
use crate::probation::Probation;
use crate::sys::tun;

/// One worker's share of the device.
pub struct Tun {
    queue: OwnedFd,
    writer: Option<OwnedFd>,
    /// The address of a TAP, as it was when the descriptors were adopted; `None` of a TUN.
    mac: Option<Mac>,
    /// What the kernel granted when it was asked last.
    granted: Offloads,
    checksum: Probation,
    tcp: Probation,
    udp: Probation,
    given_up: u64,
}

/// What the device is to the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// A TUN: IP packets.
    None,
    /// A TAP of that address: Ethernet frames.
    Ethernet(Mac),
}

/// The descriptors of a device, in the order of its workers.
pub struct Opened {
    /// What the device is.
    pub link: LinkLayer,
    /// One to read from for each worker, or fewer.
    pub queues: Vec<OwnedFd>,
    /// One to write through for each queue, or none where there is a single queue.
    pub writers: Vec<OwnedFd>,
    /// Why there are fewer than were asked for.
    pub fewer: Option<Fewer>,
}

/// Why a device has fewer queues than were asked for.
#[derive(Debug)]
pub enum Fewer {
    /// The kernel refuses writes through a detached queue: there is a single one.
    Writes,
    /// The kernel refuses to attach or detach another, for want of descriptors, memory or places.
    Growth(io::Error),
}

impl LinkLayer {
    /// The `IFF_*` flags of a queue.
    fn flags(self) -> i16 {
        let kind = match self {
            LinkLayer::None => tun::IFF_TUN,
            LinkLayer::Ethernet(_) => tun::IFF_TAP,
        };
        kind | tun::IFF_NO_PI | tun::IFF_MULTI_QUEUE | tun::IFF_VNET_HDR
    }

    /// Gives the device its address, if it is to have one and has another.
    fn set_mac(self, queue: &OwnedFd) -> io::Result<()> {
        match self {
            LinkLayer::Ethernet(mac) if tun::mac(queue)? != mac => tun::set_mac(queue, mac),
            _ => Ok(()),
        }
    }
}

/// Whether `queue` is a queue of a TAP.
pub fn is_tap(queue: &OwnedFd) -> bool {
    tun::interface(queue).is_ok_and(|found| found.flags & tun::IFF_TAP != 0)
}

/// Creates the device `name` with a queue for each of `workers`, at least one. The network namespace is that of the
/// calling thread. Nothing must bring the device up before all of it stands, or the writers' short time as queues costs
/// packets.
///
/// # Errors
/// See [`DeviceError`]; each sentence names the remedy. `NoOffloads` where only a plain device can be had.
pub fn open(name: &str, link: LinkLayer, workers: usize) -> Result<Opened, DeviceError> {
    error::check_name(name)?;
    let first = attach(name, link.flags() | tun::IFF_TUN_EXCL)?;
    completed(name, link, first, workers)
}

/// The same from the persistent device `name` that no process holds. It keeps its addresses and routes, and has a carrier
/// from the first queue on: as in [`resize`], packets are lost that the kernel puts into a writer before it is detached.
/// Where it has gone meanwhile, it is made.
///
/// # Errors
/// As [`open`]; `NoOffloads` where it was made as another type, or with a single queue.
pub fn reopen(name: &str, link: LinkLayer, workers: usize) -> Result<Opened, DeviceError> {
    error::check_name(name)?;
    let first = attach(name, link.flags())?;
    completed(name, link, first, workers)
}

/// The device of its first queue.
fn completed(
    name: &str,
    link: LinkLayer,
    first: OwnedFd,
    workers: usize,
) -> Result<Opened, DeviceError> {
    check_flags(&first, name, link.flags())
        .and_then(|()| tun::set_header_size(&first))
        .map_err(DeviceError::NoOffloads)?;
    let first = Opened {
        link,
        queues: vec![first],
        writers: Vec::new(),
        fewer: None,
    };
    resize(name, first, workers)
}

/// Gives a TAP the address of [`Opened::link`], and a device, whose only descriptors are `held` and their duplicates, as many queues and writers as
/// `workers` need: what there are too many of is closed here, what is missing is attached. The device keeps its addresses,
/// routes and carrier. Flows come to other queues from now on, and what waits in a queue that is closed is lost. So are,
/// where a device that is up grows, the packets that the kernel puts into a writer in the moment before it is detached.
/// Where the kernel refuses to let it grow it has as many as stand.
///
/// # Errors
/// [`DeviceError::Foreign`] if one of `held` is something else than it should be, or the device went meanwhile.
pub fn resize(name: &str, held: Opened, workers: usize) -> Result<Opened, DeviceError> {
    let Opened {
        link,
        mut queues,
        mut writers,
        fewer: _,
    } = held;
    let foreign = |error| foreign(name, error);
    let flags = link.flags();
    for (descriptors, flags) in [(&queues, flags), (&writers, flags | tun::IFF_DETACH_QUEUE)] {
        for descriptor in descriptors {
            check_flags(descriptor, name, flags).map_err(foreign)?;
        }
    }
    queues.truncate(workers.max(1));
    if let Some(first) = queues.first() {
        link.set_mac(first).map_err(DeviceError::Kernel)?;
    }
    let mut fewer = grow((name, flags), &mut queues, &mut writers, workers)
        .err()
        .map(Fewer::Growth);
    // A queue of several without a writer is none. A refusal has left the first ones whole.
    let several = writers.len().min(queues.len());
    if several < queues.len() {
        queues.truncate(several.max(1));
    }
    writers.truncate(if queues.len() > 1 { queues.len() } else { 0 });
    if !writers.iter().all(tun::writes_detached) {
        writers.clear();
        queues.truncate(1);
        fewer = Some(Fewer::Writes);
    }
    // Had the device gone meanwhile, another of its name would have been made.
    let first = queues.first();
    let first = first.ok_or_else(|| foreign(io::ErrorKind::NotFound.into()))?;
    check_flags(first, name, flags).map_err(foreign)?;
    Ok(Opened {
        link,
        queues,
        writers,
        fewer,
    })
}

/// Attaches what is missing for `workers`: queues, and then a writer for each where there are several. What stands when
/// the kernel refuses another is in the lists.
fn grow(
    (name, flags): (&str, i16),
    queues: &mut Vec<OwnedFd>,
    writers: &mut Vec<OwnedFd>,
    workers: usize,
) -> io::Result<()> {
    if queues.is_empty() {
        return Ok(());
    }
    let mut result = Ok(());
    while result.is_ok() && queues.len() < workers {
        result = tun::attach(name, flags).map(|queue| queues.push(queue));
    }
    // For those that stand, even if there will be no more: without a writer they are of no use.
    while queues.len() > 1 && writers.len() < queues.len() {
        let writer = tun::attach(name, flags)?;
        tun::detach(&writer)?;
        writers.push(writer);
    }
    result
}

impl Tun {
    /// Makes a device of a queue, and a writer where there are several queues, that were opened here or by an earlier
    /// service.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] if one is something else than that of the device `name`.
    pub fn adopt(queue: OwnedFd, writer: Option<OwnedFd>, name: &str) -> Result<Tun, DeviceError> {
        let foreign = |error| foreign(name, error);
        let mac = match is_tap(&queue) {
            true => Some(tun::mac(&queue).map_err(foreign)?),
            false => None,
        };
        let flags = mac.map_or(LinkLayer::None, LinkLayer::Ethernet).flags();
        check_flags(&queue, name, flags).map_err(foreign)?;
        if let Some(writer) = &writer {
            check_flags(writer, name, flags | tun::IFF_DETACH_QUEUE).map_err(foreign)?;
        }
        for descriptor in [Some(&queue), writer.as_ref()].into_iter().flatten() {
            let kernel = |error: rustix::io::Errno| DeviceError::Kernel(error.into());
            let flags = fcntl_getfl(descriptor).map_err(kernel)?;
            fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).map_err(kernel)?;
        }
        tun::set_header_size(&queue).map_err(DeviceError::NoOffloads)?;
        tun::refuse_others(&queue).map_err(DeviceError::Kernel)?;
        let granted = probe(&queue);
        Ok(Tun {
            queue,
            writer,
            mac,
            granted,
            checksum: Probation::default(),
            tcp: Probation::default(),
            udp: Probation::default(),
            given_up: 0,
        })
    }

    /// What the kernel granted, whether or not it was given up since.
    pub fn granted(&self) -> Offloads {
        self.granted
    }

    /// Writes `headers` and `parts` as one packet.
    fn write_behind(&self, headers: &[u8], parts: &[IoSlice<'_>]) -> io::Result<()> {
        let writer = self.writer.as_ref().unwrap_or(&self.queue);
        if parts.len() < FEW {
            gather::<FEW>(writer, headers, parts)
        } else {
            gather::<{ 1 + PIECES }>(writer, headers, parts)
        }
    }

    /// The offload that is to blame when a packet with `offload` is refused: the cut, before the checksum that every cut
    /// needs.
    fn probation(&mut self, offload: Offload) -> &mut Probation {
        match offload.cut.map(|cut| cut.kind) {
            Some(GsoType::Tcp4 | GsoType::Tcp6) => &mut self.tcp,
            Some(GsoType::Udp) => &mut self.udp,
            None => &mut self.checksum,
        }
    }
}

impl Device for Tun {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        if self.mac.is_none() {
            let mut header = [0; tun::HEADER];
            let len = tun::read(&self.queue, &mut header, frame)?;
            let offload = vnet::read(&header, 0);
            let content = Content::Ip;
            return Ok(Read {
                len,
                offload,
                content,
            });
        }
        let mut headers = [0; HEADERS];
        let len = tun::read(&self.queue, &mut headers, frame)?;
        let (vnet, ether) = split(&headers);
        Ok(Read {
            len,
            offload: vnet::read(vnet, LINK),
            content: ethernet::content(ether, frame[0]),
        })
    }

    fn write(&mut self, offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match self.mac {
            None => self.write_behind(&vnet::write(offload, 0), parts)?,
            Some(mac) => {
                let first = parts.iter().find_map(|part| part.first());
                let ether = ethernet::before_ip(mac, first.copied().unwrap_or_default());
                self.write_behind(&join(vnet::write(offload, LINK), ether), parts)?;
            }
        }
        if offload != Offload::NONE {
            self.probation(offload).note_success();
        }
        Ok(())
    }

    fn mac(&self) -> Option<Mac> {
        self.mac
    }

    fn write_arp(&mut self, packet: &[u8]) -> io::Result<()> {
        let mac = self.mac.ok_or(io::ErrorKind::Unsupported)?;
        let headers = join(vnet::write(Offload::NONE, 0), ethernet::before_arp(mac));
        self.write_behind(&headers, &[IoSlice::new(packet)])
    }

    fn offloads(&mut self, now: Now) -> Offloads {
        let checksum = self.granted.checksum && self.checksum.in_use(now);
        Offloads {
            checksum,
            tcp: checksum && self.granted.tcp && self.tcp.in_use(now),
            udp: checksum && self.granted.udp && self.udp.in_use(now),
        }
    }

    fn offload_failed(&mut self, refused: Offload, now: Now) {
        if refused != Offload::NONE && self.probation(refused).note_failure(now) {
            self.given_up += 1;
        }
    }

    fn given_up(&self) -> u64 {
        self.given_up
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.queue.as_raw_fd())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// Writes `header` and `parts` as one packet; `N` is more than there are parts.
fn gather<const N: usize>(
    writer: &OwnedFd,
    header: &[u8],
    parts: &[IoSlice<'_>],
) -> io::Result<()> {
    let mut slices = [IoSlice::new(&[]); N];
    let all = [IoSlice::new(header)];
    for (place, part) in slices.iter_mut().zip(all.iter().chain(parts)) {
        *place = *part;
    }
    match slices.get(..1 + parts.len()) {
        Some(slices) => tun::write(writer, slices),
        None => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Asks the kernel for as much as it grants, the most first. USO came with Linux 6.2.
fn probe(queue: &OwnedFd) -> Offloads {
    let steps = [
        (
            tun::TUN_F_CSUM | tun::TUN_F_TSO | tun::TUN_F_USO,
            Offloads {
                checksum: true,
                tcp: true,
                udp: true,
            },
        ),
        (
            tun::TUN_F_CSUM | tun::TUN_F_TSO,
            Offloads {
                checksum: true,
                tcp: true,
                udp: false,
            },
        ),
    ];
    let granted = steps
        .into_iter()
        .find(|(mask, _)| tun::set_offloads(queue, *mask).is_ok());
    if granted.is_none() {
        // A service before us may have asked for more than we understand. Where even this is refused, nothing is set.
        let _ = tun::set_offloads(queue, 0);
    }
    granted.map_or(Offloads::NONE, |(_, offloads)| offloads)
}

/// Fails unless the descriptor belongs to the device `name` and is attached or detached as `flags` say.
fn check_flags(descriptor: &OwnedFd, name: &str, flags: i16) -> io::Result<()> {
    let found = tun::interface(descriptor)?;
    if found.name == name && found.flags & CHECKED == flags {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{found:?}"),
        ))
    }
}

/// Another descriptor of the device `name`.
fn attach(name: &str, flags: i16) -> Result<OwnedFd, DeviceError> {
    tun::attach(name, flags).map_err(|refused| opening(name, refused))
}

fn foreign(name: &str, error: io::Error) -> DeviceError {
    DeviceError::Foreign {
        wanted: name.to_owned(),
        found: error.to_string(),
    }
}

fn opening(name: &str, refused: io::Error) -> DeviceError {
    match refused.raw_os_error() {
        Some(libc::EBUSY) => DeviceError::Busy(name.to_owned()),
        // With IFF_TUN_EXCL a device of that name is EBUSY: it must be the flags.
        Some(libc::EINVAL) => DeviceError::NoOffloads(refused),
        _ => DeviceError::opening(refused),
    }
}

/// The two headers before a packet of a TAP, taken apart.
fn split(headers: &[u8; HEADERS]) -> (&[u8; tun::HEADER], &[u8; ethernet::HEADER]) {
    static NONE: ([u8; tun::HEADER], [u8; ethernet::HEADER]) =
        ([0; tun::HEADER], [0; ethernet::HEADER]);
    let split = headers.split_first_chunk();
    let both = split.and_then(|(vnet, ether)| Some((vnet, ether.first_chunk()?)));
    // They are as long as both, so both are there.
    both.unwrap_or((&NONE.0, &NONE.1))
}

/// The two headers before a packet of a TAP, in one piece.
fn join(vnet: [u8; tun::HEADER], ether: [u8; ethernet::HEADER]) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    let bytes = vnet.into_iter().chain(ether);
    for (place, byte) in headers.iter_mut().zip(bytes) {
        *place = byte;
    }
    headers
}

/// The flags that tell a descriptor of ours from others.
const CHECKED: i16 = tun::IFF_TUN
    | tun::IFF_TAP
    | tun::IFF_NO_PI
    | tun::IFF_MULTI_QUEUE
    | tun::IFF_VNET_HDR
    | tun::IFF_DETACH_QUEUE;

/// Bytes of the link-layer header of a TAP.
const LINK: u16 = ethernet::HEADER as u16;
/// Bytes before the packet in a frame of a TAP.
const HEADERS: usize = tun::HEADER + ethernet::HEADER;

/// Slices of a packet that is not gathered from many pieces, its header included.
const FEW: usize = 4;
