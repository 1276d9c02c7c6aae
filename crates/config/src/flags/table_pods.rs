//! Flags of pods: sources, runtime, images, network, storage and eviction.

use super::Flag;
use super::Slot::{Bool, Duration, Headers, Int32, Int64, List, Pairs, Text, Thresholds};

pub(super) const FLAGS: &[Flag] = &[
    Flag::of_field(
        "pod-manifest-path",
        "staticPodPath",
        Text(|s| &mut s.config.sources.static_pod_path),
        "Directory with static pod manifests, or a single manifest file.",
    ),
    Flag::of_field(
        "manifest-url",
        "staticPodURL",
        Text(|s| &mut s.config.sources.static_pod_url),
        "URL that serves static pod manifests.",
    ),
    Flag::of_field(
        "manifest-url-header",
        "staticPodURLHeader",
        Headers(|s| &mut s.config.sources.static_pod_url_header),
        "HTTP headers sent to the URL of --manifest-url; may be repeated.",
    ),
    Flag::of_field(
        "sync-frequency",
        "syncFrequency",
        Duration(|s| &mut s.config.sources.sync_frequency),
        "Longest time between two syncs of a running pod.",
    ),
    Flag::of_field(
        "file-check-frequency",
        "fileCheckFrequency",
        Duration(|s| &mut s.config.sources.file_check_frequency),
        "How often the static pod path is looked at, besides file-system events.",
    ),
    Flag::of_field(
        "http-check-frequency",
        "httpCheckFrequency",
        Duration(|s| &mut s.config.sources.http_check_frequency),
        "How often the static pod URL is asked.",
    ),
    Flag::of_field(
        "runonce",
        "runOnce",
        Bool(|s| &mut s.config.sources.run_once),
        "Start the pods of the static sources once, report and exit.",
    ),
    Flag::of_field(
        "container-runtime-endpoint",
        "containerRuntimeEndpoint",
        Text(|s| &mut s.config.runtime.container_runtime_endpoint),
        "CRI socket of the container runtime.",
    ),
    Flag::of_field(
        "image-service-endpoint",
        "imageServiceEndpoint",
        Text(|s| &mut s.config.runtime.image_service_endpoint),
        "CRI socket of the image service; empty is the runtime's.",
    ),
    Flag::of_field(
        "runtime-request-timeout",
        "runtimeRequestTimeout",
        Duration(|s| &mut s.config.runtime.runtime_request_timeout),
        "Deadline of a runtime call, long ones (pull, logs, exec, attach) excepted.",
    ),
    Flag::of_field(
        "max-pods",
        "maxPods",
        Int32(|s| &mut s.config.runtime.max_pods),
        "Most pods on the node.",
    ),
    Flag::of_field(
        "pods-per-core",
        "podsPerCore",
        Int32(|s| &mut s.config.runtime.pods_per_core),
        "Most pods per core, up to --max-pods; 0 takes the limit off.",
    ),
    Flag::of_field(
        "pod-max-pids",
        "podPidsLimit",
        Int64(|s| &mut s.config.runtime.pod_pids_limit),
        "Most processes in a pod; -1 leaves it to the node.",
    ),
    Flag::of_field(
        "allowed-unsafe-sysctls",
        "allowedUnsafeSysctls",
        List(|s| &mut s.config.runtime.allowed_unsafe_sysctls),
        "Sysctls, or patterns ending in *, that pods may set although they are not isolated.",
    ),
    Flag::of_field(
        "container-log-max-size",
        "containerLogMaxSize",
        Text(|s| &mut s.config.runtime.container_log_max_size),
        "Size at which a container log is rotated; negative turns rotation off.",
    ),
    Flag::of_field(
        "container-log-max-files",
        "containerLogMaxFiles",
        Int32(|s| &mut s.config.runtime.container_log_max_files),
        "Log files kept for a container; at least 2.",
    ),
    Flag::of_field(
        "registry-qps",
        "registryPullQPS",
        Int32(|s| &mut s.config.images.registry_pull_qps),
        "Image pulls started per second; 0 takes the limit off.",
    ),
    Flag::of_field(
        "registry-burst",
        "registryBurst",
        Int32(|s| &mut s.config.images.registry_burst),
        "Image pulls started in a burst.",
    ),
    Flag::of_field(
        "serialize-image-pulls",
        "serializeImagePulls",
        Bool(|s| &mut s.config.images.serialize_image_pulls),
        "Pull one image at a time.",
    ),
    Flag::of_field(
        "minimum-image-ttl-duration",
        "imageMinimumGCAge",
        Duration(|s| &mut s.config.images.minimum_gc_age),
        "Youngest age of an unused image that may be removed.",
    ),
    Flag::of_field(
        "image-gc-high-threshold",
        "imageGCHighThresholdPercent",
        Int32(|s| &mut s.config.images.gc_high_threshold_percent),
        "Disk usage in percent above which unused images are removed; 100 turns it off.",
    ),
    Flag::of_field(
        "image-gc-low-threshold",
        "imageGCLowThresholdPercent",
        Int32(|s| &mut s.config.images.gc_low_threshold_percent),
        "Disk usage in percent down to which unused images are removed.",
    ),
    Flag::of_field(
        "cluster-domain",
        "clusterDomain",
        Text(|s| &mut s.config.network.cluster_domain),
        "Domain of the cluster, searched by pods besides the host's.",
    ),
    Flag::of_field(
        "cluster-dns",
        "clusterDNS",
        List(|s| &mut s.config.network.cluster_dns),
        "DNS servers of pods with the policy ClusterFirst.",
    ),
    Flag::of_field(
        "resolv-conf",
        "resolvConf",
        Text(|s| &mut s.config.network.resolv_conf),
        "Host file the pods' DNS settings start from.",
    ),
    Flag::of_field(
        "hairpin-mode",
        "hairpinMode",
        Text(|s| &mut s.config.network.hairpin_mode),
        "How pods reach themselves through their own service: promiscuous-bridge, hairpin-veth or none.",
    ),
    Flag::of_field(
        "pod-cidr",
        "podCIDR",
        Text(|s| &mut s.config.network.pod_cidr),
        "Address range of pods in standalone mode.",
    ),
    Flag::of_field(
        "make-iptables-util-chains",
        "makeIPTablesUtilChains",
        Bool(|s| &mut s.config.network.make_iptables_util_chains),
        "Keep the agent's iptables chains in place.",
    ),
    Flag::of_field(
        "volume-plugin-dir",
        "volumePluginDir",
        Text(|s| &mut s.config.storage.volume_plugin_dir),
        "Directory of FlexVolume plugins.",
    ),
    Flag::of_field(
        "volume-stats-agg-period",
        "volumeStatsAggPeriod",
        Duration(|s| &mut s.config.storage.volume_stats_agg_period),
        "How often the disk usage of volumes is measured; negative turns it off.",
    ),
    Flag::of_field(
        "enable-controller-attach-detach",
        "enableControllerAttachDetach",
        Bool(|s| &mut s.config.storage.enable_controller_attach_detach),
        "Leave attaching and detaching volumes to the controller manager.",
    ),
    Flag::of_field(
        "local-storage-capacity-isolation",
        "localStorageCapacityIsolation",
        Bool(|s| &mut s.config.storage.local_storage_capacity_isolation),
        "Count and limit local ephemeral storage.",
    ),
];

pub(super) const EVICTION: &[Flag] = &[
    Flag::of_field(
        "eviction-hard",
        "evictionHard",
        Thresholds(|s| &mut s.config.eviction.hard),
        "Thresholds that evict at once, such as memory.available<1Gi.",
    ),
    Flag::of_field(
        "eviction-soft",
        "evictionSoft",
        Thresholds(|s| &mut s.config.eviction.soft),
        "Thresholds that evict after a grace period, such as memory.available<1.5Gi.",
    ),
    Flag::of_field(
        "eviction-soft-grace-period",
        "evictionSoftGracePeriod",
        Pairs(|s| &mut s.config.eviction.soft_grace_period),
        "Grace period of each soft threshold, such as memory.available=1m30s.",
    ),
    Flag::of_field(
        "eviction-pressure-transition-period",
        "evictionPressureTransitionPeriod",
        Duration(|s| &mut s.config.eviction.pressure_transition_period),
        "How long a pressure condition stays after it has passed.",
    ),
    Flag::of_field(
        "eviction-max-pod-grace-period",
        "evictionMaxPodGracePeriod",
        Int32(|s| &mut s.config.eviction.max_pod_grace_period),
        "Most seconds a pod gets to end on a soft threshold.",
    ),
    Flag::of_field(
        "eviction-minimum-reclaim",
        "evictionMinimumReclaim",
        Pairs(|s| &mut s.config.eviction.minimum_reclaim),
        "Amount to free beyond each threshold, such as imagefs.available=2Gi.",
    ),
    Flag::of_field(
        "kernel-memcg-notification",
        "kernelMemcgNotification",
        Bool(|s| &mut s.config.eviction.kernel_memcg_notification),
        "Let the kernel announce memory thresholds instead of polling.",
    ),
];
