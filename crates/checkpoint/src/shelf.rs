//! Many small states, each in a file of its own in one directory: what pods need of the API server, for a start
//! without it.
//!
//! A file is called by a digest of its state's name, since names may be longer than a file's can be; the name itself
//! stands inside. Writing is the work of one task, so nobody waits for the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use krablet_linux::Files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::envelope::{checksum, decode_as, digest, encode_as};
use crate::error::CheckpointError;
use crate::file::{LastWritten, load};
use crate::saver::pause;

const KIND: &str = "Kept";

#[derive(Serialize, Deserialize)]
struct Kept<N, T> {
    name: N,
    value: T,
}

/// Puts states there and takes them from there. Clones share the shelf.
#[derive(Clone)]
pub struct Shelf {
    inner: Arc<Inner>,
    /// Closes when the last shelf is dropped; nothing is ever sent.
    _alive: mpsc::Sender<Infallible>,
}

struct Inner {
    files: Arc<dyn Files>,
    dir: PathBuf,
    content: Mutex<Content>,
    changed: Notify,
}

#[derive(Default)]
struct Content {
    /// What was last put by name, to know the same when it comes again.
    put: BTreeMap<String, [u8; 32]>,
    /// What the files do not have yet: the bytes, or that there is to be no file.
    unwritten: BTreeMap<String, Option<Arc<[u8]>>>,
}

/// The writing end; see [`ShelfTask::run`].
pub struct ShelfTask {
    inner: Arc<Inner>,
    alive: mpsc::Receiver<Infallible>,
    failures: u32,
}

pub fn shelf(files: Arc<dyn Files>, dir: impl Into<PathBuf>) -> (Shelf, ShelfTask) {
    let inner = Arc::new(Inner {
        files,
        dir: dir.into(),
        content: Mutex::default(),
        changed: Notify::new(),
    });
    let (_alive, alive) = mpsc::channel(1);
    let shelf = Shelf {
        inner: inner.clone(),
        _alive,
    };
    let task = ShelfTask {
        inner,
        alive,
        failures: 0,
    };
    (shelf, task)
}

impl Shelf {
    /// Never waits. The same value again costs no write.
    pub fn put<T: Serialize + ?Sized>(&self, name: &str, value: &T) {
        let bytes = match encode_as(KIND, &Kept { name, value }) {
            Ok(bytes) => bytes,
            Err(error) => return warn!("{name} cannot be kept: {error}"),
        };
        let digest = digest(&bytes);
        let mut content = self.inner.content();
        if content.put.insert(name.to_owned(), digest) != Some(digest) {
            content
                .unwritten
                .insert(name.to_owned(), Some(bytes.into()));
            self.inner.changed.notify_one();
        }
    }

    /// Never waits. Absent is fine.
    pub fn remove(&self, name: &str) {
        let mut content = self.inner.content();
        content.put.remove(name);
        content.unwritten.insert(name.to_owned(), None);
        self.inner.changed.notify_one();
    }

    pub async fn load<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let decode = |bytes: &[u8]| {
            let kept: Kept<String, T> = decode_as(KIND, bytes).map_err(|flaw| flaw.to_string())?;
            match kept.name == name {
                true => Ok(kept.value),
                false => Err(format!("it is of {}", kept.name)),
            }
        };
        let unwritten = self.inner.content().unwritten.get(name).cloned();
        match unwritten {
            Some(bytes) => bytes.and_then(|bytes| decode(&bytes).ok()),
            None => {
                let path = self.inner.path(name);
                load(&*self.inner.files, &path, decode).await.valid()
            }
        }
    }

    /// Removes every file but those of these names. For the beginning, before anything is put.
    pub async fn keep_only(&self, names: &BTreeSet<String>) {
        let Inner { files, dir, .. } = &*self.inner;
        let entries = match files.list(dir).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return warn!("{} cannot be read: {error}", dir.display()),
        };
        let wanted: BTreeSet<PathBuf> = names.iter().map(|name| self.inner.path(name)).collect();
        for entry in entries.iter().filter(|e| !wanted.contains(&e.path)) {
            if let Err(error) = files.remove_file(&entry.path).await {
                warn!("{} cannot be removed: {error}", entry.path.display());
            }
        }
    }
}

impl Inner {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir
            .join(format!("{}.json", &checksum(name.as_bytes())[..32]))
    }

    async fn write(&self, name: &str, bytes: Option<&[u8]>) -> Result<(), CheckpointError> {
        let path = self.path(name);
        match bytes {
            Some(bytes) => {
                let mut unknown = LastWritten::default();
                unknown.write(&*self.files, &path, bytes).await?;
            }
            None => self.files.remove_file(&path).await?,
        }
        Ok(())
    }

    /// Unless something newer came meanwhile.
    fn written(&self, name: &str, bytes: &Option<Arc<[u8]>>) {
        let mut content = self.content();
        let same = match (content.unwritten.get(name), bytes) {
            (Some(Some(now)), Some(then)) => Arc::ptr_eq(now, then),
            (Some(None), None) => true,
            _ => false,
        };
        if same {
            content.unwritten.remove(name);
        }
    }
}

impl ShelfTask {
    /// Writes until the last [`Shelf`] is dropped, then what is left, and ends.
    pub async fn run(mut self) {
        let inner = self.inner.clone();
        loop {
            self.write_all().await;
            let wait = async {
                match self.failures {
                    0 => inner.changed.notified().await,
                    failures => sleep(pause(failures)).await,
                }
            };
            tokio::select! {
                biased;
                _ = self.alive.recv() => break,
                () = wait => {}
            }
        }
        self.write_all().await;
    }

    /// Until everything is written, or something cannot be.
    async fn write_all(&mut self) {
        loop {
            let next = {
                let content = self.inner.content();
                let first = content.unwritten.first_key_value();
                first.map(|(name, bytes)| (name.clone(), bytes.clone()))
            };
            let Some((name, bytes)) = next else { return };
            let dir = self.inner.dir.display();
            if let Err(error) = self.inner.write(&name, bytes.as_deref()).await {
                if self.failures == 0 {
                    warn!("{dir} cannot be written, trying again: {error}");
                }
                self.failures = self.failures.saturating_add(1);
                return;
            }
            if self.failures > 0 {
                info!("{dir} is written again");
            }
            self.failures = 0;
            self.inner.written(&name, &bytes);
        }
    }
}
