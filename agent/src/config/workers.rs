//! The keys `workers` and `cores`: how many packet workers run, and on which cores.

/// Why `workers` or `cores` cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkersError {
    /// Zero, or more than the keeper has descriptors for.
    #[error("workers is {0}: use 1 to {MOST_WORKERS}, or leave it out for half the physical cores")]
    Workers(u16),
    /// A number beyond the kernel's range of cores.
    #[error("cores names {0}: cores are numbered from 0 to {most}", most = CORES - 1)]
    Core(u16),
    /// Two workers on one core.
    #[error("cores names {0} twice: name each core once")]
    Twice(u16),
    /// A worker without a core.
    #[error("cores has {cores} for {workers} workers: name a core for each, or leave cores out")]
    TooFew {
        /// Cores named.
        cores: usize,
        /// Workers asked for.
        workers: u16,
    },
}

/// Checks both keys together. Returns the number of workers, if configured, and their cores, if configured.
///
/// # Errors
/// [`WorkersError`] with the first fault.
pub(super) fn check(
    workers: Option<u16>,
    cores: Vec<u16>,
) -> Result<(Option<u16>, Vec<u16>), WorkersError> {
    for (index, core) in cores.iter().enumerate() {
        if *core >= CORES {
            return Err(WorkersError::Core(*core));
        }
        if cores.iter().take(index).any(|before| before == core) {
            return Err(WorkersError::Twice(*core));
        }
    }
    let named = u16::try_from(cores.len()).unwrap_or(u16::MAX);
    let workers = workers.or((named > 0).then_some(named));
    match workers {
        Some(workers) if !(1..=MOST_WORKERS).contains(&workers) => {
            Err(WorkersError::Workers(workers))
        }
        Some(workers) if named > 0 && named < workers => Err(WorkersError::TooFew {
            cores: cores.len(),
            workers,
        }),
        _ => Ok((workers, cores)),
    }
}

/// The most workers of a node: the keeper holds fourteen descriptors for each.
pub const MOST_WORKERS: u16 = 32;
/// The number of cores in an affinity mask (`CPU_SETSIZE`).
pub(super) const CORES: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_cores_are_checked_together() {
        for (workers, cores, expected) in [
            (None, vec![], Ok((None, vec![]))),
            (Some(32), vec![], Ok((Some(32), vec![]))),
            (None, vec![3, 1], Ok((Some(2), vec![3, 1]))),
            (Some(1), vec![3, 1], Ok((Some(1), vec![3, 1]))),
            (Some(0), vec![], Err(WorkersError::Workers(0))),
            (Some(33), vec![], Err(WorkersError::Workers(33))),
            (None, vec![1024], Err(WorkersError::Core(1024))),
            (None, vec![1, 2, 1], Err(WorkersError::Twice(1))),
            (
                Some(3),
                vec![1, 2],
                Err(WorkersError::TooFew {
                    cores: 2,
                    workers: 3,
                }),
            ),
        ] {
            assert_eq!(check(workers, cores), expected);
        }
        let many = (0..33).collect();
        assert_eq!(check(None, many), Err(WorkersError::Workers(33)));
    }
}
