//! What a worker may ask of the kernel: what it needs to move packets, and nothing else.
//!
//! Theory of operation. Workers read bytes that anyone may have sent. Before its first packet each gives up, for itself alone
//! and for good: every capability (capabilities(7)); new privileges by a program that it executes (`PR_SET_NO_NEW_PRIVS`);
//! every file, where the kernel has Landlock ([`landlock`]); and, by a seccomp filter (seccomp(2)), every system call but those of
//! [`SYSTEM_CALLS`]. Control opens the descriptors and hands them over, so a worker opens nothing.
//!
//! A call that is not listed fails with EPERM. It does not end the process: a library that tries something new would stop
//! the node's traffic, and for an attacker a call that fails is as useless as one that kills. Calls by the number space of
//! another architecture kill the process (`seccompiler` does that): nothing here makes any.
//!
//! The kernel answers an unconditional entry from a bitmap, without running the filter (since 5.11, on x86-64 and arm64).
//! So only [`BOUND`] have conditions, which no packet needs.

use std::io;
use std::sync::Arc;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::landlock::{self, Renounced};

/// The filter of all workers. Made once, because making it allocates.
#[derive(Clone, Debug)]
pub(super) struct Confinement(Arc<BpfProgram>);

impl Confinement {
    /// The filter for this machine.
    ///
    /// # Errors
    /// On an architecture that `seccompiler` does not know.
    pub(super) fn new() -> io::Result<Confinement> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(other)?;
        let free = SYSTEM_CALLS.iter().map(|number| (*number, vec![]));
        let bound = BOUND.iter().map(|(number, argument, mask, value)| {
            let equal = SeccompCmpOp::MaskedEq(*mask);
            let condition =
                SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, equal, *value);
            let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
            rule.map(|rule| (*number, vec![rule]))
        });
        let bound = bound.collect::<Result<Vec<_>, _>>().map_err(other)?;
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let rules = free.chain(bound).collect();
        let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch);
        let program = filter.and_then(BpfProgram::try_from).map_err(other)?;
        Ok(Confinement(Arc::new(program)))
    }

    /// Confines the calling thread. What cannot be given up stays, and the rest is given up nevertheless.
    ///
    /// # Errors
    /// Of the kernel, for instance one without seccomp (`CONFIG_SECCOMP_FILTER`).
    pub(super) fn apply(&self) -> io::Result<()> {
        let none = CapabilitySet::empty();
        let dropped = set_capabilities(
            None,
            CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            },
        );
        let no_new = set_no_new_privs(true);
        // Where the kernel has no Landlock, the filter is the only fence.
        let files = landlock::renounce(Renounced::AllFiles);
        let filtered = apply_filter(&self.0).map_err(other);
        dropped?;
        no_new?;
        files?;
        filtered
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

/// Calls with any arguments.
const SYSTEM_CALLS: &[libc::c_long] = &[
    // Packets: the device, the sockets and their error queues.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // A socket's pending error, and its name.
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    // The poll. `epoll_wait` is a call of its own on some architectures alone.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    // Sockets that were replaced.
    libc::SYS_close,
    // Pauses, other threads, the clock where it is no vDSO call.
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    // Memory, of the allocator.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Keys of hash tables.
    libc::SYS_getrandom,
    // The end of the thread; a panic's message and abort(3).
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls with one bound argument: its place, the bits that count, and what they must be.
const BOUND: &[(libc::c_long, u8, u64, u64)] = &[
    // Never memory to execute.
    (libc::SYS_mmap, 2, libc::PROT_EXEC as u64, 0),
    (libc::SYS_mprotect, 2, libc::PROT_EXEC as u64, 0),
    // abort(3) signals this thread; no other signal.
    (libc::SYS_tgkill, 2, u32::MAX as u64, libc::SIGABRT as u64),
    // musl's asks by another name.
    (libc::SYS_tkill, 1, u32::MAX as u64, libc::SIGABRT as u64),
];

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::{slice, thread};

    use rustix::io::Errno;
    use rustix::mm::ProtFlags;

    use super::*;
    use crate::engine::escape::{self, Attempt};
    use crate::sys::call::map;
    use crate::sys::filter_trial::{Call, SEEN_BY_NO_FILTER, Verdict, verdicts};

    /// Runs in a thread that is confined.
    fn confined<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        let confinement = Confinement::new().unwrap();
        let thread = thread::spawn(move || {
            confinement.apply().unwrap();
            run()
        });
        thread.join().unwrap()
    }

    #[test]
    fn code_inside_a_worker_opens_executes_traces_and_regains_nothing() {
        for Attempt { what, result } in confined(escape::attempts) {
            let code = result.err().and_then(|error| error.raw_os_error());
            assert_eq!(code, Some(libc::EPERM), "{what}");
        }
    }

    #[test]
    fn a_worker_has_no_capability_and_its_process_keeps_its_own() {
        let before = rustix::thread::capabilities(None).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (look, looked_at) = std::sync::mpsc::channel::<()>();
        let confinement = Confinement::new().unwrap();
        thread::spawn(move || {
            confinement.apply().unwrap();
            sender.send(rustix::thread::gettid()).unwrap();
            // Alive while it is looked at.
            let _ = looked_at.recv();
        });
        let id = receiver.recv().unwrap();
        let path = format!("/proc/self/task/{}/status", id.as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap();
        drop(look);
        let value = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(value(set), "0000000000000000", "{set}");
        }
        assert_eq!(value("NoNewPrivs:"), "1");
        assert_eq!(value("Seccomp:"), "2");
        assert_eq!(rustix::thread::capabilities(None).unwrap(), before);
    }

    /// Every number that a kernel may have, and those of the x32 calls of x86-64: what is listed passes, all else is refused.
    #[test]
    fn of_all_system_calls_the_listed_ones_pass_and_no_other() {
        let filter = Confinement::new().unwrap().0;
        let numbers = (0..1_000).chain(X32..X32 + 1_000);
        let numbers = numbers.filter(|number| !SEEN_BY_NO_FILTER.contains(number));
        let calls: Vec<Call> = numbers.map(|number| (number, [0; 5])).collect();
        let found = verdicts(slice::from_ref(&*filter), &calls).unwrap();
        let mut passed: Vec<_> = passing(&calls, &found).collect();
        let bound = BOUND.iter().filter(|bound| bound.3 == 0);
        let mut listed: Vec<_> = SYSTEM_CALLS.to_vec();
        listed.extend(bound.map(|bound| bound.0));
        listed.sort_unstable();
        passed.sort_unstable();
        assert_eq!(passed, listed);
        let refused = Verdict::Refused(libc::EPERM);
        let others = found.iter().filter(|verdict| **verdict != Verdict::Passes);
        assert!(others.clone().count() > 1_900);
        assert!(others.into_iter().all(|verdict| *verdict == refused));
    }

    /// With each value of the argument that counts, and with all others of a byte of it.
    #[test]
    fn a_bound_call_passes_with_its_argument_alone() {
        let filter = Confinement::new().unwrap().0;
        for &(number, place, mask, value) in BOUND {
            let calls: Vec<Call> = (0..=255)
                .map(|argument| {
                    let mut arguments = [0; 5];
                    arguments[usize::from(place)] = argument;
                    (number, arguments)
                })
                .collect();
            let found = verdicts(slice::from_ref(&*filter), &calls).unwrap();
            for ((_, arguments), verdict) in calls.iter().zip(found) {
                let argument = arguments[usize::from(place)];
                let passes = verdict == Verdict::Passes;
                assert_eq!(passes, argument & mask == value, "{number} {argument}");
            }
        }
    }

    fn passing(calls: &[Call], found: &[Verdict]) -> impl Iterator<Item = libc::c_long> {
        let both = calls.iter().zip(found);
        both.filter(|(_, verdict)| **verdict == Verdict::Passes)
            .map(|((number, _), _)| *number)
    }

    /// `__X32_SYSCALL_BIT` (linux/arch/x86/include/uapi/asm/unistd.h); elsewhere numbers that no kernel has.
    const X32: libc::c_long = 0x4000_0000;

    #[test]
    fn memory_is_had_and_none_to_execute() {
        let both = || {
            (
                map(ProtFlags::READ | ProtFlags::WRITE),
                map(ProtFlags::READ | ProtFlags::EXEC),
            )
        };
        let (data, code) = confined(both);
        assert_eq!(data, Ok(()));
        assert_eq!(code, Err(Errno::PERM));
    }

    /// What a worker does beside packets: it allocates, pauses, wakes others, and ends.
    #[test]
    fn a_worker_can_still_work() {
        let pair = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.connect(pair.local_addr().unwrap()).unwrap();
        let received = confined(move || {
            let large = vec![7_u8; 64 << 20];
            let keys: std::collections::HashMap<_, _> = [(1, large)].into();
            thread::sleep(std::time::Duration::from_millis(1));
            thread::yield_now();
            other.send(b"packet").unwrap();
            let mut bytes = [0; 16];
            let count = pair.recv(&mut bytes).unwrap();
            (keys.len(), count)
        });
        assert_eq!(received, (1, 6));
    }
}
