//! Errors of the kernel path; each sentence names the remedy.

use std::{fmt, io};

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

/// Why the programs or tables cannot be loaded, adopted or written.
#[derive(Debug)]
pub enum KernelPathError {
    /// The kernel refuses the call for want of a capability.
    NotPermitted(io::Error),
    /// The kernel has no BPF, or not the map type or call that is needed.
    NotSupported {
        /// What was asked for.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's verifier refuses a program.
    Refused {
        /// Name of the program.
        program: String,
        /// The last lines of the verifier's log.
        log: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no memory for a table, or the limit on locked memory is too low.
    NoMemory {
        /// The table.
        table: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// More entries than the table was made for.
    Full {
        /// The table.
        table: &'static str,
    },
    /// The descriptors that were deposited are of an object of another build.
    OtherBuild,
    /// A descriptor that was deposited is not what its name says, or is missing.
    Foreign {
        /// Its name.
        name: String,
        /// What is wrong with it.
        found: String,
    },
    /// Anything else the kernel says.
    Kernel {
        /// What was done.
        doing: &'static str,
        /// The table or program.
        subject: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl fmt::Display for KernelPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelPathError::NotPermitted(error) => write!(
                f,
                "not permitted to load BPF programs ({error}): run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, under systemd with the drop-in tartan-kernel-path.conf (before \
                 Linux 5.8 CAP_SYS_ADMIN), and with a seccomp profile that allows bpf(2)"
            ),
            KernelPathError::NotSupported { what, source } => write!(
                f,
                "this kernel does not support {what} ({source}): the kernel path needs Linux 5.15 with CONFIG_BPF_SYSCALL \
                 and CONFIG_NET_CLS_BPF; set kernel-path to \"off\""
            ),
            KernelPathError::Refused {
                program,
                log,
                source,
            } => write!(
                f,
                "the kernel's verifier refuses the program {program} ({source}): without CAP_PERFMON (which the drop-in \
                 tartan-kernel-path.conf gives) it does; else set kernel-path to \"off\", and report the kernel version \
                 with this log: {log}"
            ),
            KernelPathError::NoMemory { table, source } => write!(
                f,
                "no memory for the table {table} of the kernel path ({source}): raise the limit on locked memory \
                 (LimitMEMLOCK=infinity in the unit) or the memory limit of the service, or set kernel-path to \"off\""
            ),
            KernelPathError::Full { table } => write!(
                f,
                "the table {table} of the kernel path is full: it is sized when the programs are loaded; after a minute \
                 they are loaded anew, with larger tables where the cluster has grown"
            ),
            KernelPathError::OtherBuild => write!(
                f,
                "the programs in the kernel are those of another build: they must be loaded anew"
            ),
            KernelPathError::Foreign { name, found } => {
                write!(
                    f,
                    "the descriptor {name} of the kernel path cannot be adopted: {found}"
                )
            }
            KernelPathError::Kernel {
                doing,
                subject,
                source,
            } => {
                write!(
                    f,
                    "the kernel refuses to {doing} {subject} of the kernel path: {source}"
                )
            }
        }
    }
}

impl std::error::Error for KernelPathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KernelPathError::NotPermitted(source)
            | KernelPathError::NotSupported { source, .. }
            | KernelPathError::Refused { source, .. }
            | KernelPathError::NoMemory { source, .. }
            | KernelPathError::Kernel { source, .. } => Some(source),
            KernelPathError::Full { .. }
            | KernelPathError::OtherBuild
            | KernelPathError::Foreign { .. } => None,
        }
    }
}

impl KernelPathError {
    /// What it means that a table cannot be used.
    pub(super) fn table(
        doing: &'static str,
        table: &'static str,
        error: MapError,
    ) -> KernelPathError {
        let source = of_map(error);
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::E2BIG) => KernelPathError::Full { table },
            Some(libc::ENOMEM) => KernelPathError::NoMemory {
                table: table.to_owned(),
                source,
            },
            Some(libc::EPERM) => KernelPathError::NotPermitted(source),
            _ => KernelPathError::Kernel {
                doing,
                subject: table.to_owned(),
                source,
            },
        }
    }

    /// What it means that the tables cannot be made.
    pub(super) fn loading(error: EbpfError) -> KernelPathError {
        let (what, source) = match error {
            EbpfError::MapError(MapError::CreateError { name, io_error }) => {
                (format!("the table {name}"), io_error)
            }
            EbpfError::MapError(error) => ("its tables".to_owned(), of_map(error)),
            other => ("its object".to_owned(), io::Error::other(other.to_string())),
        };
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => KernelPathError::NotPermitted(source),
            Some(libc::ENOMEM) => KernelPathError::NoMemory {
                table: what,
                source,
            },
            Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => {
                KernelPathError::NotSupported { what, source }
            }
            _ => KernelPathError::Kernel {
                doing: "make",
                subject: what,
                source,
            },
        }
    }

    /// What it means that a program cannot be loaded.
    pub(super) fn verifying(program: &str, error: ProgramError) -> KernelPathError {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => match (io_error.raw_os_error(), verifier_log.to_string()) {
                (Some(libc::EPERM), log) if log.is_empty() => {
                    KernelPathError::NotPermitted(io_error)
                }
                (_, log) => KernelPathError::Refused {
                    program: program.to_owned(),
                    log: last_lines(&log),
                    source: io_error,
                },
            },
            other => KernelPathError::Kernel {
                doing: "load",
                subject: program.to_owned(),
                source: io::Error::other(other.to_string()),
            },
        }
    }
}

fn of_map(error: MapError) -> io::Error {
    match error {
        MapError::CreateError { io_error, .. } | MapError::IoError(io_error) => io_error,
        MapError::SyscallError(error) => error.io_error,
        other => io::Error::other(other.to_string()),
    }
}

/// The end of the verifier's log says what it refused.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    lines.get(from..).unwrap_or_default().join("; ")
}

const LOG_LINES: usize = 6;
