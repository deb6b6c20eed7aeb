//! Programs as filters of traffic control (tc-bpf(8)), with the action decided by the program itself.
//!
//! A filter lives with its device and needs neither a process nor a BPF file system. Ours has a preference behind those
//! of other programs, a fixed handle, and a name with a prefix of ours. One with that preference and handle is replaced
//! in one step: no packet meets none or both. The queueing discipline that filters hang from (`clsact`) is made where
//! there is none, and one that is there is used. To make or to remove it costs packets: the kernel takes the device's
//! queues out of service for a moment (net/sched/sch_api.c, qdisc_graft). So it stays when our filters go, and does
//! nothing without them; `tartan cleanup` removes one that Tartan made ([`made`]) if no filter is left on it.

use std::os::fd::{AsRawFd, BorrowedFd};

use dataplane::kernel_path::program_id;
use futures_util::TryStreamExt;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use rtnetlink::Handle;
use rustix::io::Errno;

use super::made;
use crate::host::Host;
use crate::host::error::{HostError, errno};
use crate::host::net::links;
use crate::host::shaping::{send_request, signed};

/// Which packets of a device a filter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that the kernel takes from it.
    Ingress,
    /// Those that the kernel hands to it.
    Egress,
}

impl Direction {
    fn parent(self) -> TcHandle {
        let minor = match self {
            Direction::Ingress => TcHandle::MIN_INGRESS,
            Direction::Egress => TcHandle::MIN_EGRESS,
        };
        TcHandle {
            major: TcHandle::CLSACT.major,
            minor,
        }
    }
}

/// Where a program is to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// Index of the device.
    pub index: u32,
    /// Its name, for people.
    pub device: String,
    /// Which of its packets.
    pub direction: Direction,
}

/// What became of a program where a device may go at any moment.
#[derive(Debug)]
pub enum AttachOutcome {
    /// It is attached since now.
    New,
    /// It was attached already.
    WasThere,
    /// The device is gone.
    NoDevice,
    /// The kernel refuses, and no program of ours is attached there.
    Refused {
        /// Why.
        error: HostError,
        /// One was attached before.
        detached: bool,
    },
}

/// A filter of ours, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The program's name, without the prefix.
    pub program: String,
    /// Its number in the kernel.
    pub id: u32,
}

impl Host {
    /// The filter of ours at a hook. A device that is gone has none.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn attached(&self, hook: &Hook) -> Result<Option<Attached>, HostError> {
        attached(&self.netlink.handle, hook).await
    }

    /// Attaches a program, in the place of one of ours that is there. Returns whether anything was changed.
    ///
    /// # Errors
    /// The kernel's refusal; [`HostError::ForeignQdisc`] where an `ingress` queueing discipline leaves no egress.
    pub async fn attach(
        &self,
        hook: &Hook,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<bool, HostError> {
        let handle = &self.netlink.handle;
        let is_there = attached(handle, hook).await?.is_some_and(|found| {
            found.program == name && program_id(program).is_some_and(|id| id == found.id)
        });
        if is_there {
            return Ok(false);
        }
        if ensure_clsact(handle, hook).await? && name == OUTLASTS_US {
            made::note(&self.state_dir, &hook.device)?;
        }
        let failed = |source| HostError::netlink("attach a program to", &hook.device, source);
        let mut message = address(hook)?;
        let descriptor = u32::try_from(program.as_raw_fd()).unwrap_or_default();
        message.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(descriptor)),
                TcOption::Bpf(TcFilterBpfOption::ProgName(format!("{PREFIX}{name}"))),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        let request = RouteNetlinkMessage::NewTrafficFilter(message);
        send_request(handle, request, NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(failed)?;
        Ok(true)
    }

    /// The same for a device that may go at any moment. Where the kernel refuses while the device is there, one of ours that
    /// was to be replaced is detached: it would go on by tables that nothing follows any more.
    ///
    /// # Errors
    /// The kernel's refusal to detach that one.
    pub async fn attach_or_detach(
        &self,
        hook: &Hook,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<AttachOutcome, HostError> {
        let error = match self.attach(hook, name, program).await {
            Ok(true) => return Ok(AttachOutcome::New),
            Ok(false) => return Ok(AttachOutcome::WasThere),
            Err(error) => error,
        };
        if !links::is_there(&self.netlink.handle, hook.index).await? {
            return Ok(AttachOutcome::NoDevice);
        }
        let detached = self.detach(hook).await?;
        Ok(AttachOutcome::Refused { error, detached })
    }

    /// Removes the filter of ours at a hook. Returns whether there was one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub async fn detach(&self, hook: &Hook) -> Result<bool, HostError> {
        detach(&self.netlink.handle, hook).await
    }
}

/// See [`Host::detach`].
pub(super) async fn detach(handle: &Handle, hook: &Hook) -> Result<bool, HostError> {
    let Some((listed, _)) = find(handle, hook).await? else {
        return Ok(false);
    };
    match send_request(handle, removal(&listed), 0).await {
        Ok(()) => Ok(true),
        // The device has gone with it, or another process removed it. Another refusal may have the same number.
        Err(error) if is_absent(&error) && find(handle, hook).await?.is_none() => Ok(false),
        Err(source) => Err(HostError::netlink(
            "detach a program from",
            &hook.device,
            source,
        )),
    }
}

/// See [`Host::attached`].
pub(super) async fn attached(handle: &Handle, hook: &Hook) -> Result<Option<Attached>, HostError> {
    let found = find(handle, hook).await?;
    Ok(found.map(|(_, attached)| attached))
}

/// The filter of ours at a hook, beside how the kernel listed it.
async fn find(handle: &Handle, hook: &Hook) -> Result<Option<(TcMessage, Attached)>, HostError> {
    let filters = list(handle, hook).await?;
    let mut ours = filters.into_iter().filter_map(|message| {
        let attached = parse(&message)?;
        Some((message, attached))
    });
    Ok(ours.next())
}

/// The request to remove a filter, which names it as it was listed: it may be for one protocol, and in a block of filters
/// that devices share.
fn removal(listed: &TcMessage) -> RouteNetlinkMessage {
    let mut message = TcMessage::with_index(listed.header.index);
    message.header = listed.header.clone();
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    RouteNetlinkMessage::DelTrafficFilter(message)
}

/// A program of any owner at a device, as a filter.
#[derive(Clone, Debug)]
pub(in crate::host) struct ForeignFilter {
    /// The name of the filter.
    pub(in crate::host) name: String,
    message: TcMessage,
}

/// Programs of any owner at a hook. A device that is gone has none.
pub(in crate::host) async fn programs(
    handle: &Handle,
    hook: &Hook,
) -> Result<Vec<ForeignFilter>, HostError> {
    let listed = list(handle, hook).await?;
    let found = listed.into_iter().filter_map(|message| {
        let is_itself = message.header.handle != TcHandle::from(0);
        let name = program_name(&message).filter(|_| is_itself)?.to_owned();
        Some(ForeignFilter { name, message })
    });
    Ok(found.collect())
}

/// Removes a filter as it was listed. One that is gone already is no error.
pub(in crate::host) async fn remove_program(
    handle: &Handle,
    filter: &ForeignFilter,
) -> Result<(), HostError> {
    match send_request(handle, removal(&filter.message), 0).await {
        Err(error) if is_absent(&error) => Ok(()),
        done => {
            done.map_err(|source| HostError::netlink("remove the filter", &filter.name, source))
        }
    }
}

fn program_name(message: &TcMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else {
            return None;
        };
        options.iter().find_map(|option| match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.as_str()),
            _ => None,
        })
    })
}

async fn list(handle: &Handle, hook: &Hook) -> Result<Vec<TcMessage>, HostError> {
    let mut request = handle.traffic_filter(signed(hook.index)?).get();
    request = match hook.direction {
        Direction::Ingress => request.ingress(),
        Direction::Egress => request.egress(),
    };
    match request.execute().try_collect().await {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        listed => {
            listed.map_err(|source| HostError::netlink("list the filters of", &hook.device, source))
        }
    }
}

/// Whether a request failed because there is nothing of that kind: no queueing discipline, no device, or no traffic
/// control at all in this kernel (CONFIG_NET_SCHED), which knows no such request then (net/core/rtnetlink.c).
fn is_absent(error: &rtnetlink::Error) -> bool {
    matches!(
        errno(error),
        Some(Errno::INVAL | Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP)
    )
}

/// Our filter, if the message describes it. A filter is listed twice: its instance of classifier without handle, and
/// itself.
fn parse(message: &TcMessage) -> Option<Attached> {
    let is_ours = message.header.info >> 16 == u32::from(PREFERENCE)
        && message.header.handle == TcHandle::from(HANDLE);
    if !is_ours {
        return None;
    }
    let options = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        });
    let (mut program, mut id) = (None, None);
    for option in options.flatten() {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => {
                program = name.strip_prefix(PREFIX).map(str::to_owned);
            }
            TcOption::Bpf(TcFilterBpfOption::ProgId(number)) => id = Some(*number),
            _ => {}
        }
    }
    Some(Attached {
        program: program?,
        id: id?,
    })
}

/// Returns whether it was made.
async fn ensure_clsact(handle: &Handle, hook: &Hook) -> Result<bool, HostError> {
    let request = RouteNetlinkMessage::NewQueueDiscipline(clsact(hook)?);
    match send_request(handle, request, NLM_F_CREATE | NLM_F_EXCL).await {
        Err(error) if errno(&error) == Some(Errno::EXIST) => {}
        made => {
            made.map_err(|source| HostError::shaping("use", &hook.device, CLSACT, source))?;
            return Ok(true);
        }
    }
    // `ingress` has one list of filters, so that one for egress would see what arrives.
    if hook.direction == Direction::Egress
        && qdisc_kind(handle, hook).await?.as_deref() != Some(CLSACT)
    {
        return Err(HostError::ForeignQdisc {
            device: hook.device.clone(),
        });
    }
    Ok(false)
}

/// The kind of the queueing discipline from which filters hang.
async fn qdisc_kind(handle: &Handle, hook: &Hook) -> Result<Option<String>, HostError> {
    let index = signed(hook.index)?;
    let listed: Vec<TcMessage> = match handle
        .qdisc()
        .get()
        .index(index)
        .execute()
        .try_collect()
        .await
    {
        Err(error) if is_absent(&error) => return Ok(None),
        listed => listed.map_err(|source| {
            HostError::netlink("list the queueing disciplines of", &hook.device, source)
        })?,
    };
    let is_it =
        |found: &&TcMessage| found.header.index == index && found.header.parent == TcHandle::CLSACT;
    let found = listed.iter().find(is_it);
    Ok(found.and_then(|found| {
        found
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind.clone()),
                _ => None,
            })
    }))
}

/// Removes the queueing discipline if no filter hangs from it.
pub(super) async fn remove_empty_clsact(handle: &Handle, hook: &Hook) -> Result<(), HostError> {
    for direction in [Direction::Ingress, Direction::Egress] {
        let other = Hook {
            direction,
            ..hook.clone()
        };
        if !list(handle, &other).await?.is_empty() {
            return Ok(());
        }
    }
    if qdisc_kind(handle, hook).await?.as_deref() != Some(CLSACT) {
        return Ok(());
    }
    let request = RouteNetlinkMessage::DelQueueDiscipline(clsact(hook)?);
    match send_request(handle, request, 0).await {
        Err(error) if is_absent(&error) => Ok(()),
        done => done.map_err(|source| HostError::netlink("restore", &hook.device, source)),
    }
}

fn clsact(hook: &Hook) -> Result<TcMessage, HostError> {
    let mut message = TcMessage::with_index(signed(hook.index)?);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: 0,
    };
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    Ok(message)
}

/// The place of our filter at a hook.
fn address(hook: &Hook) -> Result<TcMessage, HostError> {
    let mut message = TcMessage::with_index(signed(hook.index)?);
    message.header.parent = hook.direction.parent();
    message.header.handle = TcHandle::from(HANDLE);
    message.header.info = (u32::from(PREFERENCE) << 16) | u32::from(EVERY_PROTOCOL.to_be());
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    Ok(message)
}

const CLSACT: &str = "clsact";
/// The program whose device is not ours and stays when we go.
const OUTLASTS_US: &str = "underlay_in";
/// In front of the program's name in that of the filter, as `tc filter show` lists it.
const PREFIX: &str = "tartan:";
/// Behind the filters of other programs, which take low numbers (Cilium: 1).
const PREFERENCE: u16 = 42_000;
const HANDLE: u32 = 0x7a;
const EVERY_PROTOCOL: u16 = libc::ETH_P_ALL as u16;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(handle: u32, name: &str) -> TcMessage {
        let hook = Hook {
            index: 3,
            device: "eth0".to_owned(),
            direction: Direction::Ingress,
        };
        let mut message = address(&hook).unwrap();
        message.header.handle = TcHandle::from(handle);
        message.attributes.push(TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::ProgId(9)),
        ]));
        message
    }

    #[test]
    fn a_kernel_without_traffic_control_has_no_filter() {
        let refusal = |errno: Errno| {
            let mut message = netlink_packet_core::ErrorMessage::default();
            message.code = std::num::NonZeroI32::new(-errno.raw_os_error());
            rtnetlink::Error::NetlinkError(message)
        };
        for absent in [Errno::INVAL, Errno::NOENT, Errno::NODEV, Errno::OPNOTSUPP] {
            assert!(is_absent(&refusal(absent)), "{absent}");
        }
        assert!(!is_absent(&refusal(Errno::PERM)));
    }

    #[test]
    fn only_a_filter_with_our_handle_and_name_is_ours() {
        let ours = Attached {
            program: "gro_in".to_owned(),
            id: 9,
        };
        assert_eq!(parse(&listed(HANDLE, "tartan:gro_in")), Some(ours));
        assert_eq!(parse(&listed(HANDLE, "cil_from_netdev")), None);
        assert_eq!(parse(&listed(1, "tartan:gro_in")), None);
        let mut other = listed(HANDLE, "tartan:gro_in");
        other.header.info = 1 << 16;
        assert_eq!(parse(&other), None);
    }
}
