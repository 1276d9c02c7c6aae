//! The few system calls the standard library has no door to.

#![allow(
    unsafe_code,
    reason = "libc calls with plain integers or a NUL-terminated string that outlives the call"
)]

use std::ffi::{CStr, c_char, c_int, c_ulong};

pub const SIGHUP: c_int = 1;
pub const SIGINT: c_int = 2;
pub const SIGKILL: c_int = 9;
pub const SIGTERM: c_int = 15;
const SIG_IGN: usize = 1;
const PR_SET_CHILD_SUBREAPER: c_int = 36;
const MNT_DETACH: c_int = 2;

unsafe extern "C" {
    safe fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    #[link_name = "kill"]
    safe fn libc_kill(pid: c_int, signal: c_int) -> c_int;
    safe fn setsid() -> c_int;
    #[link_name = "signal"]
    fn libc_signal(signal: c_int, handler: usize) -> usize;
    #[link_name = "waitpid"]
    fn libc_waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    #[link_name = "umount2"]
    fn libc_umount2(target: *const c_char, flags: c_int) -> c_int;
}

pub fn become_subreaper() {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

/// Leaves the terminal's process group, so that Ctrl-C reaches the test and not the keeper.
pub fn new_session() {
    setsid();
}

pub fn kill(pid: i32, signal: c_int) {
    libc_kill(pid, signal);
}

pub fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN is a valid disposition for each signal used here.
    unsafe { libc_signal(signal, SIG_IGN) };
}

/// Waits for any child; `None` when there is no child.
pub fn wait_any() -> Option<(i32, c_int)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for one int.
    let pid = unsafe { libc_waitpid(-1, &raw mut status, 0) };
    (pid > 0).then_some((pid, status))
}

pub fn unmount(target: &CStr) -> bool {
    // SAFETY: `target` is NUL-terminated and outlives the call.
    unsafe { libc_umount2(target.as_ptr(), MNT_DETACH) == 0 }
}
