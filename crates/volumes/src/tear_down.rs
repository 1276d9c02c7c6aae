//! Taking away what was set up. Each step may be repeated, and the record goes last, so whatever
//! a crash or an error leaves is found and taken away by the next try.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use krablet_linux::EntryKind;
use krablet_pod::PodUid;

use crate::error::VolumeError;
use crate::record::{self, Found, RecordedVolume};
use crate::volumes::{Volumes, check_uid};

/// Tries, each later than the one before, until somebody who holds a mount in memory is not waited for any more.
const PATIENCE: u32 = 8;

fn is_busy(done: &io::Result<()>) -> bool {
    let kind = done.as_ref().err().map(io::Error::kind);
    kind == Some(io::ErrorKind::ResourceBusy)
}

impl Volumes {
    /// Unmounts and removes the pod's volumes and leaves the rest of its directory (the containers'
    /// files), for a pod that ended but can still be asked about.
    pub async fn release(&self, uid: &PodUid) -> Result<(), VolumeError> {
        check_uid(uid)?;
        self.forget(uid);
        if !self.has_directory(uid).await? {
            return Ok(());
        }
        let recorded = self.recorded_volumes(uid).await?;
        let pod_dir = self.root.pod(uid);
        let mounted = recorded.iter().filter(|v| v.mounted);
        let points = mounted.map(|v| pod_dir.join(&v.path)).collect();
        self.unmount_all(uid, points).await?;
        for volume in &recorded {
            self.take_from_outside(volume).await?;
        }
        let files = &*self.deps.files;
        let places = record::PLACES.map(|place| pod_dir.join(place));
        for dir in places.into_iter().chain([self.root.plugins(uid)]) {
            files.remove_tree(&dir).await.map_err(VolumeError::Remove)?;
        }
        files
            .remove_file(&record::path(&self.root, uid))
            .await
            .map_err(VolumeError::Remove)
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
    async fn unmount_all(&self, uid: &PodUid, recorded: Vec<PathBuf>) -> Result<(), VolumeError> {
        let mounts = &*self.deps.mounts;
        let dir = self.root.pod(uid);
        let table = mounts.below(&dir).await.map_err(VolumeError::Directories)?;
        // Of these nothing is left to be written; of others it might.
        let in_memory = table.iter().filter(|m| m.fs_type == "tmpfs");
        let in_memory: BTreeSet<PathBuf> = in_memory.map(|m| m.point.clone()).collect();
        let patience_is_over = self.failed_releases(uid) >= PATIENCE;
        let mut points: Vec<PathBuf> = table.into_iter().rev().map(|m| m.point).collect();
        let known: BTreeSet<&PathBuf> = points.iter().collect();
        // Recorded but not in the table: not made yet, or gone. Asking the kernel settles it.
        let unseen: Vec<PathBuf> = recorded
            .into_iter()
            .filter(|p| !known.contains(p))
            .collect();
        points.extend(unseen);
        let mut first_failure = None;
        for point in points {
            let mut done = mounts.unmount(&point).await;
            if patience_is_over && in_memory.contains(&point) && is_busy(&done) {
                let holders = mounts.holders(&point).await.join("; ");
                tracing::warn!(podUID = %uid, path = %point.display(), holders, "Taking a busy mount of a pod that has ended out of the tree");
                done = mounts.detach(&point).await;
            }
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
