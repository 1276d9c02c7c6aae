//! Which volumes that a controller attaches to nodes are in use on this one. The node tells them, so that none is taken
//! away under a pod; and it tells nothing, so that what was told before stands, until it knows of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use krablet_pod::PodUid;
use tokio::sync::watch;

use crate::earlier::Left;
use crate::error::VolumeError;
use crate::plugin::{Source, escape};
use crate::record::{self, Found, PLACES};
use crate::volumes::Volumes;

const ISCSI: &str = "kubernetes.io/iscsi";
const FC: &str = "kubernetes.io/fc";

/// As the Node object names it, if it is one that is attached.
pub(crate) fn attached_as(source: &Source<'_>) -> Option<String> {
    let iscsi = |portal: &str, iqn: &str, lun: i32| format!("{ISCSI}/{portal}:{iqn}:{lun}");
    let (iscsi, fc) = match source {
        Source::Inline(volume) => {
            let own = volume.iscsi.as_ref();
            let own = own.map(|s| iscsi(&s.target_portal, &s.iqn, s.lun));
            (own, volume.fc.as_ref())
        }
        Source::Persistent { .. } => {
            let spec = source.persistent()?;
            let own = spec.iscsi.as_ref();
            let own = own.map(|s| iscsi(&s.target_portal, &s.iqn, s.lun));
            (own, spec.fc.as_ref())
        }
    };
    let fc = || {
        let fc = fc?;
        let targets = fc.target_wwns.as_deref().unwrap_or_default();
        let wwids = fc.wwids.as_deref().unwrap_or_default();
        match fc.lun {
            Some(lun) if !targets.is_empty() => Some(format!("{FC}/[{}]:{lun}", targets.join(" "))),
            _ => (!wwids.is_empty()).then(|| format!("{FC}/[{}]", wwids.join(" "))),
        }
    };
    iscsi.or_else(fc)
}

/// Who uses what.
#[derive(Debug)]
pub(crate) struct InUse {
    book: Mutex<Book>,
    known: watch::Sender<Option<Vec<String>>>,
}

#[derive(Debug, Default)]
struct Book {
    by_pod: BTreeMap<PodUid, BTreeSet<String>>,
    /// Pods of an earlier life that have such volumes, which have no names before somebody asks for them again. None
    /// until the disk was looked at.
    nameless: Option<BTreeSet<PodUid>>,
    /// Pods that ended before it was.
    ended: BTreeSet<PodUid>,
}

impl Default for InUse {
    fn default() -> Self {
        Self {
            book: Mutex::default(),
            known: watch::Sender::new(None),
        }
    }
}

impl InUse {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Vec<String>>> {
        self.known.subscribe()
    }

    /// A pod is about to use these.
    pub(crate) fn begun(&self, uid: &PodUid, names: BTreeSet<String>) {
        let mut book = self.book();
        if let Some(nameless) = &mut book.nameless {
            nameless.remove(uid);
        }
        // Also if it has none: then it is known.
        book.by_pod.entry(uid.clone()).or_default().extend(names);
        self.tell(&book);
    }

    /// Nothing of the pod is mounted any more.
    pub(crate) fn ended(&self, uid: &PodUid) {
        let mut book = self.book();
        book.by_pod.remove(uid);
        match &mut book.nameless {
            Some(nameless) => {
                nameless.remove(uid);
            }
            None => {
                book.ended.insert(uid.clone());
            }
        }
        self.tell(&book);
    }

    /// The disk was looked at: these pods have such volumes.
    fn found(&self, mut pods: BTreeSet<PodUid>) {
        let mut book = self.book();
        let ended = std::mem::take(&mut book.ended);
        pods.retain(|uid| !ended.contains(uid) && !book.by_pod.contains_key(uid));
        book.nameless = Some(pods);
        self.tell(&book);
    }

    fn tell(&self, book: &Book) {
        let all_named = book.nameless.as_ref().is_some_and(BTreeSet::is_empty);
        if !all_named {
            return;
        }
        let names: BTreeSet<&String> = book.by_pod.values().flatten().collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        self.known.send_if_modified(|known| {
            let news = known.as_ref() != Some(&names);
            *known = Some(names);
            news
        });
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// Volumes that a controller attaches and that pods of this node use. None until that is known.
    pub fn in_use(&self) -> watch::Receiver<Option<Vec<String>>> {
        self.in_use.subscribe()
    }

    /// Looks at what earlier lives, and kubelets, have left.
    pub async fn find_in_use(&self) -> Result<(), VolumeError> {
        let (mut pods, mut left) = (BTreeSet::new(), BTreeMap::new());
        for uid in self.recorded().await? {
            let (has_attached, volumes) = self.look_at(&uid).await?;
            if has_attached {
                pods.insert(uid.clone());
            }
            left.insert(uid, volumes);
        }
        self.earlier.found(left, &self.deps.metrics.earlier);
        self.in_use.found(pods);
        Ok(())
    }

    /// Whether a pod has volumes that are attached, and how many it has of any kind.
    async fn look_at(&self, uid: &PodUid) -> Result<(bool, Left), VolumeError> {
        let files = &*self.deps.files;
        let found = record::read(files, &self.root, uid).await;
        if let Found::Whole(record) = found.map_err(VolumeError::Record)? {
            let mut plugins = record.volumes.iter().map(|v| v.plugin.as_str());
            let has_attached = plugins.any(|plugin| [ISCSI, FC].contains(&plugin));
            return Ok((has_attached, Left::of(&record)));
        }
        let mut has_attached = false;
        for plugin in [ISCSI, FC] {
            for place in PLACES {
                let dir = self.root.pod(uid).join(place).join(escape(plugin));
                has_attached |= files.lstat(&dir).await.is_ok();
            }
        }
        Ok((has_attached, self.left_unrecorded(uid).await))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{PersistentVolume, Volume};
    use serde_json::json;

    #[test]
    fn names_are_those_of_the_node_object() {
        let iscsi =
            json!({"targetPortal": "10.0.0.9", "iqn": "iqn.2001-04.com.example:a", "lun": 3});
        let cases = [
            (
                json!({"iscsi": iscsi}),
                Some("kubernetes.io/iscsi/10.0.0.9:iqn.2001-04.com.example:a:3"),
            ),
            (
                json!({"fc": {"targetWWNs": ["5001", "5002"], "lun": 2}}),
                Some("kubernetes.io/fc/[5001 5002]:2"),
            ),
            (
                json!({"fc": {"wwids": ["3600"]}}),
                Some("kubernetes.io/fc/[3600]"),
            ),
            (json!({"nfs": {"server": "s", "path": "/"}}), None),
        ];
        for (spec, name) in cases {
            let mut inline = spec.clone();
            inline["name"] = json!("v");
            let inline: Volume = serde_json::from_value(inline).unwrap();
            let found = attached_as(&Source::Inline(&inline));
            assert_eq!(found.as_deref(), name);
            let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            let found = attached_as(&Source::Persistent {
                volume: &volume,
                read_only: false,
            });
            assert_eq!(found.as_deref(), name);
        }
    }

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn nothing_is_told_until_all_is_known() {
        let in_use = InUse::default();
        let told = in_use.subscribe();
        let (new, old, gone) = (
            PodUid::from("new"),
            PodUid::from("old"),
            PodUid::from("gone"),
        );
        in_use.begun(&new, names(&["b", "a"]));
        in_use.ended(&gone);
        assert_eq!(*told.borrow(), None);
        in_use.found(BTreeSet::from([new.clone(), old.clone(), gone]));
        assert_eq!(*told.borrow(), None);
        in_use.begun(&old, names(&["b", "c"]));
        let list = |told: &watch::Receiver<Option<Vec<String>>>| told.borrow().clone().unwrap();
        assert_eq!(list(&told), ["a", "b", "c"]);
        in_use.ended(&new);
        assert_eq!(list(&told), ["b", "c"]);
        in_use.ended(&old);
        assert!(list(&told).is_empty());
    }
}
