//! What the one-line form leaves out: texts, ids, addresses, times, resources.

use expect_test::{Expect, expect};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_pod::api::{PodCondition, PodReadinessGate, ResourceRequirements, VolumeMount};
use krablet_pod::observed::ContainerUser;

use super::*;

fn conditions(status: &PodStatus) -> String {
    let lines = status.conditions.iter().flatten().map(|c| {
        let reason = c.reason.as_deref().unwrap_or("-");
        let message = c.message.as_deref().unwrap_or("-");
        format!("{} {} {reason} {message}\n", c.type_, c.status)
    });
    lines.collect()
}

fn check_conditions(pod_text: &str, sights: &str, expected: Expect) {
    expected.assert_eq(&conditions(&after(&pod(pod_text), sights)));
}

#[test]
fn conditions_in_their_order_and_words() {
    check_conditions(
        "c:a c:b",
        "S0 a:run",
        expect![[r#"
            PodReadyToStartContainers True - -
            Initialized True - -
            Ready False ContainersNotReady containers with unready status: [b]
            ContainersReady False ContainersNotReady containers with unready status: [b]
            PodScheduled True - -
        "#]],
    );
    check_conditions(
        "i:x i:s* c:a c:b",
        "",
        expect![[r#"
            PodReadyToStartContainers False - -
            Initialized False ContainersNotInitialized containers with incomplete status: [x s]
            Ready False ContainersNotReady containers with unready status: [s a b]
            ContainersReady False ContainersNotReady containers with unready status: [s a b]
            PodScheduled True - -
        "#]],
    );
    check_conditions(
        "never c:a",
        "S0 a:exit0",
        expect![[r#"
            PodReadyToStartContainers True - -
            Initialized True PodCompleted -
            Ready False PodCompleted -
            ContainersReady False PodCompleted -
            PodScheduled True - -
        "#]],
    );
    check_conditions(
        "never c:a",
        "S0! a:exit1",
        expect![[r#"
            PodReadyToStartContainers False - -
            Initialized True - -
            Ready False PodFailed -
            ContainersReady False PodFailed -
            PodScheduled True - -
        "#]],
    );
    check_conditions(
        "never c:a/policy=Never/rule=In:42:RestartAllContainers",
        "S0 a:exit42",
        expect![[r#"
            PodReadyToStartContainers True - -
            Initialized True - -
            Ready False ContainersNotReady containers with unready status: [a]
            ContainersReady False ContainersNotReady containers with unready status: [a]
            PodScheduled True - -
            AllContainersRestarting True RestartAllContainersStarted container exited with restart policy rule
        "#]],
    );
}

#[test]
fn readiness_gates_and_foreign_conditions() {
    let mut gated = pod("c:a");
    let gate = |t: &str| PodReadinessGate {
        condition_type: t.into(),
    };
    gated.spec.as_mut().unwrap().readiness_gates = Some(vec![gate("x/one"), gate("x/two")]);
    let foreign = |type_: &str, status: &str| PodCondition {
        type_: type_.into(),
        status: status.into(),
        ..PodCondition::default()
    };
    let show = |pod: &Pod| conditions(&after(pod, "S0 a:run"));
    expect![[r#"
        PodReadyToStartContainers True - -
        Initialized True - -
        Ready False ReadinessGatesNotReady corresponding condition of pod readiness gate "x/one" does not exist., corresponding condition of pod readiness gate "x/two" does not exist.
        ContainersReady True - -
        PodScheduled True - -
    "#]]
    .assert_eq(&show(&gated));
    gated.status = Some(PodStatus {
        conditions: Some(vec![
            foreign("x/one", "True"),
            foreign("Ready", "True"),
            foreign("x/two", "False"),
        ]),
        ..PodStatus::default()
    });
    expect![[r#"
        x/one True - -
        x/two False - -
        PodReadyToStartContainers True - -
        Initialized True - -
        Ready False ReadinessGatesNotReady the status of pod readiness gate "x/two" is not "True", but False
        ContainersReady True - -
        PodScheduled True - -
    "#]]
    .assert_eq(&show(&gated));
    let all_true = vec![
        foreign("x/one", "True"),
        foreign("x/two", "True"),
        foreign("DisruptionTarget", "True"),
    ];
    gated.status.as_mut().unwrap().conditions = Some(all_true);
    expect![[r#"
        x/one True - -
        x/two True - -
        DisruptionTarget True - -
        PodReadyToStartContainers True - -
        Initialized True - -
        Ready True - -
        ContainersReady True - -
        PodScheduled True - -
    "#]]
    .assert_eq(&show(&gated));
}

#[test]
fn a_whole_status_as_the_api_sees_it() {
    let mut pod = pod("generation=3 c:a");
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    let list = |v: &str| Some(BTreeMap::from([("cpu".to_owned(), ApiQuantity(v.into()))]));
    container.resources = Some(ResourceRequirements {
        requests: list("100m"),
        limits: list("1"),
        ..ResourceRequirements::default()
    });
    container.volume_mounts = Some(vec![VolumeMount {
        name: "v".into(),
        mount_path: "/v".into(),
        read_only: Some(true),
        ..VolumeMount::default()
    }]);
    let mut status = after(&pod, "S0 a:run a:exit1");
    status.conditions.as_mut().unwrap().truncate(1);
    expect![[r#"
        {
          "allocatedResources": {
            "cpu": "100m"
          },
          "conditions": [
            {
              "lastTransitionTime": "1970-01-01T00:00:00Z",
              "observedGeneration": 3,
              "status": "True",
              "type": "PodReadyToStartContainers"
            }
          ],
          "containerStatuses": [
            {
              "allocatedResources": {
                "cpu": "100m"
              },
              "containerID": "containerd://a-1",
              "image": "img",
              "imageID": "img@sha256:1",
              "lastState": {
                "terminated": {
                  "containerID": "containerd://a-0",
                  "exitCode": 1,
                  "finishedAt": "1970-01-01T00:00:02Z",
                  "reason": "Error",
                  "startedAt": "1970-01-01T00:00:01Z"
                }
              },
              "name": "a",
              "ready": true,
              "resources": {
                "limits": {
                  "cpu": "1"
                },
                "requests": {
                  "cpu": "100m"
                }
              },
              "restartCount": 1,
              "started": true,
              "state": {
                "running": {
                  "startedAt": "1970-01-01T00:00:01Z"
                }
              },
              "volumeMounts": [
                {
                  "mountPath": "/v",
                  "name": "v",
                  "readOnly": true,
                  "recursiveReadOnly": "Disabled"
                }
              ]
            }
          ],
          "observedGeneration": 3,
          "phase": "Running",
          "podIP": "10.0.0.1",
          "podIPs": [
            {
              "ip": "10.0.0.1"
            }
          ],
          "qosClass": "Burstable",
          "resources": {
            "limits": {
              "cpu": "1"
            },
            "requests": {
              "cpu": "100m"
            }
          },
          "startTime": "1970-01-01T00:00:00Z"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&status).unwrap());
}

#[test]
fn whom_a_container_runs_as() {
    let pod = pod("c:a");
    let shown = |user: Option<ContainerUser>| {
        let mut seen = seen(&pod, "S0 a:run");
        seen.observed.containers[0].user = user;
        let status = generated_from(&pod, None, &seen, &node());
        let containers = status.container_statuses.unwrap();
        serde_json::to_string(&containers[0].user).unwrap()
    };
    let of = |supplemental_groups| ContainerUser {
        uid: 1000,
        gid: 0,
        supplemental_groups,
    };
    assert_eq!(shown(None), "null");
    assert_eq!(shown(Some(of(vec![]))), r#"{"linux":{"gid":0,"uid":1000}}"#);
    assert_eq!(
        shown(Some(of(vec![0, 7]))),
        r#"{"linux":{"gid":0,"supplementalGroups":[0,7],"uid":1000}}"#
    );
}

fn ips(pod_text: &str, host: &[&str], sandbox_ips: &[&str], old: &[&str]) -> String {
    let pod = pod(pod_text);
    let mut seen = seen(
        &pod,
        if pod_text.contains("host") {
            "S0h"
        } else {
            "S0"
        },
    );
    seen.observed.sandboxes[0].ips = sandbox_ips.iter().map(|ip| (*ip).to_owned()).collect();
    seen.observed.sandboxes[0].ready = !sandbox_ips.contains(&"gone");
    let node = NodeFacts {
        host_ips: host.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..node()
    };
    let old = PodStatus {
        pod_ips: Some(old.iter().map(|ip| PodIP { ip: (*ip).into() }).collect()),
        ..PodStatus::default()
    };
    let status = generated_from(&pod, Some(&old), &seen, &node);
    let list: Vec<String> = status
        .pod_ips
        .into_iter()
        .flatten()
        .map(|ip| ip.ip)
        .collect();
    assert_eq!(status.pod_ip.as_ref(), list.first());
    let host: Vec<String> = status
        .host_ips
        .into_iter()
        .flatten()
        .map(|ip| ip.ip)
        .collect();
    assert_eq!(status.host_ip.as_ref(), host.first());
    format!("{} on {}", list.join(","), host.join(","))
}

#[test]
fn a_host_of_another_family_is_told() {
    let on = |ip: &str| PodStatus {
        host_ip: Some(ip.to_owned()).filter(|ip| !ip.is_empty()),
        ..PodStatus::default()
    };
    let mismatch = |before: u8, told: &str, after: u8, now: &str| {
        format!(
            "Kubelet detected an IPv{before} node IP ({told}), but the cloud provider selected \
             an IPv{after} node IP ({now}); pass an explicit `--node-ip` to kubelet to fix this."
        )
    };
    for (told, now, expected) in [
        ("10.0.0.1", "10.0.0.1", None),
        ("10.0.0.1", "10.0.0.2", None),
        ("fd00::1", "fd00::2", None),
        (
            "10.0.0.1",
            "fd00::1",
            Some(mismatch(4, "10.0.0.1", 6, "fd00::1")),
        ),
        (
            "fd00::1",
            "10.0.0.1",
            Some(mismatch(6, "fd00::1", 4, "10.0.0.1")),
        ),
        // Nothing is known, yet or any more.
        ("", "10.0.0.1", None),
        ("10.0.0.1", "", None),
        ("odd", "10.0.0.1", None),
    ] {
        let found = host_family_mismatch(Some(&on(told)), &on(now));
        assert_eq!(found, expected, "{told} {now}");
    }
    assert_eq!(host_family_mismatch(None, &on("10.0.0.1")), None);
}

#[test]
fn addresses() {
    for (pod, host, sandbox, old, expected) in [
        (
            "c:a",
            &["1.1.1.1"][..],
            &["10.0.0.9"][..],
            &[][..],
            "10.0.0.9 on 1.1.1.1",
        ),
        (
            "c:a",
            &["1.1.1.1", "fd::1"],
            &["fd::9", "10.0.0.9"],
            &[],
            "10.0.0.9,fd::9 on 1.1.1.1,fd::1",
        ),
        (
            "c:a",
            &["fd::1"],
            &["10.0.0.9", "fd::9"],
            &[],
            "fd::9,10.0.0.9 on fd::1",
        ),
        ("c:a", &[], &["10.0.0.9", "10.0.0.8"], &[], "10.0.0.9 on "),
        ("c:a", &[], &["fd00:0::9"], &[], "fd00::9 on "),
        ("c:a", &[], &["gone"], &["10.0.0.7"], "10.0.0.7 on "),
        ("c:a", &[], &[], &["10.0.0.7"], " on "),
        ("host c:a", &["1.1.1.1"], &[], &[], "1.1.1.1 on 1.1.1.1"),
        (
            "host c:a",
            &["1.1.1.1", "fd::1"],
            &[],
            &[],
            "1.1.1.1,fd::1 on 1.1.1.1,fd::1",
        ),
        (
            "host c:a",
            &["1.1.1.2"],
            &[],
            &["1.1.1.1"],
            "1.1.1.1 on 1.1.1.2",
        ),
        (
            "host c:a",
            &["1.1.1.2", "fd::1"],
            &[],
            &["1.1.1.1"],
            "1.1.1.1,fd::1 on 1.1.1.2,fd::1",
        ),
        ("host c:a", &[], &[], &[], " on "),
    ] {
        assert_eq!(
            ips(pod, host, sandbox, old),
            expected,
            "{pod} {host:?} {sandbox:?} {old:?}"
        );
    }
}

#[test]
fn reason_and_message_stay_with_the_phase() {
    let pod = pod("c:a");
    let old = PodStatus {
        phase: Some(RUNNING.into()),
        reason: Some("NodeLost".into()),
        message: Some("m".into()),
        ..PodStatus::default()
    };
    let kept = next(&pod, Some(&old), "S0 a:run");
    assert_eq!(
        (kept.reason.as_deref(), kept.message.as_deref()),
        (Some("NodeLost"), Some("m"))
    );
    let dropped = next(&pod, Some(&old), "S0");
    assert_eq!((dropped.reason, dropped.message), (None, None));
}

#[test]
fn what_the_api_calls_terminal_stays() {
    let mut pod = pod("c:a");
    let succeeded = PodStatus {
        phase: Some(SUCCEEDED.into()),
        ..PodStatus::default()
    };
    pod.status = Some(succeeded);
    assert!(render(&next(&pod, None, "S0 a:run")).starts_with("Succeeded"));
    assert!(render(&next(&pod, None, "S0 a:run late")).starts_with("Succeeded"));
    let running = PodStatus {
        phase: Some(RUNNING.into()),
        ..PodStatus::default()
    };
    assert!(render(&next(&pod, Some(&running), "S0 a:run")).starts_with("Succeeded"));
}

#[test]
fn waiting_says_why() {
    let status = after(&pod("c:a"), "S0 !a=ErrImagePull");
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
    assert_eq!(
        state.waiting.unwrap().message.as_deref(),
        Some("a cannot start")
    );
}

#[test]
fn deadlines() {
    let pod = pod("deadline=10 c:a");
    let at = |s: i64| Timestamp::from_second(s).unwrap();
    let started = after(&pod, "S0 a:run");
    assert_eq!(active_deadline(&pod, Some(&started)), Some(at(10)));
    assert!(!deadline_exceeded(&pod, Some(&started), at(9)));
    assert!(deadline_exceeded(&pod, Some(&started), at(10)));
    assert!(!deadline_exceeded(&pod, None, at(99)));
    assert!(!deadline_exceeded(
        &super::pod("c:a"),
        Some(&started),
        at(99)
    ));
}

#[test]
fn resources_of_the_whole_pod() {
    let quantity = |text: &str| ApiQuantity(text.to_owned());
    let cpu = |text: &str| Some(BTreeMap::from([("cpu".to_owned(), quantity(text))]));
    let mut spec = pod("i:big i:side* i:last c:a c:b").spec.unwrap();
    let wants = |container: &mut krablet_pod::api::Container, request: &str| {
        container.resources = Some(ResourceRequirements {
            requests: cpu(request),
            ..Default::default()
        });
    };
    for (container, request) in spec.containers.iter_mut().zip(["100m", "200m"]) {
        wants(container, request);
    }
    let shown = |spec: &PodSpec| resources::requests(spec).unwrap()["cpu"].0.clone();
    assert_eq!(shown(&spec), "300m");
    let init = spec.init_containers.as_mut().unwrap();
    wants(&mut init[1], "50m");
    assert_eq!(shown(&spec), "350m");
    wants(&mut spec.init_containers.as_mut().unwrap()[0], "340m");
    assert_eq!(shown(&spec), "350m");
    wants(&mut spec.init_containers.as_mut().unwrap()[2], "340m");
    assert_eq!(shown(&spec), "390m");
    spec.overhead = cpu("10m");
    assert_eq!(shown(&spec), "400m");
    assert_eq!(resources::effective(&spec).limits, None);
    spec.resources = Some(ResourceRequirements {
        requests: cpu("2"),
        limits: cpu("3"),
        ..Default::default()
    });
    assert_eq!(shown(&spec), "2010m");
    assert_eq!(resources::effective(&spec).limits, cpu("3010m"));
}

#[test]
fn resources_are_those_the_runtime_tells() {
    use super::super::resources::{InUse, in_use};
    use krablet_pod::observed::RuntimeResources;
    let resources = |text: &str| -> ResourceRequirements { serde_json::from_str(text).unwrap() };
    let told = |quota, shares, memory_limit| {
        Some(RuntimeResources {
            cpu_period: 100_000,
            cpu_quota: quota,
            cpu_shares: shares,
            memory_limit,
        })
    };
    let promised =
        r#"{"requests":{"cpu":"200m","memory":"1Mi"},"limits":{"cpu":"0.4","memory":"2Mi"}}"#;
    let older =
        resources(r#"{"requests":{"cpu":"1","memory":"7Mi"},"limits":{"cpu":"9","memory":"8Mi"}}"#);
    let shown = |promised: &str, told, given: Option<&ResourceRequirements>, old| {
        let held = in_use(resources(promised), &InUse { told, given, old });
        serde_json::to_string(&held).unwrap()
    };
    // The same amounts keep their words.
    assert_eq!(
        shown(promised, told(40_000, 204, 2 << 20), None, None),
        r#"{"limits":{"cpu":"0.4","memory":"2Mi"},"requests":{"cpu":"200m","memory":"1Mi"}}"#
    );
    assert_eq!(
        shown(promised, told(15_000, 102, 3 << 20), Some(&older), None),
        r#"{"limits":{"cpu":"150m","memory":"3Mi"},"requests":{"cpu":"100m","memory":"7Mi"}}"#
    );
    // What is not told is as it was told before of the same instance.
    assert_eq!(
        shown(promised, told(0, 102, 0), None, Some(&older)),
        r#"{"limits":{"cpu":"9","memory":"8Mi"},"requests":{"cpu":"100m","memory":"7Mi"}}"#
    );
    // A runtime that tells nothing did what it was asked.
    assert_eq!(
        shown(promised, None, Some(&older), None),
        r#"{"limits":{"cpu":"9","memory":"8Mi"},"requests":{"cpu":"1","memory":"7Mi"}}"#
    );
    // The least the kernel knows is not told instead of less.
    let little = r#"{"requests":{"cpu":"1m"},"limits":{"cpu":"5m"}}"#;
    assert_eq!(
        shown(little, told(1000, 2, 0), None, None),
        r#"{"limits":{"cpu":"5m"},"requests":{"cpu":"1m"}}"#
    );
    assert_eq!(shown("{}", told(1000, 2, 5), None, None), "{}");
}
