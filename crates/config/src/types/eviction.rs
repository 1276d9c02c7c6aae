//! When pods must leave because the node runs short.

use std::collections::BTreeMap;

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Eviction thresholds and their timing.
    pub struct Eviction {
        /// Thresholds that evict at once, such as memory.available: 100Mi. A configuration file that does not set
        /// this gets memory.available 100Mi, nodefs.available 10%, nodefs.inodesFree 5%, imagefs.available 15%
        /// and imagefs.inodesFree 5%; flags alone get none.
        hard: BTreeMap<String, String> = "evictionHard";
        /// Thresholds that evict after a grace period.
        soft: BTreeMap<String, String> = "evictionSoft";
        /// Grace period of each soft threshold.
        soft_grace_period: BTreeMap<String, String> = "evictionSoftGracePeriod";
        /// How long a pressure condition stays after it has passed.
        pressure_transition_period: Duration = "evictionPressureTransitionPeriod" empty(Duration::from_mins(5));
        /// Most seconds a pod gets to end on a soft threshold.
        max_pod_grace_period: i32 = "evictionMaxPodGracePeriod";
        /// Amount to free beyond each threshold.
        minimum_reclaim: BTreeMap<String, String> = "evictionMinimumReclaim";
        /// Keep the default hard thresholds the file does not mention.
        merge_default_settings: bool = "mergeDefaultEvictionSettings" absent(false);
        /// Let the kernel announce memory thresholds instead of polling.
        kernel_memcg_notification: bool = "kernelMemcgNotification";
    }
}

/// The hard thresholds of a Linux node whose configuration file names none.
const DEFAULT_HARD: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

impl Eviction {
    /// Adds the default hard thresholds: all of them when the file has none at all (`written` is false), the missing
    /// ones when it asks for a merge. An empty mapping in the file turns every threshold off.
    pub(crate) fn apply_default_thresholds(&mut self, written: bool) {
        if written && !self.merge_default_settings {
            return;
        }
        for (signal, value) in DEFAULT_HARD {
            self.hard
                .entry((*signal).to_owned())
                .or_insert_with(|| (*value).to_owned());
        }
    }
}
