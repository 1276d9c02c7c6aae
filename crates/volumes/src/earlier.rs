//! Volumes that earlier lives of the agent, and kubelets, have left: how many there are at the start, which of them no
//! record tells of, and what becomes of those.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use krablet_metrics::EarlierVolumes;
use krablet_pod::PodUid;

use crate::record::{DEVICES, Record};
use crate::volumes::{SUB_PATH, Volumes};

/// The volumes of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Those its record tells of.
    pub(crate) recorded: u64,
    /// Those on the disk of a pod without a record that can be read.
    pub(crate) unknown: u64,
}

impl Left {
    pub(crate) fn of(record: &Record) -> Self {
        let volumes = record.volumes.iter().filter(|v| v.plugin != SUB_PATH);
        Self {
            recorded: volumes.count() as u64,
            unknown: 0,
        }
    }
}

/// Which volumes were left, once the disk was looked at.
#[derive(Debug, Default)]
pub(crate) struct Earlier(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    looked: bool,
    /// Pods that had no record before this life, as long as the disk was not looked at.
    new: BTreeSet<PodUid>,
    /// Volumes that no record tells of, by pod, until they are made anew or taken away.
    unknown: BTreeMap<PodUid, u64>,
}

impl Earlier {
    /// The first record of a pod is about to be written: what stands is made anew.
    pub(crate) fn begun(&self, uid: &PodUid) {
        let mut book = self.book();
        book.unknown.remove(uid);
        if !book.looked {
            book.new.insert(uid.clone());
        }
    }

    /// The disk was looked at.
    pub(crate) fn found(&self, left: BTreeMap<PodUid, Left>, metrics: &EarlierVolumes) {
        let mut book = self.book();
        if book.looked {
            return;
        }
        book.looked = true;
        let new = std::mem::take(&mut book.new);
        for (uid, left) in left.into_iter().filter(|(uid, _)| !new.contains(uid)) {
            metrics.found.add(left.recorded + left.unknown);
            metrics.unknown.add(left.unknown);
            if left.unknown > 0 {
                book.unknown.insert(uid, left.unknown);
            }
        }
    }

    /// All there is of a pod was taken away, or could not be. Only the first try counts.
    pub(crate) fn taken(&self, uid: &PodUid, done: bool, metrics: &EarlierVolumes) {
        let unknown = self.book().unknown.remove(uid).unwrap_or_default();
        metrics.cleaned.add(unknown);
        if !done {
            metrics.clean_errors.add(unknown);
        }
    }

    /// Nobody panics between two writes, so what a poisoned lock guards is still whole.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// What stands of a pod's volumes by the directories alone: one for each plugin, in it one for each volume, which is
    /// not looked at, for it may hang.
    pub(crate) async fn left_unrecorded(&self, uid: &PodUid) -> Left {
        let mut unknown = 0;
        for place in [self.root.volumes(uid), self.root.pod(uid).join(DEVICES)] {
            for plugin in self.names_in(&place).await {
                unknown += self.names_in(&place.join(plugin)).await.len() as u64;
            }
        }
        Left {
            recorded: 0,
            unknown,
        }
    }

    /// What cannot be listed is not counted; whoever takes it away will say why.
    async fn names_in(&self, dir: &Path) -> Vec<OsString> {
        self.deps.files.names(dir).await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(metrics: &EarlierVolumes) -> [u64; 4] {
        let EarlierVolumes {
            found,
            unknown,
            cleaned,
            clean_errors,
        } = metrics;
        [found, unknown, cleaned, clean_errors].map(|counter| counter.get())
    }

    #[test]
    fn what_becomes_of_those_without_a_record() {
        let (earlier, metrics) = (Earlier::default(), EarlierVolumes::default());
        let uids = ["new", "recorded", "again", "gone", "stuck"].map(PodUid::from);
        let [new, recorded, again, gone, stuck] = &uids;
        let left = |recorded, unknown| Left { recorded, unknown };
        earlier.begun(new);
        let on_disk = BTreeMap::from([
            (new.clone(), left(9, 0)),
            (recorded.clone(), left(3, 0)),
            (again.clone(), left(0, 1)),
            (gone.clone(), left(0, 2)),
            (stuck.clone(), left(0, 4)),
        ]);
        // A second look is of this life.
        for _ in 0..2 {
            earlier.found(on_disk.clone(), &metrics);
            assert_eq!(numbers(&metrics), [10, 7, 0, 0]);
        }
        earlier.begun(again);
        for (uid, done, expected) in [
            (new, true, [10, 7, 0, 0]),
            (recorded, false, [10, 7, 0, 0]),
            (again, false, [10, 7, 0, 0]),
            (gone, true, [10, 7, 2, 0]),
            (stuck, false, [10, 7, 6, 4]),
            (stuck, true, [10, 7, 6, 4]),
        ] {
            earlier.taken(uid, done, &metrics);
            assert_eq!(numbers(&metrics), expected, "{uid} {done}");
        }
    }
}
