//! Flags of this node or this run, of the log, and of the statistics library.

use super::Slot::{Bool, Duration, Int32, Labels, Quantity, Text, VModule, Verbosity, Version};
use super::{Flag, IgnoredKind};

const NO_MORE_DEAD_CONTAINERS: &str = "use --eviction-hard or --eviction-soft instead";

pub(super) const FLAGS: &[Flag] = &[
    Flag::own(
        "config",
        Text(|s| &mut s.flags.config),
        "The configuration file. Without it, flags and their defaults alone count.",
    ),
    Flag::own(
        "config-dir",
        Text(|s| &mut s.flags.config_dir),
        "Directory of drop-in configuration files: *.conf, sub-directories included, in lexical order, each over the ones before.",
    ),
    Flag::own(
        "kubeconfig",
        Text(|s| &mut s.flags.kubeconfig),
        "Where the API server is and how to log in. Without it the agent runs standalone.",
    ),
    Flag::own(
        "bootstrap-kubeconfig",
        Text(|s| &mut s.flags.bootstrap_kubeconfig),
        "Credentials used once to ask for a client certificate, when the file of --kubeconfig does not exist yet.",
    ),
    Flag::own(
        "hostname-override",
        Text(|s| &mut s.flags.hostname_override),
        "Name of the node instead of the host name.",
    ),
    Flag::own(
        "node-ip",
        Text(|s| &mut s.flags.node_ip),
        "Address of the node, or an IPv4 and an IPv6 one separated by a comma. 0.0.0.0 or :: choose the default address of that family.",
    ),
    Flag::own(
        "cert-dir",
        Text(|s| &mut s.flags.cert_dir),
        "Directory of the agent's certificates, unless --tls-cert-file and --tls-private-key-file name them.",
    ),
    Flag::own(
        "cloud-provider",
        Text(|s| &mut s.flags.cloud_provider),
        "Empty, or external when a cloud controller initialises the node.",
    ),
    Flag::own(
        "root-dir",
        Text(|s| &mut s.flags.root_dir),
        "Directory of the agent's state: pods, volumes, plugins.",
    ),
    Flag::own(
        "node-labels",
        Labels(|s| &mut s.flags.node_labels),
        "Labels the node is registered with. Of the kubernetes.io and k8s.io names only those under kubelet.kubernetes.io and node.kubernetes.io and the well-known ones are allowed.",
    ),
    Flag::own(
        "seccomp-default",
        Bool(|s| &mut s.flags.seccomp_default),
        "Use the runtime's seccomp profile where a pod names none.",
    ),
    Flag::own(
        "lock-file",
        Text(|s| &mut s.flags.lock_file),
        "File that only one agent holds at a time; another waits for it.",
    ),
    Flag::own(
        "exit-on-lock-contention",
        Bool(|s| &mut s.flags.exit_on_lock_contention),
        "Exit when another agent opens the file of --lock-file.",
    ),
    Flag::own(
        "local-objects-dir",
        Text(|s| &mut s.flags.local_objects_dir),
        "krablet only: directory of ConfigMap and Secret manifests for static pods of a node without an API server.",
    ),
    Flag::own(
        "checkpoint-secrets",
        Bool(|s| &mut s.flags.checkpoint_secrets),
        "krablet only: keep secrets, tokens and certificates of this node's pods on its disk (readable by root alone), so that the pods can start while the API server is away.",
    ),
    Flag::own(
        "container-logs-dir",
        Text(|s| &mut s.flags.runtime.container_logs_dir),
        "krablet only: directory of links to container logs, which log collectors follow. Another one is for test beds: collectors look in the default.",
    ),
    Flag::own(
        "runtime-cgroups",
        Text(|s| &mut s.flags.runtime.runtime_cgroups),
        "Cgroup of the container runtime, for its statistics.",
    ),
    Flag::own(
        "image-credential-provider-config",
        Text(|s| &mut s.flags.runtime.image_credential_provider_config),
        "Configuration of credential provider plugins: a file, or a directory whose files are merged in lexical order.",
    ),
    Flag::own(
        "image-credential-provider-bin-dir",
        Text(|s| &mut s.flags.runtime.image_credential_provider_bin_dir),
        "Directory of the credential provider plugins.",
    ),
    Flag::own(
        "minimum-container-ttl-duration",
        Duration(|s| &mut s.flags.runtime.minimum_container_ttl),
        "Youngest age of a dead container that may be removed.",
    )
    .deprecated(NO_MORE_DEAD_CONTAINERS),
    Flag::own(
        "maximum-dead-containers-per-container",
        Int32(|s| &mut s.flags.runtime.max_dead_containers_per_container),
        "Dead containers kept for each container.",
    )
    .deprecated(NO_MORE_DEAD_CONTAINERS),
    Flag::own(
        "maximum-dead-containers",
        Int32(|s| &mut s.flags.runtime.max_dead_containers),
        "Dead containers kept in all; negative takes the limit off.",
    )
    .deprecated(NO_MORE_DEAD_CONTAINERS),
    Flag::own(
        "experimental-mounter-path",
        Text(|s| &mut s.flags.runtime.experimental_mounter_path),
        "Program that mounts instead of mount.",
    )
    .deprecated("use a CSI driver instead"),
    Flag::own(
        "experimental-allocatable-ignore-eviction",
        Bool(|s| &mut s.flags.runtime.experimental_allocatable_ignore_eviction),
        "Leave hard eviction thresholds out when computing what pods can get.",
    )
    .deprecated("it will be removed"),
    Flag::own(
        "housekeeping-interval",
        Duration(|s| &mut s.flags.runtime.housekeeping_interval),
        "How often container statistics are taken.",
    ),
    Flag::own(
        "version",
        Version(|s| &mut s.flags.meta.version),
        "Print the version and exit; raw prints more, vX.Y.Z-... reports that version instead and runs.",
    ),
    Flag::own(
        "help",
        Bool(|s| &mut s.flags.meta.help),
        "Print the flags and exit.",
    )
    .short('h'),
];

pub(super) const LOGGING: &[Flag] = &[
    Flag::of_field(
        "v",
        "logging.verbosity",
        Verbosity(|s| &mut s.config.process.logging.verbosity),
        "Detail of the log; 0 is the least.",
    )
    .short('v')
    .current(),
    Flag::of_field(
        "vmodule",
        "logging.vmodule",
        VModule(|s| &mut s.config.process.logging.vmodule),
        "Detail of the log by source file, by krablet's names for them as its lines show them; only for the text format.",
    )
    .current(),
    Flag::of_field(
        "log-flush-frequency",
        "logging.flushFrequency",
        Duration(|s| &mut s.config.process.logging.flush_frequency.interval),
        "Longest time log lines stay buffered.",
    )
    .current(),
    Flag::of_field(
        "logging-format",
        "logging.format",
        Text(|s| &mut s.config.process.logging.format),
        "Format of the log: text or json.",
    ),
    Flag::of_field(
        "log-text-split-stream",
        "logging.options.text.splitStream",
        Bool(|s| &mut s.config.process.logging.options.text.split_stream),
        "In text format, errors to standard error and the rest to standard output. Needs the gate LoggingAlphaOptions.",
    ),
    Flag::of_field(
        "log-text-info-buffer-size",
        "logging.options.text.infoBufferSize",
        Quantity(|s| &mut s.config.process.logging.options.text.info_buffer_size),
        "In text format with split streams, buffer of the standard output stream. Needs the gate LoggingAlphaOptions.",
    ),
    Flag::of_field(
        "log-json-split-stream",
        "logging.options.json.splitStream",
        Bool(|s| &mut s.config.process.logging.options.json.split_stream),
        "In JSON format, errors to standard error and the rest to standard output. Needs the gate LoggingAlphaOptions.",
    ),
    Flag::of_field(
        "log-json-info-buffer-size",
        "logging.options.json.infoBufferSize",
        Quantity(|s| &mut s.config.process.logging.options.json.info_buffer_size),
        "In JSON format with split streams, buffer of the standard output stream. Needs the gate LoggingAlphaOptions.",
    ),
];

pub(super) const STATISTICS: &[Flag] = &[
    Flag::ignored("application-metrics-count-limit", IgnoredKind::Int, "100"),
    Flag::ignored(
        "boot-id-file",
        IgnoredKind::Text,
        "/proc/sys/kernel/random/boot_id",
    ),
    Flag::ignored(
        "container-hints",
        IgnoredKind::Text,
        "/etc/cadvisor/container_hints.json",
    ),
    Flag::ignored(
        "containerd",
        IgnoredKind::Text,
        "/run/containerd/containerd.sock",
    ),
    Flag::ignored("containerd-namespace", IgnoredKind::Text, "k8s.io"),
    Flag::ignored("enable-load-reader", IgnoredKind::Bool, "false"),
    Flag::ignored("event-storage-age-limit", IgnoredKind::Text, "default=24h"),
    Flag::ignored(
        "event-storage-event-limit",
        IgnoredKind::Text,
        "default=100000",
    ),
    Flag::ignored(
        "global-housekeeping-interval",
        IgnoredKind::Duration,
        "1m0s",
    ),
    Flag::ignored("log-cadvisor-usage", IgnoredKind::Bool, "false"),
    Flag::ignored(
        "machine-id-file",
        IgnoredKind::Text,
        "/etc/machine-id,/var/lib/dbus/machine-id",
    ),
    Flag::ignored("storage-driver-user", IgnoredKind::Text, "root"),
    Flag::ignored("storage-driver-password", IgnoredKind::Text, "root"),
    Flag::ignored("storage-driver-host", IgnoredKind::Text, "localhost:8086"),
    Flag::ignored("storage-driver-db", IgnoredKind::Text, "cadvisor"),
    Flag::ignored("storage-driver-table", IgnoredKind::Text, "stats"),
    Flag::ignored("storage-driver-secure", IgnoredKind::Bool, "false"),
    Flag::ignored(
        "storage-driver-buffer-duration",
        IgnoredKind::Duration,
        "1m0s",
    ),
];
