//! The kubelet's files, to and fro.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::path::Path;
use std::sync::Arc;

use krablet_checkpoint::upstream::{
    ACTUATED, ALLOCATED, KubeletRecord, actuated_pods, allocated_pods,
};
use krablet_checkpoint::{AdmittedPods, Allocation, Loaded, Saved};
use krablet_linux::Files;
use krablet_linux::fake::MemoryFiles;
use krablet_pod::api::Pod;
use krablet_pod::{ActuatedContainer, Actuation};
use proptest::prelude::*;
use serde_json::{Value, json};

const DIR: &str = "/var/lib/kubelet";

fn with(bytes: &[u8]) -> MemoryFiles {
    let files = MemoryFiles::default();
    files
        .put_file(&Path::new(DIR).join(ALLOCATED), bytes)
        .unwrap();
    files
}

async fn load(bytes: &[u8]) -> Loaded<AdmittedPods> {
    allocated_pods(&with(bytes), Path::new(DIR)).await
}

fn pods(spec: Value) -> AdmittedPods {
    let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
    let mut pods = AdmittedPods::default();
    pods.pods.insert("pod1".into(), Allocation::of(&pod).into());
    pods
}

/// A file as the kubelet writes it, checksum and all.
const WRITTEN_BY_KUBELET: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

#[tokio::test]
async fn a_kubelets_file_is_read() {
    let expected = pods(json!({"containers": [{"name": "container1",
        "resources": {"requests": {"cpu": "1Ki", "memory": "1Ki"}}}]}));
    assert_eq!(
        load(WRITTEN_BY_KUBELET.as_bytes()).await,
        Loaded::Valid(expected)
    );
    let files = MemoryFiles::default();
    assert_eq!(allocated_pods(&files, Path::new(DIR)).await, Loaded::Absent);
}

#[tokio::test]
async fn what_would_stop_a_kubelet_is_set_aside() {
    let wrong = WRITTEN_BY_KUBELET.replace("1178570812", "1");
    for bytes in [wrong.as_str(), "", "{}", "{\"data\":7}"] {
        let files = with(bytes.as_bytes());
        let loaded = allocated_pods(&files, Path::new(DIR)).await;
        assert!(
            matches!(loaded, Loaded::SetAside { aside: Some(_), .. }),
            "{loaded:?}"
        );
        assert_eq!(allocated_pods(&files, Path::new(DIR)).await, Loaded::Absent);
    }
}

fn data(files: &MemoryFiles, name: &str) -> Value {
    let bytes = files.content(&Path::new(DIR).join(name)).unwrap();
    let envelope: Value = serde_json::from_slice(&bytes).unwrap();
    serde_json::from_str(envelope["data"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn both_files_are_written_in_the_kubelets_form() {
    let files = MemoryFiles::default();
    let mut record = KubeletRecord::new(Arc::new(files.clone()), Path::new(DIR));
    let pods = pods(json!({
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
        "resources": {"limits": {"cpu": "3", "memory": "1Gi"}},
    }));
    assert_eq!(record.save(&pods).await.unwrap(), Saved::Written);
    let pod_level = json!({"limits": {"cpu": "3", "memory": "1Gi"}});
    assert_eq!(
        data(&files, ALLOCATED),
        json!({"entries": {"pod1": {
            "ContainerResources": {
                "c": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
                "i": {},
            },
            "PodLevelResources": pod_level,
        }}})
    );
    assert_eq!(
        data(&files, ACTUATED),
        json!({"entries": {"pod1": {
            "ContainerResources": {
                "c": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
                "i": {"limits": {"cpu": "3", "memory": "1Gi"}},
            },
            "PodLevelResources": pod_level,
        }}})
    );
    assert_eq!(files.mode(&Path::new(DIR).join(ALLOCATED)), Some(0o600));
    assert_eq!(
        allocated_pods(&files, Path::new(DIR)).await,
        Loaded::Valid(pods.clone())
    );
    assert!(matches!(
        actuated_pods(&files, Path::new(DIR)).await,
        Loaded::Valid(_)
    ));
    assert_eq!(record.save(&pods).await.unwrap(), Saved::Unchanged);
    assert_eq!(
        record.save(&AdmittedPods::default()).await.unwrap(),
        Saved::Written
    );
    assert_eq!(data(&files, ALLOCATED), json!({}));
}

#[tokio::test]
async fn the_bytes_are_the_kubelets() {
    let files = MemoryFiles::default();
    let mut record = KubeletRecord::new(Arc::new(files.clone()), Path::new(DIR));
    let own = pods(json!({"containers": [{"name": "container1",
        "resources": {"requests": {"cpu": "1Ki", "memory": "1Ki"}}}]}));
    record.save(&own).await.unwrap();
    for name in [ALLOCATED, ACTUATED] {
        let bytes = files.content(&Path::new(DIR).join(name)).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let envelope: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            envelope["data"],
            r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}},"PodLevelResources":null}}}"#
        );
        assert!(text.starts_with(r#"{"data":"{\"entries\":{"#), "{text}");
    }
}

#[tokio::test]
async fn a_resize_under_way_is_handed_over() {
    let files = MemoryFiles::default();
    let mut record = KubeletRecord::new(Arc::new(files.clone()), Path::new(DIR));
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let mut pods =
        pods(json!({"containers": [{"name": "a", "resources": asks("2")}, {"name": "b"}]}));
    let given = ActuatedContainer {
        id: None,
        resources: serde_json::from_value(asks("1")).unwrap(),
    };
    let given = Actuation {
        containers: [("a".to_owned(), given)].into(),
        pod: None,
    };
    pods.actuated.insert("pod1".into(), given);
    record.save(&pods).await.unwrap();
    let containers =
        |name: &str| data(&files, name)["entries"]["pod1"]["ContainerResources"].clone();
    assert_eq!(containers(ALLOCATED), json!({"a": asks("2"), "b": {}}));
    assert_eq!(containers(ACTUATED), json!({"a": asks("1"), "b": {}}));
    let read = allocated_pods(&files, Path::new(DIR))
        .await
        .valid()
        .unwrap();
    assert_eq!(read.pods, pods.pods);
    let again = &read.actuated["pod1"].containers;
    assert_eq!(again["a"], pods.actuated["pod1"].containers["a"]);
    assert_eq!(again["b"], ActuatedContainer::default());
}

proptest! {
    #[test]
    fn no_bytes_are_fatal(bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), byte: u8) {
        let mut spoiled = WRITTEN_BY_KUBELET.as_bytes().to_vec();
        let at = at.index(spoiled.len());
        spoiled[at] = byte;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.build().unwrap().block_on(async {
            for bytes in [bytes, spoiled] {
                let files = with(&bytes);
                let dyn_files: &dyn Files = &files;
                match allocated_pods(dyn_files, Path::new(DIR)).await {
                    Loaded::Valid(_) | Loaded::Absent => {}
                    Loaded::SetAside { aside, .. } => {
                        prop_assert_eq!(files.content(&aside.unwrap()), Some(bytes));
                    }
                }
            }
            Ok(())
        })?;
    }
}
