//! Mounts of file systems whose server may be away: whoever asks for something waits so long and no longer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::failure::refuse;
use crate::mounts::{Mount, Mounts};
use crate::pending::{NoAnswer, Pending};
use crate::sub_path::{PartError, PartStep};

/// Longer than any disk takes to write what it holds back, and half of what the kubelet waits.
const DEADLINE: Duration = Duration::from_secs(30);
/// Of calls that never came back. Each holds a thread of its own.
const MOST: usize = 128;

/// Who did what to which path.
type Key = (&'static str, PathBuf);
type Answer = Result<Vec<String>, Failure>;

/// Shared by those who wait for it, so of the error its kind and text are kept.
#[derive(Clone)]
struct Failure {
    step: PartStep,
    kind: io::ErrorKind,
    text: String,
}

impl From<PartError> for Failure {
    fn from(PartError { step, error }: PartError) -> Self {
        Self {
            step,
            kind: error.kind(),
            text: error.to_string(),
        }
    }
}

impl From<Failure> for PartError {
    fn from(Failure { step, kind, text }: Failure) -> Self {
        let error = io::Error::new(kind, text);
        Self { step, error }
    }
}

/// Every call that a file system could keep from coming back has a deadline: an error of kind `TimedOut`. One that
/// is late goes on, and is joined by the next try instead of being made again.
pub struct PatientMounts {
    inner: Arc<dyn Mounts>,
    calls: Pending<Key, Answer>,
}

impl PatientMounts {
    pub fn over(inner: Arc<dyn Mounts>) -> Self {
        Self {
            inner,
            calls: Pending::new(MOST),
        }
    }

    async fn ask(
        &self,
        action: &'static str,
        path: &Path,
        call: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<()> {
        let call = async move { call.await.map_err(PartError::from) };
        let asked = self.ask_for_part(action, path, call).await;
        asked.map_err(|e| e.error)
    }

    async fn ask_for_part(
        &self,
        action: &'static str,
        path: &Path,
        call: impl Future<Output = Result<(), PartError>> + Send + 'static,
    ) -> Result<(), PartError> {
        let call = async move { call.await.map(|()| Vec::new()).map_err(Failure::from) };
        let key = (action, path.to_owned());
        let late = |why: &str| refuse(io::ErrorKind::TimedOut, action, path, why).into();
        match self.calls.ask(key, DEADLINE, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failure)) => Err(failure.into()),
            Err(NoAnswer::Late) => {
                let why = format!("no answer within {DEADLINE:?}; its file system may hang");
                Err(late(&why))
            }
            Err(NoAnswer::TooMany) => Err(late("too many file systems do not answer")),
        }
    }
}

#[async_trait]
impl Mounts for PatientMounts {
    /// The kernel's table answers this, whatever is mounted there.
    async fn below(&self, dir: &Path) -> io::Result<Vec<Mount>> {
        self.inner.below(dir).await
    }

    async fn tmpfs(&self, point: &Path, size: Option<u64>) -> io::Result<()> {
        self.inner.tmpfs(point, size).await
    }

    async fn hugetlbfs(&self, point: &Path, page_size: u64) -> io::Result<()> {
        self.inner.hugetlbfs(point, page_size).await
    }

    async fn bind(&self, source: &Path, point: &Path, read_only: bool) -> io::Result<()> {
        let (inner, from, to) = (self.inner.clone(), source.to_owned(), point.to_owned());
        let call = async move { inner.bind(&from, &to, read_only).await };
        self.ask("bind mount on", point, call).await
    }

    async fn bind_below(&self, top: &Path, relative: &Path, point: &Path) -> Result<(), PartError> {
        let (inner, to) = (self.inner.clone(), point.to_owned());
        let (top, relative) = (top.to_owned(), relative.to_owned());
        let call = async move { inner.bind_below(&top, &relative, &to).await };
        self.ask_for_part("bind mount on", point, call).await
    }

    async fn unmount(&self, point: &Path) -> io::Result<()> {
        let (inner, at) = (self.inner.clone(), point.to_owned());
        let call = async move { inner.unmount(&at).await };
        self.ask("unmount", point, call).await
    }

    async fn force(&self, point: &Path) -> io::Result<()> {
        let (inner, at) = (self.inner.clone(), point.to_owned());
        let call = async move { inner.force(&at).await };
        self.ask("unmount by force", point, call).await
    }

    async fn detach(&self, point: &Path) -> io::Result<()> {
        let (inner, at) = (self.inner.clone(), point.to_owned());
        let call = async move { inner.detach(&at).await };
        self.ask("detach", point, call).await
    }

    async fn holders(&self, point: &Path) -> Vec<String> {
        let (inner, at) = (self.inner.clone(), point.to_owned());
        let call = async move { Ok(inner.holders(&at).await) };
        let key = ("holders", point.to_owned());
        let answer = self.calls.ask(key, DEADLINE, call).await;
        answer.ok().and_then(Result::ok).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::fake::{Fault, MemoryFiles};
    use crate::files::Files;

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_hangs_is_late_and_others_are_not() {
        let files = MemoryFiles::default();
        let (hung, fine) = (Path::new("/hung"), Path::new("/fine"));
        for point in [hung, fine] {
            files.create_dir_all(point, 0o755).await.unwrap();
            files.mounts().tmpfs(point, None).await.unwrap();
        }
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        files.set_faults(move |call, path| {
            noted.lock().unwrap().push(call);
            (call == "unmount" && path == hung).then_some(Fault::Hang)
        });
        let mounts = PatientMounts::over(Arc::new(files.mounts()));
        for _ in 0..3 {
            let late = mounts.unmount(hung).await.unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut);
            assert_eq!(
                late.to_string(),
                "unmount /hung: no answer within 30s; its file system may hang"
            );
        }
        mounts.unmount(fine).await.unwrap();
        let count = |name: &str| asked.lock().unwrap().iter().filter(|c| **c == name).count();
        assert_eq!(count("unmount"), 2, "one that hangs is not tried again");
        mounts.force(hung).await.unwrap();
        assert!(mounts.below(hung).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn failures_keep_their_kind_and_words() {
        let files = MemoryFiles::default();
        let point = Path::new("/busy");
        files.create_dir_all(point, 0o755).await.unwrap();
        files.mounts().tmpfs(point, None).await.unwrap();
        files.mounts().set_busy(point, true);
        let mounts = PatientMounts::over(Arc::new(files.mounts()));
        let plain = files.mounts().unmount(point).await.unwrap_err();
        let told = mounts.unmount(point).await.unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(told.to_string(), plain.to_string());
        assert_eq!(mounts.holders(point).await.len(), 1);
        for (link, step) in [("/top/etc", PartStep::Show), ("/top/new", PartStep::Make)] {
            let (top, link) = (Path::new("/top"), Path::new(link));
            files
                .create_dir_all(Path::new("/etc"), 0o755)
                .await
                .unwrap();
            files.create_dir_all(top, 0o755).await.unwrap();
            let target = Path::new("/").join(link.file_name().unwrap());
            files.symlink(&target, link).await.unwrap();
            let relative = link.strip_prefix(top).unwrap();
            let told = mounts.bind_below(top, relative, Path::new("/part")).await;
            let told = told.unwrap_err();
            assert_eq!(told.error.kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(told.step, step, "{told}");
        }
    }
}
