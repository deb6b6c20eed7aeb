//! GC: detach whatever the runtime no longer knows.
//!
//! Only attachments of the network asked about, and only what was there when
//! the request came: an ADD that runs beside it writes a record that the
//! runtime could not know yet, and an ADD at work gets time to finish. GC goes on
//! past what it cannot remove, and reports all of it at the end.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use cni_shim::api::Request;
use cni_shim::protocol::request::SearchPath;
use cni_shim::protocol::{AttachmentKey, NetConf, Verb, net_conf};
use cni_shim::{Attachment, RunDir, State, attachment, pod_end};

use crate::agent;
use crate::delegate::{Delegate, PATIENCE};
use crate::end;
use crate::error::Error;
use crate::failpoint;
use crate::netlink::Netlink;
use crate::owner;
use crate::teardown;

/// Serves GC.
pub(crate) fn gc(path: &SearchPath, conf: &NetConf) -> Result<(), Error> {
    let began = SystemTime::now();
    let deadline = Instant::now() + PATIENCE;
    let valid = conf.valid.as_ref();
    let valid: HashSet<&AttachmentKey> = valid
        .ok_or(net_conf::Error::NoAttachments)?
        .iter()
        .collect();
    let run = RunDir::under(&conf.root);
    let mut host = Netlink::open()?;
    let mut errors = Vec::new();
    let records = attachment::list(&run)?;
    // Needed for records that cannot be read alone. Where the kernel gives no list, such a record may belong to an interface.
    let mut has_unclaimed = false;
    if records.iter().any(|(_, record)| record.is_err()) {
        has_unclaimed = unclaimed(&mut host, &records).unwrap_or_else(|error| {
            errors.push(error.to_string());
            true
        });
    }
    for (file, record) in records {
        let Some((container, ifname)) = attachment::named_by(&file) else {
            continue;
        };
        let key = AttachmentKey { container, ifname };
        if valid.contains(&key) {
            continue;
        }
        if let Ok(record) = &record
            && (record.network != conf.name || is_young(&file, record.state, began))
        {
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let lock = match owner::lock(&run, &key, left.max(SHORTEST_WAIT)) {
            Err(error @ attachment::Error::AtWork { .. }) => {
                errors.push(format!("{key}: {error}"));
                continue;
            }
            taken => owner::or_none(taken),
        };
        let removed = match (record, Attachment::read(&file)) {
            (Ok(listed), Ok(record))
                if record.written_by == listed.written_by
                    && !is_young(&file, record.state, began) =>
            {
                teardown::remove(&mut host, &run, &record, path, conf, &lock)
            }
            (Err(_), Err(error)) if error.is_not_found() => continue,
            (Err(_), Err(error)) if is_orphaned(&file, &error, has_unclaimed, began) => {
                set_aside(&file, &error)
            }
            (Err(_), Err(error)) => remove_damaged(&mut host, &key, conf, &file, &error),
            // The call that we waited for has finished or removed it, or an ADD has written a new record since.
            _ => continue,
        };
        match removed {
            Ok(()) => agent::notify(&run, &Request::release(&key)),
            Err(error) => errors.push(format!("{key}: {error}")),
        }
    }
    if let Some(kind) = &conf.ipam {
        let forwarded = Delegate::find(kind, path, conf).and_then(|d| d.forward(Verb::Gc));
        errors.extend(forwarded.err().map(|error| error.to_string()));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Error::Several(errors))
}

/// Whether the record was written since the request came, or so lately that
/// its ADD may still be at work.
fn is_young(file: &Path, state: State, began: SystemTime) -> bool {
    let Ok(written) = file.metadata().and_then(|metadata| metadata.modified()) else {
        // Its DEL has removed it.
        return true;
    };
    let margin = match state {
        State::Attached => TICK,
        State::Reserved => LONGEST_ADD,
    };
    written
        .checked_add(margin)
        .is_none_or(|until| until > began)
}

/// A record that cannot be read may be of any network. It is of this one when
/// the link that this network's ADD would have made is there.
fn remove_damaged(
    host: &mut Netlink,
    key: &AttachmentKey,
    conf: &NetConf,
    file: &Path,
    error: &attachment::Error,
) -> Result<(), Error> {
    let mut ends = end::find(host, key, &[&conf.name], None)?;
    // The alias does not name the network; the name is made from it.
    ends.retain(|end| pod_end::is_named_for(&end.name, key, &conf.name));
    failpoint::after("link-looked-up")?;
    if ends.is_empty() {
        return Ok(());
    }
    end::remove_at_once(host, &ends)?;
    set_aside(file, error)
}

/// Whether a record that cannot be read, of whichever network, has no interface:
/// it is older than any ADD takes, and every interface of a pod has a record that
/// can be read. A record of another release is left to that release.
fn is_orphaned(
    file: &Path,
    error: &attachment::Error,
    has_unclaimed: bool,
    began: SystemTime,
) -> bool {
    let of_another_release = matches!(error, attachment::Error::Version { .. });
    !has_unclaimed && !of_another_release && !is_young(file, State::Reserved, began)
}

/// Whether there is an interface of a pod whose record cannot be read.
fn unclaimed(host: &mut Netlink, records: &[attachment::Listed]) -> Result<bool, Error> {
    let claimed: HashSet<&str> = records
        .iter()
        .filter_map(|(_, record)| record.as_ref().ok())
        .map(|record| record.host_ifname.as_str())
        .collect();
    let links = host.links()?;
    failpoint::after("links-listed")?;
    let mut ends = links
        .iter()
        .filter(|link| pod_end::is_ours_by_kind(link.seen()));
    Ok(ends.any(|end| !claimed.contains(end.name.as_str())))
}

fn set_aside(file: &Path, error: &attachment::Error) -> Result<(), Error> {
    let aside = attachment::set_aside(file)?;
    eprintln!("tartan-cni: {error}; set aside as {}", aside.display());
    Ok(())
}

/// However long the removals before it took: the agent holds each lock for a moment when it checks it.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// File times lag behind the clock by up to this.
const TICK: Duration = Duration::from_millis(5);

/// Longer than any ADD takes after it has written its record: it waits for a
/// delegated IPAM plugin, the range's lock and the agent.
const LONGEST_ADD: Duration = Duration::from_secs(60);
