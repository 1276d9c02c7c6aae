//! Reads a log from its tail to its end, or for as long as its container runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Fuse};

use crate::filter::{Appetite, Filter, LogOptions};
use crate::segments::successor;
use crate::tail::start_of_tail;
use crate::watch::{DirectoryChanges, LogWatch};

/// Read at once, and handed on at once at the most (a timestamp may be added to each line).
const CHUNK: usize = 32 * 1024;
/// A line without end in sight is not a log's; runtimes cut at 16 KiB.
const MAX_LINE: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("failed to try resolving symlinks in path {path:?}: {source}")]
    Resolve { path: PathBuf, source: io::Error },
    #[error("failed to open log file {path:?}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("failed to read log file {path:?}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to watch directory {path:?}: {source}")]
    Watch { path: PathBuf, source: io::Error },
}

/// Hands out a log piece by piece; what nobody asks for is not read.
pub struct LogReader {
    path: PathBuf,
    part: Part,
    /// The file before this one. A runtime writes to it until it has begun the new one.
    before: Option<Part>,
    filter: Filter,
    following: Option<Following>,
    over: bool,
    told_bad_line: bool,
}

/// How far a file was read.
struct Part {
    file: Arc<File>,
    offset: u64,
    /// The beginning of a line whose end was not there yet.
    rest: Vec<u8>,
    /// In the middle of a line that is too long to be one.
    skipping: bool,
}

impl Part {
    fn new(file: File, offset: u64) -> Self {
        Self {
            file: Arc::new(file),
            offset,
            rest: Vec::new(),
            skipping: false,
        }
    }
}

struct Following {
    changes: DirectoryChanges,
    /// Ready when the container does not run any more.
    ended: Fuse<BoxFuture<'static, ()>>,
    has_ended: bool,
}

impl LogReader {
    /// `ended` is ready when the container does not run any more; asked only by who follows.
    pub async fn open(
        path: &Path,
        options: &LogOptions,
        watch: &LogWatch,
        ended: BoxFuture<'static, ()>,
    ) -> Result<Self, LogError> {
        let given = path.to_owned();
        let tail = options.tail;
        let opened = blocking(move || open_at_tail(&given, tail)).await?;
        let (path, file, offset) = opened;
        let following = match options.follow {
            true => Some(Following {
                changes: watch_directory(watch, &path)?,
                ended: ended.fuse(),
                has_ended: false,
            }),
            false => None,
        };
        Ok(Self {
            path,
            part: Part::new(file, offset),
            before: None,
            filter: Filter::new(options),
            following,
            over: false,
            told_bad_line: false,
        })
    }

    /// The next piece; `None` at the end. May be dropped while it waits for the container to write and
    /// called again.
    pub async fn next(&mut self) -> Result<Option<Bytes>, LogError> {
        loop {
            if self.over || self.filter.appetite() == Appetite::Full {
                return Ok(None);
            }
            // Asked before the read: what was written before the end is read after it.
            let has_ended = self.following.as_ref().is_none_or(|f| f.has_ended);
            let chunk = self.read().await?;
            let mut out = Vec::new();
            if !chunk.is_empty() {
                self.finish_before(&mut out).await?;
                self.take(&chunk, &mut out);
            } else if let Some(next) = self.successor().await? {
                self.finish_before(&mut out).await?;
                let part = std::mem::replace(&mut self.part, Part::new(next, 0));
                self.before = Some(part);
            } else if has_ended {
                self.finish_before(&mut out).await?;
                self.finish_part(&mut out);
                self.over = true;
            } else {
                self.wait().await;
            }
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
    }

    async fn read(&mut self) -> Result<Vec<u8>, LogError> {
        let (file, offset) = (self.part.file.clone(), self.part.offset);
        let read = blocking(move || {
            let mut chunk = vec![0; CHUNK];
            let count = file.read_at(&mut chunk, offset)?;
            chunk.truncate(count);
            Ok(chunk)
        });
        read.await.map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: io::Error) -> LogError {
        LogError::Read {
            path: self.path.clone(),
            source,
        }
    }

    /// Where a log goes on after a rotation. Only who follows cares.
    async fn successor(&mut self) -> Result<Option<File>, LogError> {
        if self.following.is_none() {
            return Ok(None);
        }
        let (path, held) = (self.path.clone(), self.part.file.clone());
        let found = blocking(move || successor(&path, &held)).await;
        match found {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map_err(|source| self.unreadable(source)),
        }
    }

    /// What was written to the file before after it was read, now that nothing more will be.
    async fn finish_before(&mut self, out: &mut Vec<u8>) -> Result<(), LogError> {
        let Some(before) = self.before.take() else {
            return Ok(());
        };
        let part = std::mem::replace(&mut self.part, before);
        loop {
            let chunk = self.read().await?;
            if chunk.is_empty() {
                break;
            }
            self.take(&chunk, out);
        }
        self.finish_part(out);
        self.part = part;
        Ok(())
    }

    fn take(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        self.part.offset += chunk.len() as u64;
        for line in chunk.split_inclusive(|b| *b == b'\n') {
            let whole = line.ends_with(b"\n");
            if self.part.skipping {
                self.part.skipping = !whole;
                continue;
            }
            if whole && self.part.rest.is_empty() {
                self.show(line, out);
                continue;
            }
            self.part.rest.extend_from_slice(line);
            if whole {
                let line = std::mem::take(&mut self.part.rest);
                self.show(&line, out);
            } else if self.part.rest.len() > MAX_LINE {
                self.part.rest = Vec::new();
                self.part.skipping = true;
            }
        }
    }

    /// A last line without an end is shown as it is.
    fn finish_part(&mut self, out: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.part.rest);
        if !rest.is_empty() {
            self.show(&rest, out);
        }
    }

    fn show(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if let Err(why) = self.filter.take(line, out)
            && !std::mem::replace(&mut self.told_bad_line, true)
        {
            let path = self.path.display();
            tracing::warn!(%path, "A line of a log file cannot be read, it and its like are passed over: {why}");
        }
    }

    async fn wait(&mut self) {
        let Some(following) = &mut self.following else {
            return;
        };
        tokio::select! {
            biased;
            () = &mut following.ended => following.has_ended = true,
            () = following.changes.changed() => {}
        }
    }
}

fn watch_directory(watch: &LogWatch, log: &Path) -> Result<DirectoryChanges, LogError> {
    let dir = log.parent().unwrap_or(Path::new("/"));
    watch.directory(dir).map_err(|source| LogError::Watch {
        path: dir.to_owned(),
        source,
    })
}

fn open_at_tail(path: &Path, tail: Option<u64>) -> Result<(PathBuf, File, u64), LogError> {
    // The links are the node's own; what is watched is the directory of the file itself.
    let real = path.canonicalize().map_err(|source| LogError::Resolve {
        path: path.to_owned(),
        source,
    })?;
    let file = File::open(&real).map_err(|source| LogError::Open {
        path: real.clone(),
        source,
    })?;
    let offset = match tail {
        Some(lines) => start_of_tail(&file, lines).map_err(|source| LogError::Read {
            path: real.clone(),
            source,
        })?,
        None => 0,
    };
    Ok((real, file, offset))
}

/// Files are read where waiting for the disk holds nobody up.
async fn blocking<T: Send + 'static, E: From<Lost> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(Lost.into()),
    }
}

/// The runtime is going down.
struct Lost;

impl From<Lost> for io::Error {
    fn from(_: Lost) -> Self {
        io::Error::other("the agent is going down")
    }
}

impl From<Lost> for LogError {
    fn from(lost: Lost) -> Self {
        Self::Read {
            path: PathBuf::new(),
            source: lost.into(),
        }
    }
}
