//! Every default, with and without a configuration file, and the rules by which a default is taken.

mod common;

use common::{Files, from_file, loaded};
use serde_json::{Value, json};

/// Every field that has a default in a configuration file, as upstream writes it back.
fn file_defaults() -> Value {
    let text = include_str!("data/defaults.json");
    let mut defaults: Value = serde_json::from_str(text).unwrap_or_default();
    // Pointers without a default are false once read.
    defaults["enableSystemLogQuery"] = json!(false);
    defaults["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
    defaults["kind"] = json!("KubeletConfiguration");
    defaults
}

fn default_thresholds() -> Value {
    json!({
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%"
    })
}

#[test]
fn an_empty_file_gets_every_default() {
    let mut expected = file_defaults();
    expected["evictionHard"] = default_thresholds();
    assert_eq!(from_file("").config.to_json(), expected);
}

#[test]
fn flags_alone_start_from_the_older_defaults() {
    let mut expected = file_defaults();
    expected["readOnlyPort"] = json!(10255);
    expected["authentication"]["anonymous"]["enabled"] = json!(true);
    expected["authentication"]["webhook"]["enabled"] = json!(false);
    expected["authorization"]["mode"] = json!("AlwaysAllow");
    assert_eq!(loaded(&[], &Files::new()).config.to_json(), expected);
}

#[test]
fn drop_ins_alone_keep_the_older_defaults() {
    let files = Files::new().with("/d/1.conf", "maxPods: 7\n");
    let config = loaded(&["--config-dir=/d"], &files).config;
    assert_eq!(config.runtime.max_pods, 7);
    assert_eq!(config.server.read_only_port, 10255);
    assert_eq!(config.security.authorization.mode, "AlwaysAllow");
    assert!(config.eviction.hard.is_empty());
}

/// Fields whose zero means "use the default".
#[test]
fn zero_means_default() {
    let zeros = [
        "syncFrequency: 0s",
        "fileCheckFrequency: 0s",
        "httpCheckFrequency: 0s",
        "streamingConnectionIdleTimeout: 0s",
        "nodeStatusUpdateFrequency: 0s",
        "nodeStatusReportFrequency: 0s",
        "imageMinimumGCAge: 0s",
        "volumeStatsAggPeriod: 0s",
        "cpuManagerReconcilePeriod: 0s",
        "runtimeRequestTimeout: 0s",
        "evictionPressureTransitionPeriod: 0s",
        "authentication: {webhook: {cacheTTL: 0s}}",
        "authorization: {webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}",
        "logging: {flushFrequency: 0}",
        "logging: {flushFrequency: 0s, verbosity: 0, options: {json: {infoBufferSize: \"0\"}}}",
        "address: \"\"",
        "port: 0",
        "registryBurst: 0",
        "eventBurst: 0",
        "kubeAPIBurst: 0",
        "maxPods: 0",
        "maxOpenFiles: 0",
        "nodeLeaseDurationSeconds: 0",
        "healthzBindAddress: \"\"",
        "cgroupDriver: \"\"",
        "contentType: \"\"",
        "hairpinMode: \"\"",
        "containerLogMaxSize: \"\"",
        "containerRuntimeEndpoint: \"\"",
        "podLogsDir: \"\"",
        "volumePluginDir: \"\"",
        "imagePullCredentialsVerificationPolicy: \"\"",
        // Durations without a default, which installers write out as zero.
        "imageMaximumGCAge: 0s",
        "shutdownGracePeriod: 0s",
        "shutdownGracePeriodCriticalPods: 0s",
        // Any negative limit is "no limit of our own".
        "podPidsLimit: -5",
        // Null is as good as not written.
        "port:",
        "clusterDNS: null",
        "authentication: null",
        "crashLoopBackOff: {maxContainerRestartPeriod: null}",
        "memorySwap: {}",
    ];
    let expected = from_file("").config;
    for fields in zeros {
        assert_eq!(
            from_file(&format!("{fields}\n")).config,
            expected,
            "{fields}"
        );
    }
}

/// Fields whose zero is a value of its own.
#[test]
fn zero_means_zero() {
    let cases = [
        ("registryPullQPS", json!(0)),
        ("eventRecordQPS", json!(0)),
        ("kubeAPIQPS", json!(0)),
        ("healthzPort", json!(0)),
        ("oomScoreAdj", json!(0)),
        ("nodeStatusMaxImages", json!(0)),
        ("iptablesMasqueradeBit", json!(0)),
        ("iptablesDropBit", json!(0)),
        ("imageGCLowThresholdPercent", json!(0)),
        ("podPidsLimit", json!(0)),
        ("resolvConf", json!("")),
        ("enforceNodeAllocatable", json!([])),
        ("enableServer", json!(false)),
        ("failSwapOn", json!(false)),
        ("enableControllerAttachDetach", json!(false)),
        ("registerNode", json!(false)),
        ("failCgroupV1", json!(false)),
    ];
    for (field, zero) in cases {
        let config = from_file(&format!("{field}: {zero}\n")).config.to_json();
        assert_eq!(config[field], zero, "{field}");
    }
}

#[test]
fn defaults_that_follow_other_fields() {
    let field = |fields: &str, name: &str| from_file(fields).config.to_json()[name].clone();
    // (file, field, value)
    let cases = [
        (
            "nodeStatusUpdateFrequency: 7s\n",
            "nodeStatusReportFrequency",
            json!("7s"),
        ),
        (
            "nodeStatusUpdateFrequency: 0s\n",
            "nodeStatusReportFrequency",
            json!("5m0s"),
        ),
        (
            "nodeStatusUpdateFrequency: 7s\nnodeStatusReportFrequency: 1m\n",
            "nodeStatusReportFrequency",
            json!("1m0s"),
        ),
        (
            "maxParallelImagePulls: 5\n",
            "serializeImagePulls",
            json!(false),
        ),
        (
            "maxParallelImagePulls: 1\n",
            "serializeImagePulls",
            json!(true),
        ),
        (
            "serializeImagePulls: false\n",
            "serializeImagePulls",
            json!(false),
        ),
        (
            "featureGates: {KubeletCrashLoopBackOffMax: false}\n",
            "crashLoopBackOff",
            json!({}),
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}\n",
            "imagePullCredentialsVerificationPolicy",
            Value::Null,
        ),
        ("evictionHard: {}\n", "evictionHard", Value::Null),
        (
            "evictionHard: {memory.available: 1Gi}\n",
            "evictionHard",
            json!({"memory.available": "1Gi"}),
        ),
        (
            "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n",
            "evictionHard",
            json!({
                "memory.available": "1Gi",
                "nodefs.available": "10%",
                "nodefs.inodesFree": "5%",
                "imagefs.available": "15%",
                "imagefs.inodesFree": "5%"
            }),
        ),
    ];
    for (fields, name, expected) in cases {
        assert_eq!(field(fields, name), expected, "{fields}");
    }
}

/// The gates of the command line count before the file's defaults are filled in.
#[test]
fn gates_of_flags_decide_about_defaults() {
    let flag =
        "--feature-gates=KubeletCrashLoopBackOffMax=false,KubeletEnsureSecretPulledImages=false";
    for words in [vec![flag], vec![flag, "--config=/k.yaml"]] {
        let loaded = loaded(&words, &Files::new().with("/k.yaml", ""));
        let config = loaded.config.to_json();
        assert_eq!(config["crashLoopBackOff"], json!({}), "{words:?}");
        assert_eq!(
            config["imagePullCredentialsVerificationPolicy"],
            Value::Null,
            "{words:?}"
        );
    }
}

/// What is written back and read again is the same, every kind of field set.
#[test]
fn written_back_and_read_again() {
    let files = Files::new().with("/k.yaml", include_str!("data/everything.yaml"));
    let first = loaded(&["--config=/k.yaml"], &files);
    let mut warnings = common::warnings(&first);
    // Everything is set, so what has no effect is too.
    warnings.retain(|line| !line.starts_with("set, but without effect"));
    assert_eq!(warnings, Vec::<String>::new());
    let text = serde_json::to_string(&first.config).unwrap();
    let second = loaded(&["--config=/k.json"], &Files::new().raw("/k.json", text));
    assert_eq!(first.config, second.config);
}

/// Fields that cannot be set beside others that are.
const EXCLUSIVE: &[&str] = &[
    "systemReservedCgroup",
    "kubeReservedCgroup",
    "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods",
    "enableSystemLogHandler",
];

/// The file with every field set really has every field there is, each at another value than its default.
#[test]
fn the_full_file_is_full() {
    let full = from_file(include_str!("data/everything.yaml"))
        .config
        .to_json();
    let plain = from_file("").config.to_json();
    for (_, fields) in krablet_config::KubeletConfiguration::docs() {
        for field in fields.iter().filter(|field| !field.name.contains('.')) {
            if EXCLUSIVE.contains(&field.name.as_str()) {
                continue;
            }
            assert_ne!(
                full.get(&field.name),
                plain.get(&field.name),
                "{}",
                field.name
            );
        }
    }
}
