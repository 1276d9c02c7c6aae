//! Each handler's reasons and messages, and their order.

use expect_test::expect;
use krablet_pod::api::Taint;

use super::*;

/// A table with one line for each question.
fn table(door: &Door, others: &[&str], candidates: &[&str]) -> String {
    candidates
        .iter()
        .map(|candidate| format!("{candidate} -> {}\n", door.ask(candidate, others)))
        .collect()
}

#[test]
fn room() {
    let node =
        "cpu=1200m memory=1000 ephemeral-storage=100 pods=3 example.com/gpu=1 hugepages-2Mi=4Mi";
    let candidates = [
        "a cpu=700m memory=500 ephemeral-storage=50",
        "a cpu=1000m",
        "a memory=501",
        "a memory=501 cpu=701m",
        "a ephemeral-storage=51",
        "a example.com/gpu=1",
        "a hugepages-2Mi=6Mi",
        "a example.com/unknown=5",
        "a nonsense=5",
        "a init:cpu=800m",
        "a cpu=100m pod:cpu=2",
        "a cpu=600m overhead:cpu=200m",
        "a cpu=100u",
    ];
    let others = ["b cpu=500m memory=500 ephemeral-storage=50 example.com/gpu=1"];
    expect![[r#"
        a cpu=700m memory=500 ephemeral-storage=50 -> admit
        a cpu=1000m -> OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 500, capacity: 1200
        a memory=501 -> OutOfmemory: Node didn't have enough resource: memory, requested: 501, used: 500, capacity: 1000
        a memory=501 cpu=701m -> OutOfcpu: Node didn't have enough resource: cpu, requested: 701, used: 500, capacity: 1200
        a ephemeral-storage=51 -> OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 51, used: 50, capacity: 100
        a example.com/gpu=1 -> OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 1, used: 1, capacity: 1
        a hugepages-2Mi=6Mi -> OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, capacity: 4194304
        a example.com/unknown=5 -> admit
        a nonsense=5 -> admit
        a init:cpu=800m -> OutOfcpu: Node didn't have enough resource: cpu, requested: 800, used: 500, capacity: 1200
        a cpu=100m pod:cpu=2 -> OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 500, capacity: 1200
        a cpu=600m overhead:cpu=200m -> OutOfcpu: Node didn't have enough resource: cpu, requested: 800, used: 500, capacity: 1200
        a cpu=100u -> admit
    "#]]
    .assert_eq(&table(&Door::new(node), &others, &candidates));
    let full = ["b", "c", "d"];
    expect![[r#"
        a -> OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3
        a cpu=9 -> OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3
    "#]]
    .assert_eq(&table(&Door::new(node), &full, &["a", "a cpu=9"]));
}

#[test]
fn overused_resources_do_not_matter_to_who_asks_for_none() {
    let door = Door::new("cpu=1 pods=10");
    let others = ["b cpu=3"];
    expect![[r#"
        a -> admit
        a memory=0 cpu=0 -> admit
        a memory=1 -> OutOfmemory: Node didn't have enough resource: memory, requested: 1, used: 0, capacity: 0
    "#]]
    .assert_eq(&table(&door, &others, &["a", "a memory=0 cpu=0", "a memory=1"]));
}

#[test]
fn resources_a_claim_gives_are_not_the_nodes() {
    let mut door = Door::new("cpu=4 pods=10 example.com/gpu=0");
    let mut candidate = pod("a example.com/gpu=1");
    candidate.status = serde_json::from_value(json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "x",
        "requestMappings": [
            {"containerName": "c", "requestName": "r", "resourceName": "example.com/gpu"}],
    }}))
    .unwrap();
    let refused = "OutOfexample.com/gpu: Node didn't have enough resource: \
                   example.com/gpu, requested: 1, used: 0, capacity: 0";
    assert_eq!(show(&door.verdict(&candidate, &[])), refused);
    door.settings.dra_extended_resources = true;
    assert_eq!(show(&door.verdict(&candidate, &[])), "admit");
}

#[test]
fn places_and_ports() {
    let door = Door::new(ROOMY);
    let others = ["b port=80 port=10.0.0.1:90 port=53/UDP"];
    let candidates = [
        "a selector=zone:a",
        "a selector=zone:b",
        "a node=n1",
        "a node=n2",
        "a port=80",
        "a port=10.0.0.7:80",
        "a port=90",
        "a port=10.0.0.1:90",
        "a port=10.0.0.2:90",
        "a port=53",
        "a port=53/UDP",
    ];
    expect![[r#"
        a selector=zone:a -> admit
        a selector=zone:b -> NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector
        a node=n1 -> admit
        a node=n2 -> NodeName: Predicate NodeName failed: node(s) didn't match the requested node name
        a port=80 -> NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports
        a port=10.0.0.7:80 -> NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports
        a port=90 -> NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports
        a port=10.0.0.1:90 -> NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports
        a port=10.0.0.2:90 -> admit
        a port=53 -> admit
        a port=53/UDP -> NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports
    "#]]
    .assert_eq(&table(&door, &others, &candidates));
}

#[test]
fn a_refusal_for_labels_alone_is_marked() {
    let door = Door::new(ROOMY);
    let only_labels = |candidate: &str| match door.verdict(&pod(candidate), &[]) {
        Verdict::Reject(rejection) => rejection.only_labels,
        other => panic!("{other:?}"),
    };
    assert!(only_labels("a selector=zone:b"));
    assert!(!only_labels("a selector=zone:b cpu=9"));
    assert!(!only_labels("a selector=zone:b node=n2"));
    assert!(!only_labels("a node=n2"));
    assert!(!only_labels("a cpu=9"));
}

#[test]
fn taints_that_end_pods() {
    let mut door = Door::new(ROOMY);
    let taint = |key: &str, effect: &str| Taint {
        key: key.into(),
        effect: effect.into(),
        ..Taint::default()
    };
    door.node.taints = vec![taint("gone", "NoExecute"), taint("full", "NoSchedule")];
    expect![[r#"
        a -> TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate
        a tolerate=gone -> admit
        a tolerate=full -> TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate
        a static -> admit
        a mirror -> TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate
        a prio=2000000000 -> TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate
    "#]]
    .assert_eq(&table(
        &door,
        &[],
        &["a", "a tolerate=gone", "a tolerate=full", "a static", "a mirror", "a prio=2000000000"],
    ));
}

#[test]
fn operating_system_and_groups() {
    let mut door = Door::new(ROOMY);
    let candidates = [
        "a os=linux",
        "a os=windows",
        "a label=kubernetes.io/os:linux",
        "a label=kubernetes.io/os:windows",
        "a selector=kubernetes.io/os:linux",
        "a groups=Merge",
        "a groups=Strict",
    ];
    expect![[r#"
        a os=linux -> admit
        a os=windows -> PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS
        a label=kubernetes.io/os:linux -> admit
        a label=kubernetes.io/os:windows -> PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label
        a selector=kubernetes.io/os:linux -> admit
        a groups=Merge -> admit
        a groups=Strict -> SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
    door.node.supplemental_groups_policy = true;
    assert_eq!(door.ask("a groups=Strict", &[]), "admit");
}

#[test]
fn pressure() {
    let mut door = Door::new(ROOMY);
    let candidates = [
        "a",
        "a cpu=1",
        "a static",
        "a prio=2000000000",
        "a tolerate=node.kubernetes.io/memory-pressure",
        "a tolerate=node.kubernetes.io/disk-pressure",
        "a qos=Burstable",
    ];
    door.conditions.pressures = vec![Pressure::Memory];
    expect![[r#"
        a -> Evicted: The node had condition: [MemoryPressure]. 
        a cpu=1 -> admit
        a static -> admit
        a prio=2000000000 -> admit
        a tolerate=node.kubernetes.io/memory-pressure -> admit
        a tolerate=node.kubernetes.io/disk-pressure -> Evicted: The node had condition: [MemoryPressure]. 
        a qos=Burstable -> admit
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
    door.conditions.pressures = vec![Pressure::Disk, Pressure::Memory];
    expect![[r#"
        a -> Evicted: The node had condition: [DiskPressure MemoryPressure]. 
        a cpu=1 -> Evicted: The node had condition: [DiskPressure MemoryPressure]. 
        a static -> admit
        a prio=2000000000 -> admit
        a tolerate=node.kubernetes.io/memory-pressure -> Evicted: The node had condition: [DiskPressure MemoryPressure]. 
        a tolerate=node.kubernetes.io/disk-pressure -> Evicted: The node had condition: [DiskPressure MemoryPressure]. 
        a qos=Burstable -> Evicted: The node had condition: [DiskPressure MemoryPressure]. 
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
}

#[test]
fn sysctls_features_and_gates() {
    let mut door = Door::new(ROOMY);
    door.settings.pod_level_resources = false;
    let candidates = [
        "a sysctl=net.ipv4.tcp_syncookies",
        "a sysctl=net.ipv4.tcp_syncookies hostnet",
        "a sysctl=kernel.sem",
        "a pod:cpu=1",
        "a restartall hostnet hostusers=false",
        "a hostnet hostusers=true",
    ];
    expect![[r#"
        a sysctl=net.ipv4.tcp_syncookies -> admit
        a sysctl=net.ipv4.tcp_syncookies hostnet -> SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled
        a sysctl=kernel.sem -> SysctlForbidden: forbidden sysctl: "kernel.sem" not allowlisted
        a pod:cpu=1 -> PodLevelResourcesNotSupported: PodLevelResources feature gate is disabled
        a restartall hostnet hostusers=false -> PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport
        a hostnet hostusers=true -> admit
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
    let declared = ["RestartAllContainersOnContainerExits".to_owned()];
    door.settings.declared_features = Some(BTreeSet::from(declared));
    assert_eq!(door.ask("a restartall", &[]), "admit");
    door.settings.declared_features = None;
    assert_eq!(
        door.ask("a restartall hostnet hostusers=false", &[]),
        "admit"
    );
}

#[test]
fn apparmor_profiles() {
    let mut door = Door::new(ROOMY);
    let annotated = "a annotation=container.apparmor.security.beta.kubernetes.io/c:localhost/";
    let candidates = [
        "a apparmor=RuntimeDefault",
        "a apparmor=Localhost",
        "a apparmor=Localhost phase=Running",
        annotated,
    ];
    expect![[r#"
        a apparmor=RuntimeDefault -> admit
        a apparmor=Localhost -> AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: "&AppArmorProfile{Type:Localhost,LocalhostProfile:nil,}"
        a apparmor=Localhost phase=Running -> admit
        a annotation=container.apparmor.security.beta.kubernetes.io/c:localhost/ -> AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: "&AppArmorProfile{Type:Localhost,LocalhostProfile:*,}"
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
    door.settings.apparmor = false;
    let candidates = [
        "a",
        "a apparmor=Unconfined",
        "a apparmor=RuntimeDefault phase=Pending",
        "a annotation=container.apparmor.security.beta.kubernetes.io/c:unconfined",
        "a annotation=container.apparmor.security.beta.kubernetes.io/c:runtime/default",
    ];
    expect![[r#"
        a -> admit
        a apparmor=Unconfined -> admit
        a apparmor=RuntimeDefault phase=Pending -> AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host
        a annotation=container.apparmor.security.beta.kubernetes.io/c:unconfined -> admit
        a annotation=container.apparmor.security.beta.kubernetes.io/c:runtime/default -> AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host
    "#]]
    .assert_eq(&table(&door, &[], &candidates));
}

/// Each step takes one objection away, the one that was told, and the next in order shows.
#[test]
fn the_first_refusal_stands() {
    let mut door = Door::new("cpu=1 pods=10");
    door.conditions.pressures = vec![Pressure::Pid];
    door.conditions.shutting_down = true;
    door.settings.apparmor = false;
    door.settings.pod_level_resources = false;
    let mut words = vec![
        "a",
        "sysctl=kernel.sem",
        "os=windows",
        "cpu=2",
        "selector=zone:b",
        "node=n2",
        "apparmor=RuntimeDefault",
        "pod:memory=0",
        "restartall",
    ];
    let mut told = Vec::new();
    let mut ask = |door: &Door, words: &[&str]| {
        let answer = door.ask(&words.join(" "), &[]);
        told.push(answer.split(':').next().unwrap_or_default().to_owned());
    };
    ask(&door, &words);
    door.conditions.pressures.clear();
    while words.len() > 1 {
        ask(&door, &words);
        words.remove(1);
    }
    ask(&door, &words);
    door.conditions.shutting_down = false;
    ask(&door, &words);
    assert_eq!(
        told,
        [
            "Evicted",
            "SysctlForbidden",
            "PodOSNotSupported",
            "OutOfcpu",
            "NodeAffinity",
            "NodeName",
            "AppArmor",
            "PodLevelResourcesNotSupported",
            "PodFeatureUnsupported",
            "NodeShutdown",
            "admit",
        ]
    );
}

#[test]
fn allocation_failures_come_before_the_predicates() {
    let door = Door::new("pods=10");
    let candidate = pod("a cpu=1");
    let failure = Rejection::unexpected("no device");
    let verdict = admit(&AdmissionInputs {
        pod: &candidate,
        node: &door.node,
        conditions: &door.conditions,
        settings: &door.settings,
        others: &[],
        allocation_failure: Some(&failure),
    });
    assert_eq!(
        show(&verdict),
        "UnexpectedAdmissionError: Allocate failed due to no device, which is unexpected"
    );
}

#[test]
fn the_status_of_the_refused() {
    let rejection = Rejection::new("OutOfcpu", "Node didn't have enough resource: cpu");
    let mut refused = pod("a cpu=1");
    refused.metadata.generation = Some(3);
    let status = rejected_status(&refused, &rejection);
    expect![[r#"{"message":"Pod was rejected: Node didn't have enough resource: cpu","observedGeneration":3,"phase":"Failed","qosClass":"Burstable","reason":"OutOfcpu"}"#]]
        .assert_eq(&serde_json::to_string(&status).unwrap());
}

#[test]
fn what_refusals_are_counted_as() {
    for (reason, counted) in [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfpods", "OutOfpods"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
        ("UnexpectedAdmissionError", "UnexpectedAdmissionError"),
        ("PodOSNotSupported", "PodOSNotSupported"),
        ("NodeAffinity", "Other"),
        ("", "Other"),
    ] {
        assert_eq!(Rejection::new(reason, "").counted_as(), counted, "{reason}");
    }
    assert!(COUNTED_REASONS.is_sorted());
}

#[test]
fn a_pod_without_a_spec_is_no_trouble() {
    let door = Door::new("pods=1");
    assert_eq!(door.verdict(&Pod::default(), &[]), Verdict::Admit);
}
