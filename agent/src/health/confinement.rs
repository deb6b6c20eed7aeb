//! What the thread that answers over HTTP gives up, beside what the whole service does ([`crate::confinement`]), and with it the
//! threads that it starts.
//!
//! It alone is asked by strangers. It reads: views, the kernel's counters, `/proc`. So it changes no file, opens and makes none
//! to write, and of BPF reads what maps hold and nothing else. As in the whole service's list, what is refused is named and fails with EPERM, because what an HTTP
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
    let when = |argument, (mask, value)| {
        let equal = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, equal, value);
        condition.and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let to_write = OPENING.iter().map(|(number, flags)| {
        // Every value of the two bits but that of O_RDONLY, which is 0; and what O_RDONLY makes or empties all the same.
        let modes = (1..=ACCESS).map(|mode| (ACCESS, mode));
        let changes = CHANGING.map(|flag| (flag, flag));
        let rules = modes.chain(changes).map(|bits| when(*flags, bits));
        let rules = rules.collect::<Result<Vec<_>, _>>();
        rules.map(|rules| (*number, rules))
    });
    let to_write = to_write.collect::<Result<Vec<_>, _>>();
    let but_reading = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Ne,
        BPF_MAP_LOOKUP_ELEM,
    )
    .and_then(|condition| {
        let to_next = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Ne,
            BPF_MAP_GET_NEXT_KEY,
        )?;
        SeccompRule::new(vec![condition, to_next])
    });
    let of_bpf = (libc::SYS_bpf, vec![but_reading.map_err(io::Error::other)?]);
    let some = to_write.map_err(io::Error::other)?.into_iter();
    let rules = always.chain(some).chain([of_bpf]).collect();
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

/// Flags by which O_RDONLY makes a file or empties one (openat(2)).
const CHANGING: [u64; 2] = [libc::O_CREAT as u64, libc::O_TRUNC as u64];

/// linux/include/uapi/linux/bpf.h, `enum bpf_cmd`: the counters of the kernel path are read by these.
const BPF_MAP_LOOKUP_ELEM: u64 = 1;
const BPF_MAP_GET_NEXT_KEY: u64 = 4;

/// linux/include/uapi/asm-generic/unistd.h: the C library's constants lack them on some architectures.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const FILE_SETATTR: libc::c_long = 469;

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
    FCHMODAT2,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    // Other processes. A panic ends this one by tgkill(2), by tkill(2) where the C library is musl.
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
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
        // Command 0 makes a map.
        let mut listed = [REFUSED, &[libc::SYS_bpf]].concat();
        listed.sort_unstable();
        refused.sort_unstable();
        assert_eq!(refused, listed);
    }

    #[test]
    fn of_bpf_what_maps_hold_is_read_and_nothing_else() {
        let calls: Vec<Call> = (0..64)
            .map(|command| (libc::SYS_bpf, [command, 0, 0, 0, 0]))
            .collect();
        let allowed: Vec<u64> = {
            let refused = refused(&calls);
            let others = calls.iter().filter(|call| !refused.contains(call));
            others.map(|call| call.1[0]).collect()
        };
        assert_eq!(allowed, [BPF_MAP_LOOKUP_ELEM, BPF_MAP_GET_NEXT_KEY]);
    }

    #[test]
    fn files_are_opened_to_be_read_alone() {
        let flags = [
            libc::O_CLOEXEC,
            libc::O_NONBLOCK,
            libc::O_DIRECTORY,
            libc::O_CREAT,
            libc::O_TRUNC,
        ];
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
                    let changes = CHANGING.contains(&u64::from(beside.unsigned_abs()));
                    let expected = access != libc::O_RDONLY || changes;
                    assert_eq!(is_refused, expected, "{number} {access} {beside}");
                }
            }
        }
    }
}
