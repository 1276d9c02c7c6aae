//! What makes a pod of a manifest a static pod of this node: UID, name, node, marks.

use krablet_pod::api::{Pod, PodStatus, Toleration};
use krablet_pod::marks;
use krablet_pod::tree;
use serde_json::Value;

use crate::{Origin, Place};

/// FNV-1a over 128 bits.
struct Digest(u128);

impl Digest {
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        }
    }

    /// Adds a value so that no two different ones feed the same bytes: kind, length, content, keys in order.
    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.add(b"n"),
            Value::Bool(flag) => self.add(if *flag { b"t" } else { b"f" }),
            Value::Number(number) => self.add_text(b'#', &number.to_string()),
            Value::String(text) => self.add_text(b's', text),
            Value::Array(items) => {
                self.add_text(b'[', &items.len().to_string());
                items.iter().for_each(|item| self.add_value(item));
            }
            Value::Object(fields) => {
                let mut keys: Vec<&String> = fields.keys().collect();
                keys.sort_unstable();
                self.add_text(b'{', &keys.len().to_string());
                for key in keys {
                    self.add_text(b'k', key);
                    fields
                        .get(key)
                        .into_iter()
                        .for_each(|value| self.add_value(value));
                }
            }
        }
    }

    fn add_text(&mut self, kind: u8, text: &str) {
        self.add(&[kind]);
        self.add(&(text.len() as u64).to_be_bytes());
        self.add(text.as_bytes());
    }
}

/// The UID of a static pod: 32 hexadecimal digits that depend on the decoded, defaulted pod, on the place it came
/// from and, for a file, on the node. Comments, key order and style of the manifest do not matter; any field does.
fn uid(pod: &Pod, origin: &Origin) -> String {
    let mut digest = Digest(Digest::START);
    digest.add_value(&tree(pod));
    match &origin.place {
        Place::File(path) => {
            digest.add_text(b'h', &origin.node_name);
            digest.add_text(b'p', path);
        }
        Place::Url(url) => digest.add_text(b'u', url),
    }
    format!("{:032x}", digest.0)
}

/// Turns a defaulted pod into a static pod of the node. What only the API server may say (status, deletion,
/// mirror marks left over from `kubectl get -o yaml`) is dropped first; the names of what was dropped come back.
pub fn make_static(pod: &mut Pod, origin: &Origin) -> Vec<&'static str> {
    let dropped = drop_leftovers(pod);
    if pod.metadata.uid.as_deref().is_none_or(str::is_empty) {
        pod.metadata.uid = Some(uid(pod, origin));
    }
    let name = pod.metadata.name.take().unwrap_or_default();
    pod.metadata.name = Some(format!("{name}-{}", origin.node_name.to_lowercase()));
    if pod.metadata.namespace.as_deref().is_none_or(str::is_empty) {
        pod.metadata.namespace = Some("default".to_owned());
    }
    let annotations = pod.metadata.annotations.get_or_insert_default();
    let hash = pod.metadata.uid.clone().unwrap_or_default();
    annotations.insert(marks::CONFIG_HASH.to_owned(), hash);
    annotations.insert(
        marks::CONFIG_SOURCE.to_owned(),
        origin.place.source().as_str().to_owned(),
    );

    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(origin.node_name.clone());
    if matches!(origin.place, Place::File(_)) {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        ..PodStatus::default()
    });
    dropped
}

fn drop_leftovers(pod: &mut Pod) -> Vec<&'static str> {
    let mut dropped = Vec::new();
    // An empty status is what every generator of manifests writes.
    if pod
        .status
        .take()
        .is_some_and(|status| status != PodStatus::default())
    {
        dropped.push("status");
    }
    if pod.metadata.deletion_timestamp.take().is_some() {
        dropped.push("metadata.deletionTimestamp");
    }
    if pod.metadata.deletion_grace_period_seconds.take().is_some() {
        dropped.push("metadata.deletionGracePeriodSeconds");
    }
    if let Some(annotations) = &mut pod.metadata.annotations {
        for (key, field) in [
            (
                marks::CONFIG_MIRROR,
                "metadata.annotations[kubernetes.io/config.mirror]",
            ),
            (
                marks::CONFIG_SEEN,
                "metadata.annotations[kubernetes.io/config.seen]",
            ),
            (
                marks::CONFIG_HASH,
                "metadata.annotations[kubernetes.io/config.hash]",
            ),
            (
                marks::CONFIG_SOURCE,
                "metadata.annotations[kubernetes.io/config.source]",
            ),
        ] {
            if annotations.remove(key).is_some() {
                dropped.push(field);
            }
        }
    }
    dropped
}

/// Static pods from files stay when the node has problems.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let blank = |field: &Option<String>| field.as_deref().is_none_or(str::is_empty);
    let same = |have: &Toleration| {
        blank(&have.key)
            && blank(&have.value)
            && have.operator == wanted.operator
            && have.effect == wanted.effect
    };
    match tolerations.iter().position(same) {
        // One with a time limit is replaced by the one without.
        Some(at) => tolerations
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|have| *have = wanted.clone()),
        None => tolerations.push(wanted),
    }
}
