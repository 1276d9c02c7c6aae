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
