//! The command line: its forms, its types, and its place above the files.

mod common;

use common::{Files, args, loaded, try_load, warnings};
use krablet_config::flags::{VersionFlag, all, find};
use krablet_config::{KubeletConfiguration, Outcome, VersionForm};
use serde_json::{Value, json};

/// The value of a field after these flags, without a file.
fn field(words: &[&str], path: &str) -> Value {
    let config = loaded(words, &Files::new()).config.to_json();
    config.pointer(path).cloned().unwrap_or(Value::Null)
}

#[test]
fn every_form_of_a_flag() {
    // (words, pointer into the configuration, value)
    let cases: &[(&[&str], &str, Value)] = &[
        (&["--max-pods=5"], "/maxPods", json!(5)),
        (&["--max-pods", "5"], "/maxPods", json!(5)),
        (&["--max_pods=5"], "/maxPods", json!(5)),
        (&["--max_pods", "5"], "/maxPods", json!(5)),
        (&["--max-pods=5", "--max-pods=6"], "/maxPods", json!(6)),
        (&["--max-pods=0x10"], "/maxPods", json!(16)),
        (&["--max-pods=010"], "/maxPods", json!(8)),
        (&["--max-pods=0o10"], "/maxPods", json!(8)),
        (&["--max-pods=+7"], "/maxPods", json!(7)),
        (&["--max-pods=1_0"], "/maxPods", json!(10)),
        (
            &["--container-log-max-size=-1"],
            "/containerLogMaxSize",
            json!("-1"),
        ),
        (&["--oom-score-adj", "-999"], "/oomScoreAdj", json!(-999)),
        (&["--oom-score-adj=-1"], "/oomScoreAdj", json!(-1)),
        (&["--pod-max-pids=0x1_00"], "/podPidsLimit", json!(256)),
        (&["--fail-swap-on=false"], "/failSwapOn", json!(false)),
        (&["--fail-swap-on=0"], "/failSwapOn", json!(false)),
        (&["--fail-swap-on=F"], "/failSwapOn", json!(false)),
        (&["--fail-swap-on"], "/failSwapOn", json!(true)),
        (
            &["--rotate-certificates"],
            "/rotateCertificates",
            json!(true),
        ),
        (
            &["--rotate-certificates=TRUE"],
            "/rotateCertificates",
            json!(true),
        ),
        (&["--v=4"], "/logging/verbosity", json!(4)),
        (&["--v", "4"], "/logging/verbosity", json!(4)),
        (&["-v=4"], "/logging/verbosity", json!(4)),
        (&["-v4"], "/logging/verbosity", json!(4)),
        (&["-v", "4"], "/logging/verbosity", json!(4)),
        (&["--sync-frequency=90s"], "/syncFrequency", json!("1m30s")),
        (
            &["--sync-frequency", "1.5h"],
            "/syncFrequency",
            json!("1h30m0s"),
        ),
        (&["--cluster-domain="], "/clusterDomain", Value::Null),
        (&["--cluster-domain=a=b"], "/clusterDomain", json!("a=b")),
        (&["--cluster-domain", "--x"], "/clusterDomain", json!("--x")),
        (&["--address=::"], "/address", json!("::")),
        (&["--address="], "/address", json!("0.0.0.0")),
        (&["--address=010.0.0.1"], "/address", json!("010.0.0.1")),
        (
            &["--cluster-dns=10.0.0.10,10.0.0.11"],
            "/clusterDNS",
            json!(["10.0.0.10", "10.0.0.11"]),
        ),
        (
            &["--cluster-dns=10.0.0.10", "--cluster-dns=10.0.0.11"],
            "/clusterDNS",
            json!(["10.0.0.10", "10.0.0.11"]),
        ),
        (
            &["--cluster-dns=\"a,b\",\"c\"\"d\""],
            "/clusterDNS",
            json!(["a,b", "c\"d"]),
        ),
        (
            &["--enforce-node-allocatable="],
            "/enforceNodeAllocatable",
            json!([]),
        ),
        (
            &["--enforce-node-allocatable=none"],
            "/enforceNodeAllocatable",
            json!(["none"]),
        ),
        (
            &["--kube-reserved=cpu=1, memory=1Gi"],
            "/kubeReserved",
            json!({"cpu": "1", "memory": "1Gi"}),
        ),
        (
            &["--kube-reserved=cpu=1", "--kube-reserved=memory=1Gi"],
            "/kubeReserved",
            json!({"cpu": "1", "memory": "1Gi"}),
        ),
        (
            &[
                "--cpu-manager-policy-options=a=1,2",
                "--cpu-manager-policy-options=b=3",
            ],
            "/cpuManagerPolicyOptions",
            json!({"a": "1,2", "b": "3"}),
        ),
        (
            &["--eviction-hard=memory.available<1Gi,nodefs.available<10%"],
            "/evictionHard",
            json!({"memory.available": "1Gi", "nodefs.available": "10%"}),
        ),
        (
            &["--manifest-url-header=a:1,b:2", "--manifest-url-header=a:3"],
            "/staticPodURLHeader",
            json!({"a": ["1", "3"], "b": ["2"]}),
        ),
        (
            &["--register-with-taints=a=b:NoSchedule,c:NoExecute"],
            "/registerWithTaints",
            json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]),
        ),
        (
            &[
                "--register-with-taints=a=b:NoSchedule",
                "--register-with-taints=",
            ],
            "/registerWithTaints",
            Value::Null,
        ),
        (
            &[
                "--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=2Gi",
                "--reserved-memory=2:memory=3Gi",
            ],
            "/reservedMemory",
            json!([
                {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1Gi": "2Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}},
                {"numaNode": 2, "limits": {"memory": "3Gi"}}
            ]),
        ),
        (
            &["--vmodule=a=1,b*=2,", "--vmodule=c=3"],
            "/logging/vmodule",
            json!([
                {"filePattern": "a", "verbosity": 1},
                {"filePattern": "b*", "verbosity": 2},
                {"filePattern": "c", "verbosity": 3}
            ]),
        ),
        (
            &["--log-flush-frequency=1s"],
            "/logging/flushFrequency",
            json!("1s"),
        ),
        (
            &[
                "--log-json-info-buffer-size=64Ki",
                "--feature-gates=LoggingAlphaOptions=true",
            ],
            "/logging/options/json/infoBufferSize",
            json!("64Ki"),
        ),
        (
            &[
                "--feature-gates=EventedPLEG=true",
                "--feature-gates=PodsAPI=true,EventedPLEG=false",
            ],
            "/featureGates",
            json!({"EventedPLEG": false, "PodsAPI": true}),
        ),
        (&["--max-pods=5", "--"], "/maxPods", json!(5)),
    ];
    for (words, pointer, expected) in cases {
        assert_eq!(field(words, pointer), *expected, "{words:?}");
    }
}

#[test]
fn flags_that_are_not_in_the_file() {
    let flags = loaded(
        &[
            "--node-labels=a=b,node.kubernetes.io/x=y,plain",
            "--node-labels=kubernetes.io/os=linux",
            "--hostname-override=n1",
            "--node-ip=10.0.0.1,fd00::1",
            "--cloud-provider=external",
            "--runtime-cgroups=/system.slice/containerd.service",
            "--maximum-dead-containers=7",
            "--housekeeping-interval=2s",
            "--version=v1.36.4-vendor.1",
        ],
        &Files::new(),
    )
    .flags;
    let labels: Vec<_> = flags
        .node_labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        labels,
        [
            "a=b",
            "kubernetes.io/os=linux",
            "node.kubernetes.io/x=y",
            "plain="
        ]
    );
    assert_eq!(flags.hostname_override, "n1");
    assert_eq!(flags.node_ip, "10.0.0.1,fd00::1");
    assert_eq!(flags.cloud_provider, "external");
    assert_eq!(
        flags.runtime.runtime_cgroups,
        "/system.slice/containerd.service"
    );
    assert_eq!(flags.runtime.max_dead_containers, 7);
    assert_eq!(flags.runtime.housekeeping_interval.to_string(), "2s");
    assert_eq!(
        flags.meta.version,
        VersionFlag::ReportAs("v1.36.4-vendor.1".to_owned())
    );
    assert_eq!(flags.root_dir, "/var/lib/kubelet");
    assert_eq!(flags.cert_dir, "/var/lib/kubelet/pki");
    // Collectors know no other place, whatever podLogsDir says.
    assert_eq!(flags.runtime.container_logs_dir, "/var/log/containers");
}

#[test]
fn version_and_help_end_the_run_before_files_are_read() {
    let cases: &[(&[&str], Outcome)] = &[
        (&["--version"], Outcome::PrintVersion(VersionForm::Short)),
        (
            &["--version=true"],
            Outcome::PrintVersion(VersionForm::Short),
        ),
        (
            &["--version=raw", "--config=/missing"],
            Outcome::PrintVersion(VersionForm::Raw),
        ),
        (&["--version=false"], Outcome::Run),
        (&["--version", "--version=false"], Outcome::Run),
        (&["--help"], Outcome::PrintHelp),
        (&["-h"], Outcome::PrintHelp),
        (&["-hv5"], Outcome::PrintHelp),
        (&["--help", "--version"], Outcome::PrintHelp),
        (&["--help=false"], Outcome::Run),
        (&[], Outcome::Run),
    ];
    for (words, outcome) in cases {
        assert_eq!(loaded(words, &Files::new()).outcome, *outcome, "{words:?}");
    }
}

/// Flags win over the file whatever their kind; lists and maps are replaced, gates and vmodule are added to.
#[test]
fn flags_over_file() {
    let file = "maxPods: 1\nfailSwapOn: false\nclusterDNS: [1.1.1.1]\nkubeReserved: {cpu: 1m, memory: 1Mi}\n\
                evictionHard: {memory.available: 1Mi}\nfeatureGates: {EventedPLEG: true, PodsAPI: true}\n\
                logging: {vmodule: [{filePattern: a, verbosity: 1}]}\nauthentication: {anonymous: {enabled: false}}\n";
    let files = Files::new()
        .with("/k.yaml", file)
        .with("/d/1.conf", "maxPods: 2\nregistryBurst: 3\n");
    let words = [
        "--max-pods=9",
        "--config=/k.yaml",
        "--config-dir=/d",
        "--fail-swap-on",
        "--cluster-dns=2.2.2.2",
        "--kube-reserved=pid=5",
        "--eviction-hard=nodefs.available<5%",
        "--feature-gates=PodsAPI=false,MemoryQoS=true",
        "--vmodule=b=2",
        "--anonymous-auth",
    ];
    let config = loaded(&words, &files).config.to_json();
    assert_eq!(config["maxPods"], json!(9));
    assert_eq!(config["registryBurst"], json!(3));
    assert_eq!(config["failSwapOn"], json!(true));
    assert_eq!(config["clusterDNS"], json!(["2.2.2.2"]));
    assert_eq!(config["kubeReserved"], json!({"pid": "5"}));
    assert_eq!(config["evictionHard"], json!({"nodefs.available": "5%"}));
    assert_eq!(
        config["featureGates"],
        json!({"EventedPLEG": true, "PodsAPI": false, "MemoryQoS": true})
    );
    assert_eq!(
        config["logging"]["vmodule"],
        json!([{"filePattern": "a", "verbosity": 1}, {"filePattern": "b", "verbosity": 2}])
    );
    assert_eq!(
        config["authentication"]["anonymous"]["enabled"],
        json!(true)
    );
    // A flag that was not given does not bring its own default along.
    assert_eq!(config["readOnlyPort"], Value::Null);
    assert_eq!(config["authorization"]["mode"], json!("Webhook"));
}

#[test]
fn deprecated_flags_are_named_once() {
    let loaded = loaded(
        &[
            "--port=1",
            "--port=2",
            "--v=1",
            "--containerd=/x",
            "--maximum-dead-containers=1",
            "--provider-id=x",
        ],
        &Files::new(),
    );
    assert_eq!(
        warnings(&loaded),
        [
            "flag --port is deprecated: set port in the configuration file instead",
            "flag --containerd is deprecated: it belongs to a library and has no effect here",
            "flag --maximum-dead-containers is deprecated: use --eviction-hard or --eviction-soft instead",
        ]
    );
}

/// What is set and not acted on is named in one line; what is left at its default, or written as it, is not.
#[test]
fn settings_without_effect_are_told() {
    let told = |words: &[&str], fields: &str| {
        let mut all = words.to_vec();
        all.push("--config=/k.yaml");
        let loaded = loaded(&all, &Files::new().with("/k.yaml", fields));
        let mut lines = warnings(&loaded);
        lines.retain(|line| line.starts_with("set, but without effect"));
        lines
    };
    let line = |names: &str| {
        vec![format!(
            "set, but without effect in krablet so far: {names} (docs/configuration.md says what is done instead)"
        )]
    };
    let cases: &[(&[&str], &str, &str)] = &[
        (&[], "", ""),
        (&[], "shutdownGracePeriod: 0s\ncpuManagerPolicy: none\n", ""),
        (&[], "volumeStatsAggPeriod: 1m\ntracing: null\n", ""),
        (
            &[],
            "logging: {options: {text: {infoBufferSize: \"0\"}}}\n",
            "",
        ),
        // These say nothing about what is missing: the one has all that it asks for, the other a part.
        (
            &[],
            "makeIPTablesUtilChains: false\nevictionHard: {memory.available: 1Gi}\n",
            "",
        ),
        (
            &[],
            "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n",
            "shutdownGracePeriod, shutdownGracePeriodCriticalPods",
        ),
        (
            &["--topology-manager-policy=restricted"],
            "tracing: {endpoint: \"localhost:4317\"}\n",
            "topologyManagerPolicy, tracing",
        ),
        (
            &[],
            "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\n",
            "cpuManagerPolicy",
        ),
        // The kubelet's own default.
        (&["--housekeeping-interval=10s"], "", ""),
        (
            &["--housekeeping-interval=5s"],
            "volumePluginDir: /flex\n",
            "volumePluginDir, --housekeeping-interval",
        ),
    ];
    for (words, fields, names) in cases {
        let expected = match *names {
            "" => Vec::new(),
            names => line(names),
        };
        assert_eq!(told(words, fields), expected, "{words:?} {fields}");
    }
}

#[test]
fn the_table_holds_together() {
    let fields: Vec<String> = KubeletConfiguration::docs()
        .into_iter()
        .flat_map(|(_, fields)| fields)
        .map(|field| field.name)
        .collect();
    let mut names: Vec<_> = all().map(|flag| flag.name).collect();
    // The kubelet's, and three of our own.
    assert_eq!(names.len(), 149 + 3);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 149 + 3, "a name is used twice");
    for flag in all() {
        if let Some(field) = flag.field {
            assert!(
                fields.iter().any(|known| known == field),
                "--{}: {field}",
                flag.name
            );
        }
        assert!(flag.help.ends_with('.'), "--{}", flag.name);
        assert!(find(flag.name).is_some());
        assert!(!flag.name.contains('_'));
    }
}

/// Setting a flag to its own default changes nothing but what it is meant to: the accessor and the default agree.
#[test]
fn defaults_can_be_given_back() {
    let plain = loaded(&[], &Files::new());
    for flag in all().filter(|flag| !matches!(flag.name, "help" | "version")) {
        let word = format!("--{}={}", flag.name, flag.default_text());
        let again = match try_load(&[&word], &Files::new()) {
            Ok(again) => again,
            // One pair at a time is never an empty one.
            Err(error) => {
                assert_eq!(flag.name, "cpu-manager-policy-options", "{error}");
                continue;
            }
        };
        assert_eq!(again.config, plain.config, "{word}");
        assert_eq!(again.flags, plain.flags, "{word}");
    }
}

#[test]
fn words_that_are_not_text() {
    use std::os::unix::ffi::OsStringExt as _;
    let mut words = args(&["--max-pods"]);
    words.push(std::ffi::OsString::from_vec(vec![b'a', 0xff]));
    let error = krablet_config::load(&words, &Files::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "argument \"a\u{fffd}\" is not valid UTF-8"
    );
}

/// The flags installers pass today.
#[test]
fn installers_command_lines() {
    let kubeadm = Files::new().with(
        "/var/lib/kubelet/config.yaml",
        include_str!("data/kubeadm.yaml"),
    );
    let words = [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
    ];
    let plain = loaded(&words, &kubeadm);
    assert_eq!(warnings(&plain), Vec::<String>::new());

    let mut kind = words.to_vec();
    kind.extend([
        "--node-ip=172.18.0.2",
        "--node-labels=",
        "--provider-id=kind://docker/kind/kind-control-plane",
        "--runtime-cgroups=/system.slice/containerd.service",
    ]);
    let files = Files::new().with(
        "/var/lib/kubelet/config.yaml",
        include_str!("data/kind.yaml"),
    );
    let kind = loaded(&kind, &files);
    assert_eq!(warnings(&kind), Vec::<String>::new());
    assert_eq!(
        kind.config.node.provider_id,
        "kind://docker/kind/kind-control-plane"
    );

    let k3s = Files::new().with(
        "/etc/kubelet.conf.d/00-k3s-defaults.conf",
        "staticPodPath: /var/lib/rancher/k3s/agent/pod-manifests\nreadOnlyPort: 0\nfailSwapOn: false\n",
    );
    let k3s = loaded(
        &[
            "--config-dir=/etc/kubelet.conf.d",
            "--kubeconfig=/k",
            "--read-only-port=0",
            "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki",
            "--hostname-override=n",
            "--node-ip=10.0.0.2",
            "--cloud-provider=external",
            "--runtime-cgroups=/system.slice/k3s.service",
            "--node-labels=",
            "--feature-gates=KubeletInUserNamespace=true",
        ],
        &k3s,
    );
    assert_eq!(k3s.config.server.read_only_port, 0);
    assert!(
        k3s.gates
            .enabled(krablet_config::Gate::KubeletInUserNamespace)
    );
}
