//! Whether pods' ends get a queue (`cni_shim::pod_link::QUEUE`): only with a kernel of which it is known that the queue
//! does what it is for, and that it does not stall.
//!
//! | Linux | a full veth | so |
//! |---|---|---|
//! | before 6.16 | drops, whatever queue is before it | the queue would be of no use |
//! | 6.16, 6.17 | lets its queue wait, and may never wake it again | the pod's end could fall silent for good |
//! | from 6.18 | lets its queue wait | on |
//!
//! Sources: commits dc82a33297fa "veth: apply qdisc backpressure on full ptr_ring to reduce TX drops" and 5442a9da6978
//! "veth: more robust handing of race to avoid txq getting stuck". A stall cannot be seen from the host: the backlog of a
//! queue in a pod's namespace is shown to that namespace alone, and the service may not enter it (it has CAP_NET_ADMIN,
//! and no CAP_SYS_ADMIN). Nor could it be ended by taking the queue away: the driver has stopped the transmit queue
//! below. `tartan-cni` CHECK, which is in the pod's namespace, finds it and names it. A distribution's kernel may have the correction under an older number; it is then without the queue all the
//! same.

/// Why pods' ends get no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoQueue {
    /// The kernel makes no use of it.
    #[error(
        "Linux {LEAST_OF_USE} and later let a sender wait where a veth is full; this kernel drops",
        LEAST_OF_USE = "6.16"
    )]
    OfNoUse,
    /// It might stall.
    #[error(
        "a veth of this kernel can stall behind a queue; corrected in Linux {SAFE}",
        SAFE = "6.18"
    )]
    MayStall,
    /// The kernel's release cannot be understood.
    #[error(
        "the kernel's release is unknown, and before Linux {SAFE} a veth can stall behind a queue",
        SAFE = "6.18"
    )]
    Unknown,
}

/// Whether this kernel's pods get a queue.
///
/// # Errors
/// Why not.
pub fn of_this_kernel() -> Result<(), NoQueue> {
    of_release(&rustix::system::uname().release().to_string_lossy())
}

/// The same of the release that uname(2) gives, as in `6.18.44-amd64` or `6.18.0-rc3+`.
fn of_release(release: &str) -> Result<(), NoQueue> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let (Some(major), Some(minor)) = (number(), number()) else {
        return Err(NoQueue::Unknown);
    };
    match (major, minor) {
        // The correction came late in its cycle.
        (6, 18) if release.contains("-rc") => Err(NoQueue::MayStall),
        at if at >= (6, 18) => Ok(()),
        at if at >= (6, 16) => Err(NoQueue::MayStall),
        _ => Err(NoQueue::OfNoUse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_with_the_correction_get_a_queue() {
        for release in [
            "6.18.0",
            "6.18.44-fc-v669",
            "6.19.0-rc1",
            "7.0.1+deb14",
            "10.1",
        ] {
            assert_eq!(of_release(release), Ok(()), "{release}");
        }
        for release in ["6.16.0", "6.17.9-100.fc42", "6.18.0-rc7+", "6.18-rc7"] {
            assert_eq!(of_release(release), Err(NoQueue::MayStall), "{release}");
        }
        for release in ["5.10.0", "6.15.11", "6.1", "4.18.0-553.el8_10.x86_64"] {
            assert_eq!(of_release(release), Err(NoQueue::OfNoUse), "{release}");
        }
        for release in ["", "six", "6", "6.", "6.x"] {
            assert_eq!(of_release(release), Err(NoQueue::Unknown), "{release}");
        }
    }
}
