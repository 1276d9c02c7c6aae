//! Which pods have which persistent volumes. One that is for one pod at a time is given to the first that asks, before
//! anything is made for it, and to the next when nothing of it is left to the first: also across restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use krablet_linux::Files;
use krablet_pod::PodUid;
use krablet_pod::paths::RootDir;
use tokio::sync::OnceCell;

use crate::error::VolumeError;
use crate::plugin::escape;
use crate::record::{self, Found, PLACES, Record};
use crate::volumes::Volumes;

/// Kinds that stand for persistent volumes below a pod's directory.
const LOCAL: &str = "kubernetes.io/local-volume";
const PERSISTENT: [&str; 4] = [
    LOCAL,
    "kubernetes.io/nfs",
    "kubernetes.io/iscsi",
    "kubernetes.io/fc",
];

/// Names of persistent volumes.
pub(crate) type Names = BTreeSet<String>;

#[derive(Debug, Default)]
pub(crate) struct Holders {
    book: Mutex<Book>,
    /// What earlier lives left on the disk is in the book.
    looked: OnceCell<()>,
}

#[derive(Debug, Default)]
struct Book {
    taken: BTreeMap<PodUid, Names>,
    /// Of earlier lives, by what is on the disk.
    found: BTreeMap<PodUid, Names>,
    /// Pods that ended while the disk is looked at: what is read of them may be older.
    ended: Option<BTreeSet<PodUid>>,
}

impl Holders {
    /// What the pod has taken.
    pub fn of(&self, uid: &PodUid) -> Names {
        self.book().taken.get(uid).cloned().unwrap_or_default()
    }

    /// False if another pod has it, and it is for one alone.
    pub fn take(&self, uid: &PodUid, name: &str, alone: bool) -> bool {
        let mut book = self.book();
        let all = book.taken.iter().chain(&book.found);
        let mut others = all.filter(|(other, _)| *other != uid);
        if alone && others.any(|(_, names)| names.contains(name)) {
            return false;
        }
        let own = book.taken.entry(uid.clone()).or_default();
        own.insert(name.to_owned());
        true
    }

    /// Nothing was made of what the pod took beside these.
    pub fn keep_only(&self, uid: &PodUid, names: Names) {
        let mut book = self.book();
        match names.is_empty() {
            true => book.taken.remove(uid),
            false => book.taken.insert(uid.clone(), names),
        };
    }

    /// Nothing of the pod's volumes is left.
    pub fn ended(&self, uid: &PodUid) {
        let mut book = self.book();
        book.taken.remove(uid);
        book.found.remove(uid);
        if let Some(ended) = &mut book.ended {
            ended.insert(uid.clone());
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at the disk. Dropped, or failed, it leaves nothing behind and is done again.
struct Look<'a>(&'a Holders);

impl<'a> Look<'a> {
    fn begin(holders: &'a Holders) -> Self {
        holders.book().ended = Some(BTreeSet::new());
        Self(holders)
    }

    fn found(self, mut pods: BTreeMap<PodUid, Names>) {
        let mut book = self.0.book();
        let ended = book.ended.take().unwrap_or_default();
        pods.retain(|uid, names| !names.is_empty() && !ended.contains(uid));
        book.found = pods;
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.0.book().ended = None;
    }
}

impl Volumes {
    /// Once in a life, and not before somebody has to know: what pods have that nobody has asked for again yet.
    pub(crate) async fn look_for_holders(&self) -> Result<(), VolumeError> {
        let look = || async {
            let look = Look::begin(&self.holders);
            let mut pods = BTreeMap::new();
            for uid in self.recorded().await? {
                let names = names_on_disk(&*self.deps.files, &self.root, &uid).await;
                pods.insert(uid, names.map_err(VolumeError::Record)?);
            }
            look.found(pods);
            Ok(())
        };
        self.holders.looked.get_or_try_init(look).await.copied()
    }
}

async fn names_on_disk(files: &dyn Files, root: &RootDir, uid: &PodUid) -> io::Result<Names> {
    if let Found::Whole(record) = record::read(files, root, uid).await? {
        return Ok(names_in(&record));
    }
    // A kubelet's pod, or one whose record is torn.
    let mut names = Names::new();
    for place in PLACES {
        for plugin in PERSISTENT {
            let dir = root.pod(uid).join(place).join(escape(plugin));
            let entries = match files.list(&dir).await {
                Ok(entries) => entries,
                Err(e) if is_nothing(&e) => continue,
                Err(e) => return Err(e),
            };
            let found = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
            names.extend(found.map(str::to_owned));
        }
    }
    Ok(names)
}

fn is_nothing(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Older records do not name them: there, a volume that stands under a name which is not the one in the pod's spec is one.
fn names_in(record: &Record) -> Names {
    let mut names = record.persistent.clone();
    let kinds = record.volumes.iter();
    for volume in kinds.filter(|v| PERSISTENT.contains(&v.plugin.as_str())) {
        let at = volume.path.file_name().and_then(|n| n.to_str());
        let other = at.filter(|at| volume.plugin == LOCAL || *at != volume.name);
        names.extend(other.map(str::to_owned));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(text: &str) -> PodUid {
        PodUid::from(text)
    }

    fn names(all: &[&str]) -> Names {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn one_pod_at_a_time() {
        let holders = Holders::default();
        let (a, b) = (uid("a"), uid("b"));
        assert!(holders.take(&a, "one", true));
        assert!(holders.take(&a, "one", true), "it has it");
        assert!(!holders.take(&b, "one", true));
        assert!(holders.take(&a, "many", false) && holders.take(&b, "many", false));
        assert_eq!(holders.of(&b), names(&["many"]));
        holders.keep_only(&a, names(&["many"]));
        assert!(holders.take(&b, "one", true));
        holders.ended(&b);
        assert!(holders.take(&a, "one", true));
    }

    #[test]
    fn what_is_found_on_the_disk_counts_until_its_pod_has_ended() {
        let holders = Holders::default();
        let look = Look::begin(&holders);
        holders.ended(&uid("gone"));
        let found = [("old", "x"), ("gone", "y")];
        look.found(found.map(|(pod, name)| (uid(pod), names(&[name]))).into());
        let (old, new) = (uid("old"), uid("new"));
        assert!(holders.take(&new, "y", true));
        assert!(!holders.take(&new, "x", true));
        assert!(holders.take(&old, "x", true));
        // It still has it: it was not taken now.
        holders.keep_only(&old, names(&[]));
        assert!(!holders.take(&new, "x", true));
        // Nothing is noted of pods that end when nobody looks, or has given up.
        drop(Look::begin(&holders));
        holders.ended(&old);
        assert_eq!(holders.book().ended, None);
        assert!(holders.take(&new, "x", true));
    }

    #[test]
    fn names_of_older_records() {
        let volume = |name: &str, plugin: &str, at: &str| {
            serde_json::json!({"name": name, "plugin": plugin, "mounted": true,
                               "path": format!("volumes/{}/{at}", escape(plugin))})
        };
        let volumes = [
            volume("v", LOCAL, "v"),
            volume("inline", "kubernetes.io/nfs", "inline"),
            volume("claim", "kubernetes.io/nfs", "pv-n"),
            volume("dir", "kubernetes.io/empty-dir", "dir"),
        ];
        let mut text = serde_json::json!({"version": 1, "volumes": volumes});
        let read = |text: &serde_json::Value| record::parse(text.to_string().as_bytes()).unwrap();
        assert_eq!(names_in(&read(&text)), names(&["pv-n", "v"]));
        text["persistent"] = serde_json::json!(["pv-h"]);
        assert_eq!(names_in(&read(&text)), names(&["pv-h", "pv-n", "v"]));
    }
}
