//! One state in one file.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use krablet_linux::Files;

use crate::aside::set_aside;
use crate::envelope::{State, decode, digest, encode};
use crate::error::CheckpointError;
use crate::saver::{Saved, Store};
use crate::{MODE, SIZE_LIMIT};

/// What was found where a state should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded<T> {
    Absent,
    Valid(T),
    /// There was a file that is not to be trusted. The log has been told.
    SetAside {
        /// Where it stood.
        path: PathBuf,
        /// Where it is now; none if it could not be moved.
        aside: Option<PathBuf>,
        why: String,
    },
}

impl<T> Loaded<T> {
    /// The state, if there is one to be trusted.
    pub fn valid(self) -> Option<T> {
        match self {
            Loaded::Valid(value) => Some(value),
            Loaded::Absent | Loaded::SetAside { .. } => None,
        }
    }
}

/// A file that holds a `T`. One owner reads and writes it.
pub struct Checkpoint<T> {
    files: Arc<dyn Files>,
    path: PathBuf,
    last: LastWritten,
    content: PhantomData<fn() -> T>,
}

impl<T: State> Checkpoint<T> {
    pub fn new(files: Arc<dyn Files>, path: impl Into<PathBuf>) -> Self {
        Self {
            files,
            path: path.into(),
            last: LastWritten::default(),
            content: PhantomData,
        }
    }

    /// Reads the state. Whatever cannot be read as one is set aside first, so that the next save
    /// does not destroy it.
    pub async fn load(&mut self) -> Loaded<T> {
        let loaded = load(&*self.files, &self.path, |bytes| {
            let value = decode(bytes).map_err(|flaw| flaw.to_string())?;
            Ok((value, digest(bytes)))
        });
        match loaded.await {
            Loaded::Absent => Loaded::Absent,
            Loaded::Valid((value, digest)) => {
                self.last = LastWritten(Some(digest));
                Loaded::Valid(value)
            }
            Loaded::SetAside { path, aside, why } => Loaded::SetAside { path, aside, why },
        }
    }

    /// Replaces the file. When this returns without an error the state outlives a crash of the machine;
    /// until then the former state does. Bytes that stand there already are not written again.
    pub async fn save(&mut self, value: &T) -> Result<Saved, CheckpointError> {
        let bytes = encode(value)?;
        self.last.write(&*self.files, &self.path, &bytes).await
    }
}

#[async_trait]
impl<T: State> Store<T> for Checkpoint<T> {
    async fn save(&mut self, value: &T) -> Result<Saved, CheckpointError> {
        Checkpoint::save(self, value).await
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads a file with `decode`, and sets it aside if there is no way to.
pub(crate) async fn load<T>(
    files: &dyn Files,
    path: &Path,
    decode: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Loaded<T> {
    let decoded = match files.read(path, SIZE_LIMIT).await {
        Ok(bytes) => decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Loaded::Absent,
        Err(error) => Err(error.to_string()),
    };
    match decoded {
        Ok(value) => Loaded::Valid(value),
        Err(why) => Loaded::SetAside {
            path: path.to_owned(),
            aside: set_aside(files, path, &why).await,
            why,
        },
    }
}

/// What is known to stand in a file.
#[derive(Debug, Default)]
pub(crate) struct LastWritten(Option<[u8; 32]>);

impl LastWritten {
    pub async fn write(
        &mut self,
        files: &dyn Files,
        path: &Path,
        bytes: &[u8],
    ) -> Result<Saved, CheckpointError> {
        if bytes.len() > SIZE_LIMIT {
            return Err(CheckpointError::TooLarge(bytes.len()));
        }
        let digest = digest(bytes);
        if self.0 == Some(digest) {
            return Ok(Saved::Unchanged);
        }
        // Until the write has ended well nothing is known of what stands there.
        self.0 = None;
        match files.write_atomic(path, bytes, MODE).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(Path::new("/"));
                files.create_dir_all(dir, 0o700).await?;
                files.write_atomic(path, bytes, MODE).await?;
            }
            written => written?,
        }
        self.0 = Some(digest);
        Ok(Saved::Written)
    }
}
