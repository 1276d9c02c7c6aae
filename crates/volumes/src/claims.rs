//! From a pod's claim to the volume behind it, with what a node has to check of both. Errors are what users read.

use krablet_core::admission::{NodeView, matches_any_term};
use krablet_pod::api::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};

/// Keeps a claim that is to be deleted for the pods that use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The claim a volume refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    pub name: String,
    pub read_only: bool,
    /// It was made for this pod and must be its own.
    pub ephemeral: bool,
}

pub(crate) fn claim_of(pod: &Pod, volume: &Volume) -> Option<ClaimRef> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(ClaimRef {
            name: claim.claim_name.clone(),
            read_only: claim.read_only.unwrap_or(false),
            ephemeral: false,
        });
    }
    volume.ephemeral.as_ref()?;
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(ClaimRef {
        name: format!("{pod_name}-{}", volume.name),
        read_only: false,
        ephemeral: true,
    })
}

/// The name of the volume that the claim is bound to.
pub(crate) fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, &'static str> {
    let meta = &claim.metadata;
    let protected = meta.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if meta.deletion_timestamp.is_some() && !protected {
        return Err("PVC is being deleted");
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase != Some("Bound") {
        return Err("PVC is not bound");
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
    name.filter(|n| !n.is_empty())
        .ok_or("PVC has empty pvc.Spec.VolumeName")
}

/// A claim that was made for a pod must belong to that very pod.
pub(crate) fn check_owner(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|o| o.controller == Some(true));
    if controllers.any(|o| Some(o.uid.as_str()) == pod.metadata.uid.as_deref()) {
        return Ok(());
    }
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    Err(format!(
        "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
        text(&claim.metadata.namespace),
        text(&claim.metadata.name),
        text(&pod.metadata.namespace),
        text(&pod.metadata.name),
    ))
}

/// The volume must be bound back to the claim.
pub(crate) fn check_binding(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(back) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let (found, wanted) = (
        back.uid.as_deref().unwrap_or_default(),
        claim.metadata.uid.as_deref().unwrap_or_default(),
    );
    match found == wanted {
        true => Ok(()),
        false => Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {wanted}"
        )),
    }
}

/// A file system is mounted, a device is passed on; neither can be the other.
pub(crate) fn check_mode(
    volume: &PersistentVolume,
    name: &str,
    as_mount: bool,
    as_device: bool,
) -> Result<(), String> {
    let mode = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    let mode = mode.unwrap_or("Filesystem");
    let refused = |place: &str| {
        Err(format!(
            "volume {name} has volumeMode {mode}, but is specified in {place}"
        ))
    };
    match mode {
        "Block" if as_mount => refused("volumeMounts"),
        "Filesystem" if as_device => refused("volumeDevices"),
        _ => Ok(()),
    }
}

/// Whether the volume can be reached from this node.
pub(crate) fn fits_node(volume: &PersistentVolume, node: &NodeView) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required.as_ref());
    required.is_none_or(|required| matches_any_term(&required.node_selector_terms, node))
}

/// One pod at a time may have it.
pub(crate) fn is_for_one_pod(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let modes = spec.and_then(|s| s.access_modes.as_deref());
    matches!(modes, Some([only]) if only == "ReadWriteOncePod")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut value = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        });
        merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn volume(change: Value) -> PersistentVolume {
        let mut value = json!({
            "metadata": {"name": "pv"},
            "spec": {"claimRef": {"uid": "claim-uid"}},
        });
        merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn merge(into: &mut Value, change: Value) {
        match (into, change) {
            (Value::Object(into), Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn claims_that_are_bound_and_those_that_are_not() {
        let deleted = "2026-01-01T00:00:00Z";
        let cases = [
            (json!({}), Ok("pv")),
            (
                json!({"status": {"phase": "Pending"}}),
                Err("PVC is not bound"),
            ),
            (json!({"status": null}), Err("PVC is not bound")),
            (
                json!({"spec": {"volumeName": ""}}),
                Err("PVC has empty pvc.Spec.VolumeName"),
            ),
            (
                json!({"metadata": {"deletionTimestamp": deleted}}),
                Err("PVC is being deleted"),
            ),
            (
                json!({"metadata": {"deletionTimestamp": deleted, "finalizers": [PROTECTION]}}),
                Ok("pv"),
            ),
        ];
        for (change, expected) in cases {
            let text = change.to_string();
            assert_eq!(bound_volume(&claim(change)), expected, "{text}");
        }
    }

    #[test]
    fn volumes_that_are_the_claims_own() {
        let bound = |change| check_binding(&volume(change), &claim(json!({})));
        assert_eq!(bound(json!({})), Ok(()));
        assert_eq!(
            bound(json!({"spec": {"claimRef": null}})).unwrap_err(),
            "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        );
        assert_eq!(
            bound(json!({"spec": {"claimRef": {"uid": "other"}}})).unwrap_err(),
            "found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID claim-uid"
        );
    }

    #[test]
    fn modes_and_their_places() {
        let mode = |mode: Option<&str>, mount, device| {
            let change = json!({"spec": {"volumeMode": mode}});
            check_mode(&volume(change), "v", mount, device)
        };
        assert_eq!(mode(None, true, false), Ok(()));
        assert_eq!(mode(Some("Block"), false, true), Ok(()));
        assert_eq!(
            mode(Some("Block"), true, false).unwrap_err(),
            "volume v has volumeMode Block, but is specified in volumeMounts"
        );
        assert_eq!(
            mode(None, false, true).unwrap_err(),
            "volume v has volumeMode Filesystem, but is specified in volumeDevices"
        );
    }

    #[test]
    fn nodes_and_pods_a_volume_is_for() {
        let node = NodeView {
            name: "n1".into(),
            labels: [("kubernetes.io/hostname".to_owned(), "n1".to_owned())].into(),
            ..NodeView::default()
        };
        let on = |host: &str| {
            let requirement =
                json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
            let terms = json!([{"matchExpressions": [requirement]}]);
            volume(json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}))
        };
        assert!(fits_node(&on("n1"), &node) && !fits_node(&on("n2"), &node));
        assert!(fits_node(&volume(json!({})), &node));
        let modes = |modes: &[&str]| volume(json!({"spec": {"accessModes": modes}}));
        assert!(is_for_one_pod(&modes(&["ReadWriteOncePod"])));
        assert!(!is_for_one_pod(&modes(&["ReadWriteOnce"])));
        assert!(!is_for_one_pod(&modes(&[
            "ReadWriteOncePod",
            "ReadOnlyMany"
        ])));
    }

    #[test]
    fn claims_by_name_and_claims_made_for_a_pod() {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}}),
        )
        .unwrap();
        let of = |source: Value| {
            let mut volume = json!({"name": "v"});
            merge(&mut volume, source);
            claim_of(&pod, &serde_json::from_value(volume).unwrap())
        };
        assert_eq!(of(json!({"emptyDir": {}})), None);
        let named = of(json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}));
        assert_eq!(
            named.map(|c| (c.name, c.read_only)),
            Some(("c".into(), true))
        );
        let own = of(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
        assert_eq!(
            own.map(|c| (c.name, c.ephemeral)),
            Some(("web-v".into(), true))
        );

        let owned = |uid: &str| {
            let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid, "controller": true}]);
            check_owner(
                &pod,
                &claim(json!({"metadata": {"ownerReferences": owner}})),
            )
        };
        assert_eq!(owned("u"), Ok(()));
        assert_eq!(
            owned("older").unwrap_err(),
            "PVC ns/c was not created for pod ns/web (pod is not owner)"
        );
    }
}
