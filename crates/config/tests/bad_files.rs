//! Files that cannot be used, and what is said about each.

mod common;

use common::{Files, HEADER, file_message, message};

#[test]
fn files_that_cannot_be_read() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("/k", b"", "/k: the file is empty"),
        ("/k", b" \n\n", "/k: the file is empty"),
        ("/k", b"---\n", "/k: the file holds no configuration"),
        ("/k", b"just text", "/k:1: want a mapping of fields"),
        ("/k", b"- a\n- b\n", "/k:1: want a mapping of fields"),
        (
            "/k",
            b"port: 1\n",
            "/k:1: apiVersion: missing, want kubelet.config.k8s.io/v1beta1",
        ),
        (
            "/k",
            b"apiVersion: kubelet.config.k8s.io/v1beta1\n",
            "/k:1: kind: missing, want KubeletConfiguration",
        ),
        (
            "/k",
            b"apiVersion: v1\nkind: Pod\n",
            "/k:1: apiVersion: want kubelet.config.k8s.io/v1beta1, found \"v1\"",
        ),
        (
            "/k",
            b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\n",
            "/k:2: kind: want KubeletConfiguration, found \"CredentialProviderConfig\"",
        ),
        (
            "/k",
            b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: 7\n",
            "/k:2: kind: want KubeletConfiguration, found 7",
        ),
        ("/other", b"", "/k: cannot read the file: no such file"),
    ];
    for (path, content, expected) in cases {
        let files = Files::new().raw(path, *content);
        assert_eq!(message(&["--config=/k"], &files), *expected);
    }
    // Syntax is the YAML reader's to explain; the place is ours to name.
    for content in [
        &b"a: [1\nb: 2\n"[..],
        b"a: 1\n  b: 2\n",
        b"\xff\xfe",
        b"{\"a\": }",
        b"a: *b\n",
    ] {
        let message = message(&["--config=/k"], &Files::new().raw("/k", content));
        assert!(message.starts_with("/k:"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn wrong_types() {
    let cases: &[(&str, &str)] = &[
        (
            "port: abc\n",
            "/k.yaml:3: port: want a whole number, found the string \"abc\"",
        ),
        (
            "port: \"10250\"\n",
            "/k.yaml:3: port: want a whole number, found the string \"10250\"",
        ),
        (
            "port: 1.5\n",
            "/k.yaml:3: port: want a whole number, found the number 1.5",
        ),
        (
            "port: true\n",
            "/k.yaml:3: port: want a whole number, found the boolean true",
        ),
        (
            "port: [1]\n",
            "/k.yaml:3: port: want a whole number, found a list",
        ),
        (
            "port: 3000000000\n",
            "/k.yaml:3: port: 3000000000 is not between -2147483648 and 2147483647",
        ),
        (
            "failSwapOn: \"false\"\n",
            "/k.yaml:3: failSwapOn: want true or false, found the string \"false\"",
        ),
        (
            "failSwapOn: 0\n",
            "/k.yaml:3: failSwapOn: want true or false, found the number 0",
        ),
        (
            "clusterDomain: yes\n",
            "/k.yaml:3: clusterDomain: want a string, found the boolean true",
        ),
        (
            "clusterDomain: 5\n",
            "/k.yaml:3: clusterDomain: want a string, found the number 5",
        ),
        (
            "clusterDomain: {a: b}\n",
            "/k.yaml:3: clusterDomain: want a string, found a mapping",
        ),
        (
            "clusterDNS: 10.0.0.1\n",
            "/k.yaml:3: clusterDNS: want a list, found the string \"10.0.0.1\"",
        ),
        (
            "clusterDNS:\n- 10.0.0.1\n- 5\n",
            "/k.yaml:5: clusterDNS[1]: want a string, found the number 5",
        ),
        (
            "syncFrequency: 60\n",
            "/k.yaml:3: syncFrequency: want a duration such as \"30s\", found the number 60",
        ),
        (
            "syncFrequency: 1 minute\n",
            "/k.yaml:3: syncFrequency: unknown unit \" minute\" in duration \"1 minute\" (units are ns, us, ms, s, m, h)",
        ),
        (
            "syncFrequency: \"\"\n",
            "/k.yaml:3: syncFrequency: invalid duration \"\"",
        ),
        (
            "authentication: webhook\n",
            "/k.yaml:3: authentication: want a mapping, found the string \"webhook\"",
        ),
        (
            "authentication:\n  webhook:\n    enabled: 1\n",
            "/k.yaml:5: authentication.webhook.enabled: want true or false, found the number 1",
        ),
        (
            "kubeReserved:\n  cpu: 1\n",
            "/k.yaml:4: kubeReserved.cpu: want a string, found the number 1",
        ),
        (
            "evictionHard:\n  memory.available: 100\n",
            "/k.yaml:4: evictionHard[memory.available]: want a string, found the number 100",
        ),
        (
            "evictionHard: memory\n",
            "/k.yaml:3: evictionHard: want a mapping, found the string \"memory\"",
        ),
        (
            "featureGates:\n  EventedPLEG: \"true\"\n",
            "/k.yaml:4: featureGates.EventedPLEG: want true or false, found the string \"true\"",
        ),
        (
            "staticPodURLHeader:\n  a: b\n",
            "/k.yaml:4: staticPodURLHeader.a: want a list, found the string \"b\"",
        ),
        (
            "memoryThrottlingFactor: high\n",
            "/k.yaml:3: memoryThrottlingFactor: want a number, found the string \"high\"",
        ),
        (
            "reservedMemory:\n- numaNode: 0\n  limits: {memory: lots}\n",
            "/k.yaml:5: reservedMemory[0].limits.memory: \"lots\" is not a quantity such as 500m, 2Gi or 1e3",
        ),
        (
            "logging: {verbosity: -1}\n",
            "/k.yaml:3: logging.verbosity: -1 is not between 0 and 4294967295",
        ),
        (
            "logging: {flushFrequency: true}\n",
            "/k.yaml:3: logging.flushFrequency: want a duration such as \"30s\", found the boolean true",
        ),
        (
            "port: a\nmaxPods: b\nunknown: 1\nsyncFrequency: c\n",
            "/k.yaml:6: syncFrequency: invalid duration \"c\"\n\
             /k.yaml:3: port: want a whole number, found the string \"a\"\n\
             /k.yaml:4: maxPods: want a whole number, found the string \"b\"",
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(file_message(fields), *expected, "{fields}");
    }
}

/// Everything that is wrong is said at once, each with where it was written.
#[test]
fn all_problems_at_once() {
    let files = Files::new()
        .with(
            "/k.yaml",
            "port: 70000\nmaxPods: -1\nfeatureGates: {Nope: true}\n",
        )
        .with("/d/1.conf", "healthzPort: -5\n")
        .with("/d/2.conf", "maxPods: -2\n");
    let words = [
        "--config=/k.yaml",
        "--config-dir=/d",
        "--event-burst=-1",
        "--cloud-provider=x",
        "--feature-gates=NodeSwap=false",
    ];
    assert_eq!(
        message(&words, &files),
        "--cloud-provider: \"x\" must be empty or external\n\
         --feature-gates: featureGates.NodeSwap: cannot be set to false: the gate is locked to true\n\
         /k.yaml:5: featureGates.Nope: unknown feature gate\n\
         /k.yaml:3: port: 70000 must be between 1 and 65535\n\
         /d/1.conf:3: healthzPort: -5 must be between 0 and 65535\n\
         --event-burst: eventBurst: -1 must not be negative\n\
         /d/2.conf:3: maxPods: -2 must not be negative"
    );
}

#[test]
fn drop_ins_that_cannot_be_used() {
    let good = Files::new().with("/k.yaml", "");
    let words = ["--config=/k.yaml", "--config-dir=/d"];
    assert_eq!(
        message(&words, &good),
        "/d: cannot read the drop-in directory: no such directory"
    );
    let bad = Files::new()
        .with("/k.yaml", "")
        .raw("/d/1.conf", "maxPods: 5\n")
        .raw("/d/2.conf", HEADER.replace("v1beta1", "v1"))
        .with("/d/3.conf", "maxPods: x\n")
        .raw("/d/4.conf", "");
    assert_eq!(
        message(&words, &bad),
        "/d/1.conf:1: apiVersion: missing, want kubelet.config.k8s.io/v1beta1\n\
         /d/2.conf:1: apiVersion: want kubelet.config.k8s.io/v1beta1, found \"kubelet.config.k8s.io/v1\"\n\
         /d/3.conf:3: maxPods: want a whole number, found the string \"x\"\n\
         /d/4.conf: the file is empty"
    );
}
