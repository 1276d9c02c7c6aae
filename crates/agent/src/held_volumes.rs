//! Volumes of ended pods that somebody still holds: what was told of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use krablet_pod::PodUid;
use krablet_volumes::VolumeError;

/// The last failure that was told of each pod. It is tried again and again; the same is told once.
#[derive(Default)]
pub(crate) struct HeldVolumes {
    told: Mutex<BTreeMap<PodUid, String>>,
}

impl HeldVolumes {
    /// What is to be told of an attempt, if it is something else than before.
    pub(crate) fn news(&self, uid: &PodUid, done: &Result<(), VolumeError>) -> Option<String> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(e) = done else {
            told.remove(uid);
            return None;
        };
        let text = e.to_string();
        let before = told.insert(uid.clone(), text.clone());
        (before.as_ref() != Some(&text)).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_same_failure_is_told_once() {
        let held = HeldVolumes::default();
        let uid = PodUid::from("u");
        let failed = |why: &str| Err(VolumeError::Remove(io::Error::other(why.to_owned())));
        let told = |done: &Result<(), VolumeError>| held.news(&uid, done).is_some();
        assert!(told(&failed("busy")));
        assert!(!told(&failed("busy")));
        assert!(told(&failed("other")));
        assert!(!told(&Ok(())));
        assert!(told(&failed("other")));
    }
}
