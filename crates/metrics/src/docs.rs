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
- In `volume_manager_total_volumes` a claim counts under the plugin of its volume once that stands, and as `N/A` before.
- `rest_client_request_retries_total` knows only what krablet's client does itself: it sends a request again if the server has certainly
  not seen it. Whoever repeats a call that was refused makes a new one.
- `kubelet_image_volume_mounted_succeed_total` does not count containers that could not be created for another reason.
- `prober_probe_total` has no result `unknown`: the kubelet throws such results away before it counts them, too.

## What is not there

- `go_*`: krablet is no Go program. Where a dashboard shows `go_goroutines` or `go_memstats_*` as a sign of load, use
  `process_resident_memory_bytes`, `process_open_fds` and `krablet_runtime_operations_in_flight`.
- `kubelet_pleg_pod_relist_duration_seconds`, `process_network_*`, `kubelet_volume_stats_health_status_abnormal`, `rest_client_exec_plugin_*`,
  and of the requests to the API server their sizes.
- Series of parts that krablet does not have yet: evictions by pressure, resource managers, device plugins, CSI, DRA, graceful shutdown.
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
