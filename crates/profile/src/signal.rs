//! What runs in a signal handler, and what arranges for it. The handler allocates nothing and takes no lock: it walks the
//! stack by the unwind tables, which every function has since panics unwind, and writes addresses into a store that is
//! there from the start.
//!
//! The unwinder finds its tables without a lock from glibc 2.35 with the libgcc of GCC 12 on. Older ones take the dynamic
//! linker's lock, which the thread that holds it may take once more, and which nobody here holds for long.

#![allow(
    unsafe_code,
    reason = "signals, timers and the unwinder have no safe door; each block says why it is sound"
)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

/// Deeper stacks are cut at their outer end.
const MOST_FRAMES: usize = 96;
/// In words: a processor that is busy for a minute with stacks of forty frames. Memory nobody has written to costs nothing.
const STORE_SIZE: usize = 256 * 1024;

/// Stacks one after the other, each with its number of frames before it, the innermost frame first. A zero ends them.
static STORE: [AtomicUsize; STORE_SIZE] = [const { AtomicUsize::new(0) }; STORE_SIZE];
/// Words that were handed out; more than there are once the store is full.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Samples that found no room, or no stack.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Whether handlers write.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Handlers that may be writing.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before: *mut c_int) -> usize;
}

const GO_ON: c_int = 0;
const NORMAL_STOP: c_int = 4;

struct Stack {
    /// What the signal interrupted was reached: before it there is only the handler itself.
    interrupted: bool,
    count: usize,
    frames: [usize; MOST_FRAMES],
}

extern "C" fn visit(context: *mut c_void, stack: *mut c_void) -> c_int {
    let mut before = 0;
    // SAFETY: the context is the unwinder's own, valid for this call, and `before` is a place to write to.
    let address = unsafe { _Unwind_GetIPInfo(context, &raw mut before) };
    // SAFETY: `on_signal` handed in a stack of its own that outlives the walk, and nobody else has it.
    let stack = unsafe { &mut *stack.cast::<Stack>() };
    stack.interrupted |= before != 0;
    if !stack.interrupted || address == 0 {
        return GO_ON;
    }
    if stack.count == MOST_FRAMES {
        return NORMAL_STOP;
    }
    // A return address is after the call it belongs to.
    stack.frames[stack.count] = if before != 0 { address } else { address - 1 };
    stack.count += 1;
    GO_ON
}

extern "C" fn on_signal(_: c_int) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    if OPEN.load(Ordering::SeqCst) {
        // SAFETY: the place is this thread's own; the interrupted code must find in it what it left there.
        let errno = unsafe { *libc::__errno_location() };
        let mut stack = Stack {
            interrupted: false,
            count: 0,
            frames: [0; MOST_FRAMES],
        };
        // SAFETY: `visit` does not unwind, and `stack` outlives the walk.
        unsafe { _Unwind_Backtrace(visit, (&raw mut stack).cast()) };
        keep(&stack.frames[..stack.count]);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

fn keep(frames: &[usize]) {
    if frames.is_empty() {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let size = frames.len() + 1;
    let start = USED.fetch_add(size, Ordering::Relaxed);
    let place = STORE.get(start..start.saturating_add(size));
    let Some([count, places @ ..]) = place else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    for (place, frame) in places.iter().zip(frames) {
        place.store(*frame, Ordering::Relaxed);
    }
    count.store(frames.len(), Ordering::Release);
}

/// From now on every `period` of processor time is sampled. To be called by one at a time.
pub fn begin(period: Duration) -> io::Result<()> {
    let used = USED.swap(0, Ordering::Relaxed).min(STORE_SIZE);
    for word in &STORE[..used] {
        word.store(0, Ordering::Relaxed);
    }
    LOST.store(0, Ordering::Relaxed);
    listen()?;
    OPEN.store(true, Ordering::SeqCst);
    let set = set_timer(period);
    if set.is_err() {
        OPEN.store(false, Ordering::SeqCst);
    }
    set
}

/// Nothing is written any more when this is back.
pub fn end() {
    // Without a timer there are no new signals, and one that is late finds the door shut.
    let _ = set_timer(Duration::ZERO);
    OPEN.store(false, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
}

/// The stacks so far, and how many samples there is none of.
pub fn stacks() -> (Vec<Vec<usize>>, u64) {
    let mut stacks = Vec::new();
    let mut rest = &STORE[..];
    while let [count, after @ ..] = rest {
        let count = count.load(Ordering::Acquire);
        let Some((frames, after)) = after.split_at_checked(count) else {
            break;
        };
        if frames.is_empty() {
            break;
        }
        let frames = frames.iter().map(|f| f.load(Ordering::Relaxed));
        stacks.push(frames.collect());
        rest = after;
    }
    (stacks, LOST.load(Ordering::Relaxed))
}

/// The handler stays for good: a signal that comes late would end the process without it.
fn listen() -> io::Result<()> {
    // SAFETY: all zeroes are a valid `sigaction`, the handler is a function of the right shape that only does what a
    // handler may, and the pointers are to values that live through the call.
    let done = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut())
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_timer(period: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: libc::suseconds_t::from(period.subsec_micros()),
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the timer is read during the call, and the old one is not asked for.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
