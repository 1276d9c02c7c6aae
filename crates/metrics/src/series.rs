//! The table of all series. Names, types, labels and buckets are upstream's (labels in the order of
//! their names), so dashboards and alerts go on working; what begins with `krablet_` is our own.

/// What a series is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// Where a series is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `/metrics`
    Metrics,
    /// `/metrics/probes`
    Probes,
    Both,
}

#[derive(Debug, PartialEq)]
pub struct Series {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// Upstream's promise: `INTERNAL`, `ALPHA`, `BETA`, or empty for what no Kubernetes component defines.
    pub stability: &'static str,
    pub help: &'static str,
    pub place: Place,
}

impl Series {
    pub fn is_on(&self, place: Place) -> bool {
        self.place == place || self.place == Place::Both
    }

    /// The help with the stability in front of it, as upstream's components write it.
    pub(crate) fn help_line(&self) -> String {
        match self.stability {
            "" => self.help.to_owned(),
            stability => format!("[{stability}] {}", self.help),
        }
    }
}

/// Prometheus' default bounds, in seconds.
pub const DEFAULT: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
pub const CONTAINERS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
pub const POD_START: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
pub const IMAGE_PULL: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];
/// Of statuses on their way to the API server.
pub const STATUS_SYNC: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Of certificates when they are replaced: from a minute to four years.
pub const CERTIFICATE_AGE: [f64; 10] = [
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];
/// Of calls to the API server.
pub const REST_CALL: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
/// Bytes of requests to the API server, and of its answers.
pub const REST_SIZE: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// Of what is done to volumes.
pub const STORAGE: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
pub const RESIZE_MILLIS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0,
    120_000.0, 300_000.0, 600_000.0,
];
/// 0.005 × 2.5ⁿ
pub const RUNTIME_CALL: [f64; 14] = [
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

macro_rules! series {
    ($($id:ident: $place:ident $stability:literal $kind:expr, $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub static $id: Series = Series {
            name: $name,
            kind: $kind,
            labels: &[$($label),*],
            stability: $stability,
            help: $help,
            place: Place::$place,
        };)*

        /// Every series there is.
        pub static ALL: &[&Series] = &[$(&$id),*];
    };
}

use Kind::{Counter, Gauge, Histogram};

series! {
    NODE_NAME: Metrics "ALPHA" Gauge, "kubelet_node_name" ["node"]
        "The name of this node as a label, always 1";
    RUNNING_PODS: Metrics "ALPHA" Gauge, "kubelet_running_pods" []
        "Pods with a sandbox that is ready";
    RUNNING_CONTAINERS: Metrics "ALPHA" Gauge, "kubelet_running_containers" ["container_state"]
        "Containers the runtime holds, by their state";
    DESIRED_PODS: Metrics "ALPHA" Gauge, "kubelet_desired_pods" ["static"]
        "Pods the sources want on this node; static is true for those not from the API server";
    ACTIVE_PODS: Metrics "ALPHA" Gauge, "kubelet_active_pods" ["static"]
        "Wanted pods that have not ended and count when another one is admitted";
    MIRROR_PODS: Metrics "ALPHA" Gauge, "kubelet_mirror_pods" []
        "Mirror pods this node keeps for its static pods; none without an API server";
    WORKING_PODS: Metrics "ALPHA" Gauge, "kubelet_working_pods" ["config", "lifecycle", "static"]
        "Pods with a worker, by its lifecycle and by whether the pod is desired, an orphan, or known to the runtime only";
    ORPHANED_RUNTIME_PODS: Metrics "ALPHA" Counter, "kubelet_orphaned_runtime_pods_total" []
        "Pods found running that neither a source nor a worker knew";
    RESTARTED_PODS: Metrics "ALPHA" Counter, "kubelet_restarted_pods_total" ["static"]
        "Pods started anew because they were removed and came back under the same UID";
    MANAGED_EPHEMERAL_CONTAINERS: Metrics "ALPHA" Gauge, "kubelet_managed_ephemeral_containers" []
        "Ephemeral containers in the specs of wanted pods";
    ADMISSION_REJECTIONS: Metrics "ALPHA" Counter, "kubelet_admission_rejections_total" ["reason"]
        "Pods that were refused at the door, by reason; OutOfExtendedResources and Other stand for reasons of which there may be any number";
    PREEMPTIONS: Metrics "ALPHA" Counter, "kubelet_preemptions" ["preemption_signal"]
        "Pods that had to make room for a critical one, by the resource there was too little of";
    EVICTIONS: Metrics "ALPHA" Counter, "kubelet_evictions" ["eviction_signal"]
        "Pods that were evicted because they kept more on the node's disk than they may, by the limit they went over";
    STARTED_PODS: Metrics "ALPHA" Counter, "kubelet_started_pods_total" []
        "Sandboxes asked for";
    STARTED_PODS_ERRORS: Metrics "ALPHA" Counter, "kubelet_started_pods_errors_total" []
        "Sandboxes that could not be had";
    STARTED_USERNS_PODS: Metrics "ALPHA" Counter, "kubelet_started_user_namespaced_pods_total" []
        "Sandboxes asked for in a user namespace of their own";
    STARTED_USERNS_PODS_ERRORS: Metrics "ALPHA" Counter, "kubelet_started_user_namespaced_pods_errors_total" []
        "Sandboxes in a user namespace of their own that could not be had";
    STARTED_CONTAINERS: Metrics "ALPHA" Counter, "kubelet_started_containers_total" ["container_type"]
        "Containers whose start was begun";
    STARTED_CONTAINERS_ERRORS: Metrics "ALPHA" Counter, "kubelet_started_containers_errors_total" ["code", "container_type"]
        "Containers that could not be started, by reason";
    TERMINATED_CONTAINERS: Metrics "ALPHA" Counter, "kubelet_terminated_containers_total" ["container_type", "exit_code", "reason"]
        "Containers whose status became terminated";
    CONTAINERS_PER_POD: Metrics "ALPHA" Histogram(&CONTAINERS), "kubelet_containers_per_pod_count" []
        "Containers in the spec of each pod that was started";
    POD_WORKER_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_pod_worker_duration_seconds" ["operation_type"]
        "Time one step of a pod worker took, by what made it necessary";
    POD_WORKER_START_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_pod_worker_start_duration_seconds" []
        "Time from the first sight of a pod to the start of its worker";
    POD_START_DURATION: Metrics "ALPHA" Histogram(&POD_START), "kubelet_pod_start_duration_seconds" []
        "Time from the first sight of a pod until its phase was Running";
    POD_START_SLI_DURATION: Metrics "ALPHA" Histogram(&POD_START), "kubelet_pod_start_sli_duration_seconds" []
        "Time from a pod's creation until all its containers ran, without pulls and without the time its init containers ran; pods whose volumes outlive them are not counted";
    POD_START_TOTAL_DURATION: Metrics "ALPHA" Histogram(&POD_START), "kubelet_pod_start_total_duration_seconds" []
        "Time from a pod's creation (for one without creation time: its first sight) until all its containers ran, pulls and init containers included";
    FIRST_NETWORK_POD_START: Metrics "INTERNAL" Gauge, "kubelet_first_network_pod_start_sli_duration_seconds" []
        "Time from the creation of the first pod with a network of its own until all its containers ran, without pulls and without the time its init containers ran; 0 before there is one";
    PLEG_RELIST_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_pleg_relist_duration_seconds" []
        "Time an audit of all pods in the runtime took";
    PLEG_RELIST_INTERVAL: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_pleg_relist_interval_seconds" []
        "Time between the starts of two audits; seconds without an event stream, up to a minute with one";
    PLEG_POD_RELIST_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_pleg_pod_relist_duration_seconds" []
        "Time a look at one pod in the runtime took";
    PLEG_LAST_SEEN: Metrics "ALPHA" Gauge, "kubelet_pleg_last_seen_seconds" []
        "Unix time at which the runtime was last observed with success";
    PLEG_DISCARD_EVENTS: Metrics "ALPHA" Counter, "kubelet_pleg_discard_events" []
        "News of pods that were thrown away unread; always 0, since later news of a pod join earlier ones";
    EVENTED_PLEG_CONNECTIONS: Metrics "ALPHA" Counter, "kubelet_evented_pleg_connection_success_count" []
        "Times the runtime's event stream was opened";
    EVENTED_PLEG_CONNECTION_ERRORS: Metrics "ALPHA" Counter, "kubelet_evented_pleg_connection_error_count" []
        "Times the runtime's event stream could not be opened or was lost";
    EVENTED_PLEG_LATENCY: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_evented_pleg_connection_latency_seconds" []
        "Time the runtime's events took to get here, by the wall clock";
    POD_STATUS_SYNC_DURATION: Metrics "ALPHA" Histogram(&STATUS_SYNC), "kubelet_pod_status_sync_duration_seconds" []
        "Time from a change of a pod's status until the API server has it";
    CERTIFICATE_TTL: Metrics "ALPHA" Gauge, "kubelet_certificate_manager_client_ttl_seconds" []
        "Seconds until the node's client certificate expires, negative if it has; +Inf without one";
    CERTIFICATE_RENEW_ERRORS: Metrics "ALPHA" Counter, "kubelet_certificate_manager_client_expiration_renew_errors" []
        "Renewals of the node's client certificate that failed";
    SERVER_CERTIFICATE_TTL: Metrics "ALPHA" Gauge, "kubelet_certificate_manager_server_ttl_seconds" []
        "Seconds until the serving certificate that the cluster issued expires, negative if it has; +Inf without one";
    SERVER_CERTIFICATE_ROTATION: Metrics "ALPHA" Histogram(&CERTIFICATE_AGE), "kubelet_certificate_manager_server_rotation_seconds" []
        "Age of serving certificates when the next one took their place";
    SERVER_CERTIFICATE_RENEW_ERRORS: Metrics "ALPHA" Counter, "kubelet_server_expiration_renew_errors" []
        "Requests for a serving certificate that failed";
    STARTUP_PRE_KUBELET: Metrics "ALPHA" Gauge, "kubelet_node_startup_pre_kubelet_duration_seconds" []
        "Time from the machine's start until this agent's";
    STARTUP_PRE_REGISTRATION: Metrics "ALPHA" Gauge, "kubelet_node_startup_pre_registration_duration_seconds" []
        "Time from this agent's start until it first tried to register the node";
    STARTUP_REGISTRATION: Metrics "ALPHA" Gauge, "kubelet_node_startup_registration_duration_seconds" []
        "Time from the first try to register the node until there was a new Node object";
    STARTUP_POST_REGISTRATION: Metrics "ALPHA" Gauge, "kubelet_node_startup_post_registration_duration_seconds" []
        "Time from the registration of a new node until it was ready";
    STARTUP_TOTAL: Metrics "ALPHA" Gauge, "kubelet_node_startup_duration_seconds" []
        "Time from the machine's start until its new node was ready";
    REST_REQUESTS: Metrics "ALPHA" Counter, "rest_client_requests_total" ["code", "host", "method"]
        "Requests to the API server, each try of them, by the status of the answer; `<error>` without one";
    REST_DURATION: Metrics "ALPHA" Histogram(&REST_CALL), "rest_client_request_duration_seconds" ["host", "verb"]
        "Time calls to the API server took, waiting for their turn included; watches are not counted";
    REST_TURN_DURATION: Metrics "ALPHA" Histogram(&REST_CALL), "rest_client_rate_limiter_duration_seconds" ["host", "verb"]
        "Time calls to the API server waited for their turn";
    REST_RETRIES: Metrics "ALPHA" Counter, "rest_client_request_retries_total" ["code", "host", "verb"]
        "Requests that were sent once more because the API server had certainly not seen them, by the status of the answer";
    REST_REQUEST_SIZE: Metrics "ALPHA" Histogram(&REST_SIZE), "rest_client_request_size_bytes" ["host", "verb"]
        "Bytes in the bodies of calls to the API server, 0 for those without one; watches are not counted";
    REST_RESPONSE_SIZE: Metrics "ALPHA" Histogram(&REST_SIZE), "rest_client_response_size_bytes" ["host", "verb"]
        "Bytes in the bodies of the API server's answers to calls that succeeded; watches are not counted";
    VOLUME_CAPACITY: Metrics "ALPHA" Gauge, "kubelet_volume_stats_capacity_bytes" ["namespace", "persistentvolumeclaim"]
        "Size of the file system a claim's volume is on";
    VOLUME_AVAILABLE: Metrics "ALPHA" Gauge, "kubelet_volume_stats_available_bytes" ["namespace", "persistentvolumeclaim"]
        "Bytes that can still be written to a claim's volume";
    VOLUME_USED: Metrics "ALPHA" Gauge, "kubelet_volume_stats_used_bytes" ["namespace", "persistentvolumeclaim"]
        "Bytes a claim's volume takes, as last measured";
    VOLUME_INODES: Metrics "ALPHA" Gauge, "kubelet_volume_stats_inodes" ["namespace", "persistentvolumeclaim"]
        "Inodes of the file system a claim's volume is on";
    VOLUME_INODES_FREE: Metrics "ALPHA" Gauge, "kubelet_volume_stats_inodes_free" ["namespace", "persistentvolumeclaim"]
        "Inodes that are free for a claim's volume";
    VOLUME_INODES_USED: Metrics "ALPHA" Gauge, "kubelet_volume_stats_inodes_used" ["namespace", "persistentvolumeclaim"]
        "Inodes a claim's volume takes, as last measured";
    CONTAINER_LOG_USED: Metrics "ALPHA" Gauge, "kubelet_container_log_filesystem_used_bytes" ["container", "namespace", "pod", "uid"]
        "Bytes the log of a running container takes, with its older parts";
    ORPHAN_VOLUMES_CLEANED: Metrics "ALPHA" Gauge, "kubelet_orphan_pod_cleaned_volumes" []
        "Pods that are gone whose directories the last sweep found";
    ORPHAN_VOLUMES_ERRORS: Metrics "ALPHA" Gauge, "kubelet_orphan_pod_cleaned_volumes_errors" []
        "Pods that are gone whose directories the last sweep could not remove";
    STORAGE_OPERATIONS: Metrics "ALPHA" Histogram(&STORAGE), "storage_operation_duration_seconds" ["migrated", "operation_name", "status", "volume_plugin"]
        "Time it took to set up a volume or to take it away";
    VOLUME_OPERATION_TOTAL: Metrics "ALPHA" Histogram(&STORAGE), "volume_operation_total_seconds" ["operation_name", "plugin_name"]
        "Time from when a pod was first to have a volume, and it was known which, until the volume stood";
    VOLUMES_RECONSTRUCTED: Metrics "ALPHA" Counter, "reconstruct_volume_operations_total" []
        "Volumes of earlier lives that were found on the disk at the start, those without a record that can be read included";
    VOLUMES_RECONSTRUCTED_ERRORS: Metrics "ALPHA" Counter, "reconstruct_volume_operations_errors_total" []
        "Volumes of earlier lives that no record tells of";
    VOLUMES_FORCE_CLEANED: Metrics "ALPHA" Counter, "force_cleaned_failed_volume_operations_total" []
        "Volumes of earlier lives that no record tells of and no pod was to have, and that were taken away by what the mount table says, with success or without";
    VOLUMES_FORCE_CLEANED_ERRORS: Metrics "ALPHA" Counter, "force_cleaned_failed_volume_operation_errors_total" []
        "Volumes of earlier lives that no record tells of and that could not be taken away at the first try";
    VOLUME_COLLECTION_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_volume_metric_collection_duration_seconds" ["metric_source"]
        "Time it took to measure what a volume takes, pauses included";
    POD_CERTIFICATES: Metrics "ALPHA" Gauge, "kubelet_podcertificate_states" ["signer_name", "state"]
        "Certificates that projected volumes show, by signer and state";
    TOTAL_VOLUMES: Metrics "ALPHA" Gauge, "volume_manager_total_volumes" ["plugin_name", "state"]
        "Volumes that pods are to have and volumes that stand";
    HTTP_REQUESTS: Metrics "ALPHA" Counter, "kubelet_http_requests_total" ["long_running", "method", "path", "server_type"]
        "Requests that came to the HTTPS port and the read-only port, those that were refused included";
    HTTP_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_http_requests_duration_seconds" ["long_running", "method", "path", "server_type"]
        "Time from a request until its answer was sent or its stream had ended";
    HTTP_IN_FLIGHT: Metrics "ALPHA" Gauge, "kubelet_http_inflight_requests" ["long_running", "method", "path", "server_type"]
        "Requests whose answer is not sent yet, open streams included";
    POD_RESOURCES_REQUESTS: Metrics "ALPHA" Counter, "kubelet_pod_resources_endpoint_requests_total" ["server_api_version"]
        "Requests to the pod resources service";
    POD_RESOURCES_LIST: Metrics "ALPHA" Counter, "kubelet_pod_resources_endpoint_requests_list" ["server_api_version"]
        "Requests for the resources of all pods";
    POD_RESOURCES_GET: Metrics "ALPHA" Counter, "kubelet_pod_resources_endpoint_requests_get" ["server_api_version"]
        "Requests for the resources of one pod";
    POD_RESOURCES_GET_ERRORS: Metrics "ALPHA" Counter, "kubelet_pod_resources_endpoint_errors_get" ["server_api_version"]
        "Requests for the resources of a pod that is not there";
    POD_RESOURCES_ALLOCATABLE: Metrics "ALPHA" Counter, "kubelet_pod_resources_endpoint_requests_get_allocatable" ["server_api_version"]
        "Requests for the resources that can be allocated";
    RUNTIME_OPERATIONS: Metrics "ALPHA" Counter, "kubelet_runtime_operations_total" ["operation_type"]
        "Calls to the runtime that ended";
    RUNTIME_OPERATIONS_ERRORS: Metrics "ALPHA" Counter, "kubelet_runtime_operations_errors_total" ["operation_type"]
        "Calls to the runtime that failed or were given up";
    RUNTIME_OPERATIONS_DURATION: Metrics "ALPHA" Histogram(&RUNTIME_CALL), "kubelet_runtime_operations_duration_seconds" ["operation_type"]
        "Time calls to the runtime took";
    RUN_PODSANDBOX_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_run_podsandbox_duration_seconds" ["runtime_handler"]
        "Time it took to run a sandbox, by runtime handler (empty for the default one)";
    CONTAINER_REQUESTED_RESIZES: Metrics "ALPHA" Counter, "kubelet_container_requested_resizes_total" ["operation", "requirement", "resource"]
        "Amounts of a resource that containers asked for anew";
    POD_RESIZE_DURATION: Metrics "ALPHA" Histogram(&RESIZE_MILLIS), "kubelet_pod_resize_duration_milliseconds" ["success"]
        "Time it took to give a pod and its containers other resources while they run";
    POD_PENDING_RESIZES: Metrics "ALPHA" Gauge, "kubelet_pod_pending_resizes" ["reason"]
        "Pods that ask for other resources and wait for them, by reason";
    POD_IN_PROGRESS_RESIZES: Metrics "ALPHA" Gauge, "kubelet_pod_in_progress_resizes" []
        "Pods that have not yet all the resources they were promised";
    POD_INFEASIBLE_RESIZES: Metrics "ALPHA" Counter, "kubelet_pod_infeasible_resizes_total" ["reason_detail"]
        "Resizes that can never be done on this node, by why";
    POD_DEFERRED_ACCEPTED_RESIZES: Metrics "ALPHA" Counter, "kubelet_pod_deferred_accepted_resizes_total" ["retry_trigger"]
        "Resizes that had to wait and were then allocated, by what made them be tried again";
    RUN_PODSANDBOX_ERRORS: Metrics "ALPHA" Counter, "kubelet_run_podsandbox_errors_total" ["runtime_handler"]
        "Sandboxes that could not be run, by runtime handler";
    IMAGE_PULL_DURATION: Metrics "ALPHA" Histogram(&IMAGE_PULL), "kubelet_image_pull_duration_seconds" ["image_size_in_bytes"]
        "Time pulls took, waiting for their turn included, by the size of the image";
    IMAGE_GARBAGE_COLLECTED: Metrics "ALPHA" Counter, "kubelet_image_garbage_collected_total" ["reason"]
        "Images removed because they were unused for too long or because disk space was short";
    IMAGE_VOLUME_REQUESTED: Metrics "BETA" Counter, "kubelet_image_volume_requested_total" []
        "Images that containers were to be given as volumes";
    IMAGE_VOLUME_MOUNTED: Metrics "BETA" Counter, "kubelet_image_volume_mounted_succeed_total" []
        "Mounts of image volumes in containers that were created";
    IMAGE_VOLUME_ERRORS: Metrics "BETA" Counter, "kubelet_image_volume_mounted_errors_total" []
        "Mounts of image volumes in containers that could not be created because of one";
    ENSURE_IMAGE_REQUESTS: Metrics "ALPHA" Counter, "kubelet_image_manager_ensure_image_requests_total" ["present_locally", "pull_policy", "pull_required"]
        "Images that containers needed, by whether they were there and whether they had to be pulled";
    MUST_PULL_CHECKS: Metrics "ALPHA" Counter, "kubelet_imagemanager_image_mustpull_checks_total" ["result"]
        "Times it was looked up whether a pod may have an image that is there, by what came of it";
    PULL_INTENTS_ON_DISK: Metrics "ALPHA" Gauge, "kubelet_imagemanager_ondisk_pullintents" []
        "Pulls under way, or cut off, that are written down";
    PULLED_RECORDS_ON_DISK: Metrics "ALPHA" Gauge, "kubelet_imagemanager_ondisk_pulledrecords" []
        "Images of which is written down with whose credentials they were pulled";
    CREDENTIAL_CONFIG_INFO: Metrics "ALPHA" Gauge, "kubelet_credential_provider_config_info" ["hash"]
        "What tells the configuration of credential providers from others, as a label, always 1";
    CREDENTIAL_PLUGIN_ERRORS: Metrics "ALPHA" Counter, "kubelet_credential_provider_plugin_errors_total" ["plugin_name"]
        "Runs of credential provider plugins that failed";
    CREDENTIAL_PLUGIN_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_credential_provider_plugin_duration" ["plugin_name"]
        "Time a run of a credential provider plugin took";
    METRICS_PROVIDER: Metrics "ALPHA" Gauge, "kubelet_metrics_provider" ["provider"]
        "Where the figures of containers come from; always cadvisor: read from cgroups, told under cAdvisor's names";
    CRI_LOSING_SUPPORT: Metrics "ALPHA" Gauge, "kubelet_cri_losing_support" ["version"]
        "The version of Kubernetes that will not work with this runtime any more, because it does not tell its cgroup driver; absent for one that does";
    CGROUP_VERSION: Metrics "ALPHA" Gauge, "kubelet_cgroup_version" []
        "Version of the cgroup hierarchy, 1 or 2";
    CGROUP_MANAGER_DURATION: Metrics "ALPHA" Histogram(&DEFAULT), "kubelet_cgroup_manager_duration_seconds" ["operation_type"]
        "Time it took to create, update or destroy a cgroup";
    LIFECYCLE_HTTP_FALLBACKS: Metrics "ALPHA" Counter, "kubelet_lifecycle_handler_http_fallbacks_total" []
        "Hooks by HTTPS that were answered in plain HTTP and done over in it with success";
    SLEEP_TERMINATED_EARLY: Metrics "ALPHA" Counter, "kubelet_sleep_action_terminated_early_total" []
        "Sleep hooks given up before their time was over";
    BUILD_INFO: Metrics "BETA" Gauge, "kubernetes_build_info" ["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor", "platform"]
        "The Kubernetes version this agent behaves as, in labels, always 1; what only a Go build has is empty";
    FEATURE_ENABLED: Metrics "BETA" Gauge, "kubernetes_feature_enabled" ["name", "stage"]
        "1 for each feature gate that is on, 0 for one that is off or whose feature krablet does not have; the stage is empty for finished features";
    PROCESS_CPU: Metrics "" Counter, "process_cpu_seconds_total" []
        "Time this process has spent on a CPU, in user mode and in the kernel";
    PROCESS_RESIDENT_MEMORY: Metrics "" Gauge, "process_resident_memory_bytes" []
        "Memory of this process that is in RAM";
    PROCESS_VIRTUAL_MEMORY: Metrics "" Gauge, "process_virtual_memory_bytes" []
        "Address space of this process";
    PROCESS_VIRTUAL_MEMORY_MAX: Metrics "" Gauge, "process_virtual_memory_max_bytes" []
        "Limit of the address space of this process, -1 for none";
    PROCESS_OPEN_FDS: Metrics "" Gauge, "process_open_fds" []
        "Open file descriptors";
    PROCESS_MAX_FDS: Metrics "" Gauge, "process_max_fds" []
        "Limit of open file descriptors";
    PROCESS_START_TIME: Both "" Gauge, "process_start_time_seconds" []
        "Unix time at which this process started";
    KRABLET_BUILD_INFO: Metrics "" Gauge, "krablet_build_info" ["version"]
        "The version of krablet, always 1";
    KRABLET_CALLS_IN_FLIGHT: Metrics "" Gauge, "krablet_runtime_operations_in_flight" ["operation_type"]
        "Calls the runtime has not answered yet";
    KRABLET_CALL_AGE: Metrics "" Gauge, "krablet_runtime_operation_in_flight_age_seconds" ["operation_type"]
        "Age of the oldest call of its kind that the runtime has not answered yet";
    KRABLET_CALLS_UNLISTED: Metrics "" Gauge, "krablet_runtime_operations_unlisted" []
        "Calls in flight beyond those told by kind";
    KRABLET_AUDIT_DISCREPANCIES: Metrics "" Counter, "krablet_audit_discrepancies_total" []
        "Pods an audit found changed though the event stream had told nothing of it; meant to stay 0";
    KRABLET_AUDIT_FAILURES: Metrics "" Counter, "krablet_audit_failures_total" []
        "Audits the runtime did not answer";
    KRABLET_LOOKS: Metrics "" Counter, "krablet_pod_observations_total" []
        "Looks at one pod in the runtime";
    KRABLET_LOOK_FAILURES: Metrics "" Counter, "krablet_pod_observation_errors_total" []
        "Looks at one pod that the runtime did not answer";
    KRABLET_EVENTS: Metrics "" Counter, "krablet_runtime_events_total" []
        "Events of the runtime's stream";
    PROBE_TOTAL: Probes "BETA" Counter, "prober_probe_total" ["container", "namespace", "pod", "pod_uid", "probe_type", "result"]
        "Probes of a container by kind and result";
    PROBE_DURATION: Probes "ALPHA" Histogram(&DEFAULT), "prober_probe_duration_seconds" ["container", "namespace", "pod", "probe_type"]
        "Time successful probes took to answer";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let mut names: Vec<_> = ALL.iter().map(|s| s.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "a name is there twice");
        for series in ALL {
            assert!(series.labels.is_sorted(), "{}", series.name);
            assert!(!series.help.ends_with('.'), "{}", series.name);
            assert!(!series.labels.contains(&"le"), "{}", series.name);
            if let Kind::Histogram(bounds) = series.kind {
                assert!(bounds.is_sorted() && !bounds.is_empty(), "{}", series.name);
            }
        }
    }
}
