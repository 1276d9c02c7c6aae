//! From bytes to typed pods: kinds, types, lines, warnings, lists.
#![allow(clippy::unwrap_used, clippy::expect_used)] // in the tests' own helpers too

mod common;

use common::{file_origin, url_origin};
use krablet_manifest::{MAX_BYTES, Origin, Refusal, decode};

fn refusal(text: &str, origin: &Origin) -> (String, Option<usize>) {
    let refusal = decode(text.as_bytes(), origin).expect_err(text);
    (refusal.to_string(), refusal.line())
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    image: busybox:1\n";

#[test]
fn what_is_not_a_pod_is_told_with_its_line() {
    let cases = [
        ("", "the manifest is empty", None),
        ("# nothing\n---\n", "the manifest is empty", None),
        (
            "just text",
            "line 1: a manifest is a mapping with apiVersion and kind",
            Some(1),
        ),
        (
            "- a\n- b\n",
            "line 1: a manifest is a mapping with apiVersion and kind",
            Some(1),
        ),
        ("kind: Pod\n", "line 1: apiVersion is missing", Some(1)),
        ("apiVersion: v1\n", "line 1: kind is missing", Some(1)),
        (
            "apiVersion: v1\nkind: 5\n",
            "line 2: kind is missing",
            Some(2),
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "line 2: kind Deployment of version apps/v1 is not a pod (kind Pod, apiVersion v1)",
            Some(2),
        ),
        (
            "apiVersion: v1beta1\nkind: Pod\n",
            "line 2: kind Pod of version v1beta1 is not a pod (kind Pod, apiVersion v1)",
            Some(2),
        ),
        (
            "apiVersion: v1\nkind: PodList\n",
            "line 2: kind PodList: a file holds a single Pod",
            Some(2),
        ),
        (
            "apiVersion: v1\nkind: List\n",
            "line 2: kind List: a file holds a single Pod",
            Some(2),
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {}\n",
            "invalid pod: name is needed for the pod",
            Some(3),
        ),
        (
            "apiVersion: v1\nkind: Pod\n",
            "invalid pod: name is needed for the pod",
            Some(1),
        ),
    ];
    for (text, message, line) in cases {
        assert_eq!(
            refusal(text, &file_origin()),
            (message.to_owned(), line),
            "{text}"
        );
    }
}

#[test]
fn syntax_is_told_with_its_line() {
    for (text, line) in [
        ("a: [1, 2", 1),
        ("a: 1\n b: 2\n", 2),
        ("a:\n\t- 1\n", 2),
        ("a: \"x\n", 1),
        ("{\"a\": 1", 1),
        ("a: 1\nb: \u{1}\n", 2),
        ("a: &a [*a]\n", 1),
    ] {
        let refusal = decode(text.as_bytes(), &file_origin()).expect_err(text);
        assert!(matches!(refusal, Refusal::Syntax(_)), "{text}: {refusal}");
        assert!(
            refusal.line().is_some_and(|found| found >= line),
            "{text}: {refusal}"
        );
    }
    let refusal = decode(&[0xff, 0xfe, 0x00], &file_origin()).expect_err("binary");
    assert_eq!(refusal.to_string(), "line 1: the text is not valid UTF-8");
}

#[test]
fn wrong_types_name_field_line_and_reason() {
    for (from, to, want) in [
        (
            "name: web\nspec",
            "name: 5\nspec",
            "line 4: metadata.name: invalid type: integer `5`, expected a string",
        ),
        (
            "  - name: web\n    image: busybox:1\n",
            "  - name: web\n    image: busybox:1\n    ports:\n    - containerPort: http\n",
            "line 10: spec.containers[0].ports[0].containerPort: invalid type: string \"http\", expected i32",
        ),
        (
            "    image: busybox:1\n",
            "    image: busybox:1\n    env:\n    - name: A\n      value: 1\n",
            "line 11: spec.containers[0].env[0].value: invalid type: integer `1`, expected a string",
        ),
        (
            "    image: busybox:1\n",
            "    image: busybox:1\n    tty: 'yes'\n",
            "line 9: spec.containers[0].tty: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "  containers:\n",
            "  hostNetwork: 1\n  containers:\n",
            "line 6: spec.hostNetwork: invalid type: integer `1`, expected a boolean",
        ),
        (
            "  name: web\nspec",
            "  name: web\n  labels:\n    a.b/c: true\nspec",
            "line 6: metadata.labels[a.b/c]: invalid type: boolean `true`, expected a string",
        ),
        (
            "  containers:\n",
            "  terminationGracePeriodSeconds: 1.5\n  containers:\n",
            "line 6: spec.terminationGracePeriodSeconds: invalid type: floating point `1.5`, expected i64",
        ),
        (
            "    image: busybox:1\n",
            "    image: busybox:1\n    livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 3000000000}\n",
            "line 9: spec.containers[0].livenessProbe.periodSeconds: invalid value: integer `3000000000`, expected i32",
        ),
        (
            "    image: busybox:1\n",
            "    image: busybox:1\n    command: sleep 1\n",
            "line 9: spec.containers[0].command: invalid type: string \"sleep 1\", expected a sequence",
        ),
    ] {
        let text = POD.replace(from, to);
        assert_ne!(text, POD);
        assert_eq!(refusal(&text, &file_origin()).0, want);
    }
}

#[test]
fn a_second_document_is_ignored_with_a_warning() {
    let text = format!("---\n# a comment\n---\n{POD}---\nkind: Other\n");
    let decoded = decode(text.as_bytes(), &file_origin()).unwrap();
    assert_eq!(decoded.pods.len(), 1);
    let warnings: Vec<String> = decoded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["line 13: only the first document of a manifest is used, the rest is ignored"]
    );
}

#[test]
fn unknown_and_double_fields_are_warnings() {
    let text =
        format!("{POD}    imagee: x\n    image: busybox:2\n  foo: {{bar: 1}}\nextra.field: 1\n");
    let decoded = decode(text.as_bytes(), &file_origin()).unwrap();
    let warnings: Vec<String> = decoded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "line 10: duplicate field \"spec.containers[0].image\"",
            "line 12: unknown field \"[extra.field]\"",
            "line 9: unknown field \"spec.containers[0].imagee\"",
            "line 11: unknown field \"spec.foo\"",
        ]
    );
    let image = decoded.pods[0].spec.as_ref().unwrap().containers[0]
        .image
        .as_deref();
    assert_eq!(image, Some("busybox:2"));
}

#[test]
fn what_the_api_server_wrote_is_dropped() {
    let text = POD.replace(
        "  name: web\nspec",
        "  name: web\n  deletionTimestamp: \"2024-01-01T00:00:00Z\"\n  annotations:\n    kubernetes.io/config.mirror: abc\n    kubernetes.io/config.seen: now\n    keep: me\nspec",
    ) + "status: {phase: Running}\n";
    let decoded = decode(text.as_bytes(), &file_origin()).unwrap();
    let pod = &decoded.pods[0];
    assert_eq!(decoded.warnings.len(), 4, "{:?}", decoded.warnings);
    assert_eq!(pod.metadata.deletion_timestamp, None);
    let keys: Vec<_> = pod.metadata.annotations.as_ref().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "keep",
            "kubernetes.io/config.hash",
            "kubernetes.io/config.source"
        ]
    );
    assert_eq!(
        pod.status.as_ref().unwrap().phase.as_deref(),
        Some("Pending")
    );
}

#[test]
fn a_url_may_serve_a_list() {
    let item = |name: &str| {
        format!("- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: i}}]}}\n")
    };
    for kind in ["PodList", "List"] {
        let text = format!(
            "apiVersion: v1\nkind: {kind}\nitems:\n{}{}",
            item("a"),
            item("b")
        );
        let decoded = decode(text.as_bytes(), &url_origin()).unwrap();
        let names: Vec<_> = decoded
            .pods
            .iter()
            .map(|pod| pod.metadata.name.as_deref().unwrap())
            .collect();
        assert_eq!(names, ["a-node", "b-node"]);
    }
    assert!(
        decode(b"apiVersion: v1\nkind: PodList\n", &url_origin())
            .unwrap()
            .pods
            .is_empty()
    );
    assert_eq!(decode(POD.as_bytes(), &url_origin()).unwrap().pods.len(), 1);

    let bad = format!(
        "apiVersion: v1\nkind: List\nitems:\n{}- {{metadata: {{name: b}}}}\n",
        item("a")
    );
    let (message, line) = refusal(&bad, &url_origin());
    assert_eq!(
        message,
        "invalid pod items[1]: spec.containers: Required value"
    );
    assert_eq!(line, Some(6));
    let (message, _) = refusal(
        "apiVersion: v1\nkind: List\nitems: [{kind: Service}]\n",
        &url_origin(),
    );
    assert_eq!(
        message,
        "line 3: items[0].kind is Service, only pods (kind Pod, apiVersion v1) can be run"
    );
    let (message, _) = refusal("apiVersion: v1\nkind: List\nitems: {}\n", &url_origin());
    assert_eq!(message, "line 3: items: expected a list of pods");
    let (message, _) = refusal("apiVersion: v1\nkind: List\nitems: [5]\n", &url_origin());
    assert!(
        message.starts_with("line 3: items[0]: invalid type"),
        "{message}"
    );
}

#[test]
fn several_problems_are_joined() {
    let (message, line) = refusal(
        &POD.replace("    image: busybox:1\n", "    imagePullPolicy: x\n"),
        &file_origin(),
    );
    assert_eq!(
        message,
        "invalid pod: [spec.containers[0].image: Required value, spec.containers[0].imagePullPolicy: \
         Unsupported value: \"x\": supported values: \"Always\", \"IfNotPresent\", \"Never\"]"
    );
    assert_eq!(line, Some(7));
}

#[test]
fn large_and_endless_manifests_are_bounded() {
    let large = vec![b' '; MAX_BYTES + 1];
    assert_eq!(
        decode(&large, &file_origin()).unwrap_err(),
        Refusal::TooLarge
    );
    let many = format!("{POD}{}", "  - {}\n".repeat(5000));
    let Refusal::Invalid { problems, .. } = decode(many.as_bytes(), &file_origin()).unwrap_err()
    else {
        panic!("not told as problems");
    };
    assert_eq!(problems.len(), krablet_manifest::MAX_PROBLEMS + 1);
    let long = POD.replace("busybox:1", &format!(" \"{}\"", " x".repeat(100_000)));
    assert!(refusal(&long, &file_origin()).0.len() < 1000);
}
