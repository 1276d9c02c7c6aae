//! What the runtime is being asked and how long it took: a bounded table of calls in flight and
//! one set of counters per call. Every call costs the same few steps, however many there were.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Upper bounds, in seconds, of the duration buckets: those of
/// `kubelet_runtime_operations_duration_seconds` (0.005 × 2.5ⁿ).
pub const BUCKETS: [f64; 14] = [
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

/// Calls in flight beyond this many are counted, not listed.
const MAX_LISTED: usize = 512;

macro_rules! calls {
    ($($variant:ident => $operation:literal,)*) => {
        /// The calls this client makes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Call { $($variant,)* }

        impl Call {
            pub const ALL: &'static [Call] = &[$(Call::$variant,)*];

            /// The RPC's name.
            pub fn name(self) -> &'static str {
                match self { $(Call::$variant => stringify!($variant),)* }
            }

            /// The `operation_type` label of the kubelet's metrics.
            pub fn operation(self) -> &'static str {
                match self { $(Call::$variant => $operation,)* }
            }
        }
    };
}

calls! {
    Version => "version",
    Status => "status",
    RuntimeConfig => "runtime_config",
    UpdateRuntimeConfig => "update_runtime_config",
    RunPodSandbox => "run_podsandbox",
    StopPodSandbox => "stop_podsandbox",
    RemovePodSandbox => "remove_podsandbox",
    PodSandboxStatus => "podsandbox_status",
    ListPodSandbox => "list_podsandbox",
    UpdatePodSandboxResources => "update_podsandbox_resources",
    CreateContainer => "create_container",
    StartContainer => "start_container",
    StopContainer => "stop_container",
    RemoveContainer => "remove_container",
    ListContainers => "list_containers",
    ContainerStatus => "container_status",
    UpdateContainerResources => "update_container",
    ReopenContainerLog => "reopen_container_log",
    ExecSync => "exec_sync",
    Exec => "exec",
    Attach => "attach",
    PortForward => "port_forward",
    GetContainerEvents => "get_container_events",
    ListContainerStats => "list_container_stats",
    CheckpointContainer => "checkpoint_container",
    ListImages => "list_images",
    ImageStatus => "image_status",
    PullImage => "pull_image",
    RemoveImage => "remove_image",
    ImageFsInfo => "image_fs_info",
}

/// Counters of one call since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounters {
    /// Calls that ended, well or not; a call given up by its caller counts as ended.
    pub ended: u64,
    pub failed: u64,
    pub total: Duration,
    /// One per bound of [`BUCKETS`], not cumulative; longer ones are in `ended` only.
    pub buckets: [u64; BUCKETS.len()],
}

/// One call the runtime has not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub call: Call,
    /// The sandbox, container or image it is about, or what a list is restricted to; empty for calls about none.
    pub object: String,
    pub since: Instant,
}

/// A copy of the counters and the table, oldest call first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    pub calls: BTreeMap<Call, CallCounters>,
    pub in_flight: Vec<InFlight>,
    /// Calls in flight that the bounded table had no room for.
    pub unlisted: usize,
}

#[derive(Default)]
struct Book {
    counters: BTreeMap<Call, CallCounters>,
    in_flight: BTreeMap<u64, InFlight>,
    unlisted: usize,
    next: u64,
}

/// The shared record of calls. Clones write to the same one.
#[derive(Clone, Default)]
pub struct CallLog(Arc<Mutex<Book>>);

impl CallLog {
    pub fn snapshot(&self) -> CallStats {
        let book = self.book();
        CallStats {
            calls: book.counters.clone(),
            in_flight: book.in_flight.values().cloned().collect(),
            unlisted: book.unlisted,
        }
    }

    /// Opens a call's entry; it is closed as failed when the entry is dropped unfinished.
    pub(crate) fn begin(&self, call: Call, object: &str) -> Entry {
        let since = Instant::now();
        let mut book = self.book();
        let key = if book.in_flight.len() < MAX_LISTED {
            let key = book.next;
            book.next += 1;
            let object = object.to_owned();
            book.in_flight.insert(
                key,
                InFlight {
                    call,
                    object,
                    since,
                },
            );
            Some(key)
        } else {
            book.unlisted += 1;
            None
        };
        Entry {
            log: self.clone(),
            call,
            since,
            key,
            failed: true,
        }
    }

    /// No writer panics between two writes, so a poisoned book is still whole.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call's open entry.
pub(crate) struct Entry {
    log: CallLog,
    call: Call,
    since: Instant,
    key: Option<u64>,
    failed: bool,
}

impl Entry {
    pub(crate) fn finish(mut self, failed: bool) {
        self.failed = failed;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        let mut book = self.log.book();
        match self.key {
            Some(key) => {
                book.in_flight.remove(&key);
            }
            None => book.unlisted = book.unlisted.saturating_sub(1),
        }
        let counters = book.counters.entry(self.call).or_default();
        counters.ended += 1;
        counters.failed += u64::from(self.failed);
        counters.total += took;
        let seconds = took.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            counters.buckets[bucket] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_listed_while_they_run_and_counted_when_they_end() {
        let log = CallLog::default();
        let first = log.begin(Call::StopContainer, "c1");
        let second = log.begin(Call::Version, "");
        tokio::time::advance(Duration::from_millis(10)).await;
        let seen = log.snapshot();
        assert_eq!(seen.in_flight.len(), 2);
        assert_eq!(seen.in_flight[0].object, "c1");
        first.finish(false);
        drop(second);
        let seen = log.snapshot();
        assert!(seen.in_flight.is_empty());
        let stop = &seen.calls[&Call::StopContainer];
        assert_eq!((stop.ended, stop.failed, stop.buckets[1]), (1, 0, 1));
        let version = &seen.calls[&Call::Version];
        assert_eq!((version.ended, version.failed), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let log = CallLog::default();
        let entries: Vec<_> = (0..MAX_LISTED + 3)
            .map(|n| log.begin(Call::ExecSync, &n.to_string()))
            .collect();
        let seen = log.snapshot();
        assert_eq!((seen.in_flight.len(), seen.unlisted), (MAX_LISTED, 3));
        drop(entries);
        let seen = log.snapshot();
        assert_eq!((seen.in_flight.len(), seen.unlisted), (0, 0));
        assert_eq!(
            seen.calls[&Call::ExecSync].ended,
            u64::try_from(MAX_LISTED + 3).unwrap()
        );
    }

    #[test]
    fn names_are_the_interface_s() {
        assert_eq!(Call::RunPodSandbox.name(), "RunPodSandbox");
        assert_eq!(Call::RunPodSandbox.operation(), "run_podsandbox");
        assert_eq!(Call::ALL.len(), 30);
    }
}
