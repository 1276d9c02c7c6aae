//! The documentation, written by the table itself.

use std::fmt::Write as _;

use crate::series::{ALL, Kind, Place, Series};

const INTRO: &str = "\
# Metrics

<!-- Written by the krablet-metrics crate; `KRABLET_UPDATE_DOCS=1 cargo test -p krablet-metrics` rewrites it. -->

The HTTPS port and the read-only port (`readOnlyPort`) serve two pages in the Prometheus text format 0.0.4. Series of the kubelet have its names,
types, labels and buckets, so dashboards and alerts go on working; series whose name begins with `krablet_` are krablet's own.
Nothing is computed between scrapes: counters are counted when something happens, gauges when somebody asks.
";

const NOTES: &str = "
## Label values

- `static` is `true` for pods that do not come from the API server and empty for those that do; `kubelet_working_pods` says
  `unknown` for pods that only the runtime knows.
- `operation_type` of `kubelet_pod_worker_duration_seconds` is `create`, `update`, `sync` or `kill`, after the update the step was
  done for, or `terminated` for the step that releases what an ended pod held.
- `reason` of `kubelet_admission_rejections_total` is that of the refused pod where there are only so many such reasons, else
  `OutOfExtendedResources` or `Other`. `preemption_signal` is the name of the resource.
- `container_type` is `container`, `init_container` or `ephemeral_container`.
- `path` of `kubelet_http_*` is the first part of the path that was asked for, or the first two below `/metrics/`, if the kubelet
  tells it apart at that port, and `other` if not (so for `/metrics/slis`). `method` is `other` for `PATCH` and for words that HTTP
  does not know. `server_type` is `readwrite` for the HTTPS port and `readonly` for the read-only port. `long_running` is `true`
  for `exec`, `attach` and `debug`; for `portForward` it is `false`, as the kubelet tells it.
- `metric_source` of `kubelet_volume_metric_collection_duration_seconds` is `statfs` for a volume that is a mount of its own, whose
  file system is asked, and `du` for one that is walked through.
- `operation_name` of `volume_operation_total_seconds` is always `overall_volume_mount`.
- `result` of `kubelet_imagemanager_image_mustpull_checks_total` is `credentialPolicyAllowed`, `credentialRecordFound`,
  `mustAuthenticate` or `error`. `present_locally` and `pull_required` of `kubelet_image_manager_ensure_image_requests_total` are
  `true`, `false`, or `unknown` where nobody asked or it could not be found out; `pull_policy` is in small letters.
- `hash` of `kubelet_credential_provider_config_info` is the kubelet's: the same files give the same.
- `stage` of `kubernetes_feature_enabled` is `ALPHA`, `BETA`, `DEPRECATED`, or empty for a finished feature.
- Values that come from outside are escaped. Where a series is counted by them (exit codes and reasons), a value is cut after 120
  characters and at most 200 sets are kept; what comes after that is counted together under the value `other`.

## What is different from the kubelet

- What the kubelet calls a relist is an audit here. With an event stream there is one every 30 to 60 seconds, so the intervals of
  `kubelet_pleg_relist_interval_seconds` lie beyond its last bucket; an alert on the PLEG should watch
  `kubelet_pleg_last_seen_seconds` or the durations instead.
- `kubelet_pod_start_duration_seconds` and `kubelet_pod_start_total_duration_seconds` count a pod once, when it starts under this
  agent. Pods that already ran when the agent started are not counted.
- `kubelet_pod_start_sli_duration_seconds` leaves out the time from the first try to pull an image until it is there, also where
  pulls fail in between.
- `storage_operation_duration_seconds` knows `volume_mount`, `volume_unmount`, `map_volume` and `unmap_volume`. A volume that stands and
  whose content is only brought up to date is not counted again. Volumes of a pod are taken away together: the time that took is told of
  each. `migrated` is always `false`.
- `volume_operation_total_seconds` counts a volume once, when it first stands for its pod. The kubelet counts those whose content
  follows something again whenever it brings them up to date.
- `kubelet_volume_metric_collection_duration_seconds` counts volumes that could be measured. A walk makes pauses, and these are in its
  time; sources `fsquota` and `block` are not there.
- `reconstruct_volume_operations_*` count what the records of earlier lives say. A volume that no record tells of (a kubelet's, or one
  whose record is torn) is an error: its pod is given it anew if there still is one, and if not it is taken away by what the mount
  table says, which `force_cleaned_failed_volume_operation*` count.
- `kubelet_metrics_provider` is always `cadvisor`: krablet reads cgroups itself. `kubelet_cri_losing_support` is told for the same runtimes
  as by the kubelet.
- `kubelet_pleg_pod_relist_duration_seconds` has every look at one pod, which is how krablet follows pods while events flow; the
  kubelet lists single pods only when it is asked to.
- In `volume_manager_total_volumes` a claim counts under the plugin of its volume once that stands, and as `N/A` before.
- `rest_client_request_retries_total` knows only what krablet's client does itself: it sends a request again if the server has certainly
  not seen it. Whoever repeats a call that was refused makes a new one.
- `kubelet_image_volume_mounted_succeed_total` does not count containers that could not be created for another reason.
- `prober_probe_total` has no result `unknown`: the kubelet throws such results away before it counts them, too.

## What is not there

- `go_*`: krablet is no Go program. Where a dashboard shows `go_goroutines` or `go_memstats_*` as a sign of load, use
  `process_resident_memory_bytes`, `process_open_fds` and `krablet_runtime_operations_in_flight`.
- `process_network_*`, and of the calls to the API server `rest_client_exec_plugin_*`, `rest_client_dns_resolution_duration_seconds` and
  `rest_client_transport_*`.
- Series of parts that krablet does not have yet: evictions by pressure (`kubelet_eviction_stats_age_seconds`), resource managers
  (`kubelet_cpu_manager_*`, `kubelet_memory_manager_*`, `kubelet_topology_manager_*`, `kubelet_container_aligned_compute_resources_*`,
  `resource_manager_*`), device plugins (`kubelet_device_plugin_*`), plugins that register themselves (`plugin_manager_total_plugins`), CSI
  (`csi_operations_seconds`, `kubelet_volume_stats_health_status_abnormal`), DRA (`dra_*`), graceful shutdown
  (`kubelet_graceful_shutdown_*`), the pods API
  (`kubelet_pod_watch_events_dropped_total`), mounts with SELinux contexts (`volume_manager_selinux_*`), sums of protected memory
  (`kubelet_memory_qos_node_memory_*`), and WebSockets that the kubelet translates itself (`kubelet_websocket_streaming_requests_total`).
- `kubelet_imagemanager_inmemory_*`: records of pulls are not kept in memory. `kubelet_pod_resources_endpoint_errors_list` and
  `kubelet_pod_resources_endpoint_errors_get_allocatable`: these requests do not fail.
- `kubelet_started_host_process_containers_*`: there are none on Linux.
- What upstream's libraries count of themselves: `registered_metrics_total`, `disabled_metrics_total`, `hidden_metrics_total`, `workqueue_*`,
  `informer_*`, `leader_election_*`, `apiserver_*` and `authentication_token_cache_*`.
- On `/metrics/cadvisor`: `container_fs_io_time_seconds_total`, `container_fs_io_time_weighted_seconds_total`, `container_fs_io_current`,
  `container_fs_read_seconds_total`, `container_fs_write_seconds_total`, `container_fs_reads_merged_total`,
  `container_fs_writes_merged_total`, `container_fs_sector_reads_total` and `container_fs_sector_writes_total`. No cgroup has these
  numbers: `io.stat` of version 2 never had them, and version 1 has them only with schedulers that are gone (CFQ) or built for
  debugging (BFQ). cAdvisor then takes those of the file systems' disks from `/proc/diskstats`, which are the whole
  machine's; node_exporter tells these as `node_disk_*`. `container_fs_io_cost_*` are there where the kernel's cost model of a device is on (version 2,
  `io.cost.qos`). For how long containers waited for disks see `container_pressure_io_*`.
- On a node without an API server: `rest_client_*`, `kubelet_pod_status_sync_duration_seconds`, certificates, node start-up. Nor are
  `kubelet_certificate_manager_*` told without a certificate that the cluster issued, or `kubelet_node_startup_*` of a node that was
  there before this start of the agent.

`/metrics/cadvisor` and `/metrics/resource` are told of in [server.md](server.md).
";

/// `docs/metrics.md`.
pub fn render_metrics_md() -> String {
    let mut out = INTRO.to_owned();
    for (title, place) in [
        ("/metrics", Place::Metrics),
        ("/metrics/probes", Place::Probes),
    ] {
        let _ = write!(
            out,
            "\n## `{title}`\n\n| series | type | labels | meaning |\n|---|---|---|---|\n"
        );
        let mut here: Vec<&Series> = ALL.iter().copied().filter(|s| s.is_on(place)).collect();
        here.sort_by_key(|s| s.name);
        for series in here {
            row(&mut out, series);
        }
    }
    out + NOTES
}

fn row(out: &mut String, series: &Series) {
    let kind = match series.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let labels: Vec<String> = series.labels.iter().map(|l| format!("`{l}`")).collect();
    let labels = labels.join(", ");
    let Series { name, help, .. } = series;
    let _ = writeln!(out, "| `{name}` | {kind} | {labels} | {help} |");
}
