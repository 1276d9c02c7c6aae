//! What is kept for long takes no more room than it needs.

/// Lets go of the room that lists were given to grow into. A list that is decoded has room for four, and one that is built
/// for twice what it held: of the status of one container a list takes as much as four, and a pod has a dozen lists. A copy
/// is as large as what it copies, wherever in it the lists are.
pub fn trim<T: Clone>(value: &mut T) {
    *value = value.clone();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Pod;

    #[test]
    fn nothing_is_left_to_grow_into_and_nothing_is_lost() {
        let text = json!({
            "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {
                "containers": [{"name": "a", "args": ["x"], "env": [{"name": "A", "value": "b"}]}],
                "tolerations": [{"key": "a"}, {"key": "b"}],
                "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}]}}],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                }],
                "podIPs": [{"ip": "10.0.0.1"}],
            },
        })
        .to_string();
        let decoded: Pod = serde_json::from_str(&text).unwrap();
        let mut pod: Pod = serde_json::from_str(&text).unwrap();
        trim(&mut pod);
        assert_eq!(pod, decoded);
        let room = |pod: &Pod| {
            let spec = pod.spec.as_ref().unwrap();
            let status = pod.status.as_ref().unwrap();
            let container = &spec.containers[0];
            let volume = &spec.volumes.as_ref().unwrap()[0];
            let sources = volume.projected.as_ref().unwrap().sources.as_ref();
            [
                container.args.as_ref().unwrap().capacity(),
                container.env.as_ref().unwrap().capacity(),
                spec.tolerations.as_ref().unwrap().capacity(),
                sources.unwrap().capacity(),
                status.conditions.as_ref().unwrap().capacity(),
                status.container_statuses.as_ref().unwrap().capacity(),
                status.pod_ips.as_ref().unwrap().capacity(),
            ]
        };
        assert_eq!(room(&pod), [1, 1, 2, 1, 1, 1, 1]);
        // If this fails, lists are decoded without such room, and nobody has to let go of it.
        assert_ne!(room(&decoded), room(&pod));
    }
}
