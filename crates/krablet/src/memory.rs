//! What the agent's memory is worth keeping: once nothing has changed for a while, what only the start or a burst of work
//! needed goes back to the machine. Nothing is done, nor waited for, while nothing happens after that.
//!
//! A release has jemalloc. It takes a minute to build, so whoever only tests leaves it out and has the allocator of the C
//! library.

use std::time::Duration;

use krablet_linux::release_file_pages;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

/// Without a change for so long the node is calm.
const CALM: Duration = Duration::from_secs(5);

/// Gives memory back whenever it gets calm after a change of a pod's status or a reading of statistics; the start is one.
/// Whoever reads statistics does so again, but needs little of what has come since the last time.
pub async fn tend(mut changes: watch::Receiver<u64>, mut readings: watch::Receiver<u64>) {
    loop {
        while timeout(CALM, either(&mut changes, &mut readings))
            .await
            .is_ok()
        {}
        if let Err(e) = tokio::task::spawn_blocking(give_back).await {
            warn!(err = %e, "Memory is not given back");
        }
        either(&mut changes, &mut readings).await;
    }
}

/// Until one of the two rings. One whose bell is gone never does.
async fn either(changes: &mut watch::Receiver<u64>, readings: &mut watch::Receiver<u64>) {
    tokio::select! {
        biased;
        Ok(()) = changes.changed() => {}
        Ok(()) = readings.changed() => {}
        else => std::future::pending().await,
    }
}

fn give_back() {
    if let Err(code) = heap::purge() {
        debug!(code, "The heap's free pages stay");
    }
    match release_file_pages() {
        Ok(bytes) => debug!(
            bytes,
            "Pages of the program that are not in use were given back"
        ),
        Err(e) => debug!(err = %e, "Pages of the program stay"),
    }
}

#[cfg(feature = "jemalloc")]
mod heap {
    #[global_allocator]
    static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

    /// Set for a small resident size: freed pages are given back after a second, and one arena without caches of the threads
    /// spreads what stays over fewer pages.
    #[allow(non_upper_case_globals, unsafe_code)]
    #[unsafe(export_name = "_rjem_malloc_conf")]
    pub static malloc_conf: &[u8] =
        b"narenas:1,tcache:false,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

    /// Freed pages that would go back when the allocator next has something to do, which on a quiet node takes its time.
    #[allow(unsafe_code)]
    pub(super) fn purge() -> Result<(), i32> {
        // All arenas; see MALLCTL_ARENAS_ALL in jemalloc's manual.
        const PURGE: &std::ffi::CStr = c"arena.4096.purge";
        let (nothing, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the name is a string with its end, and this control neither takes nor gives a value.
        let code = unsafe {
            tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), nothing, none, std::ptr::null_mut(), 0)
        };
        if code == 0 { Ok(()) } else { Err(code) }
    }
}

#[cfg(not(feature = "jemalloc"))]
mod heap {
    /// The C library gives back the end of its heap by itself.
    pub(super) fn purge() -> Result<(), i32> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_stirs() {
        let (change, mut changes) = watch::channel(0);
        let (reading, mut readings) = watch::channel(0);
        reading.send_replace(1);
        either(&mut changes, &mut readings).await;
        change.send_replace(1);
        either(&mut changes, &mut readings).await;
        drop(reading);
        let nothing = timeout(CALM, either(&mut changes, &mut readings)).await;
        assert!(nothing.is_err());
    }

    #[test]
    fn what_is_allocated_stays() {
        let kept: Vec<u64> = (0..100_000).collect();
        drop(vec![1u8; 8 << 20]);
        assert_eq!(heap::purge(), Ok(()));
        give_back();
        assert_eq!(kept.iter().sum::<u64>(), 4_999_950_000);
    }
}
