//! Decisions about resizes, as tables.

use jiff::Timestamp;
use krablet_pod::api::{Container, Pod, ResourceRequirements};
use krablet_pod::cgroups::{CgroupLimits, CpuQuota};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ActuatedContainer, Actuation, Allocation};
use serde_json::{Value, json};

use super::*;
use crate::actions::testkit;
use crate::actions::{ActionInputs, PodActions, compute_pod_actions};

fn resources(value: Value) -> ResourceRequirements {
    serde_json::from_value(value).unwrap()
}

/// `cpu request/limit, memory request/limit`; a dash for none.
fn sized(text: &str) -> ResourceRequirements {
    let mut given = json!({"requests": {}, "limits": {}});
    for (resource, amounts) in ["cpu", "memory"].iter().zip(text.split(' ')) {
        for (list, amount) in ["requests", "limits"].iter().zip(amounts.split('/')) {
            if amount != "-" {
                given[list][resource] = amount.into();
            }
        }
    }
    resources(given)
}

fn pod(spec: Value) -> Pod {
    let meta = json!({"uid": "u", "name": "p", "namespace": "ns", "generation": 3});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn one(size: &str) -> Pod {
    pod(json!({"containers": [{"name": "a", "resources": sized(size)}]}))
}

/// What was seen of a pod with the containers `a` and `b` and the sidecar `s`.
fn sight(text: &str) -> ObservedPod {
    testkit::seen(&testkit::pod("i:s* c:a c:b"), text).observed
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn what_a_container_needs() {
    let container = |policies: &[(&str, &str)]| -> Container {
        let policies: Vec<Value> = policies
            .iter()
            .map(|(r, p)| json!({"resourceName": r, "restartPolicy": p}))
            .collect();
        serde_json::from_value(json!({"name": "a", "resizePolicy": policies})).unwrap()
    };
    let plain = container(&[]);
    let memory_restarts = container(&[("cpu", "NotRequired"), ("memory", "RestartContainer")]);
    let update = |cpu, memory| ContainerResize::Update { cpu, memory };
    let base = "100m/200m 1Mi/2Mi";
    let cases = [
        (&plain, "0.1/200m 1Mi/2Mi", ContainerResize::Keep),
        (&plain, "200m/200m 1Mi/2Mi", update(true, false)),
        (&plain, "100m/300m 1Mi/2Mi", update(true, false)),
        (&plain, "100m/200m 1Mi/3Mi", update(false, true)),
        (&plain, "50m/100m 2Mi/3Mi", update(true, true)),
        (&memory_restarts, "200m/200m 1Mi/2Mi", update(true, false)),
        (
            &memory_restarts,
            "100m/200m 2Mi/2Mi",
            ContainerResize::Restart,
        ),
        (
            &memory_restarts,
            "200m/200m 1Mi/3Mi",
            ContainerResize::Restart,
        ),
    ];
    for (container, wanted, expected) in cases {
        let sizes = (Size::of(&sized(base)), Size::of(&sized(wanted)));
        let got = container_resize(container, &sizes.0, &sizes.1);
        assert_eq!(got, expected, "{wanted}");
    }
}

#[test]
fn limits_of_the_pod_hold_for_containers_without() {
    let spec = json!({"containers": [{"name": "a", "resources": sized("1/- 1Mi/5Mi")}],
        "resources": sized("1/2 1Mi/9Mi")});
    let pod = pod(spec);
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(started_with(&pod, container), sized("1/2 1Mi/5Mi"));
}

#[test]
fn the_best_memory_counts() {
    let seen = sight("S0 a:run");
    let record = |id: Option<&str>| Actuation {
        containers: [(
            "a".to_owned(),
            ActuatedContainer {
                id: id.map(Into::into),
                resources: sized("3/- -/-"),
            },
        )]
        .into(),
        pod: None,
    };
    let instance = |memory: Option<&str>| {
        let mut instance = seen.newest("a").unwrap().clone();
        instance.memory.resources = memory.map(str::to_owned);
        instance
    };
    let own = Some(r#"{"requests":{"cpu":"2"}}"#);
    let id = instance(None).id.as_str().to_owned();
    let cpu = |memory, record: Option<Actuation>| {
        let found = actuated("a", Some(&instance(memory)), record.as_ref());
        found.map(|r| Size::of(&r).cpu_request)
    };
    assert_eq!(cpu(None, None), None);
    assert_eq!(cpu(own, None), Some(2000));
    assert_eq!(cpu(own, Some(record(None))), Some(2000));
    assert_eq!(cpu(own, Some(record(Some("another")))), Some(2000));
    assert_eq!(cpu(own, Some(record(Some(&id)))), Some(3000));
    assert_eq!(cpu(None, Some(record(None))), Some(3000));
    assert_eq!(cpu(Some("{"), Some(record(None))), Some(3000));
}

#[test]
fn it_is_in_progress_while_something_that_runs_differs() {
    let before = Actuation::of(&Allocation::of(&one("1/- -/-")));
    let now = one("2/- -/-");
    let seen = sight;
    assert!(in_progress(&now, &seen("S0 a:run"), Some(&before)));
    assert!(!in_progress(&now, &seen("S0 a:run"), None));
    assert!(!in_progress(&now, &seen("S0"), Some(&before)));
    assert!(!in_progress(
        &one("1/- -/-"),
        &seen("S0 a:run"),
        Some(&before)
    ));
    let whole = |cpu: &str| {
        pod(json!({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": cpu}}}))
    };
    let before = Actuation::of(&Allocation::of(&whole("1")));
    assert!(in_progress(&whole("2"), &seen("S0"), Some(&before)));
    assert!(!in_progress(&whole("1000m"), &seen("S0"), Some(&before)));
}

fn update(name: &str, current: &str, wanted: &str) -> ContainerToUpdate {
    ContainerToUpdate {
        id: name.into(),
        name: name.to_owned(),
        current: sized(current),
        wanted: sized(wanted),
    }
}

fn cgroup(shares: u64, quota: Option<i64>, memory: Option<i64>) -> CgroupLimits {
    CgroupLimits {
        cpu_shares: Some(shares),
        cpu_quota: Some(CpuQuota {
            micros: quota,
            period_micros: 100_000,
        }),
        memory,
        ..CgroupLimits::default()
    }
}

fn shown(steps: &[ResizeStep]) -> String {
    let step = |step: &ResizeStep| match step {
        ResizeStep::Container(resource, update) => format!("{}:{}", update.name, resource.as_str()),
        ResizeStep::Pod(limits) => match (limits.cpu_shares, limits.cpu_quota, limits.memory) {
            (Some(n), None, None) => format!("shares={n}"),
            (None, Some(q), None) => format!("quota={}", q.micros.unwrap()),
            (None, None, Some(n)) => format!("memory={n}"),
            other => format!("{other:?}"),
        },
    };
    steps.iter().map(step).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_pod_grows_before_its_containers_and_shrinks_after_them() {
    let now = cgroup(100, Some(20_000), Some(100));
    let mut both = PodResizes::default();
    both.add(update("up", "1/1 1/1", "2/2 2/2"), Resource::Memory);
    both.add(update("down", "2/2 2/2", "1/1 1/1"), Resource::Memory);
    both.add(update("up", "1/1 1/1", "2/2 2/2"), Resource::Cpu);
    let whole = PodResizes {
        pod: true,
        ..PodResizes::default()
    };
    let cases = [
        (
            &both,
            cgroup(200, Some(40_000), Some(200)),
            "memory=200 down:memory up:memory quota=40000 shares=200 up:cpu",
        ),
        (
            &both,
            cgroup(50, Some(10_000), Some(50)),
            "down:memory up:memory memory=50 up:cpu shares=50 quota=10000",
        ),
        (&both, now.clone(), "down:memory up:memory up:cpu"),
        // A limit that is wanted no more stays.
        (
            &both,
            CgroupLimits {
                memory: None,
                cpu_quota: None,
                ..now.clone()
            },
            "down:memory up:memory up:cpu",
        ),
        (
            &whole,
            cgroup(200, None, Some(50)),
            "memory=50 quota=-1 shares=200",
        ),
        (&whole, now.clone(), ""),
    ];
    for (resizes, wanted, expected) in cases {
        let steps = plan(Some(&now), &wanted, resizes);
        let got = shown_unlimited(&steps);
        assert_eq!(got, expected);
    }
    assert_eq!(
        shown(&plan(None, &now, &both)),
        "down:memory up:memory up:cpu"
    );
    // What was not limited shrinks.
    let open = cgroup(100, None, None);
    let steps = plan(Some(&open), &now, &both);
    assert_eq!(
        shown(&steps),
        "down:memory up:memory memory=100 up:cpu quota=20000"
    );
}

/// A quota of as much as there is reads -1.
fn shown_unlimited(steps: &[ResizeStep]) -> String {
    let mut steps = steps.to_vec();
    for step in &mut steps {
        if let ResizeStep::Pod(limits) = step
            && let Some(quota) = &mut limits.cpu_quota
        {
            quota.micros.get_or_insert(-1);
        }
    }
    shown(&steps)
}

#[test]
fn memory_in_use_is_not_taken_away() {
    let check = |now: Option<i64>, wanted: Option<i64>, container: &str, pod, used| {
        let mut resizes = PodResizes::default();
        resizes.add(update("a", "-/- -/100", container), Resource::Memory);
        let (now, wanted) = (cgroup(2, None, now), cgroup(2, None, wanted));
        let memory = MemoryUse {
            pod,
            containers: [("a".to_owned(), used)].into(),
        };
        match needs_memory_check(Some(&now), &wanted, &resizes) {
            true => check_memory(Some(&now), &wanted, &resizes, &memory),
            false => Ok(()),
        }
    };
    let text = |what: &str| Err(format!("cannot decrease memory limits: {what}"));
    let pod_too_low = "attempting to set pod memory limit (50) below current usage (60)";
    let container_too_low =
        "attempting to set container \"a\" memory limit (50) below current usage (55)";
    let less = "-/- -/50";
    let cases = [
        (check(Some(100), Some(200), "-/- -/200", None, 150), Ok(())),
        (check(Some(100), Some(50), less, Some(40), 40), Ok(())),
        (
            check(Some(100), Some(50), less, Some(60), 40),
            text(pod_too_low),
        ),
        (
            check(Some(100), None, less, None, 55),
            text(container_too_low),
        ),
        (
            check(Some(100), Some(50), less, None, 40),
            text("missing pod memory usage"),
        ),
        (
            check(Some(100), Some(50), less, Some(60), 55),
            text(&format!("[{pod_too_low}, {container_too_low}]")),
        ),
        (
            check(None, Some(50), "-/- -/100", Some(60), 0),
            text(pod_too_low),
        ),
    ];
    for (got, expected) in cases {
        assert_eq!(got, expected);
    }
}

#[test]
fn who_waits_is_asked_in_order() {
    let waiting = |uid: &str, increases, priority, guaranteed, since: Option<i64>| Waiting {
        uid: uid.into(),
        increases,
        priority,
        guaranteed,
        since: since.map(at),
    };
    let queue = vec![
        waiting("new", true, 0, false, None),
        waiting("late", true, 0, false, Some(9)),
        waiting("early", true, 0, false, Some(3)),
        waiting("guaranteed", true, 0, true, None),
        waiting("important", true, 10, false, None),
        waiting("gives", false, -5, false, None),
    ];
    let order: Vec<String> = order(queue).iter().map(ToString::to_string).collect();
    let expected = ["gives", "important", "guaranteed", "early", "late", "new"];
    assert_eq!(order, expected);
    let allocation = Allocation::of(&one("1/- 1Mi/-"));
    let increases = |size: &str| Waiting::of(&one(size), Some(&allocation), true, None).increases;
    assert!(increases("1001m/- 1/-"));
    assert!(increases("1/- 2Mi/-"));
    assert!(!increases("1/2 1Mi/3Mi"));
    assert!(!increases("500m/- 1Mi/-"));
}

#[test]
fn what_can_never_be_done() {
    let full = |cpu: &str, memory: &str| one(&format!("{cpu}/{cpu} {memory}/{memory}"));
    let label = |from: &Pod, to: &Pod, settings: ResizeSettings| {
        infeasible(to, &Allocation::of(from), &settings).map_or("-", |i| i.label)
    };
    let default = ResizeSettings::default();
    let cpus = ResizeSettings {
        static_cpus: true,
        ..default
    };
    let memory = ResizeSettings {
        static_memory: true,
        ..default
    };
    let swap = ResizeSettings {
        limited_swap: true,
        ..default
    };
    let no_pods = ResizeSettings {
        pod_level: false,
        ..default
    };
    let whole = |cpu: &str| {
        pod(json!({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": cpu}}}))
    };
    let mut restarts = one("-/- 2Mi/3Mi");
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    restarts.spec.as_mut().unwrap().containers[0].resize_policy =
        serde_json::from_value(policy).unwrap();
    let cases = [
        (full("1", "1Mi"), full("2", "2Mi"), default, "-"),
        (
            full("1", "1Mi"),
            full("2", "1Mi"),
            cpus,
            "guaranteed_pod_cpu_manager_static_policy",
        ),
        (full("1", "1Mi"), full("1", "2Mi"), cpus, "-"),
        (
            full("1", "1Mi"),
            full("1", "2Mi"),
            memory,
            "guaranteed_pod_memory_manager_static_policy",
        ),
        (one("1/2 -/-"), one("2/2 -/-"), cpus, "-"),
        (
            one("-/- 1Mi/3Mi"),
            one("-/- 2Mi/3Mi"),
            swap,
            "swap_limitation",
        ),
        (one("-/- 1Mi/3Mi"), one("1/- 1Mi/3Mi"), swap, "-"),
        (one("-/- 1Mi/3Mi"), restarts, swap, "-"),
        (full("1", "1Mi"), full("1", "2Mi"), swap, "-"),
        (whole("1"), whole("2"), no_pods, "plr_feature_gate_off"),
        (whole("1"), whole("2"), default, "-"),
    ];
    for (from, to, settings, expected) in cases {
        assert_eq!(label(&from, &to, settings), expected, "{settings:?}");
    }
    let told = infeasible(&full("2", "1"), &Allocation::of(&full("1", "1")), &cpus).unwrap();
    let message =
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    assert_eq!(told.message, message);
}

#[test]
fn what_is_asked_for_is_counted() {
    let got = requested(&one("1/2 1Mi/-"), &one("2/1 -/1Mi"));
    let expected = [
        ("memory", "requests", "remove"),
        ("memory", "limits", "add"),
        ("cpu", "requests", "increase"),
        ("cpu", "limits", "decrease"),
    ];
    assert_eq!(got, expected);
    assert_eq!(requested(&one("1/2 1Mi/-"), &one("1000m/2 1024Ki/-")), []);
}

#[test]
fn events_carry_the_resources() {
    let spec = json!({
        "initContainers": [{"name": "i", "resources": sized("1/- -/-")}],
        "containers": [{"name": "a", "resources": sized("0.5/1 1024Ki/2Mi")}, {"name": "b"}],
    });
    assert_eq!(
        message("started", &pod(spec), Some(3), ""),
        "Pod resize started: {\"initContainers\":[{\"name\":\"i\",\"resources\":{\"requests\":{\"cpu\":\"1\"}}}],\
         \"containers\":[{\"name\":\"a\",\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"2Mi\"},\
         \"requests\":{\"cpu\":\"500m\",\"memory\":\"1Mi\"}}},{\"name\":\"b\",\"resources\":{}}],\"generation\":3}"
    );
    let told = message("Deferred", &one("1/- -/-"), None, "a < \"b\"");
    assert!(
        told.ends_with("\"generation\":0,\"error\":\"a \\u003c \\\"b\\\"\"}"),
        "{told}"
    );
}

#[test]
fn conditions_come_and_go() {
    let shown = |told: &ResizeConditions| {
        let line = |c: krablet_pod::api::PodCondition| {
            let since = c.last_transition_time.unwrap().0.as_second();
            let words = [c.reason, c.message].map(Option::unwrap_or_default);
            let generation = c.observed_generation.unwrap_or(0);
            format!(
                "{} {} {generation} {since}",
                c.type_.replace("PodResize", ""),
                words.join(":")
            )
        };
        told.list()
            .into_iter()
            .map(line)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut told = ResizeConditions::default();
    assert!(told.defer("no room", Some(2), at(1)));
    assert!(!told.defer("still no room", Some(2), at(2)));
    assert_eq!(shown(&told), "Pending Deferred:still no room 2 1");
    assert!(told.is_deferred());
    assert!(told.defer("still no room", Some(3), at(3)));
    assert!(told.refuse("never", Some(3), at(4)));
    assert_eq!(shown(&told), "Pending Infeasible:never 3 4");
    told.begin(Some(4), at(5));
    assert_eq!(shown(&told), "InProgress : 4 5");
    assert_eq!(told.fail("broken", Some(9), at(6)), Some(Some(4)));
    assert_eq!(told.fail("broken", Some(9), at(7)), None);
    told.go_on(Some(9), at(8));
    assert_eq!(shown(&told), "InProgress Error:broken 4 6");
    // A sync of an older spec does not end it.
    assert_eq!(told.complete(Some(3)), None);
    assert_eq!(told.complete(Some(4)), Some(Some(4)));
    assert_eq!(told.complete(Some(4)), None);
    assert!(told.is_empty());
    assert_eq!(told.fail("broken", Some(5), at(9)), Some(Some(5)));
    told.defer("no room", Some(6), at(9));
    let status = krablet_pod::api::PodStatus {
        conditions: Some(told.list()),
        ..Default::default()
    };
    assert_eq!(ResizeConditions::of_status(Some(&status)), told);
    assert!(told.clear_pending());
    assert!(!told.clear_pending());
}

/// Containers `a` and `b` and the sidecar `s`, of these sizes.
fn three(a: &str, b: &str, s: &str) -> Pod {
    let mut pod = testkit::pod("i:s* c:a c:b");
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].resources = Some(sized(a));
    spec.containers[1].resources = Some(sized(b));
    let sidecar = &mut spec.init_containers.as_mut().unwrap()[0];
    sidecar.resources = Some(sized(s));
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    sidecar.resize_policy = serde_json::from_value(policy.clone()).unwrap();
    spec.containers[1].resize_policy = serde_json::from_value(policy).unwrap();
    pod
}

#[test]
fn a_sync_of_a_resized_pod() {
    let small = "1/1 1Mi/1Mi";
    let decide = |pod: &Pod, seen: &str| -> PodActions {
        let before = Actuation::of(&Allocation::of(&three(small, small, small)));
        compute_pod_actions(&ActionInputs {
            pod,
            observed: &sight(seen),
            verdicts: &Default::default(),
            rules_enabled: true,
            restart_all_enabled: true,
            actuated: Some(&before),
        })
    };
    let shown = |actions: PodActions| {
        let names = |list: &[ContainerToUpdate]| {
            let names: Vec<&str> = list.iter().map(|u| u.name.as_str()).collect();
            names.join(",")
        };
        let killed: Vec<&str> = actions.to_kill.iter().map(|k| k.name.as_str()).collect();
        format!(
            "cpu={} memory={} pod={} kill={} init={:?} start={:?}",
            names(&actions.resizes.cpu),
            names(&actions.resizes.memory),
            actions.resizes.pod,
            killed.join(","),
            actions.init_to_start,
            actions.regular_to_start
        )
    };
    let all = "S0 s:run a:run b:run";
    let cases = [
        (
            small,
            small,
            small,
            all,
            "cpu= memory= pod=false kill= init=[] start=[]",
        ),
        (
            "2/2 1Mi/1Mi",
            small,
            small,
            all,
            "cpu=a memory= pod=false kill= init=[] start=[]",
        ),
        (
            "2/2 2Mi/2Mi",
            "500m/1 1Mi/1Mi",
            small,
            all,
            "cpu=b,a memory=a pod=false kill= init=[] start=[]",
        ),
        (
            small,
            "1/1 2Mi/2Mi",
            small,
            all,
            "cpu= memory= pod=true kill=b init=[] start=[1]",
        ),
        (
            small,
            small,
            "2/2 1Mi/1Mi",
            all,
            "cpu=s memory= pod=false kill= init=[] start=[]",
        ),
        (
            small,
            small,
            "2/2 2Mi/2Mi",
            all,
            "cpu= memory= pod=true kill=s init=[0] start=[]",
        ),
        // One that does not run has its size when it starts, and the pod must have room for it.
        (
            "2/2 1Mi/1Mi",
            small,
            small,
            "S0 s:run b:run a:exit1",
            "cpu= memory= pod=true kill= init=[] start=[0]",
        ),
        // With a new sandbox all is made anew.
        (
            "2/2 1Mi/1Mi",
            small,
            small,
            "S0! s:run a:run b:run",
            "cpu= memory= pod=false kill= init=[0] start=[]",
        ),
    ];
    for (a, b, s, seen, expected) in cases {
        let got = shown(decide(&three(a, b, s), seen));
        assert_eq!(got, expected, "{a} {b} {s} {seen}");
    }
    let mut deleted = three("2/2 1Mi/1Mi", "1/1 2Mi/2Mi", small);
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    let got = shown(decide(&deleted, all));
    assert_eq!(got, "cpu= memory= pod=false kill= init=[] start=[]");
}
