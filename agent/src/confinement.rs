//! What the service's process gives up before it has a second thread. The workers give up far more
//! (`dataplane/src/engine/confinement.rs`).
//!
//! Theory of operation. The service executes no program, looks into other processes only for the name of one that holds a port,
//! and changes nothing of the machine but its network. So before anything else it renounces, for all of its threads and for good:
//! being traced, read or dumped by its own user (`PR_SET_DUMPABLE`, which ends core files too); every capability but those of
//! [`needed`]; privileges by an executed program (`PR_SET_NO_NEW_PRIVS`); and the system calls of [`REFUSED`], which fail with
//! EPERM.
//!
//! This list says what is refused, and not what is allowed, as the workers' does: registries, resolvers and TLS bring system
//! calls that change with the version of a library, and a node whose control plane fails by its own filter is worse off.
//! `clone` of a process is not refused: the C library's threads and processes differ in a flag alone.
//!
//! Some threads renounce files too, by Landlock ([`renounce_files`]): that of peers' health opens none, those of a remote registry and
//! of flows open none to write, and make, rename and remove none. The control thread and the one that answers over HTTP do not: a
//! thread under Landlock may not look into the process that holds a port, and the directories that control writes may be made anew
//! while it runs.

use std::io;

use dataplane::landlock::{self, Renounced};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter, sock_filter,
};
use tracing::{debug, warn};

/// Confines the calling thread and those that it starts from now on. What cannot be given up stays, and the rest is given up
/// nevertheless.
///
/// # Errors
/// Of the kernel, for instance one without seccomp.
pub(crate) fn apply() -> io::Result<()> {
    let dumpable = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let dropped = drop_capabilities();
    let no_new = set_no_new_privs(true);
    for filter in filters()? {
        apply_filter(&filter).map_err(io::Error::other)?;
    }
    dumpable?;
    dropped?;
    no_new?;
    Ok(())
}

/// Has the calling thread renounce files that it does not need. A kernel without Landlock lets it keep them.
pub(crate) fn renounce_files(what: Renounced) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("of no name");
    match landlock::renounce(what) {
        Ok(true) => {}
        Ok(false) => debug!("the kernel has no Landlock: the thread {name} keeps its files"),
        Err(error) => {
            warn!(%error, "the thread {name} keeps rights to files that it does not need");
        }
    }
}

/// Of the capabilities that the process was given, those that are needed stay.
fn drop_capabilities() -> io::Result<()> {
    let given = capabilities(None)?;
    let kept = needed();
    let sets = CapabilitySets {
        effective: given.effective & kept,
        permitted: given.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// What the service's threads use, where they have it. The unit leaves the first one, with the drop-in the second one too.
fn needed() -> CapabilitySet {
    // Links, addresses, routes, nft rules, settings, large buffers of sockets.
    CapabilitySet::NET_ADMIN
        // Programs of the kernel path and their tables.
        | CapabilitySet::BPF
        // Without it the verifier refuses some of those programs, and adds barriers against speculation to the others.
        | CapabilitySet::PERFMON
        // The priority of the thread that takes flows back.
        | CapabilitySet::SYS_NICE
        // Endpoints at ports below 1,024.
        | CapabilitySet::NET_BIND_SERVICE
        // Keys and certificates of another user's.
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::DAC_OVERRIDE
        // The name of the process that holds a port.
        | CapabilitySet::SYS_PTRACE
}

fn filters() -> io::Result<Vec<BpfProgram>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let rules = REFUSED.iter().map(|number| (*number, vec![])).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let listed = filter.and_then(BpfProgram::try_from);
    let listed = listed.map_err(io::Error::other)?;
    let other_numbers = cfg!(target_arch = "x86_64").then(of_x32_calls);
    Ok(other_numbers.into_iter().chain([listed]).collect())
}

/// Refuses the x32 calls of x86-64, which do the same under numbers of their own that the list does not have. A kernel may be built with
/// them (`CONFIG_X86_X32_ABI`), and no program here makes any.
fn of_x32_calls() -> BpfProgram {
    let instruction = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    vec![
        instruction(LOAD, NUMBER, 0, 0),
        instruction(JUMP_IF_SET, X32, 0, 1),
        instruction(RETURN, refused, 0, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

/// Of linux/include/uapi/linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
/// The offset in `struct seccomp_data`.
const NUMBER: u32 = 0;
/// `__X32_SYSCALL_BIT` (linux/arch/x86/include/uapi/asm/unistd.h).
const X32: u32 = 0x4000_0000;

/// System calls that the service never makes, each of which an attacker inside it would want.
const REFUSED: &[libc::c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes, and this one's memory from outside.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "aarch64")]
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    // Clocks and names of the machine.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // File systems and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    // Device files: the one that is needed is made before.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    libc::SYS_mknodat,
    // Other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    // Parts of the kernel that were a way in before, and that nothing here uses.
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_personality,
];

/// `kexec_file_load` (linux/include/uapi/asm-generic/unistd.h), which libc does not name for musl.
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: libc::c_long = 294;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use rustix::process::dumpable_behavior;

    use dataplane::filter_trial::{Call, SEEN_BY_NO_FILTER, Verdict, verdicts};

    use super::*;

    /// Every number that a kernel may have: what is listed is refused, all else passes; and the x32 calls are all refused.
    #[test]
    fn of_all_system_calls_the_listed_ones_are_refused_and_no_other() {
        let numbers = (0..1_000).filter(|number| !SEEN_BY_NO_FILTER.contains(number));
        let calls: Vec<Call> = numbers.map(|number| (number, [0; 5])).collect();
        let found = verdicts(&filters().unwrap(), &calls).unwrap();
        let both = calls.iter().zip(&found);
        let mut refused: Vec<_> = both
            .filter(|(_, verdict)| **verdict == Verdict::Refused(libc::EPERM))
            .map(|((number, _), _)| *number)
            .collect();
        let passed = found.iter().filter(|verdict| **verdict == Verdict::Passes);
        assert_eq!(passed.count() + refused.len(), calls.len());
        let mut listed = REFUSED.to_vec();
        listed.sort_unstable();
        refused.sort_unstable();
        assert_eq!(refused, listed);
        let x32 = (0..1_000).map(|number| (number + libc::c_long::from(X32), [0; 5]));
        let x32: Vec<Call> = x32.collect();
        if cfg!(target_arch = "x86_64") {
            let found = verdicts(&filters().unwrap(), &x32).unwrap();
            assert_eq!(found, vec![Verdict::Refused(libc::EPERM); x32.len()]);
        }
    }

    /// In a thread of its own: what it gives up it cannot take back, and the tests' process shares `dumpable` alone.
    #[test]
    fn the_service_executes_nothing_and_goes_on() {
        let results = thread::spawn(|| {
            apply().unwrap();
            assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
            let left = capabilities(None).unwrap();
            assert_eq!(left.permitted - needed(), CapabilitySet::empty());
            assert!(left.effective.contains(CapabilitySet::NET_ADMIN));
            assert_eq!(left.inheritable, CapabilitySet::empty());
            let program = Command::new("/bin/true").status().map(drop);
            let root = rustix::process::chroot("/").map_err(io::Error::from);
            // A thread that it starts has the same limits.
            let child = thread::spawn(|| Command::new("/bin/true").status().map(drop));
            (program, root, child.join().unwrap())
        });
        let (program, root, child) = results.join().unwrap();
        for refused in [program, root, child] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
        Command::new("/bin/true").status().unwrap();
    }
}
