//! Errors that name the path they are about, and the way of blocking calls off the async threads.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What was tried, on which path, and what the system said.
#[derive(Debug)]
struct PathFailure {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for PathFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.action,
            self.path.display(),
            self.source
        )
    }
}

impl Error for PathFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Adds action and path to an error and keeps its kind.
pub(crate) fn naming<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> io::Error {
    let path = path.to_owned();
    move |source| {
        let source = source.into();
        let failure = PathFailure {
            action,
            path,
            source,
        };
        io::Error::new(failure.source.kind(), failure)
    }
}

/// An error of our own about a path.
pub(crate) fn refuse(
    kind: io::ErrorKind,
    action: &'static str,
    path: &Path,
    why: &str,
) -> io::Error {
    naming(action, path)(io::Error::new(kind, why.to_owned()))
}

/// Runs a call that may block for long on a thread of its own.
pub(crate) async fn blocking<T, F>(call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> io::Result<T> + Send + 'static,
{
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(lost) => Err(io::Error::other(lost)),
    }
}

/// Little, for system calls and what they return.
const OWN_STACK: usize = 256 << 10;

/// Runs a call that may never come back, for it asks whatever file system is there, on a thread that nobody else
/// waits for: those of [`blocking`] are few.
pub(crate) async fn alone<T, F>(call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> io::Result<T> + Send + 'static,
{
    let (tell, answer) = tokio::sync::oneshot::channel();
    let call = move || {
        // Whoever asked may have stopped waiting.
        let _ = tell.send(call());
    };
    let own = std::thread::Builder::new().name("krablet-alone".to_owned());
    own.stack_size(OWN_STACK).spawn(call)?;
    answer.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_alone_keeps_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let hangs = alone(move || wait.recv().map_err(io::Error::other));
            let mut hangs = std::pin::pin!(hangs);
            let others = async {
                blocking(|| Ok(())).await.unwrap();
                alone(|| Ok(())).await.unwrap();
            };
            tokio::select! {
                biased;
                _ = &mut hangs => panic!("it hangs"),
                () = others => {}
            }
            go.send(()).unwrap();
            hangs.await.unwrap();
        });
    }
}
