//! The node as the API server sees it.

use serde_json::{Map, Value};

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Registration, heartbeats and the pace of API calls.
    pub struct Node {
        /// Create the Node object if it is missing.
        register_node: bool = "registerNode" absent(true);
        /// Taints the node is registered with.
        register_with_taints: Vec<Taint> = "registerWithTaints";
        /// Name of the machine at its cloud provider.
        provider_id: String = "providerID";
        /// How often the node status is computed.
        node_status_update_frequency: Duration = "nodeStatusUpdateFrequency" empty(Duration::from_secs(10));
        /// How often an unchanged node status is posted; follows nodeStatusUpdateFrequency when only that is set.
        node_status_report_frequency: Duration = "nodeStatusReportFrequency" empty(Duration::from_mins(5));
        /// Validity of the node lease; it is renewed four times as often.
        node_lease_duration_seconds: i32 = "nodeLeaseDurationSeconds" empty(40);
        /// Most images listed in the node status; -1 lists all.
        node_status_max_images: i32 = "nodeStatusMaxImages" absent(50);
        /// Encoding of API requests.
        content_type: String = "contentType" empty("application/vnd.kubernetes.protobuf".to_owned());
        /// API requests per second.
        kube_api_qps: i32 = "kubeAPIQPS" absent(50);
        /// API requests in a burst.
        kube_api_burst: i32 = "kubeAPIBurst" empty(100);
        /// Events per second; 0 takes the limit off.
        event_record_qps: i32 = "eventRecordQPS" absent(50);
        /// Events in a burst.
        event_burst: i32 = "eventBurst" empty(100);
        /// How changes of config maps and secrets are noticed: Get, Cache or Watch.
        config_map_and_secret_change_detection_strategy: String =
            "configMapAndSecretChangeDetectionStrategy" empty("Watch".to_owned());
    }
}

section! {
    /// A taint put on the node.
    pub struct Taint {
        /// Label key.
        key: String = "key" always;
        /// Label value.
        value: String = "value";
        /// NoSchedule, PreferNoSchedule or NoExecute.
        effect: String = "effect" always;
        /// Set by the API server, never in configuration.
        time_added: Option<String> = "timeAdded";
    }
}

impl Taint {
    pub(crate) fn new(key: &str, value: &str, effect: &str) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
            time_added: None,
        }
    }
}

impl Node {
    /// Posting an unchanged status follows the pace of computing it, when only that pace was set.
    pub(crate) fn settle(&mut self, written: &Map<String, Value>) {
        let set = |name: &str| {
            written
                .get(name)
                .and_then(Value::as_str)
                .and_then(|text| text.parse::<Duration>().ok())
                .is_some_and(|duration| !duration.is_zero())
        };
        if set("nodeStatusUpdateFrequency") && !set("nodeStatusReportFrequency") {
            self.node_status_report_frequency = self.node_status_update_frequency;
        }
    }
}
