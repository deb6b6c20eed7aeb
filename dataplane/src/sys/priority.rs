//! The scheduling of a thread that must not wait for a core.

use std::io;

/// Lets the calling thread run before all threads that share cores by weight (SCHED_RR, at the lowest real-time priority).
/// The kernel keeps a part of each core for those (sched_rt_runtime_us), and a child process does not inherit it. Meant
/// for a thread that does little each time it wakes, and sleeps then.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, or in a control group without real-time budget.
pub fn become_urgent() -> io::Result<()> {
    // WHY: no crate that is used here wraps sched_setscheduler(2).
    // SAFETY: a sched_param is one number, and any of it is valid.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = LOWEST;
    // WHY: by its number, because musl's function of that name refuses always.
    // SAFETY: "If pid equals zero, the scheduling policy and parameters of the calling thread will be set"
    // (sched_setscheduler(2)); the kernel only reads the parameter, which lives longer than the call.
    let set = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_RR | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// "processes with numerically higher priority values are scheduled before"; the range of SCHED_RR is 1 to 99 (sched(7)).
const LOWEST: libc::c_int = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// As root; without the right to it, the refusal is an error of its own and the policy stays.
    #[test]
    fn a_thread_is_urgent_and_its_neighbour_is_not() {
        // SAFETY: asks for the calling thread's policy.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) as i32 };
        let before = policy();
        let urgent = std::thread::spawn(move || (become_urgent().is_ok(), policy()));
        let (is_urgent, found) = urgent.join().unwrap();
        if is_urgent {
            assert_eq!(found, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
        } else {
            assert_eq!(found, before);
        }
        assert_eq!(policy(), before);
    }
}
