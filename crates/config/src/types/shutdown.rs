//! Ending pods before the node goes down.

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Graceful node shutdown.
    pub struct Shutdown {
        /// Time a shutdown of the node is held up for pods to end; 0s turns it off.
        grace_period: Duration = "shutdownGracePeriod";
        /// Part of that time kept for critical pods.
        grace_period_critical_pods: Duration = "shutdownGracePeriodCriticalPods";
        /// The same by priority class, instead of the two above.
        grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> = "shutdownGracePeriodByPodPriority";
    }
}

section! {
    /// Time for the pods from one priority upwards.
    pub struct ShutdownGracePeriodByPodPriority {
        /// Lowest priority it holds for.
        priority: i32 = "priority" always;
        /// Seconds those pods get.
        shutdown_grace_period_seconds: i64 = "shutdownGracePeriodSeconds" always;
    }
}
