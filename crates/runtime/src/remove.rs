//! Taking containers out of the runtime, with or without their logs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_cri::{Error as CriError, RuntimeService, v1};
use krablet_linux::Files;
use krablet_pod::observed::ObservedContainer;
use krablet_pod::{ContainerId, PodRef, paths};
use tokio::time::Instant;

use crate::error::RuntimeError;
use crate::pod_runtime::PodRuntime;

/// An answer that took longer tells how it stood when it was asked, not how it stands.
const FRESH: Duration = Duration::from_millis(250);
/// A runtime that is slow all the time is believed in the end.
const LOOKS: usize = 4;

impl PodRuntime {
    /// Removes a container and leaves its logs. Gone already is fine.
    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        match self.inner.deps.runtime.remove_container(id.as_str()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a container that was seen created and not started, if that is still so. A start that
    /// was given up may have come to its end after all, and how the container ended is yet to be told.
    pub(crate) async fn remove_never_started(
        &self,
        name: &str,
        id: &ContainerId,
    ) -> Result<(), RuntimeError> {
        let container = || name.to_owned();
        let failed = |source| RuntimeError::RemoveContainer {
            container: container(),
            source,
        };
        match never_started(&*self.inner.deps.runtime, id).await {
            Ok(true) => self.remove_container(id).await.map_err(failed),
            Ok(false) => Err(RuntimeError::StartedLate {
                container: container(),
            }),
            Err(source) => Err(failed(source)),
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
        // What cannot be listed is left to the end of the pod.
        let logs = instance_logs(files, Path::new(&seen.log_path)).await;
        let mut doomed = logs.unwrap_or_default();
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

/// Whether a container that was seen created is still no more than that. Gone is as good.
pub(crate) async fn never_started(
    runtime: &dyn RuntimeService,
    id: &ContainerId,
) -> Result<bool, CriError> {
    for _ in 1..LOOKS {
        let begun = Instant::now();
        let answer = look(runtime, id).await;
        if begun.elapsed() <= FRESH || !matches!(answer, Ok(true)) {
            return answer;
        }
    }
    look(runtime, id).await
}

async fn look(runtime: &dyn RuntimeService, id: &ContainerId) -> Result<bool, CriError> {
    match runtime.container_status(id.as_str()).await {
        Ok(status) => Ok(status.state() == v1::ContainerState::ContainerCreated),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// The log of an instance, what was rotated away from it (`<n>.log*`), and the mark beside it.
pub(crate) async fn instance_logs(files: &dyn Files, log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let entries = match files.list(dir).await {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mark = paths::restart_mark(log);
    let is_own = |path: &PathBuf| {
        let file = path.file_name().and_then(|n| n.to_str());
        let rest = file.and_then(|f| f.strip_prefix(name));
        rest.is_some_and(|r| r.is_empty() || r.starts_with('.')) || Some(path) == mark.as_ref()
    };
    let paths = entries.into_iter().map(|e| e.path);
    Ok(paths.filter(is_own).collect())
}
