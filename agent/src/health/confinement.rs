//! What the thread that answers over HTTP gives up, beside what the whole service does ([`crate::confinement`]), and with it the
//! threads that it starts.
//!
//! It alone is asked by strangers. It reads: views, the kernel's counters, `/proc`. So it changes no file, opens none to write,
//! and loads no BPF. As in the whole service's list, what is refused is named and fails with EPERM, because what an HTTP
//! server and its runtime call changes with their versions.

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Confines the calling thread and those that it starts from now on.
///
/// # Errors
/// Of the kernel, for instance one without seccomp.
pub(super) fn apply() -> io::Result<()> {
    apply_filter(&filter()?).map_err(io::Error::other)
}

fn filter() -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let always = REFUSED.iter().map(|number| (*number, vec![]));
    let to_write = OPENING.iter().map(|(number, flags)| {
        let with = |mode| {
            let equal = SeccompCmpOp::MaskedEq(ACCESS);
            let condition = SeccompCondition::new(*flags, SeccompCmpArgLen::Dword, equal, mode);
            condition.and_then(|condition| SeccompRule::new(vec![condition]))
        };
        // Every value of the two bits but that of O_RDONLY, which is 0.
        let rules = (1..=ACCESS).map(with).collect::<Result<Vec<_>, _>>();
        rules.map(|rules| (*number, rules))
    });
    let to_write = to_write.collect::<Result<Vec<_>, _>>();
    let rules = always.chain(to_write.map_err(io::Error::other)?).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(io::Error::other)
}

/// Calls that open a file, and the place of their flags.
const OPENING: &[(libc::c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
    (libc::SYS_openat, 2),
];

/// The bits of the flags that say for what a file is opened.
const ACCESS: u64 = libc::O_ACCMODE as u64;

/// System calls that the thread never makes.
const REFUSED: &[libc::c_long] = &[
    // Its flags lie in memory, where no filter sees them.
    libc::SYS_openat2,
    // Names in directories.
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    // What a file holds, and who may have it.
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    // The kernel path's programs.
    libc::SYS_bpf,
    // Other processes.
    libc::SYS_kill,
    libc::SYS_pidfd_send_signal,
    libc::SYS_capset,
];

#[cfg(test)]
mod tests {
    use dataplane::filter_trial::{Call, SEEN_BY_NO_FILTER, Verdict, verdicts};

    use super::*;

    fn refused(calls: &[Call]) -> Vec<Call> {
        let found = verdicts(&[filter().unwrap()], calls).unwrap();
        let both = calls.iter().zip(found);
        both.filter(|(_, verdict)| *verdict == Verdict::Refused(libc::EPERM))
            .map(|(call, _)| *call)
            .collect()
    }

    /// With arguments of zero, and so files opened to be read.
    #[test]
    fn of_all_system_calls_the_listed_ones_are_refused_and_no_other() {
        let numbers = (0..1_000).filter(|number| !SEEN_BY_NO_FILTER.contains(number));
        let calls: Vec<Call> = numbers.map(|number| (number, [0; 5])).collect();
        let mut refused: Vec<_> = refused(&calls).iter().map(|call| call.0).collect();
        let mut listed = REFUSED.to_vec();
        listed.sort_unstable();
        refused.sort_unstable();
        assert_eq!(refused, listed);
    }

    #[test]
    fn files_are_opened_to_be_read_alone() {
        let flags = [libc::O_CLOEXEC, libc::O_NONBLOCK, libc::O_DIRECTORY];
        for &(number, place) in OPENING {
            for access in [
                libc::O_RDONLY,
                libc::O_WRONLY,
                libc::O_RDWR,
                libc::O_ACCMODE,
            ] {
                for beside in flags {
                    let mut arguments = [0; 5];
                    arguments[usize::from(place)] = u64::from((access | beside).unsigned_abs());
                    let is_refused = !refused(&[(number, arguments)]).is_empty();
                    assert_eq!(is_refused, access != libc::O_RDONLY, "{number} {access}");
                }
            }
        }
    }
}
