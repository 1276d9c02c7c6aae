//! Syncs that fail and of which nothing else tells.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use krablet_pod::{PodRef, PodUid};
use krablet_runtime::RuntimeError;
use tracing::{debug, warn};

use super::Steps;

/// The last failure that was told of each pod. It is tried again and again; the same is told once.
#[derive(Default)]
pub(super) struct SyncFailures {
    told: Mutex<BTreeMap<PodUid, String>>,
}

impl SyncFailures {
    /// Whether a sync that ended so is to be told of.
    fn is_news(&self, uid: &PodUid, error: Option<&RuntimeError>) -> bool {
        self.with(|told| {
            let Some(error) = error else {
                told.remove(uid);
                return false;
            };
            if is_told(error) {
                return false;
            }
            let text = error.to_string();
            let before = told.insert(uid.clone(), text.clone());
            before != Some(text)
        })
    }

    /// Forgets pods that are gone.
    pub(super) fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.with(|told| told.retain(|uid, _| keep(uid)));
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<PodUid, String>) -> T) -> T {
        f(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Steps {
    /// The runtime's part of a sync has ended.
    pub(super) fn note_failure(&self, pod: &PodRef, error: Option<&RuntimeError>) {
        let news = self.failures.is_news(&pod.uid, error);
        let Some(error) = error else {
            return;
        };
        match news {
            true => {
                warn!(pod = %pod, podUID = %pod.uid, err = %error, "Error syncing pod, will retry");
            }
            false => {
                debug!(pod = %pod, podUID = %pod.uid, err = %error, "Error syncing pod, will retry");
            }
        }
    }
}

/// Whether an event or a line of the log comes with it wherever it happens.
fn is_told(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::CreateSandbox { .. }
        | RuntimeError::RuntimeClass { .. }
        | RuntimeError::SandboxStatus(_)
        | RuntimeError::StartContainer { .. }
        | RuntimeError::Resize { .. } => true,
        RuntimeError::SandboxConfig { .. }
        | RuntimeError::StopSandbox { .. }
        | RuntimeError::KillContainer { .. }
        | RuntimeError::RemoveContainer { .. }
        | RuntimeError::StartedLate { .. }
        | RuntimeError::EndsNotSeen(_)
        | RuntimeError::EndedByItself { .. }
        | RuntimeError::File { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_told_once_and_none_that_tells_of_itself() {
        let failures = SyncFailures::default();
        let unseen = |why: &str| Some(RuntimeError::EndsNotSeen(why.to_owned()));
        let start = RuntimeError::StartContainer {
            container: "c".to_owned(),
            reason: "ErrImagePull",
            message: String::new(),
        };
        let table = [
            ("a", unseen("busy"), true),
            ("a", unseen("busy"), false),
            ("b", unseen("busy"), true),
            ("a", unseen("other"), true),
            ("a", Some(start), false),
            ("a", unseen("other"), false),
            ("a", None, false),
            ("a", unseen("other"), true),
            ("b", unseen("busy"), false),
        ];
        for (at, (uid, error, news)) in table.into_iter().enumerate() {
            let told = failures.is_news(&uid.into(), error.as_ref());
            assert_eq!(told, news, "{at}");
        }
        failures.retain(&|uid| uid.as_str() == "a");
        assert_eq!(failures.with(|told| told.len()), 1);
    }
}
