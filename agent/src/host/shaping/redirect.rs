//! What comes from a pod is sent through its limiter: a filter at the ingress of the host's end.

use futures_util::TryStreamExt;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcActionAttribute, TcActionMirrorOption, TcActionOption, TcAttribute, TcFilterU32Option,
    TcHandle, TcMessage, TcOption,
};
use rustix::io::Errno;

use super::{send_request, signed};
use crate::host::Host;
use crate::host::error::{HostError, errno};

impl Host {
    /// Whether everything that comes from the pod goes to the limiter.
    pub(super) async fn is_redirected(
        &self,
        end: u32,
        name: &str,
        limiter: u32,
    ) -> Result<bool, HostError> {
        let handle = &self.netlink.handle;
        let mut filters = Box::pin(
            handle
                .traffic_filter(signed(end)?)
                .get()
                .ingress()
                .execute(),
        );
        let mut found = false;
        loop {
            match filters.try_next().await {
                Ok(Some(filter)) => found |= leads_to(&filter, limiter),
                Ok(None) => return Ok(found),
                // Without the ingress queue there is nothing to list.
                Err(error) if matches!(errno(&error), Some(Errno::INVAL | Errno::NOENT)) => {
                    return Ok(false);
                }
                Err(source) => return Err(HostError::netlink("list the filters of", name, source)),
            }
        }
    }

    pub(super) async fn redirect(
        &self,
        end: u32,
        name: &str,
        limiter: u32,
    ) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        let index = signed(end)?;
        let mut queue = TcMessage::with_index(index);
        queue.header.parent = TcHandle::INGRESS;
        queue.header.handle = TcHandle::from(INGRESS);
        // Whatever filters are there lead elsewhere. There may be none, and no queue.
        let _ = send_request(handle, RouteNetlinkMessage::DelQueueDiscipline(queue), 0).await;
        let made = handle.qdisc().add(index).ingress().execute().await;
        made.map_err(|source| HostError::shaping("limit", name, "sch_ingress", source))?;
        let filter = handle
            .traffic_filter(index)
            .add()
            .parent(INGRESS)
            .protocol(EVERY_PROTOCOL.to_be())
            .redirect(limiter)
            .map_err(|source| HostError::netlink("limit", name, source))?;
        let filtered = filter.execute().await;
        filtered.map_err(|source| HostError::shaping("limit", name, "cls_u32 act_mirred", source))
    }
}

/// Whether a filter redirects to the interface.
fn leads_to(filter: &TcMessage, index: u32) -> bool {
    let options = filter
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        });
    let actions = options.flatten().filter_map(|option| match option {
        TcOption::U32(TcFilterU32Option::Action(actions)) => Some(actions),
        _ => None,
    });
    let attributes = actions.flatten().flat_map(|action| &action.attributes);
    let parameters = attributes.filter_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options),
        _ => None,
    });
    parameters.flatten().any(|option| {
        matches!(option, TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) if mirror.ifindex == index)
    })
}

/// `ffff:`, the ingress queue.
const INGRESS: u32 = 0xffff_0000;
const EVERY_PROTOCOL: u16 = libc::ETH_P_ALL as u16;
