//! What can go wrong while a pod is brought to what it should be.

use std::io;
use std::path::PathBuf;

use krablet_cri::Error as CriError;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The spec cannot be said in the runtime's words.
    #[error("failed to generate sandbox config for pod {pod:?}: {message}")]
    SandboxConfig { pod: String, message: String },
    #[error("failed to \"CreatePodSandbox\" for {pod:?} with CreatePodSandboxError: {source}")]
    CreateSandbox { pod: String, source: CriError },
    #[error("failed to \"CreatePodSandbox\" for {pod:?} with CreatePodSandboxError: {message}")]
    RuntimeClass { pod: String, message: String },
    #[error("unable to get pod sandbox status: {0}")]
    SandboxStatus(CriError),
    #[error("failed to \"KillPodSandbox\" for {sandbox:?} with KillPodSandboxError: {source}")]
    StopSandbox { sandbox: String, source: CriError },
    #[error("failed to \"KillContainer\" for {container:?} with KillContainerError: {source}")]
    KillContainer { container: String, source: CriError },
    #[error("failed to remove container {container:?}: {source}")]
    RemoveContainer { container: String, source: CriError },
    /// The pod has to be looked at again.
    #[error("container {container:?} has started after its start was given up")]
    StartedLate { container: String },
    /// The pod has to be looked at again.
    #[error("containers were killed, and how they ended cannot be seen: {0}")]
    EndsNotSeen(String),
    /// The pod has to be looked at again.
    #[error("container {container:?} has ended before it could be stopped to be restarted")]
    EndedByItself { container: String },
    /// A container did not start; its waiting reason says the same.
    #[error("failed to \"StartContainer\" for {container:?} with {reason}: {message:?}")]
    StartContainer {
        container: String,
        reason: &'static str,
        message: String,
    },
    #[error("failed to \"ResizePodInPlace\" for {pod:?} with ResizePodInPlaceError: {message:?}")]
    Resize { pod: String, message: String },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}
