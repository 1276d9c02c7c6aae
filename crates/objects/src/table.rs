//! Who refers to what. Pure.

use std::collections::{BTreeMap, BTreeSet};

use krablet_pod::PodUid;

use crate::ObjectKey;
use crate::references::{Use, Uses};

#[derive(Debug, Default)]
pub(crate) struct Table {
    pods: BTreeMap<PodUid, Uses>,
    objects: BTreeMap<ObjectKey, BTreeSet<PodUid>>,
}

/// What follows from a pod that came, changed or went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// This pod did not refer to them before.
    pub(crate) added: Vec<ObjectKey>,
    /// Nobody refers to them any more.
    pub(crate) dropped: Vec<ObjectKey>,
}

impl Table {
    pub(crate) fn want(&mut self, uid: &PodUid, uses: Uses) -> Changed {
        let before = self.pods.get(uid);
        let had = |key: &ObjectKey| before.is_some_and(|uses| uses.contains_key(key));
        let added: Vec<_> = uses.keys().filter(|k| !had(k)).cloned().collect();
        let left = before.into_iter().flat_map(|uses| uses.keys());
        let left: Vec<_> = left.filter(|k| !uses.contains_key(k)).cloned().collect();
        for key in &added {
            let referrers = self.objects.entry(key.clone()).or_default();
            referrers.insert(uid.clone());
        }
        // Pods that refer to nothing are kept too: they may wait for the services.
        self.pods.insert(uid.clone(), uses);
        Changed {
            added,
            dropped: self.leave(uid, left),
        }
    }

    pub(crate) fn forget(&mut self, uid: &PodUid) -> Changed {
        let uses = self.pods.remove(uid).unwrap_or_default();
        Changed {
            added: Vec::new(),
            dropped: self.leave(uid, uses.into_keys()),
        }
    }

    fn leave(&mut self, uid: &PodUid, keys: impl IntoIterator<Item = ObjectKey>) -> Vec<ObjectKey> {
        let mut dropped = Vec::new();
        for key in keys {
            let Some(referrers) = self.objects.get_mut(&key) else {
                continue;
            };
            referrers.remove(uid);
            if referrers.is_empty() {
                self.objects.remove(&key);
                dropped.push(key);
            }
        }
        dropped
    }

    pub(crate) fn referrers(&self, key: &ObjectKey) -> Vec<PodUid> {
        let referrers = self.objects.get(key).into_iter().flatten();
        referrers.cloned().collect()
    }

    pub(crate) fn pods(&self) -> Vec<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// A change of the object reaches pods that run.
    pub(crate) fn is_lasting(&self, key: &ObjectKey) -> bool {
        let mut referrers = self.objects.get(key).into_iter().flatten();
        referrers.any(|uid| {
            let uses = self.pods.get(uid);
            uses.and_then(|u| u.get(key)) == Some(&Use::Lasting)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::secret("ns", name)
    }

    fn uses(names: &[(&str, Use)]) -> Uses {
        names.iter().map(|(n, u)| (key(n), *u)).collect()
    }

    fn changed(added: &[&str], dropped: &[&str]) -> Changed {
        let keys = |names: &[&str]| names.iter().map(|n| key(n)).collect();
        Changed {
            added: keys(added),
            dropped: keys(dropped),
        }
    }

    #[test]
    fn objects_are_kept_as_long_as_somebody_refers_to_them() {
        use Use::{Lasting, Once};
        let mut table = Table::default();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let got = table.want(&a, uses(&[("x", Once), ("y", Lasting)]));
        assert_eq!(got, changed(&["x", "y"], &[]));
        let again = table.want(&a, uses(&[("x", Once), ("y", Lasting)]));
        assert_eq!(again, changed(&[], &[]));
        let got = table.want(&b, uses(&[("x", Once), ("z", Once)]));
        assert_eq!(got, changed(&["x", "z"], &[]));
        assert_eq!(table.referrers(&key("x")), [a.clone(), b.clone()]);
        assert!(table.is_lasting(&key("y")) && !table.is_lasting(&key("x")));
        let got = table.want(&a, uses(&[("x", Lasting)]));
        assert_eq!(got, changed(&[], &["y"]));
        assert!(table.is_lasting(&key("x")));
        assert_eq!(table.forget(&a), changed(&[], &[]));
        assert!(!table.is_lasting(&key("x")));
        assert_eq!(table.pods().len(), 1);
        assert_eq!(table.forget(&b), changed(&[], &["x", "z"]));
        assert_eq!(table.forget(&b), changed(&[], &[]));
        assert!(table.pods.is_empty() && table.objects.is_empty());
    }
}
