//! One attempt at a pod's volumes: who hears of what is to be known meanwhile, and when nobody waits for it any more.

use std::fmt;

use tokio_util::sync::CancellationToken;

use crate::error::SetUpError;

/// Where upstream explains what makes a change of ownership quicker.
const ADVICE: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";

/// What is to be known of a volume before its pod has it. The texts are what people see in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It takes long to give a volume to its pod's group: with how many files that was done, once that is told.
    Ownership { dir: String, files: Option<u64> },
    /// Other pods use the volume, so it keeps another group than this one asks for.
    OtherGroup {
        volume: String,
        wanted: i64,
        found: u32,
    },
    /// The disk behind a persistent volume has another file system than the volume names.
    OtherFileSystem {
        volume: String,
        uid: String,
        why: String,
    },
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Ownership { dir, files: None } => write!(
                f,
                "Setting volume ownership for {dir} is taking longer than expected, consider using OnRootMismatch - {ADVICE}"
            ),
            News::Ownership {
                dir,
                files: Some(files),
            } => write!(
                f,
                "Setting volume ownership for {dir}, processed {files} files."
            ),
            News::OtherGroup {
                volume,
                wanted,
                found,
            } => write!(
                f,
                "The requested fsGroup is {wanted}, but the volume {volume} has GID {found}. The volume may not be shareable."
            ),
            News::OtherFileSystem { volume, why, .. } => {
                write!(f, "MountVolume failed for volume {volume:?} {why}")
            }
        }
    }
}

/// Who asks for a pod's volumes.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// Cancelled when the pod is to end: what takes long is given up.
    pub cancel: Option<&'a CancellationToken>,
    pub hear: &'a (dyn Fn(News) + Send + Sync),
}

impl Attempt<'static> {
    /// For who waits for all of it, and wants to hear of nothing.
    pub const PATIENT: Self = Self {
        cancel: None,
        hear: &|_| {},
    };
}

impl Attempt<'_> {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancellationToken::is_cancelled)
    }

    /// For what may take very long, and may be left at any moment.
    pub(crate) async fn wait_for<T>(&self, done: impl Future<Output = T>) -> Result<T, SetUpError> {
        let Some(cancel) = self.cancel else {
            return Ok(done.await);
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SetUpError::Cancelled),
            done = done => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let dir = || "u-1/volumes/kubernetes.io~local-volume/pv".to_owned();
        let cases = [
            (
                News::Ownership {
                    dir: dir(),
                    files: None,
                },
                "Setting volume ownership for u-1/volumes/kubernetes.io~local-volume/pv is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods",
            ),
            (
                News::Ownership {
                    dir: dir(),
                    files: Some(7),
                },
                "Setting volume ownership for u-1/volumes/kubernetes.io~local-volume/pv, processed 7 files.",
            ),
            (
                News::OtherGroup {
                    volume: "pv".to_owned(),
                    wanted: 2000,
                    found: 1000,
                },
                "The requested fsGroup is 2000, but the volume pv has GID 1000. The volume may not be shareable.",
            ),
            (
                News::OtherFileSystem {
                    volume: "pv".to_owned(),
                    uid: "u-pv".to_owned(),
                    why: "mount failed".to_owned(),
                },
                "MountVolume failed for volume \"pv\" mount failed",
            ),
        ];
        for (news, text) in cases {
            assert_eq!(news.to_string(), text);
        }
    }
}
