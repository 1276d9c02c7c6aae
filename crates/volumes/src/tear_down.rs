//! Taking away what was set up. Each step may be repeated, and the record goes last, so whatever
//! a crash or an error leaves is found and taken away by the next try.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use krablet_linux::EntryKind;
use krablet_pod::PodUid;
use tokio::time::Instant;

use crate::counting::Taking;
use crate::error::VolumeError;
use crate::record::{self, Found, RecordedVolume};
use crate::volumes::{Volumes, check_uid};

/// Tries, each later than the one before, until somebody who holds a mount in memory is not waited for any more.
const PATIENCE: u32 = 8;
/// Tries until a server that does not answer is not waited for any more. Each was by force, after a deadline.
const PATIENCE_WITH_SERVERS: u32 = 3;
/// File systems whose server may be away.
const OF_SERVERS: [&str; 7] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs"];

/// What keeps a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Somebody uses it.
    Busy,
    /// It did not answer.
    Late,
    Otherwise,
}

fn kept(done: &io::Result<()>) -> Option<Kept> {
    Some(match done.as_ref().err()?.kind() {
        io::ErrorKind::ResourceBusy => Kept::Busy,
        io::ErrorKind::TimedOut => Kept::Late,
        _ => Kept::Otherwise,
    })
}

/// Whether a mount is taken out of the tree though something keeps it. Nothing is left to be written to memory, nor
/// to a server that does not answer; with others it might be.
fn is_given_up(fs_type: &str, kept: Kept, failures: u32) -> bool {
    match kept {
        Kept::Busy => fs_type == "tmpfs" && failures >= PATIENCE,
        Kept::Late => OF_SERVERS.contains(&fs_type) && failures >= PATIENCE_WITH_SERVERS,
        Kept::Otherwise => false,
    }
}

impl Volumes {
    /// Unmounts and removes the pod's volumes and leaves the rest of its directory (the containers'
    /// files), for a pod that ended but can still be asked about.
    pub async fn release(&self, uid: &PodUid) -> Result<(), VolumeError> {
        check_uid(uid)?;
        self.forget(uid);
        self.take_away(uid).await?;
        self.in_use.ended(uid);
        self.holders.ended(uid);
        Ok(())
    }

    async fn take_away(&self, uid: &PodUid) -> Result<(), VolumeError> {
        if !self.has_directory(uid).await? {
            return Ok(());
        }
        let recorded = self.recorded_volumes(uid).await?;
        let mut taking = Taking::new(&self.root.pod(uid), &recorded);
        let done = self.take_recorded(uid, &recorded, &mut taking).await;
        let metrics = &self.deps.metrics;
        taking.count(metrics, done.is_ok());
        self.earlier.taken(uid, done.is_ok(), &metrics.earlier);
        done
    }

    async fn take_recorded(
        &self,
        uid: &PodUid,
        recorded: &[RecordedVolume],
        taking: &mut Taking<'_>,
    ) -> Result<(), VolumeError> {
        let pod_dir = self.root.pod(uid);
        let mounted = recorded.iter().filter(|v| v.mounted);
        let points = mounted.map(|v| pod_dir.join(&v.path)).collect();
        self.unmount_all(uid, points, taking).await?;
        for volume in recorded {
            let begun = Instant::now();
            let done = self.take_from_outside(volume).await;
            taking.note(&pod_dir.join(&volume.path), begun.elapsed(), done.is_ok());
            done?;
        }
        let begun = Instant::now();
        let files = &*self.deps.files;
        let places = record::PLACES.map(|place| pod_dir.join(place));
        for dir in places.into_iter().chain([self.root.plugins(uid)]) {
            files.remove_tree(&dir).await.map_err(VolumeError::Remove)?;
        }
        let done = files.remove_file(&record::path(&self.root, uid)).await;
        taking.note_all(begun.elapsed());
        done.map_err(VolumeError::Remove)
    }

    /// Unmounts and removes all there is of the pod on disk. A pod without a directory is fine.
    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.release(uid).await?;
        if !self.has_directory(uid).await? {
            return Ok(());
        }
        self.deps
            .files
            .remove_tree(&self.root.pod(uid))
            .await
            .map_err(VolumeError::Remove)
    }

    /// False if the pod has none. Something else in its place is not ours to touch.
    async fn has_directory(&self, uid: &PodUid) -> Result<bool, VolumeError> {
        let dir = self.root.pod(uid);
        match self.deps.files.lstat(&dir).await {
            Ok(entry) if entry.kind == EntryKind::Directory => Ok(true),
            Ok(_) => Err(VolumeError::Directories(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is not a directory", dir.display()),
            ))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(VolumeError::Directories(e)),
        }
    }

    /// What a plugin made outside the pod's directory is for that plugin to take away.
    async fn take_from_outside(&self, volume: &RecordedVolume) -> Result<(), VolumeError> {
        let mut plugins = self.plugins.iter();
        let plugin = plugins.find(|p| p.name() == volume.plugin);
        match (plugin, &volume.outside) {
            (Some(plugin), Some(_)) => {
                let done = plugin.tear_down(volume).await;
                done.map_err(|e| VolumeError::Remove(io::Error::other(e.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// By the record. Without one, or with one that cannot be read, the mount table alone tells.
    async fn recorded_volumes(&self, uid: &PodUid) -> Result<Vec<RecordedVolume>, VolumeError> {
        let files = &*self.deps.files;
        let found = record::read(files, &self.root, uid)
            .await
            .map_err(VolumeError::Record)?;
        match found {
            Found::Nothing => Ok(Vec::new()),
            Found::Unreadable(why) => {
                record::set_aside(files, &self.root, uid, &why)
                    .await
                    .map_err(VolumeError::Record)?;
                Ok(Vec::new())
            }
            Found::Whole(record) => Ok(record.volumes),
        }
    }

    /// Unmounts everything below the pod's directory, newest first. One that is busy does not keep
    /// the others; the first failure is told.
    async fn unmount_all(
        &self,
        uid: &PodUid,
        recorded: Vec<PathBuf>,
        taking: &mut Taking<'_>,
    ) -> Result<(), VolumeError> {
        let mounts = &*self.deps.mounts;
        let dir = self.root.pod(uid);
        let table = mounts.below(&dir).await.map_err(VolumeError::Directories)?;
        let kinds = table.iter().map(|m| (m.point.clone(), m.fs_type.clone()));
        let kinds: BTreeMap<PathBuf, String> = kinds.collect();
        let mut points: Vec<PathBuf> = table.into_iter().rev().map(|m| m.point).collect();
        // Recorded but not in the table: not made yet, or gone. Asking the kernel settles it.
        points.extend(recorded.into_iter().filter(|p| !kinds.contains_key(p)));
        let mut first_failure = None;
        for point in points {
            let fs_type = kinds.get(&point).map_or("", String::as_str);
            let begun = Instant::now();
            let done = self.unmount(uid, &point, fs_type).await;
            taking.note(&point, begun.elapsed(), done.is_ok());
            if let Err(e) = done {
                first_failure = first_failure.or(Some((point, e)));
            }
        }
        match first_failure {
            None => {
                self.failures().remove(uid);
                Ok(())
            }
            Some((point, source)) => {
                *self.failures().entry(uid.clone()).or_default() += 1;
                Err(self.explain(&point, source).await)
            }
        }
    }

    /// A server that does not answer is not asked a second time: what was asked of it fails. Whatever still keeps
    /// the mount is waited for with patience, and not for ever.
    async fn unmount(&self, uid: &PodUid, point: &Path, fs_type: &str) -> io::Result<()> {
        let mounts = &*self.deps.mounts;
        let mut done = mounts.unmount(point).await;
        let Some(kept) = kept(&done) else {
            return done;
        };
        if kept == Kept::Late && OF_SERVERS.contains(&fs_type) {
            tracing::warn!(podUID = %uid, path = %point.display(), fs_type, "A server does not answer: its file system is unmounted by force");
            done = mounts.force(point).await;
            if done.is_ok() {
                return done;
            }
            // Whoever keeps it busy waits for the server too.
        }
        if is_given_up(fs_type, kept, self.failed_releases(uid)) {
            let holders = match kept {
                Kept::Busy => mounts.holders(point).await.join("; "),
                Kept::Late | Kept::Otherwise => String::new(),
            };
            tracing::warn!(podUID = %uid, path = %point.display(), fs_type, holders, "Taking a mount of a pod that has ended out of the tree");
            done = mounts.detach(point).await;
        }
        done
    }

    fn failed_releases(&self, uid: &PodUid) -> u32 {
        self.failures().get(uid).copied().unwrap_or_default()
    }

    async fn explain(&self, point: &Path, source: io::Error) -> VolumeError {
        let holders = match source.kind() {
            io::ErrorKind::ResourceBusy => self.deps.mounts.holders(point).await,
            _ => Vec::new(),
        };
        VolumeError::Unmount {
            point: point.to_owned(),
            source,
            holders,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for_and_how_long() {
        for (fs_type, kept, failures, expected) in [
            ("tmpfs", Kept::Busy, 7, false),
            ("tmpfs", Kept::Busy, 8, true),
            ("ext4", Kept::Busy, 99, false),
            ("nfs4", Kept::Busy, 99, false),
            ("nfs4", Kept::Late, 2, false),
            ("nfs4", Kept::Late, 3, true),
            ("ext4", Kept::Late, 99, false),
            ("nfs", Kept::Otherwise, 99, false),
        ] {
            let given_up = is_given_up(fs_type, kept, failures);
            assert_eq!(given_up, expected, "{fs_type} {kept:?} {failures}");
        }
    }
}
