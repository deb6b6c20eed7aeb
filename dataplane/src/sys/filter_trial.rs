//! What a filter of system calls says of each call, without any of them being made: for the tests of filters, here and in
//! the agent.
//!
//! Theory of operation. A thread of its own first gets a filter that answers every *marked* call with an error of its own; the
//! mark is a value of the sixth argument. The filter under trial comes second. Of two filters that both give an error the kernel
//! takes that of the later one (kernel/seccomp.c, `seccomp_run_filters`). So a marked call ends with the first filter's error
//! where the other lets it pass, and else with the other's; it never runs, whatever its number is.

use std::io;
use std::thread;

use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, apply_filter, sock_filter};

/// One system call: its number and the first five arguments.
pub type Call = (libc::c_long, [libc::c_ulong; 5]);

/// What a filter says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It would be made.
    Passes,
    /// It fails with this error number.
    Refused(i32),
}

/// Tries the filters, applied in this order, with every call. They must let the thread end.
///
/// # Errors
/// Of the kernel, for instance one without seccomp.
pub fn verdicts(filters: &[BpfProgram], calls: &[Call]) -> io::Result<Vec<Verdict>> {
    // The filters may refuse memory.
    let mut verdicts = Vec::with_capacity(calls.len());
    let mut under_trial = || {
        set_no_new_privs(true)?;
        apply_filter(&of_marked_calls()).map_err(io::Error::other)?;
        for filter in filters {
            apply_filter(filter).map_err(io::Error::other)?;
        }
        verdicts.extend(calls.iter().map(verdict));
        Ok(())
    };
    let tried: io::Result<()> = thread::scope(|scope| {
        let trial = scope.spawn(&mut under_trial);
        let panicked = |_| Err(io::Error::other("the thread under trial has panicked"));
        trial.join().unwrap_or_else(panicked)
    });
    tried.map(|()| verdicts)
}

fn verdict(&(number, [a, b, c, d, e]): &Call) -> Verdict {
    // WHY: no crate makes a system call of any number.
    // SAFETY: the sixth argument has the mark, so the call is not made: the filter of `of_marked_calls`, which the only caller
    // has applied to this thread before, answers it, or a later filter does, before the kernel looks at any argument.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, libc::c_ulong::from(MARK)) };
    match io::Error::last_os_error().raw_os_error() {
        Some(error) if result == -1 && error != PASSED => Verdict::Refused(error),
        _ => Verdict::Passes,
    }
}

/// Answers calls with the mark by [`PASSED`], and lets others pass.
fn of_marked_calls() -> BpfProgram {
    let instruction = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let answer = libc::SECCOMP_RET_ERRNO | PASSED.unsigned_abs();
    vec![
        instruction(LOAD, LOW_HALF_OF_SIXTH, 0, 0),
        instruction(JUMP_IF_EQUAL, MARK, 0, 3),
        instruction(LOAD, HIGH_HALF_OF_SIXTH, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 0, 1),
        instruction(RETURN, answer, 0, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

/// Numbers that no filter sees: uretprobe and uprobe of x86-64 (kernel/seccomp.c), which kill a caller that no probe brought there
/// (arch/x86/kernel/uprobes.c).
pub const SEEN_BY_NO_FILTER: &[libc::c_long] = if cfg!(target_arch = "x86_64") {
    &[335, 336]
} else {
    &[]
};

/// Of linux/include/uapi/linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`, of a machine that has the low half of a number first.
const LOW_HALF_OF_SIXTH: u32 = 56;
const HIGH_HALF_OF_SIXTH: u32 = 60;
/// No call here has such a sixth argument by itself.
const MARK: u32 = 0x7a57_a11d;
/// An error number that the kernel gives for nothing: the last one that it can give.
const PASSED: i32 = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a filter under trial every number passes, the end of the process among them, and none is made.
    #[test]
    fn no_call_is_made() {
        let calls: Vec<Call> = (0..1_000)
            .filter(|number| !SEEN_BY_NO_FILTER.contains(number))
            .map(|number| (number, [0; 5]))
            .collect();
        let verdicts = verdicts(&[], &calls).unwrap();
        assert_eq!(verdicts.len(), calls.len());
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Passes));
    }
}
