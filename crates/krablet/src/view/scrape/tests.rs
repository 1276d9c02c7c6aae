use std::time::Duration;

use krablet_cri::{CallLog, Deadlines, Endpoint, RuntimeClient, RuntimeService};
use krablet_metrics::exposition::{self, Family};
use krablet_metrics::{Kind, Place, RequestLabels};
use krablet_pod::Ticket;
use krablet_pod::observed::{ContainerMemory, ObservedContainer, ObservedSandbox};
use krablet_probes::ProbeKind;
use krablet_stats::ContainerLog;
use krablet_stats::reading::{FileSystem, Usage, Volume};

use super::*;

type Families = BTreeMap<String, Family>;
/// A sample, some of its labels, and its value.
type Case = (&'static str, &'static [(&'static str, &'static str)], f64);

const CLAIM: &[(&str, &str)] = &[("namespace", "ns"), ("persistentvolumeclaim", "claim")];

/// Kept in one place and told in another.
#[test]
fn ages_are_kept_by_the_bounds_that_are_told() {
    assert_eq!(krablet_identity::AGE_BOUNDS, series::CERTIFICATE_AGE);
}

/// The value of the sample with these labels (and perhaps more).
fn value(families: &Families, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let mut samples = families.values().flat_map(|f| &f.samples);
    let matches = |s: &&exposition::Sample| {
        s.name == name && labels.iter().all(|(k, v)| s.label(k) == Some(v))
    };
    samples.find(matches).map(|s| s.value)
}

/// The families of a page are those of the table, in kind and labels.
fn check_against_table(families: &Families, place: Place) {
    let of_place = || series::ALL.iter().filter(|s| s.is_on(place));
    let names: Vec<&str> = families.keys().map(String::as_str).collect();
    let mut expected: Vec<&str> = of_place().map(|s| s.name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for series in of_place() {
        let family = &families[series.name];
        let kind = match series.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        assert_eq!(family.kind, kind, "{}", series.name);
        for sample in &family.samples {
            let labels = sample.labels.keys().filter(|l| *l != "le");
            assert!(labels.eq(series.labels), "{}", series.name);
        }
    }
}

/// One call that failed, and one that is not answered.
async fn calls() -> CallStats {
    let directory = tempfile::tempdir().unwrap();
    let log = CallLog::default();
    let client = |socket: &str| {
        let path = directory.path().join(socket);
        let endpoint = Endpoint::parse(&format!("unix://{}", path.display())).unwrap();
        RuntimeClient::new(&endpoint, Deadlines::default(), log.clone())
    };
    client("nobody").version().await.unwrap_err();
    assert!(client("nobody").container_events().await.is_err());
    let _deaf = std::os::unix::net::UnixListener::bind(directory.path().join("deaf")).unwrap();
    let deaf = client("deaf");
    let mut unanswered = Box::pin(deaf.list_containers(None));
    assert!(futures::poll!(&mut unanswered).is_pending());
    log.snapshot()
}

fn runtime() -> Vec<Arc<ObservedPod>> {
    let container = |name: &str, state| ObservedContainer {
        id: name.into(),
        name: name.into(),
        sandbox_id: "s".into(),
        state,
        attempt: 0,
        created_at: 0,
        started_at: 0,
        exit: None,
        image: "i".into(),
        image_ref: "i".into(),
        user: None,
        resources: None,
        memory: ContainerMemory::default(),
        log_path: String::new(),
    };
    let sandbox = |ready| ObservedSandbox {
        id: "s".into(),
        ready,
        attempt: 0,
        created_at: 0,
        ips: vec![],
        host_network: false,
        source: None,
    };
    let pod = |uid: &str, ready| {
        Arc::new(ObservedPod {
            pod: PodRef::new(uid, "ns", uid),
            ticket: Ticket(1),
            sandboxes: vec![sandbox(ready), sandbox(false)],
            containers: vec![
                container("a", ContainerState::Running),
                container("a", ContainerState::Exited),
            ],
        })
    };
    vec![pod("x", true), pod("y", false)]
}

fn storage() -> Storage {
    let volume = Volume {
        name: "data".into(),
        claim: Some(("ns".into(), "claim".into())),
        ephemeral: false,
        file_system: FileSystem {
            capacity: 1000,
            available: 600,
            used: 400,
            inodes: 100,
            inodes_free: 90,
            ..FileSystem::default()
        },
        usage: Usage {
            bytes: 300,
            inodes: 7,
        },
        at: Timestamp::UNIX_EPOCH,
    };
    let log = ContainerLog {
        pod: PodRef::new("x", "ns", "x"),
        container: "a".into(),
        usage: volume.usage,
    };
    Storage {
        claims: [(("ns".into(), "claim".into()), volume)].into(),
        logs: vec![log],
    }
}

fn moment(calls: CallStats) -> Moment {
    let group = WorkingPods {
        config: "desired",
        lifecycle: "sync",
        is_static: "true",
    };
    let instant = Instant::now();
    Moment {
        now: Timestamp::from_second(1_000_000).unwrap(),
        instant,
        desired: PodCount { api: 0, fixed: 2 },
        active: PodCount { api: 0, fixed: 1 },
        mirrors: 1,
        statuses: Some(SyncDurations {
            count: 1,
            sum: 0.2,
            ..SyncDurations::default()
        }),
        certificate: Some(CertificateNumbers {
            ttl_seconds: 60.0,
            renew_errors: 1,
        }),
        serving: Some(ServingNumbers {
            certificate: CertificateNumbers {
                ttl_seconds: 3600.0,
                renew_errors: 2,
            },
            ages: Ages {
                buckets: [0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
                count: 1,
                sum: 3000.0,
            },
        }),
        cluster: Some(cluster(instant)),
        ephemeral: 3,
        certificates: [(("example.com/ca".to_owned(), "fresh"), 2)].into(),
        volumes: [(("kubernetes.io/empty-dir", "actual_state_of_world"), 4)].into(),
        storage: storage(),
        working: [(group, 2)].into(),
        runtime: runtime(),
        observer: ObserverStats {
            audit_durations: Histogram {
                count: 2,
                sum: Duration::from_secs(21),
                buckets: [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            },
            discrepancies: 3,
            stream_losses: 2,
            ..ObserverStats::default()
        },
        last_ok: Some(instant),
        calls,
        process: Some(ProcessStats {
            start_seconds: 1_000_000.0 - 100.0,
            start_after_boot: 5.0,
            ..ProcessStats::default()
        }),
    }
}

/// A node that was made 90 seconds ago, with one call that was answered and one that was sent twice.
fn cluster(now: Instant) -> ClusterNumbers {
    let calls = RestMetrics::default();
    let (host, second) = ("api:6443", Duration::from_secs(1));
    calls.requests.add(&["200", host, "GET"], 2);
    calls.retries.add(&["200", host, "GET"], 1);
    calls.duration.observe_duration(&[host, "GET"], second);
    calls.turn.observe_duration(&[host, "GET"], second);
    calls.request_size.observe(&[host, "GET"], 0.0);
    calls.response_size.observe(&[host, "GET"], 900.0);
    let ago = |seconds| Some(now - Duration::from_secs(seconds));
    ClusterNumbers {
        calls,
        startup: StartupMoments {
            attempted: ago(97),
            registered: ago(90),
            ready: ago(70),
        },
    }
}

/// Every series that is counted where it happens has counted.
fn counted() -> Metrics {
    let metrics = Metrics::default();
    let second = Duration::from_secs(1);
    metrics.workers.duration.observe_duration(&["sync"], second);
    let ended = ["container", "137", "OOM\"Killed\"\n"];
    metrics.workers.terminated_containers.add(&ended, 1);
    let runtime = &metrics.runtime;
    runtime.started_containers.add(&["container"], 1);
    runtime
        .started_containers_errors
        .add(&["ErrImagePull", "container"], 1);
    runtime.run_sandbox_duration.observe_duration(&[""], second);
    runtime.run_sandbox_errors.add(&[""], 1);
    runtime
        .image_pull_duration
        .observe_duration(&["0-10MB"], second);
    runtime.resize_duration.observe_duration(&["true"], second);
    let resizes = &metrics.workers.resizes;
    let asked = ["increase", "limits", "cpu"];
    resizes.requested.add(&asked, 1);
    resizes.infeasible.add(&["static_pod"], 1);
    resizes.deferred_accepted.add(&["periodic_retry"], 1);
    resizes.pending.set([(vec!["deferred"], 1)]);
    let door = &metrics.workers.door;
    door.rejections.add(&["OutOfcpu"], 1);
    door.preemptions.add(&["cpu"], 1);
    door.evictions.add(&["emptydirfs.limit"], 1);
    let cgroups = &metrics.cgroups;
    cgroups.duration.observe_duration(&["create"], second);
    let mounted = ["false", "volume_mount", "success", "kubernetes.io/nfs"];
    metrics
        .volumes
        .operations
        .observe_duration(&mounted, second);
    let volumes = &metrics.volumes;
    let whole = ["overall_volume_mount", "kubernetes.io/nfs"];
    volumes.totals.observe_duration(&whole, second);
    volumes.measured.observe_duration(&["du"], second);
    volumes.swept(2, 1);
    let ensured = ["true", "ifnotpresent", "false"];
    runtime.ensured_images.add(&ensured, 1);
    let checks = &metrics.images.must_pull_checks;
    checks.add(&["credentialRecordFound"], 1);
    let provider = &metrics.images.provider_config;
    provider.set([(vec!["sha256:00"], 1)]);
    let asked = &metrics.pod_resources;
    for counter in [
        &asked.requests,
        &asked.list,
        &asked.get,
        &asked.get_errors,
        &asked.allocatable,
    ] {
        counter.add(&["v1"], 1);
    }
    let asked = RequestLabels {
        long_running: false,
        method: "GET",
        path: "pods",
        server_type: "readwrite",
    };
    metrics.http.begin(asked);
    metrics.http.begin(asked);
    metrics.http.end(asked, second);
    let images = &metrics.images;
    images.garbage_collected.add(&["age"], 1);
    images.plugin_errors.add(&["plugin"], 1);
    images.plugin_duration.observe_duration(&["plugin"], second);
    runtime.resize_duration.observe(&["true"], 12.0);
    let resizes = &metrics.workers.resizes;
    resizes.requested.add(&["increase", "requests", "cpu"], 1);
    resizes.infeasible.add(&["swap_limitation"], 1);
    resizes.deferred_accepted.add(&["periodic_retry"], 1);
    resizes.pending.set([(vec!["deferred"], 1)]);
    metrics
}

#[tokio::test]
async fn the_page_is_the_table() {
    let facts = Facts {
        node_name: "node\\1".into(),
        cgroup_version: CgroupVersion::V2,
        losing_support: Some("1.37.0"),
        gates: FeatureGates::defaults(),
    };
    let moment = moment(calls().await);
    let text = metrics(&facts, &moment, &counted());
    let families = exposition::parse(&text).unwrap();
    check_against_table(&families, Place::Metrics);
    let cases: &[Case] = &[
        ("kubelet_node_name", &[("node", "node\\1")], 1.0),
        ("kubelet_cgroup_version", &[], 2.0),
        ("kubelet_metrics_provider", &[("provider", "cadvisor")], 1.0),
        ("kubelet_cri_losing_support", &[("version", "1.37.0")], 1.0),
        (
            "kubelet_certificate_manager_server_ttl_seconds",
            &[],
            3600.0,
        ),
        ("kubelet_server_expiration_renew_errors", &[], 2.0),
        (
            "kubelet_certificate_manager_server_rotation_seconds_bucket",
            &[("le", "3600")],
            1.0,
        ),
        ("kubelet_volume_stats_capacity_bytes", CLAIM, 1000.0),
        ("kubelet_volume_stats_available_bytes", CLAIM, 600.0),
        ("kubelet_volume_stats_used_bytes", CLAIM, 300.0),
        ("kubelet_volume_stats_inodes", CLAIM, 100.0),
        ("kubelet_volume_stats_inodes_free", CLAIM, 90.0),
        ("kubelet_volume_stats_inodes_used", CLAIM, 7.0),
        (
            "kubelet_container_log_filesystem_used_bytes",
            &[
                ("uid", "x"),
                ("namespace", "ns"),
                ("pod", "x"),
                ("container", "a"),
            ],
            300.0,
        ),
        ("kubelet_running_pods", &[], 1.0),
        (
            "kubelet_running_containers",
            &[("container_state", "running")],
            2.0,
        ),
        (
            "kubelet_running_containers",
            &[("container_state", "exited")],
            2.0,
        ),
        ("kubelet_desired_pods", &[("static", "true")], 2.0),
        ("kubelet_desired_pods", &[("static", "")], 0.0),
        ("kubelet_active_pods", &[("static", "true")], 1.0),
        (
            "kubelet_working_pods",
            &[("config", "desired"), ("lifecycle", "sync")],
            2.0,
        ),
        ("kubelet_pleg_relist_duration_seconds_count", &[], 2.0),
        (
            "kubelet_pleg_relist_duration_seconds_bucket",
            &[("le", "10")],
            1.0,
        ),
        ("kubelet_pleg_last_seen_seconds", &[], 1_000_000.0),
        ("kubelet_evented_pleg_connection_success_count", &[], 0.0),
        ("kubelet_evented_pleg_connection_error_count", &[], 3.0),
        (
            "kubelet_runtime_operations_total",
            &[("operation_type", "version")],
            1.0,
        ),
        (
            "kubelet_runtime_operations_errors_total",
            &[("operation_type", "version")],
            1.0,
        ),
        (
            "kubelet_runtime_operations_duration_seconds_count",
            &[("operation_type", "version")],
            1.0,
        ),
        (
            "kubelet_terminated_containers_total",
            &[("reason", "OOM\"Killed\"\n")],
            1.0,
        ),
        (
            "kubernetes_build_info",
            &[("major", "1"), ("minor", "36"), ("go_version", "")],
            1.0,
        ),
        (
            "kubernetes_feature_enabled",
            &[("name", "ContainerCheckpoint"), ("stage", "BETA")],
            1.0,
        ),
        // On, and not there.
        (
            "kubernetes_feature_enabled",
            &[("name", "ExtendWebSocketsToKubelet"), ("stage", "BETA")],
            0.0,
        ),
        ("kubelet_managed_ephemeral_containers", &[], 3.0),
        (
            "volume_manager_total_volumes",
            &[
                ("plugin_name", "kubernetes.io/empty-dir"),
                ("state", "actual_state_of_world"),
            ],
            4.0,
        ),
        ("kubelet_orphan_pod_cleaned_volumes", &[], 2.0),
        ("kubelet_orphan_pod_cleaned_volumes_errors", &[], 1.0),
        (
            "rest_client_requests_total",
            &[("code", "200"), ("method", "GET"), ("host", "api:6443")],
            2.0,
        ),
        (
            "kubelet_node_startup_pre_kubelet_duration_seconds",
            &[],
            5.0,
        ),
        (
            "kubelet_node_startup_pre_registration_duration_seconds",
            &[],
            3.0,
        ),
        (
            "kubelet_node_startup_registration_duration_seconds",
            &[],
            7.0,
        ),
        (
            "kubelet_node_startup_post_registration_duration_seconds",
            &[],
            20.0,
        ),
        ("kubelet_node_startup_duration_seconds", &[], 35.0),
        ("krablet_audit_discrepancies_total", &[], 3.0),
        ("kubelet_http_requests_total", &[("path", "pods")], 2.0),
        ("kubelet_http_inflight_requests", &[("path", "pods")], 1.0),
        (
            "kubelet_http_requests_duration_seconds_sum",
            &[("server_type", "readwrite")],
            1.0,
        ),
        (
            "krablet_runtime_operations_in_flight",
            &[("operation_type", "list_containers")],
            1.0,
        ),
        ("process_max_fds", &[], -1.0),
    ];
    for (name, labels, expected) in cases {
        assert_eq!(
            value(&families, name, labels),
            Some(*expected),
            "{name} {labels:?}"
        );
    }
    let gates = families["kubernetes_feature_enabled"].samples.len();
    assert_eq!(gates, Gate::all().len());
}

#[tokio::test]
async fn a_start_is_told_as_far_as_it_has_come() {
    let facts = Facts {
        node_name: "node".into(),
        cgroup_version: CgroupVersion::V2,
        losing_support: None,
        gates: FeatureGates::defaults(),
    };
    let calls = calls().await;
    type Forget = fn(&mut StartupMoments);
    let cases: [(Forget, &[&str]); 3] = [
        (|_| (), &["registration", "post_registration"]),
        (|node| node.ready = None, &["registration"]),
        // The node was there before.
        (|node| (node.registered, node.ready) = (None, None), &[]),
    ];
    for (forget, expected) in cases {
        let mut moment = moment(calls.clone());
        forget(&mut moment.cluster.as_mut().unwrap().startup);
        let text = metrics(&facts, &moment, &counted());
        let families = exposition::parse(&text).unwrap();
        let told = ["registration", "post_registration"]
            .into_iter()
            .filter(|part| {
                let name = format!("kubelet_node_startup_{part}_duration_seconds");
                families.contains_key(&name)
            });
        assert!(told.eq(expected.iter().copied()), "{expected:?}");
    }
}

fn probe(uid: &str, successful: u64, failed: u64) -> ProbeMetrics {
    ProbeMetrics {
        pod: PodRef::new(uid, "ns", "web"),
        container: "a".into(),
        kind: ProbeKind::Readiness,
        successful,
        failed,
        durations: Durations {
            buckets: [successful, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            count: successful,
            sum: 0.5,
        },
    }
}

#[test]
fn probes_of_two_pods_of_one_name_are_one_duration() {
    let process = ProcessStats::default();
    let probes = [probe("old", 2, 0), probe("new", 3, 1)];
    let families = exposition::parse(&probe_metrics(&probes, Some(&process))).unwrap();
    check_against_table(&families, Place::Probes);
    let count = |name, labels: &[_]| value(&families, name, labels);
    let total = "prober_probe_total";
    let old = [("pod_uid", "old"), ("result", "successful")];
    assert_eq!(count(total, &old), Some(2.0));
    assert_eq!(
        count(total, &[("pod_uid", "new"), ("result", "failed")]),
        Some(1.0)
    );
    assert_eq!(
        count(total, &[("pod_uid", "old"), ("result", "failed")]),
        None
    );
    let readiness = [("probe_type", "Readiness"), ("pod", "web")];
    assert_eq!(
        count("prober_probe_duration_seconds_count", &readiness),
        Some(5.0)
    );
    assert_eq!(
        count("prober_probe_duration_seconds_sum", &readiness),
        Some(1.0)
    );
    assert_eq!(probe_metrics(&[], None), "");
}
