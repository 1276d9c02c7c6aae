//! Where pods come from, and where their logs go.

use std::collections::BTreeMap;

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Pod sources and the pace of looking at them.
    pub struct PodSources {
        /// Directory with static pod manifests, or a single manifest file.
        static_pod_path: String = "staticPodPath";
        /// Root directory of container logs. Absolute, normalised, ASCII only.
        pod_logs_dir: String = "podLogsDir" empty("/var/log/pods".to_owned());
        /// Longest time between two syncs of a running pod.
        sync_frequency: Duration = "syncFrequency" empty(Duration::from_mins(1));
        /// How often the static pod path is looked at, besides file-system events.
        file_check_frequency: Duration = "fileCheckFrequency" empty(Duration::from_secs(20));
        /// How often the static pod URL is asked.
        http_check_frequency: Duration = "httpCheckFrequency" empty(Duration::from_secs(20));
        /// URL that serves static pod manifests.
        static_pod_url: String = "staticPodURL";
        /// HTTP headers sent with each request to the static pod URL.
        static_pod_url_header: BTreeMap<String, Vec<String>> = "staticPodURLHeader";
        /// Start the pods of the static sources once, report and exit.
        run_once: bool = "runOnce";
    }
}
