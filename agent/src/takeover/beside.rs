//! A start beside the service that runs, up to *go*.
//!
//! Theory of operation. The other service reads the descriptors and keeps the host as it should be, so nothing is changed before
//! *go*, neither here nor there: files, registry and kernel are read, the first tables decided, and the descriptors
//! looked at. Where this service would need others, of another number of workers or another port, it refuses: what it
//! opened would take packets from the service that still reads, and what it closed would be missing to that one
//! if it has to go on. After *go* the other service reads and changes nothing, and the take-over is that after a
//! death: the kernel and the records of attachments are read again.

use tracing::info;

use super::{StartError, device};
use crate::causes::causes;
use crate::control::model::{Known, Model};
use crate::control::underlay::held;
use crate::control::workers::Machine;
use crate::host::Host;
use crate::keeper::descriptors::Descriptors;
use crate::service::{Entered, Entry};

/// Decides by what is known, says *ready*, and waits for *go*; `None` when the keeper ended instead. What is known of the
/// kernel is read again then, by another `host`, which is to remove nothing where the first was not.
///
/// # Errors
/// `Beside`, where the service that runs has other descriptors than this one needs; those of a start.
pub(super) async fn wait(
    table: &Descriptors,
    entry: &Entry,
    known: &mut Known,
    (host, is_add_only): (&mut Host, bool),
) -> Result<Option<Entered>, StartError> {
    if let Some(reason) = differs(table, known) {
        return Err(StartError::Beside { reason });
    }
    // What the tables cannot be decided from is found now, and the code that does it is in memory at *go*.
    drop(Model::new(known.clone(), 0));
    if !table.ready().await? {
        return Ok(None);
    }
    let entered = entry.enter()?;
    // The other one may have changed the host and its record meanwhile.
    *host = Host::open(&known.config.state_dir()).await?;
    host.set_add_only(is_add_only);
    if let Some(error) = known.refresh(host).await {
        info!("{}", causes(&error));
    }
    Ok(Some(entered))
}

/// Why this service cannot go by the descriptors of the table.
fn differs(table: &Descriptors, known: &Known) -> Option<String> {
    let config = &known.config;
    let workers = Machine::read().workers(config);
    let device = device::differs(table, config, workers);
    // As many as the device has queues for.
    let queues = table
        .names()
        .filter(|name| name.starts_with(device::QUEUE))
        .count();
    device.or_else(|| held::differs(table, known, queues))
}
