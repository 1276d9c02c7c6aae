//! Each call failing in turn: the waiting reason, the event, and that the next sync recovers.

use krablet_core::probe::Verdicts;
use krablet_pod::api::{EnvVar, EnvVarSource, SecretKeySelector, VolumeMount};
use krablet_runtime::VolumeSource;

use crate::bench::{Bench, container, pod};
use crate::world::running;

#[tokio::test(start_paused = true)]
async fn every_call_of_a_start() {
    // (call, waiting reason, event)
    let cases = [
        (
            "RunPodSandbox",
            None,
            "FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = no",
        ),
        (
            "PodSandboxStatus",
            None,
            "FailedPodSandBoxStatus: Unable to get pod sandbox status: rpc error: code = Unknown desc = no",
        ),
        (
            "CreateContainer",
            Some("CreateContainerError"),
            "Failed: Error: no",
        ),
        (
            "StartContainer",
            Some("RunContainerError"),
            "Failed: Error: no",
        ),
    ];
    for (call, reason, event) in cases {
        let bench = Bench::new();
        let pod = pod(vec![], vec![container("a"), container("b")]);
        bench.world.fail(call, "no");
        let outcome = bench.sync(&pod).await;
        assert!(outcome.acted && outcome.error.is_some(), "{call}");
        let got = outcome
            .start_errors
            .get("a")
            .map(|e| (e.reason, e.message.as_str()));
        assert_eq!(got, reason.map(|r| (r, "no")), "{call}");
        assert!(bench.events().contains(&event.to_string()), "{call}");
        // One container's failure is not the next one's.
        let others = running(&bench.observed(&pod));
        assert_eq!(others.contains("b"), reason.is_some(), "{call}");

        let outcome = bench.sync(&pod).await;
        assert!(outcome.error.is_none(), "{call}: {:?}", outcome.error);
        assert_eq!(running(&bench.observed(&pod)).len(), 2, "{call}");
        assert!(!bench.sync(&pod).await.acted, "{call}");
        let metrics = &bench.metrics;
        let no_pod = u64::from(reason.is_none());
        assert_eq!(metrics.started_pods_errors.get(), no_pod, "{call}");
        let failed = metrics.started_containers_errors.get();
        let failed = failed.into_keys().map(|labels| labels[0].to_string());
        assert!(failed.eq(reason.map(str::to_string)), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_ran_out_of_time_after_their_effect() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let bench = Bench::new();
        let pod = pod(vec![], vec![container("a")]);
        bench.world.fail_after_effect(call);
        let outcome = bench.sync(&pod).await;
        assert!(outcome.acted && outcome.error.is_some(), "{call}");
        bench.sync(&pod).await;
        let observed = bench.observed(&pod);
        assert_eq!(observed.running().count(), 1, "{call}");
        assert_eq!(observed.ready_sandboxes().count(), 1, "{call}");
        assert!(!bench.sync(&pod).await.acted, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_looked_at() {
    let bench = Bench::new();
    // Once for the look ahead, once in its turn.
    bench.world.fail("ImageStatus", "no");
    bench.world.fail("ImageStatus", "no");
    let outcome = bench.sync(&pod(vec![], vec![container("a")])).await;
    assert_eq!(outcome.start_errors["a"].reason, "ImageInspectError");
    assert!(
        bench
            .events()
            .iter()
            .any(|e| e.starts_with("InspectFailed: Failed to inspect image \"img:1\""))
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_ends_the_sync() {
    let bench = Bench::new();
    let mut pod = pod(vec![container("i")], vec![container("a")]);
    bench.world.fail("CreateContainer", "no");
    let outcome = bench.sync(&pod).await;
    assert_eq!(outcome.start_errors.len(), 1);
    assert!(outcome.start_errors.contains_key("i"));
    // A sidecar does not hold up the others.
    pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].restart_policy =
        Some("Always".into());
    assert!(bench.sync(&pod).await.error.is_none());
}

#[tokio::test(start_paused = true)]
async fn configs_that_cannot_be_made() {
    let mut secret = container("a");
    secret.env = Some(vec![EnvVar {
        name: "X".into(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                key: "k".into(),
                name: "s".into(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    }]);
    let mut volume = container("a");
    volume.volume_mounts = Some(vec![VolumeMount {
        name: "gone".into(),
        mount_path: "/x".into(),
        ..VolumeMount::default()
    }]);
    let cases = [
        (secret, "secret \"s\" not found"),
        (
            volume,
            "cannot find volume \"gone\" to mount into container \"a\"",
        ),
    ];
    for (container, message) in cases {
        let bench = Bench::new();
        let outcome = bench.sync(&pod(vec![], vec![container])).await;
        let error = &outcome.start_errors["a"];
        assert_eq!(
            (error.reason, error.message.as_str()),
            ("CreateContainerConfigError", message)
        );
        assert_eq!(
            bench.events().last(),
            Some(&format!("Failed: Error: {message}"))
        );
        assert!(bench.world.state().containers.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_or_a_removal_that_fails_ends_the_sync() {
    let bench = Bench::new();
    let before = pod(vec![], vec![container("a")]);
    bench.sync(&before).await;
    let mut changed = before.clone();
    changed.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
    bench.world.has_image("img:2");
    bench.world.diary();
    bench.world.fail("StopContainer", "no");
    let outcome = bench.sync(&changed).await;
    assert!(outcome.acted && outcome.error.is_some());
    assert_eq!(bench.world.diary(), ["StopContainer a/0 30s"]);
    assert!(bench.sync(&changed).await.error.is_none());
    let observed = bench.observed(&changed);
    assert_eq!(
        observed.running().map(|c| &*c.image).collect::<Vec<_>>(),
        ["img:2"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_without_room_for_logs() {
    let bench = Bench::new();
    *bench.files.full.lock().unwrap() = Some("/logs/pods".into());
    let outcome = bench.sync(&pod(vec![], vec![container("a")])).await;
    assert!(outcome.error.is_some() && !outcome.sandbox_ready);
    assert_eq!(
        bench.events(),
        ["FailedCreatePodSandBox: Failed to create pod sandbox: no space left on device"]
    );
    assert!(bench.world.diary().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mounts_reach_the_runtime() {
    let bench = Bench::new();
    let mut c = container("a");
    c.termination_message_path = Some("/dev/termination-log".into());
    c.volume_mounts = Some(vec![VolumeMount {
        name: "data".into(),
        mount_path: "/data".into(),
        sub_path: Some("sub".into()),
        ..VolumeMount::default()
    }]);
    let volumes = [VolumeSource {
        name: "data".into(),
        spec_name: "data".into(),
        host_path: "/vol".into(),
        read_only: true,
        ..VolumeSource::default()
    }];
    bench
        .sync_with(&pod(vec![], vec![c]), &Verdicts::new(), &volumes)
        .await;
    let state = bench.world.state();
    let mounts = &state.containers[0].config.mounts;
    let shown: Vec<_> = mounts
        .iter()
        .map(|m| (m.container_path.as_str(), m.readonly))
        .collect();
    assert_eq!(
        shown,
        [
            ("/data", true),
            ("/etc/hosts", false),
            ("/dev/termination-log", false)
        ]
    );
    assert_eq!(mounts[0].host_path, "/root/pods/u/volume-subpaths/data/a/0");
    assert_eq!(mounts[1].host_path, "/root/pods/u/etc-hosts");
    let file = mounts[2]
        .host_path
        .strip_prefix("/root/pods/u/containers/a/")
        .unwrap();
    assert!(file.len() == 8 && file.bytes().all(|b| b.is_ascii_hexdigit()));
}

#[tokio::test(start_paused = true)]
async fn host_network_pods_share_the_nodes_names() {
    let bench = Bench::new();
    let mut pod = pod(vec![], vec![container("a")]);
    pod.spec.as_mut().unwrap().host_network = Some(true);
    bench.sync(&pod).await;
    let file = bench.files.get("/root/pods/u/etc-hosts");
    let expected =
        b"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n".to_vec();
    assert_eq!(file, Some(crate::files::Node::File(expected, 0o644)));
    assert!(!bench.sync(&pod).await.acted);
}

/// Names in an old encoding, and lists of blocked hosts.
#[tokio::test(start_paused = true)]
async fn the_nodes_names_may_be_many_and_of_any_bytes() {
    let bench = Bench::new();
    let node = b"10.0.0.1 b\xe4r\n".repeat(1 << 17);
    bench.files.put("/etc/hosts", &node);
    let mut pod = pod(vec![], vec![container("a")]);
    pod.spec.as_mut().unwrap().host_network = Some(true);
    bench.sync(&pod).await;
    let first = b"# Kubernetes-managed hosts file (host network).\n".to_vec();
    let expected = crate::files::Node::File([first, node].concat(), 0o644);
    // Not `assert_eq`: nobody wants to read it.
    assert!(bench.files.get("/root/pods/u/etc-hosts") == Some(expected));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_wants_cluster_dns_is_told() {
    let bench = Bench::new();
    let mut pod = pod(vec![], vec![container("a")]);
    pod.spec.as_mut().unwrap().dns_policy = Some("ClusterFirst".into());
    bench.sync(&pod).await;
    let missing: Vec<_> = bench
        .events()
        .into_iter()
        .filter(|e| e.starts_with("MissingClusterDNS"))
        .collect();
    assert_eq!(
        missing,
        [
            "MissingClusterDNS: kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
            "MissingClusterDNS: pod: \"web_ns(u)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
        ]
    );
}
