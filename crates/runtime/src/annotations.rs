//! Labels and annotations that make the runtime remember which pod and which instance something
//! is, exactly as the kubelet writes them, so that either agent can take over from the other.

use std::collections::BTreeMap;

use krablet_core::resize;
use krablet_pod::api::{Container, Pod, ResourceRequirements};
use krablet_pod::{PodRef, hash, labels};

fn identity(pod: &PodRef) -> [(&'static str, &str); 3] {
    [
        (labels::POD_NAME, &pod.name),
        (labels::POD_NAMESPACE, &pod.namespace),
        (labels::POD_UID, pod.uid.as_str()),
    ]
}

/// The pod's own labels and its identity, which wins.
pub(crate) fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut all = pod.metadata.labels.clone().unwrap_or_default();
    for (key, value) in identity(&PodRef::of(pod)) {
        all.insert(key.into(), value.into());
    }
    all
}

pub(crate) fn sandbox_annotations(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default()
}

pub(crate) fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = identity(&PodRef::of(pod))
        .into_iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    all.insert(labels::CONTAINER_NAME.into(), container.name.clone());
    all
}

pub(crate) fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        all.insert(key.to_string(), value);
    };
    put(labels::CONTAINER_HASH, hash::container_hash_text(container));
    put(labels::CONTAINER_RESTART_COUNT, restart_count.to_string());
    let given = resize::started_with(pod, container);
    // Plain data, too. Where it is empty nothing has to be remembered.
    if given != ResourceRequirements::default()
        && let Ok(json) = serde_json::to_string(&given)
    {
        put(labels::CONTAINER_RESOURCES, json);
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    put(
        labels::TERMINATION_MESSAGE_PATH,
        text(&container.termination_message_path),
    );
    put(
        labels::TERMINATION_MESSAGE_POLICY,
        text(&container.termination_message_policy),
    );
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        put(labels::POD_DELETION_GRACE, grace.to_string());
    }
    let grace = pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds);
    if let Some(grace) = grace {
        put(labels::POD_TERMINATION_GRACE, grace.to_string());
    }
    let pre_stop = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.pre_stop.as_ref());
    // Both are plain data that always has a JSON form.
    if let Some(json) = pre_stop.and_then(|h| serde_json::to_string(h).ok()) {
        put(labels::PRE_STOP_HANDLER, json);
    }
    let ports = container.ports.as_ref().filter(|p| !p.is_empty());
    if let Some(json) = ports.and_then(|p| serde_json::to_string(p).ok()) {
        put(labels::CONTAINER_PORTS, json);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{ContainerPort, ExecAction, Lifecycle, LifecycleHandler, PodSpec};

    fn pod() -> Pod {
        let mut pod = Pod {
            spec: Some(PodSpec {
                termination_grace_period_seconds: Some(7),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u-1".into());
        pod.metadata.labels = Some(BTreeMap::from([
            ("app".into(), "web".into()),
            (labels::POD_UID.into(), "forged".into()),
        ]));
        pod.metadata.annotations = Some(BTreeMap::from([("a".into(), "b".into())]));
        pod
    }

    #[test]
    fn sandbox_carries_the_pods_labels_and_its_true_identity() {
        let got = sandbox_labels(&pod());
        assert_eq!(got["app"], "web");
        assert_eq!(got[labels::POD_UID], "u-1");
        assert_eq!(got.len(), 4);
        assert_eq!(sandbox_annotations(&pod())["a"], "b");
    }

    #[test]
    fn container_annotations_hold_what_a_kill_without_spec_needs() {
        let container = Container {
            name: "c".into(),
            image: Some("img".into()),
            termination_message_path: Some("/dev/termination-log".into()),
            termination_message_policy: Some("File".into()),
            ports: Some(vec![ContainerPort {
                name: Some("http".into()),
                container_port: 80,
                protocol: Some("TCP".into()),
                ..ContainerPort::default()
            }]),
            lifecycle: Some(Lifecycle {
                pre_stop: Some(LifecycleHandler {
                    exec: Some(ExecAction {
                        command: Some(vec!["true".into()]),
                    }),
                    ..LifecycleHandler::default()
                }),
                ..Lifecycle::default()
            }),
            ..Container::default()
        };
        let mut pod = pod();
        pod.metadata.deletion_grace_period_seconds = Some(3);
        let got = container_annotations(&pod, &container, 4);
        let expected = [
            (
                labels::CONTAINER_HASH,
                hash::container_hash_text(&container),
            ),
            (labels::CONTAINER_RESTART_COUNT, "4".into()),
            (
                labels::TERMINATION_MESSAGE_PATH,
                "/dev/termination-log".into(),
            ),
            (labels::TERMINATION_MESSAGE_POLICY, "File".into()),
            (labels::POD_DELETION_GRACE, "3".into()),
            (labels::POD_TERMINATION_GRACE, "7".into()),
            (
                labels::PRE_STOP_HANDLER,
                r#"{"exec":{"command":["true"]}}"#.into(),
            ),
            (
                labels::CONTAINER_PORTS,
                r#"[{"containerPort":80,"name":"http","protocol":"TCP"}]"#.into(),
            ),
        ];
        for (key, value) in &expected {
            assert_eq!(&got[*key], value, "{key}");
        }
        assert_eq!(got.len(), expected.len());
        assert_eq!(container_labels(&pod, &container).len(), 4);
    }
}
