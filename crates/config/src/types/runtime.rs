//! The container runtime, the containers it runs and their logs.

use serde_json::{Map, Value};

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// The runtime and the limits of what it runs.
    pub struct Runtime {
        /// CRI socket of the container runtime.
        container_runtime_endpoint: String =
            "containerRuntimeEndpoint" empty("unix:///run/containerd/containerd.sock".to_owned());
        /// CRI socket of the image service; empty is the runtime's.
        image_service_endpoint: String = "imageServiceEndpoint";
        /// Deadline of a runtime call, long ones (pull, logs, exec, attach) excepted.
        runtime_request_timeout: Duration = "runtimeRequestTimeout" empty(Duration::from_mins(2));
        /// Most pods on the node.
        max_pods: i32 = "maxPods" empty(110);
        /// Most pods per core, up to maxPods; 0 takes the limit off.
        pods_per_core: i32 = "podsPerCore";
        /// Most processes in a pod; -1 leaves it to the node.
        pod_pids_limit: i64 = "podPidsLimit" absent(-1);
        /// Use the runtime's seccomp profile where a pod names none.
        seccomp_default: bool = "seccompDefault" absent(false);
        /// Sysctls, or patterns ending in *, that pods may set although they are not isolated.
        allowed_unsafe_sysctls: Vec<String> = "allowedUnsafeSysctls";
        /// Size at which a container log is rotated; negative turns rotation off.
        container_log_max_size: String = "containerLogMaxSize" empty("10Mi".to_owned());
        /// Log files kept for a container; at least 2.
        container_log_max_files: i32 = "containerLogMaxFiles" absent(5);
        /// Log rotations at a time.
        container_log_max_workers: i32 = "containerLogMaxWorkers" absent(1);
        /// How often log sizes are checked; at least 3s.
        container_log_monitor_interval: Duration = "containerLogMonitorInterval" absent(Duration::from_secs(10));
        /// Restart back-off of failing containers.
        crash_loop_back_off: CrashLoopBackOff = "crashLoopBackOff";
        /// Pods in user namespaces of their own.
        user_namespaces: Option<UserNamespaces> = "userNamespaces";
    }
}

section! {
    /// Restart back-off.
    pub struct CrashLoopBackOff {
        /// Longest wait between restarts, 1s to 300s; 300s when the gate KubeletCrashLoopBackOffMax is on.
        max_container_restart_period: Option<Duration> = "maxContainerRestartPeriod";
    }
}

section! {
    /// User namespaces.
    pub struct UserNamespaces {
        /// User and group ids given to each pod; a multiple of 65536.
        ids_per_pod: Option<i64> = "idsPerPod";
    }
}

impl Runtime {
    /// Any negative process limit means "leave it to the node".
    pub(crate) fn settle(&mut self, _written: &Map<String, Value>) {
        self.pod_pids_limit = self.pod_pids_limit.max(-1);
    }
}
