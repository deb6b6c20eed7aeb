//! TUN and TAP descriptors: the ioctls of `linux/if_tun.h` that `tun-tap` does not make, and the header of
//! `linux/virtio_net.h` beside each packet.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use encap::Mac;
use rustix::fs::{Mode, OFlags};

use super::faults::{self, InjectedFault};

/// What `TUNGETIFF` returns for a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The device's name.
    pub(crate) name: String,
    /// `IFF_*` flags of `linux/if_tun.h`.
    pub(crate) flags: i16,
}

/// `IFF_TUN`: packets without link-layer header.
pub(crate) const IFF_TUN: i16 = 0x0001;
/// `IFF_TAP`: packets with an Ethernet header.
pub(crate) const IFF_TAP: i16 = 0x0002;
/// `IFF_MULTI_QUEUE`: the device may have several queues, each a descriptor.
pub(crate) const IFF_MULTI_QUEUE: i16 = 0x0100;
/// `IFF_DETACH_QUEUE`: nothing is queued at this descriptor, but it may write.
pub(crate) const IFF_DETACH_QUEUE: i16 = 0x0400;
/// `IFF_NO_PI`: no packet-information header in front.
pub(crate) const IFF_NO_PI: i16 = 0x1000;
/// `IFF_VNET_HDR`: a virtio header in front.
pub(crate) const IFF_VNET_HDR: i16 = 0x4000;
/// `IFF_TUN_EXCL`: refuse to join a device that exists. The sign bit of a short.
pub(crate) const IFF_TUN_EXCL: i16 = i16::MIN;

/// `TUN_F_CSUM`: packets may come with an unfinished checksum.
pub(crate) const TUN_F_CSUM: u32 = 0x01;
/// `TUN_F_TSO4 | TUN_F_TSO6`: super-packets of TCP.
pub(crate) const TUN_F_TSO: u32 = 0x02 | 0x04;
/// `TUN_F_USO4 | TUN_F_USO6`: super-packets of UDP. The kernel takes both or none.
pub(crate) const TUN_F_USO: u32 = 0x20 | 0x40;

/// Bytes of the `virtio_net_hdr` in front of each packet.
pub(crate) const HEADER: usize = 10;

/// Takes the descriptor out of a `tun-tap` interface.
pub(crate) fn into_owned(interface: tun_tap::Iface) -> OwnedFd {
    let raw = interface.into_raw_fd();
    // WHY: tun-tap predates `OwnedFd`.
    // SAFETY: `into_raw_fd` gives up ownership of an open descriptor, and no other owner has it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Attaches a new descriptor to the device `name`, which the kernel makes if there is none: a queue to read and write.
/// The network namespace is that of the calling thread.
///
/// # Errors
/// What open(2) of `/dev/net/tun` gives; `EBUSY` with [`IFF_TUN_EXCL`] where the device exists, `EINVAL` where it has
/// other flags or the kernel does not know these, `EPERM`.
pub(crate) fn attach(name: &str, flags: i16) -> io::Result<OwnedFd> {
    if flags & IFF_VNET_HDR != 0 && faults::is_set(InjectedFault::FastDevice) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let descriptor = rustix::fs::open(
        "/dev/net/tun",
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut request = request(name, flags)?;
    // WHY: no crate wraps TUNSETIFF with more than one queue.
    // SAFETY: `TUNSETIFF` reads and writes one `struct ifreq` (tun.c: copy_from_user and copy_to_user of ifreq_len
    // bytes), and `request` is one.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
    check(result).map(|()| descriptor)
}

/// Detaches a queue: the kernel gives it no packets any more, and what is written through it records no flow.
///
/// # Errors
/// `EINVAL` if it is no attached queue of a device with [`IFF_MULTI_QUEUE`].
pub(crate) fn detach(descriptor: impl AsFd) -> io::Result<()> {
    let request = request("", IFF_DETACH_QUEUE)?;
    // WHY: no crate wraps TUNSETQUEUE.
    // SAFETY: `TUNSETQUEUE` reads one `struct ifreq` (tun.c: copy_from_user of ifreq_len bytes), and `request` is one.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            TUNSETQUEUE as _,
            &raw const request,
        )
    };
    check(result)
}

/// Whether a detached queue may still write. Asked with a write shorter than its header, which is refused before any
/// counter sees it (`tun_vnet_hdr_get`).
pub(crate) fn writes_detached(descriptor: impl AsFd) -> bool {
    let refused = rustix::io::write(descriptor, &[0]).err();
    refused != Some(rustix::io::Errno::BADFD) && !faults::is_set(InjectedFault::DetachedWrites)
}

/// Has the device outlive the last of its descriptors. It then has no carrier until another is attached to it.
///
/// # Errors
/// `EBADFD` when the device is gone; `EINVAL` of a sandbox that knows no such devices.
pub(crate) fn make_persistent(descriptor: impl AsFd) -> io::Result<()> {
    // WHY: tun-tap does not make it, and no crate wraps it for a descriptor that is there.
    // SAFETY: `TUNSETPERSIST` takes its argument by value (tun.c: `if (arg && !(tun->flags & IFF_PERSIST))`).
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            TUNSETPERSIST as _,
            c_ulong::from(1_u8),
        )
    };
    check(result)
}

/// Gives the device an owner that is no user, so that who attaches to it needs CAP_NET_ADMIN: a device without an owner
/// takes every process that can open `/dev/net/tun` (tun.c, `tun_not_capable`), which udev lets all users do.
///
/// # Errors
/// `EBADFD` when the device is gone; `EINVAL` of a sandbox that knows no owners.
pub(crate) fn refuse_others(descriptor: impl AsFd) -> io::Result<()> {
    let own = |user: u32| {
        // WHY: no crate wraps TUNSETOWNER for a descriptor that is there.
        // SAFETY: `TUNSETOWNER` takes its argument by value (tun.c: make_kuid(current_user_ns(), arg)).
        let result = unsafe {
            libc::ioctl(
                descriptor.as_fd().as_raw_fd(),
                TUNSETOWNER as _,
                c_ulong::from(user),
            )
        };
        check(result)
    };
    match own(NO_USER) {
        // A user namespace that has no such number.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => own(0),
        owned => owned,
    }
}

/// The user that no account has: the last number but the one that means none.
pub(crate) const NO_USER: u32 = u32::MAX - 1;

/// Sets what the kernel may leave undone in packets that are read, for all queues of the device (`TUN_F_*`).
///
/// # Errors
/// `EINVAL` if the kernel does not know one of them.
pub(crate) fn set_offloads(descriptor: impl AsFd, mask: u32) -> io::Result<()> {
    // WHY: no crate wraps TUNSETOFFLOAD.
    // SAFETY: `TUNSETOFFLOAD` takes its argument by value (tun.c: set_offload(tun, arg)).
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            TUNSETOFFLOAD as _,
            c_ulong::from(mask),
        )
    };
    check(result)
}

/// Sets the length of the header beside each packet to [`HEADER`], for all queues of the device.
///
/// # Errors
/// `EINVAL` if the kernel knows no such header.
pub(crate) fn set_header_size(descriptor: impl AsFd) -> io::Result<()> {
    let size = HEADER as c_int;
    // WHY: no crate wraps TUNSETVNETHDRSZ.
    // SAFETY: `TUNSETVNETHDRSZ` reads one `int` (tun_vnet.h: get_user(s, sp) with int *sp), and `size` is one.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            TUNSETVNETHDRSZ as _,
            &raw const size,
        )
    };
    check(result)
}

/// Sets the Ethernet address of the TAP that the descriptor is a queue of.
///
/// # Errors
/// `EADDRNOTAVAIL` for an address that is no station's; `EOPNOTSUPP` of a TUN; `EBADFD` when the device is gone.
pub(crate) fn set_mac(descriptor: impl AsFd, mac: Mac) -> io::Result<()> {
    let mut request = request("", 0)?;
    let mut data = [0; 14];
    for (place, byte) in data.iter_mut().zip(mac.0) {
        *place = byte as c_char;
    }
    request.ifr_ifru.ifru_hwaddr = libc::sockaddr {
        sa_family: libc::ARPHRD_ETHER,
        sa_data: data,
    };
    // WHY: no crate wraps SIOCSIFHWADDR of a tun descriptor, which names no interface.
    // SAFETY: `SIOCSIFHWADDR` reads one `struct ifreq` (tun.c: copy_from_user of ifreq_len bytes), and `request` is one.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            libc::SIOCSIFHWADDR as _,
            &raw const request,
        )
    };
    check(result)
}

/// The Ethernet address of the TAP that the descriptor is a queue of.
///
/// # Errors
/// `EBADFD` when the device is gone.
pub(crate) fn mac(descriptor: impl AsFd) -> io::Result<Mac> {
    let mut request = request("", 0)?;
    // WHY: no crate wraps SIOCGIFHWADDR of a tun descriptor, which names no interface.
    // SAFETY: `SIOCGIFHWADDR` writes one `struct ifreq` (tun.c: copy_to_user of ifreq_len bytes), and `request` is one.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            libc::SIOCGIFHWADDR as _,
            &raw mut request,
        )
    };
    check(result)?;
    // WHY: a field of a union.
    // SAFETY: `SIOCGIFHWADDR` fills the `ifru_hwaddr` member of the union (netif_get_mac_address).
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let [a, b, c, d, e, f, ..] = data.map(|byte| byte as u8);
    Ok(Mac([a, b, c, d, e, f]))
}

/// Asks the kernel which interface the descriptor is a queue of.
///
/// # Errors
/// `EBADFD` if it is a TUN descriptor without interface, `ENOTTY` if it is none at all.
pub(crate) fn interface(descriptor: impl AsFd) -> io::Result<Interface> {
    let mut request = request("", 0)?;
    // WHY: no crate wraps TUNGETIFF.
    // SAFETY: `TUNGETIFF` writes one `struct ifreq` (tun.c: copy_to_user of ifreq_len bytes), and `request` is one.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_fd().as_raw_fd(),
            TUNGETIFF as _,
            &raw mut request,
        )
    };
    check(result)?;
    let bytes = request.ifr_name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // WHY: a field of a union.
    // SAFETY: `TUNGETIFF` fills the `ifru_flags` member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(Interface { name, flags })
}

/// Reads one packet into `frame`, the bytes in front of it into `header`, and returns the packet's length.
///
/// # Errors
/// `WouldBlock` when nothing is queued; `EBADFD` when the device is gone.
pub(crate) fn read(queue: impl AsFd, header: &mut [u8], frame: &mut [u8]) -> io::Result<usize> {
    let before = header.len();
    let mut parts = [IoSliceMut::new(header), IoSliceMut::new(frame)];
    let length = rustix::io::readv(queue, &mut parts)?;
    Ok(length.saturating_sub(before))
}

/// Writes one packet, gathered from `parts`, of which the first is its header.
///
/// # Errors
/// `EINVAL` for a packet that is no IP or a header that the kernel does not take, `EIO` while the device is down,
/// `EBADFD` when it is gone.
pub(crate) fn write(queue: impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<()> {
    let cut = parts
        .first()
        .and_then(|header| header.get(GSO_TYPE))
        .is_some_and(|kind| *kind != 0);
    if cut && faults::is_set(InjectedFault::GsoWrites) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(rustix::io::writev(queue, parts).map(drop)?)
}

/// An `ifreq` with a name and flags.
fn request(name: &str, flags: i16) -> io::Result<libc::ifreq> {
    // WHY: `ifreq` holds a union, so it cannot be written as a literal.
    // SAFETY: an all-zero `ifreq` is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as c_char;
    }
    request.ifr_ifru.ifru_flags = flags;
    Ok(request)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Place of `gso_type` in the header.
const GSO_TYPE: usize = 1;

// A request is an `unsigned long` to glibc and an `int` to musl: hence `as _` where one is passed. The kernel takes its low 32 bits.
/// `_IOW('T', 202, int)`
const TUNSETIFF: c_ulong = write_request(202);
/// `_IOW('T', 203, int)`
const TUNSETPERSIST: c_ulong = write_request(203);
/// `_IOW('T', 204, int)`
const TUNSETOWNER: c_ulong = write_request(204);
/// `_IOW('T', 208, unsigned int)`
const TUNSETOFFLOAD: c_ulong = write_request(208);
/// `_IOR('T', 210, unsigned int)`
const TUNGETIFF: c_ulong = 0x8004_54d2;
/// `_IOW('T', 216, int)`
const TUNSETVNETHDRSZ: c_ulong = write_request(216);
/// `_IOW('T', 217, int)`
const TUNSETQUEUE: c_ulong = write_request(217);

/// `_IOW('T', number, int)` of `asm-generic/ioctl.h`.
const fn write_request(number: c_uint) -> c_ulong {
    (1 << 30 | (size_of::<c_int>() as c_uint) << 16 | (b'T' as c_uint) << 8 | number) as c_ulong
}
