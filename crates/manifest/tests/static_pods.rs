//! What makes a pod static: its identity, its marks, and what it may not refer to.
#![allow(clippy::unwrap_used, clippy::expect_used)] // in the tests' own helpers too

mod common;

use common::{file_origin, overlay, url_origin};
use krablet_manifest::{Origin, Place, Refusal, decode};
use krablet_pod::api::Pod;
use serde_json::{Value, json};

fn pod(text: &str, origin: &Origin) -> Pod {
    decode(text.as_bytes(), origin).expect(text).pods.remove(0)
}

fn uid(text: &str, origin: &Origin) -> String {
    pod(text, origin).metadata.uid.unwrap()
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    image: busybox:1\n";

#[test]
fn equal_pods_have_equal_uids() {
    let first = uid(POD, &file_origin());
    assert_eq!(first.len(), 32);
    assert!(
        first
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    );
    for same in [
        POD.to_owned(),
        format!("# a comment\n{POD}"),
        POD.replace("image: busybox:1", "image:   \"busybox:1\" # the same"),
        POD.replace("\n", "\r\n"),
        "{apiVersion: v1, kind: Pod, spec: {containers: [{image: 'busybox:1', name: web}]}, metadata: {name: web}}".to_owned(),
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","creationTimestamp":null},"spec":{"containers":[{"name":"web","image":"busybox:1"}]},"status":{}}"#.to_owned(),
        // A default written out is the default.
        format!("{POD}    imagePullPolicy: IfNotPresent\n  restartPolicy: Always\n"),
        format!("{POD}    unknown: field\n"),
    ] {
        assert_eq!(uid(&same, &file_origin()), first, "{same}");
    }
    let quantity = |cpu: &str| {
        uid(
            &format!("{POD}    resources: {{requests: {{cpu: {cpu}}}}}\n"),
            &file_origin(),
        )
    };
    assert_eq!(quantity("1.5"), quantity("1500m"));
}

#[test]
fn the_recipe_of_the_uid_stays() {
    // A change here restarts every static pod of every node that is upgraded.
    let digits = uid(POD, &file_origin());
    expect_test::expect!["757fa919de8e5388bba7130e56a45100"].assert_eq(&digits);
}

#[test]
fn different_pods_have_different_uids() {
    let other = |place: Place, node: &str| Origin {
        place,
        node_name: node.into(),
        references: krablet_manifest::References::None,
    };
    let mut seen = vec![
        uid(POD, &file_origin()),
        uid(POD, &other(Place::File("/elsewhere.yaml".into()), "node")),
        uid(
            POD,
            &other(
                Place::File("/etc/kubernetes/manifests/web.yaml".into()),
                "node2",
            ),
        ),
        uid(POD, &url_origin()),
    ];
    for change in [
        POD.replace("busybox:1", "busybox:2"),
        POD.replace("name: web\nspec", "name: web2\nspec"),
        POD.replace("name: web\nspec", "name: web\n  namespace: other\nspec"),
        POD.replace("name: web\nspec", "name: web\n  labels: {a: b}\nspec"),
        POD.replace("name: web\nspec", "name: web\n  annotations: {a: b}\nspec"),
        format!("{POD}    args: [a, b]\n"),
        format!("{POD}    args: [ab]\n"),
        format!("{POD}    args: [a b]\n"),
        format!("{POD}    command: [a, b]\n"),
        format!("{POD}  terminationGracePeriodSeconds: 31\n"),
        format!("{POD}  hostNetwork: true\n"),
    ] {
        assert_ne!(change, POD);
        seen.push(uid(&change, &file_origin()));
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
    // One node's URL is every node's URL.
    assert_eq!(
        uid(POD, &url_origin()),
        uid(POD, &other(url_origin().place, "node2"))
    );
}

#[test]
fn a_given_uid_is_kept() {
    let text = POD.replace("name: web\nspec", "name: web\n  uid: 0b3d-1\nspec");
    let pod = pod(&text, &file_origin());
    assert_eq!(pod.metadata.uid.as_deref(), Some("0b3d-1"));
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["kubernetes.io/config.hash"], "0b3d-1");
}

#[test]
fn a_static_pod_carries_its_marks() {
    let origin = Origin {
        node_name: "Node-A".into(),
        references: krablet_manifest::References::None,
        ..file_origin()
    };
    let refused = decode(POD.as_bytes(), &origin).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("spec.nodeName: Invalid value: \"Node-A\""),
        "{refused}"
    );

    let file = pod(POD, &file_origin());
    let spec = file.spec.as_ref().unwrap();
    assert_eq!(file.metadata.name.as_deref(), Some("web-node"));
    assert_eq!(file.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(spec.node_name.as_deref(), Some("node"));
    assert_eq!(
        serde_json::to_value(&spec.tolerations).unwrap(),
        json!([{"operator": "Exists", "effect": "NoExecute"}])
    );
    let annotations = file.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        Some(&annotations["kubernetes.io/config.hash"]),
        file.metadata.uid.as_ref()
    );
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert!(krablet_pod::marks::is_static(&file));
    assert_eq!(
        serde_json::to_value(&file.status).unwrap(),
        json!({"phase": "Pending"})
    );

    let url = pod(POD, &url_origin());
    assert_eq!(url.spec.as_ref().unwrap().tolerations, None);
    assert_eq!(
        url.metadata.annotations.unwrap()["kubernetes.io/config.source"],
        "http"
    );
}

#[test]
fn the_toleration_is_not_doubled() {
    let tolerations = |written: &str| {
        let pod = pod(&format!("{POD}  tolerations: {written}\n"), &file_origin());
        serde_json::to_value(pod.spec.unwrap().tolerations).unwrap()
    };
    let forever = json!({"operator": "Exists", "effect": "NoExecute"});
    assert_eq!(
        tolerations("[{operator: Exists, effect: NoExecute}]"),
        json!([forever])
    );
    assert_eq!(
        tolerations(
            "[{operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {operator: Exists}]"
        ),
        json!([forever, {"operator": "Exists"}])
    );
    assert_eq!(
        tolerations("[{key: a, operator: Exists, effect: NoExecute}]"),
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute"}, forever])
    );
}

#[test]
fn references_to_api_objects_are_refused() {
    for (case, want) in [
        (
            json!({"spec": {"serviceAccountName": "default"}}),
            "serviceaccounts (spec.serviceAccountName)",
        ),
        (
            json!({"spec": {"serviceAccount": "robot"}}),
            "serviceaccounts (spec.serviceAccountName)",
        ),
        (
            json!({"spec": {"imagePullSecrets": [{"name": "a"}]}}),
            "secrets (spec.imagePullSecrets[0])",
        ),
        (
            json!({"spec": {"resourceClaims": [{"name": "a"}]}}),
            "resourceclaims (spec.resourceClaims)",
        ),
        (
            json!({"container": {"envFrom": [{"secretRef": {"name": "a"}}]}}),
            "secrets (spec.containers[0].envFrom[0].secretRef)",
        ),
        (
            json!({"init": {"envFrom": [{"configMapRef": {"name": "a"}}]}}),
            "configmaps (spec.initContainers[0].envFrom[0].configMapRef)",
        ),
        (
            json!({"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}}),
            "secrets (spec.containers[0].env[0].valueFrom.secretKeyRef)",
        ),
        (
            json!({"container": {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}}),
            "configmaps (spec.containers[0].env[0].valueFrom.configMapKeyRef)",
        ),
        (
            json!({"volume": {"secret": {"secretName": "a"}}}),
            "secrets (spec.volumes[0].secret)",
        ),
        (
            json!({"volume": {"configMap": {"name": "a"}}}),
            "configmaps (spec.volumes[0].configMap)",
        ),
        (
            json!({"volume": {"persistentVolumeClaim": {"claimName": "a"}}}),
            "persistentvolumeclaims (spec.volumes[0].persistentVolumeClaim)",
        ),
        (
            json!({"volume": {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}}),
            "persistentvolumeclaims (spec.volumes[0].ephemeral)",
        ),
        (
            json!({"volume": {"csi": {"driver": "a.example.com"}}}),
            "csidrivers (spec.volumes[0].csi)",
        ),
        (
            json!({"volume": {"glusterfs": {"endpoints": "a", "path": "b"}}}),
            "endpoints (spec.volumes[0].glusterfs)",
        ),
        (
            json!({"volume": {"azureFile": {"secretName": "a", "shareName": "b"}}}),
            "secrets (spec.volumes[0].azureFile)",
        ),
        (
            json!({"volume": {"rbd": {"monitors": ["a"], "image": "b", "secretRef": {"name": "c"}}}}),
            "secrets (spec.volumes[0].rbd.secretRef)",
        ),
        (
            json!({"volume": {"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}}}),
            "configmaps (spec.volumes[0].projected.sources[0].configMap), secrets (spec.volumes[0].projected.sources[1].secret)",
        ),
        (
            json!({"volume": {"projected": {"sources": [{"clusterTrustBundle": {"name": "a", "path": "b"}}]}}}),
            "clustertrustbundles (spec.volumes[0].projected.sources[0].clusterTrustBundle)",
        ),
        (
            json!({"volume": {"projected": {"sources": [{"podCertificate": {"signerName": "a/b", "keyType": "ED25519", "keyPath": "k"}}]}}}),
            "podcertificates (spec.volumes[0].projected.sources[0].podCertificate)",
        ),
        (
            json!({"spec": {"serviceAccountName": "a"}, "volume": {"projected": {"sources": [{"serviceAccountToken": {"path": "b"}}]}}}),
            "serviceaccounts (spec.serviceAccountName), serviceaccounts (spec.volumes[0].projected.sources[0].serviceAccountToken)",
        ),
    ] {
        let text = overlay(&case).to_string();
        let refusal = decode(text.as_bytes(), &file_origin()).expect_err(&text);
        assert!(matches!(refusal, Refusal::References { .. }), "{refusal}");
        assert_eq!(
            refusal.to_string(),
            format!("static pods may not reference {want}")
        );
    }
}

#[test]
fn a_node_with_objects_of_its_own_allows_references_to_them() {
    let origin = Origin {
        references: krablet_manifest::References::LocalObjects,
        ..file_origin()
    };
    for case in [
        json!({"spec": {"imagePullSecrets": [{"name": "a"}]}}),
        json!({"container": {"envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}]}}),
        json!({"volume": {"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}}}),
    ] {
        let text = overlay(&case).to_string();
        assert!(decode(text.as_bytes(), &origin).is_ok(), "{text}");
    }
    let text = overlay(
        &json!({"spec": {"serviceAccountName": "a"}, "volume": {"secret": {"secretName": "a"}}}),
    );
    let refusal = decode(text.to_string().as_bytes(), &origin).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "static pods may not reference serviceaccounts (spec.serviceAccountName)"
    );
    let all = Origin {
        references: krablet_manifest::References::All,
        ..file_origin()
    };
    assert!(decode(text.to_string().as_bytes(), &all).is_ok());
}

#[test]
fn the_defaults_of_the_api_are_filled_in() {
    let text = overlay(&json!({
        "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": -1},
        "volume": {"hostPath": {"path": "/a"}},
        "container": {
            "image": "busybox",
            "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1.5", "memory": "0.0001"}, "requests": {"cpu": "100m"}},
            "livenessProbe": {"httpGet": {"port": 80}},
            "readinessProbe": {"grpc": {"port": 80}, "periodSeconds": 0, "successThreshold": 2},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        },
    }))
    .to_string();
    let spec = serde_json::to_value(pod(&text, &url_origin()).spec).unwrap();
    let want = json!({
        "containers": [{
            "name": "web",
            "image": "busybox",
            "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "1500m", "memory": "1m"}, "requests": {"cpu": "100m", "memory": "1m"}},
            "livenessProbe": {
                "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            },
            "readinessProbe": {
                "grpc": {"port": 80, "service": ""},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 2, "failureThreshold": 3,
            },
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
        }],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": true,
        "hostNetwork": true,
        "nodeName": "node",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "hostPath": {"path": "/a", "type": ""}}],
    });
    assert_eq!(spec, want);
}

#[test]
fn pod_level_requests_come_from_containers_then_limits() {
    let text = overlay(&json!({
        "spec": {"resources": {"limits": {"cpu": "4", "memory": "1Gi"}}},
        "init": {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        "container": {"resources": {"requests": {"cpu": "1"}}},
    }))
    .to_string();
    let spec: Value = serde_json::to_value(pod(&text, &file_origin()).spec).unwrap();
    assert_eq!(
        spec["resources"]["requests"],
        json!({"cpu": "1500m", "memory": "1Gi"})
    );
}

#[test]
fn good_manifests_are_taken_without_a_word() {
    for (name, text) in [
        ("etcd", include_str!("good/etcd.yaml")),
        ("kube-apiserver", include_str!("good/kube-apiserver.yaml")),
        ("kube-scheduler", include_str!("good/kube-scheduler.json")),
        ("everything", include_str!("good/everything.yaml")),
        ("flow", include_str!("good/flow.yaml")),
    ] {
        let decoded = decode(text.as_bytes(), &file_origin())
            .unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(decoded.warnings, [], "{name}");
        let pod = &decoded.pods[0];
        assert_eq!(pod.metadata.name, Some(format!("{name}-node")));
        // What was read can be written and read again.
        let again: Pod = serde_json::from_str(&serde_json::to_string(pod).unwrap()).unwrap();
        assert_eq!(&again, pod);
    }
}
