//! Bad command lines and the one line each gets.

mod common;

use common::{Files, file_message, message};

#[test]
fn command_lines() {
    let cases: &[(&[&str], &str)] = &[
        (&["--nonsense"], "unknown flag: --nonsense"),
        (&["--nonsense=1"], "unknown flag: --nonsense"),
        (
            &["--max-pod=1"],
            "unknown flag: --max-pod (did you mean --max-pods?)",
        ),
        (
            &["--kube-config=x"],
            "unknown flag: --kube-config (did you mean --kubeconfig?)",
        ),
        (
            &["--MAX-PODS=1"],
            "unknown flag: --MAX-PODS (did you mean --max-pods?)",
        ),
        (
            &["--pod-infra-container-image=x"],
            "unknown flag: --pod-infra-container-image (removed in 1.35; the sandbox image is a setting of the runtime)",
        ),
        (
            &["--pod_infra_container_image", "x"],
            "unknown flag: --pod_infra_container_image (removed in 1.35; the sandbox image is a setting of the runtime)",
        ),
        (
            &["--container-runtime=remote"],
            "unknown flag: --container-runtime (removed in 1.27; every runtime is reached over CRI, see --container-runtime-endpoint)",
        ),
        (
            &["--network-plugin=cni"],
            "unknown flag: --network-plugin (removed in 1.24 with the Docker shim; networking is a setting of the runtime)",
        ),
        (
            &["--cni-bin-dir=/opt/cni/bin"],
            "unknown flag: --cni-bin-dir (removed in 1.24 with the Docker shim; networking is a setting of the runtime)",
        ),
        (
            &["--cni-conf-dir=/etc/cni/net.d"],
            "unknown flag: --cni-conf-dir (removed in 1.24 with the Docker shim; networking is a setting of the runtime)",
        ),
        (
            &["--logtostderr=true"],
            "unknown flag: --logtostderr (removed in 1.26; logs go to standard error, see --logging-format)",
        ),
        (&["run"], "unknown command \"run\": only flags are accepted"),
        (
            &["--enable-server", "true"],
            "unknown command \"true\": only flags are accepted",
        ),
        (&[""], "unknown command \"\": only flags are accepted"),
        (&["-"], "unknown command \"-\": only flags are accepted"),
        (
            &["--", "x"],
            "unknown command \"x\": only flags are accepted",
        ),
        (&["a", "--nonsense"], "unknown flag: --nonsense"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (
            &["-config=/k"],
            "unknown shorthand flag: 'c' in -config=/k (did you mean --config?)",
        ),
        (
            &["-vx"],
            "invalid argument \"x\" for --v: want a level from 0 upwards",
        ),
        (
            &["-v="],
            "invalid argument \"=\" for --v: want a level from 0 upwards",
        ),
        (
            &["-v=-1"],
            "invalid argument \"-1\" for --v: want a level from 0 upwards",
        ),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["--config"], "flag needs an argument: --config"),
        (&["--max-pods"], "flag needs an argument: --max-pods"),
        (&["--max_pods"], "flag needs an argument: --max-pods"),
        (
            &["--max-pods=many"],
            "invalid argument \"many\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods="],
            "invalid argument \"\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods=1.5"],
            "invalid argument \"1.5\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods=08"],
            "invalid argument \"08\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods=1__0"],
            "invalid argument \"1__0\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods=--1"],
            "invalid argument \"--1\" for --max-pods: want a whole number",
        ),
        (
            &["--max-pods=2147483648"],
            "invalid argument \"2147483648\" for --max-pods: out of range",
        ),
        (
            &["--fail-swap-on=maybe"],
            "invalid argument \"maybe\" for --fail-swap-on: want true or false",
        ),
        (
            &["--fail-swap-on="],
            "invalid argument \"\" for --fail-swap-on: want true or false",
        ),
        (
            &["--fail-swap-on=yes"],
            "invalid argument \"yes\" for --fail-swap-on: want true or false",
        ),
        (
            &["--sync-frequency=60"],
            "invalid argument \"60\" for --sync-frequency: missing unit in duration \"60\" (units are ns, us, ms, s, m, h)",
        ),
        (
            &["--sync-frequency=1d"],
            "invalid argument \"1d\" for --sync-frequency: unknown unit \"d\" in duration \"1d\" (units are ns, us, ms, s, m, h)",
        ),
        (
            &["--address=localhost"],
            "invalid argument \"localhost\" for --address: \"localhost\" is not a valid IP address",
        ),
        (
            &["--address=1.2.3"],
            "invalid argument \"1.2.3\" for --address: \"1.2.3\" is not a valid IP address",
        ),
        (
            &["--healthz-bind-address=1.2.3.256"],
            "invalid argument \"1.2.3.256\" for --healthz-bind-address: \"1.2.3.256\" is not a valid IP address",
        ),
        (
            &["--kube-reserved=cpu"],
            "invalid argument \"cpu\" for --kube-reserved: malformed pair \"cpu\", want key=value",
        ),
        (
            &["--eviction-hard=memory.available=1Gi"],
            "invalid argument \"memory.available=1Gi\" for --eviction-hard: malformed pair \"memory.available=1Gi\", want key<value",
        ),
        (
            &["--feature-gates=EventedPLEG"],
            "invalid argument \"EventedPLEG\" for --feature-gates: malformed pair \"EventedPLEG\", want Gate=true or Gate=false",
        ),
        (
            &["--feature-gates=EventedPLEG=2"],
            "invalid argument \"EventedPLEG=2\" for --feature-gates: EventedPLEG: want true or false",
        ),
        (
            &["--manifest-url-header=a"],
            "invalid argument \"a\" for --manifest-url-header: malformed pair \"a\", want name:value",
        ),
        (
            &["--register-with-taints=a"],
            "invalid argument \"a\" for --register-with-taints: invalid taint \"a\", want key=value:effect",
        ),
        (
            &["--register-with-taints=a=b:Never"],
            "invalid argument \"a=b:Never\" for --register-with-taints: invalid taint \"a=b:Never\", the effect must be NoSchedule, PreferNoSchedule or NoExecute",
        ),
        (
            &["--register-with-taints=a=1:NoExecute,a=2:NoExecute"],
            "invalid argument \"a=1:NoExecute,a=2:NoExecute\" for --register-with-taints: duplicated taint a:NoExecute, a key may have an effect only once",
        ),
        (
            &["--reserved-memory=x:memory=1"],
            "invalid argument \"x:memory=1\" for --reserved-memory: NUMA node \"x\" is not a whole number",
        ),
        (
            &["--reserved-memory=0"],
            "invalid argument \"0\" for --reserved-memory: malformed reservation \"0\", want node:type=amount,...",
        ),
        (
            &["--reserved-memory=0:cpu=1"],
            "invalid argument \"0:cpu=1\" for --reserved-memory: unknown memory type \"cpu\", want memory or hugepages-<size>",
        ),
        (
            &["--vmodule=a"],
            "invalid argument \"a\" for --vmodule: \"a\" does not have the form pattern=level",
        ),
        (
            &["--vmodule=a=x"],
            "invalid argument \"a=x\" for --vmodule: \"a=x\": want a level from 0 upwards",
        ),
        (
            &["--cluster-dns=\"a"],
            "invalid argument \"\\\"a\" for --cluster-dns: a double quote is never closed",
        ),
        (
            &["--cluster-dns=a\"b"],
            "invalid argument \"a\\\"b\" for --cluster-dns: a double quote stands inside an unquoted value",
        ),
        (
            &["--log-text-info-buffer-size=big"],
            "invalid argument \"big\" for --log-text-info-buffer-size: \"big\" is not a quantity such as 500m, 2Gi or 1e3",
        ),
        (
            &["--version=maybe"],
            "invalid argument \"maybe\" for --version: want true, false, raw or vX.Y.Z",
        ),
        (
            &["--version=v1.35.0"],
            "invalid argument \"v1.35.0\" for --version: the version must be v1.36.4 or a build of it",
        ),
        (
            &["--application-metrics-count-limit=x"],
            "invalid argument \"x\" for --application-metrics-count-limit: want a whole number",
        ),
        (
            &["--storage-driver-buffer-duration=1"],
            "invalid argument \"1\" for --storage-driver-buffer-duration: missing unit in duration \"1\" (units are ns, us, ms, s, m, h)",
        ),
        (
            &["--enable-load-reader=x"],
            "invalid argument \"x\" for --enable-load-reader: want true or false",
        ),
    ];
    for (words, expected) in cases {
        let message = message(words, &Files::new());
        assert_eq!(message, *expected, "{words:?}");
        assert_eq!(message.lines().count(), 1, "{words:?}");
    }
}

#[test]
fn values_of_flags_that_do_not_hold() {
    let cases: &[(&[&str], &str)] = &[
        (&["--port=0"], "--port: port: 0 must be between 1 and 65535"),
        (
            &["--feature-gates=Nope=true"],
            "--feature-gates: featureGates.Nope: unknown feature gate",
        ),
        (
            &["--feature-gates=NodeSwap=false"],
            "--feature-gates: featureGates.NodeSwap: cannot be set to false: the gate is locked to true",
        ),
        (
            &["--cloud-provider=aws"],
            "--cloud-provider: \"aws\" must be empty or external",
        ),
        (
            &["--exit-on-lock-contention"],
            "--exit-on-lock-contention: needs --lock-file",
        ),
        (
            &[
                "--local-objects-dir=/etc/objects",
                "--kubeconfig=/etc/kubeconfig",
            ],
            "--local-objects-dir: is for a node without an API server; leave it or --kubeconfig and --bootstrap-kubeconfig out",
        ),
        (
            &["--container-logs-dir=containers"],
            "--container-logs-dir: \"containers\" must be an absolute path",
        ),
        (
            &["--container-logs-dir="],
            "--container-logs-dir: \"\" must be an absolute path",
        ),
        (
            &["--node-ip=1.1.1.1,2.2.2.2"],
            "--node-ip: want a single address, or an IPv4 and an IPv6 one",
        ),
        (
            &["--node-ip=1.1.1.1,::"],
            "--node-ip: a pair of addresses cannot hold 0.0.0.0 or ::",
        ),
        (
            &["--node-labels=-a=b"],
            "--node-labels: \"-a\": the name must be 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        ),
        (
            &["--node-labels=a=-b"],
            "--node-labels: \"-b\": a value must be empty or at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        ),
        (
            &["--eviction-hard=memory.free<1Gi"],
            "--eviction-hard: evictionHard[memory.free]: unknown eviction signal \"memory.free\"",
        ),
        (
            &["--container-runtime-endpoint="],
            "--container-runtime-endpoint: containerRuntimeEndpoint: must not be empty",
        ),
        (
            &["--logging-format=xml"],
            "--logging-format: logging.format: \"xml\" must be one of text, json",
        ),
    ];
    for (words, expected) in cases {
        assert_eq!(message(words, &Files::new()), *expected, "{words:?}");
    }
    let message = message(
        &["--node-labels=node-role.kubernetes.io/master="],
        &Files::new(),
    );
    assert!(
        message.starts_with("--node-labels: \"node-role.kubernetes.io/master\" is reserved; "),
        "{message}"
    );
}

/// No text, however odd, gets anything but an answer.
#[test]
fn odd_words_never_panic() {
    let odd = [
        "",
        "-",
        "--",
        "=",
        "-=",
        "--=",
        "\u{0}",
        "-\u{e4}",
        "--\u{e4}=x",
        "-h=",
        "-hh",
        "-v=5x",
        "0x",
        "-0x",
        "+",
        "_",
        "0_",
        "0x_",
    ];
    for first in odd {
        let _ = message(&[first], &Files::new());
        for flag in krablet_config::flags::all() {
            let _ = message(&[&format!("--{}={first}", flag.name)], &Files::new());
        }
        let _ = file_message(first);
    }
}
