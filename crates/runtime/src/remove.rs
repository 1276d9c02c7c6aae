//! Taking containers out of the runtime, with or without their logs.

use std::path::{Path, PathBuf};

use krablet_cri::Error as CriError;
use krablet_linux::Files;
use krablet_pod::observed::ObservedContainer;
use krablet_pod::{ContainerId, PodRef, paths};

use crate::error::RuntimeError;
use crate::pod_runtime::PodRuntime;

impl PodRuntime {
    /// Removes a container and leaves its logs. Gone already is fine.
    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        match self.inner.deps.runtime.remove_container(id.as_str()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a container together with its log, the rotated ones and the link to it.
    pub async fn remove_container_and_logs(
        &self,
        pod: &PodRef,
        seen: &ObservedContainer,
    ) -> Result<(), RuntimeError> {
        let files = &*self.inner.deps.files;
        let dir = &self.inner.config.paths.container_logs;
        let link = paths::legacy_log_symlink(dir, pod, &seen.name, &seen.id);
        let mut doomed = logs_of(files, Path::new(&seen.log_path)).await;
        doomed.push(link);
        for path in doomed {
            if let Err(source) = files.remove_file(&path).await {
                return Err(RuntimeError::File { path, source });
            }
        }
        self.remove_container(&seen.id)
            .await
            .map_err(|source| RuntimeError::RemoveContainer {
                container: seen.name.to_string(),
                source,
            })
    }
}

/// The log of an instance and what was rotated away from it: `<n>.log*`.
async fn logs_of(files: &dyn Files, log: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    // No directory, no logs.
    let entries = files.list(dir).await.unwrap_or_default();
    let is_own = |path: &Path| {
        let file = path.file_name().and_then(|n| n.to_str());
        file.is_some_and(|f| f.starts_with(name))
    };
    entries
        .into_iter()
        .map(|entry| entry.path)
        .filter(|path| is_own(path))
        .collect()
}
