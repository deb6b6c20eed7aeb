//! What the service's process gives up before it has a second thread. The workers give up far more
//! (`dataplane/src/engine/confinement.rs`).
//!
//! Theory of operation. The service executes no program, looks into no other process, and changes nothing of the machine but
//! its network. So before anything else it renounces, for all of its threads and for good: privileges by an executed program
//! (`PR_SET_NO_NEW_PRIVS`); being traced, read or dumped by its own user (`PR_SET_DUMPABLE`, which ends core files too); and
//! the system calls of [`REFUSED`], which fail with EPERM.
//!
//! This list says what is refused, and not what is allowed, as the workers' does: registries, resolvers and TLS bring system
//! calls that change with the version of a library, and a node whose control plane fails by its own filter is worse off.
//! `clone` of a process is not refused: the C library's threads and processes differ in a flag alone.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// Confines the calling thread and those that it starts from now on.
///
/// # Errors
/// Of the kernel, for instance one without seccomp.
pub(crate) fn apply() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let rules = REFUSED.iter().map(|number| (*number, vec![])).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let program = filter.and_then(BpfProgram::try_from);
    apply_filter(&program.map_err(io::Error::other)?).map_err(io::Error::other)
}

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

    use super::*;

    /// In a thread of its own: what it gives up it cannot take back, and the tests' process shares `dumpable` alone.
    #[test]
    fn the_service_executes_nothing_and_goes_on() {
        let results = thread::spawn(|| {
            apply().unwrap();
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
