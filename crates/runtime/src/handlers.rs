//! What the runtime's handlers can do, as far as mounts of pods depend on it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use krablet_cri::{RuntimeService, v1};
use krablet_pod::PodRef;
use krablet_pod::api::{Pod, PodSpec, VolumeMount};

use crate::pod_runtime::PodRuntime;

/// A pod does not wait longer for what it could also go without.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runtime's handlers as it last told of them. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Handlers(Arc<RwLock<Vec<v1::RuntimeHandler>>>);

impl Handlers {
    /// Asks the runtime; what it told before stands if it does not answer.
    pub async fn ask(&self, runtime: &dyn RuntimeService) -> krablet_cri::Result<()> {
        let told = runtime.status().await?.runtime_handlers;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = told;
        Ok(())
    }

    fn now<T>(&self, look: impl FnOnce(&[v1::RuntimeHandler]) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the handler of this name can do; nothing as long as nobody knows it. The default one has no name.
pub(crate) fn features(
    handlers: &[v1::RuntimeHandler],
    name: Option<&str>,
) -> v1::RuntimeHandlerFeatures {
    let named = handlers.iter().find(|h| Some(h.name.as_str()) == name);
    named.and_then(|h| h.features).unwrap_or_default()
}

pub(crate) fn class_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.runtime_class_name.as_deref()
}

/// Whether a mount of the pod depends on what its handler can do.
fn asks_for_read_only_below(spec: &PodSpec) -> bool {
    let init = spec.init_containers.iter().flatten();
    let regular = init.chain(&spec.containers).map(|c| &c.volume_mounts);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|c| &c.volume_mounts);
    let asks = |mount: &VolumeMount| {
        let mode = mount.recursive_read_only.as_deref();
        matches!(mode, Some("Enabled" | "IfPossible"))
    };
    let mut mounts = regular.chain(ephemeral).flatten().flatten();
    mounts.any(asks)
}

impl PodRuntime {
    /// Learns anew what the handler of a pod can do, if that matters to its mounts.
    pub async fn learn_handler(&self, pod: &Pod) {
        if !pod.spec.as_ref().is_some_and(asks_for_read_only_below) {
            return;
        }
        let deps = &self.inner.deps;
        let told = self.inner.config.node.handlers.ask(&*deps.runtime);
        let (told, handler) = tokio::join!(
            tokio::time::timeout(PATIENCE, told),
            deps.classes.handler(class_of(pod)),
        );
        let pod = PodRef::of(pod);
        let told = told.map_err(|_| format!("no answer within {PATIENCE:?}"));
        if let Err(error) = told.and_then(|told| told.map_err(|e| e.to_string())) {
            tracing::error!(%pod, podUID = %pod.uid, error, "The runtime does not tell what its handlers can do");
        }
        match handler {
            Err(error) => {
                tracing::error!(%pod, podUID = %pod.uid, error, "Failed to look up the runtime handler");
            }
            Ok(name) => {
                let unknown = |all: &[v1::RuntimeHandler]| {
                    !all.is_empty() && all.iter().all(|h| h.name != name)
                };
                if self.inner.config.node.handlers.now(unknown) {
                    tracing::error!(%pod, podUID = %pod.uid, runtimeHandlerName = name, "Unknown runtime handler");
                }
            }
        }
    }

    /// Whether read-only mounts of the pod can be read-only all the way down, as far as is known by now (see
    /// [`PodRuntime::learn_handler`]). Means nothing for a pod that does not ask for it.
    pub fn mounts_recursively_read_only(&self, pod: &Pod) -> bool {
        if !pod.spec.as_ref().is_some_and(asks_for_read_only_below) {
            return false;
        }
        let handler = self.inner.deps.classes.known(class_of(pod));
        let can = |all: &[v1::RuntimeHandler]| features(all, handler.as_deref());
        let handlers = &self.inner.config.node.handlers;
        handlers.now(can).recursive_read_only_mounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_handler_can_do_what_the_runtime_tells_of_it() {
        let handler = |name: &str, features: Option<[bool; 2]>| v1::RuntimeHandler {
            name: name.into(),
            features: features.map(|[recursive, users]| v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: recursive,
                user_namespaces: users,
            }),
        };
        let all = [
            handler("kata", Some([false, true])),
            handler("", Some([true, false])),
            handler("both", Some([true, true])),
            handler("old", None),
        ];
        for (handlers, name, expected) in [
            (&all[..], Some(""), [true, false]),
            (&all, Some("kata"), [false, true]),
            (&all, Some("both"), [true, true]),
            (&all, Some("old"), [false, false]),
            (&all, Some("other"), [false, false]),
            // Its class is not known.
            (&all, None, [false, false]),
            // A runtime of old tells of no handlers.
            (&[], Some(""), [false, false]),
        ] {
            let found = features(handlers, name);
            let found = [found.recursive_read_only_mounts, found.user_namespaces];
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn only_pods_that_ask_depend_on_it() {
        let mount = |mode: Value| json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": mode});
        let with =
            |mode: Value| json!({"name": "c", "volumeMounts": [mount(Value::Null), mount(mode)]});
        for (mode, expected) in [
            (Value::Null, false),
            (json!("Disabled"), false),
            (json!("IfPossible"), true),
            (json!("Enabled"), true),
        ] {
            for list in ["containers", "initContainers", "ephemeralContainers"] {
                let mut spec = json!({"containers": [{"name": "plain"}]});
                spec[list] = json!([with(mode.clone())]);
                let spec: PodSpec = serde_json::from_value(spec).unwrap();
                assert_eq!(asks_for_read_only_below(&spec), expected, "{list}: {mode}");
            }
        }
    }
}
