//! Credentials in files that others replace: looked at again every minute, and when the server refused what they
//! held.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;

use super::{Identity, bearer, load_identity};
use crate::ApiError;
use crate::kubeconfig::Pem;

/// Tokens of service accounts are renewed minutes before they expire, so a minute is soon enough.
const PERIOD: Duration = Duration::from_secs(60);
/// Nothing that is a token or a key is longer.
const MAX_BYTES: u64 = 1 << 20;

/// What was read last.
struct Held<T> {
    value: Option<T>,
    read: Option<Instant>,
    serial: u64,
}

impl<T> Held<T> {
    fn is_fresh(&self) -> bool {
        self.value.is_some() && self.read.is_some_and(|read| read.elapsed() < PERIOD)
    }

    fn keep(&mut self, value: T) {
        self.value = Some(value);
        self.read = Some(Instant::now());
        self.serial += 1;
    }

    /// Read anew before the next use, unless that has happened since.
    fn doubt(&mut self, serial: u64) {
        if self.serial == serial {
            self.read = None;
        }
    }
}

fn lock<T>(held: &Mutex<Held<T>>) -> MutexGuard<'_, Held<T>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct TokenFile {
    path: PathBuf,
    held: Mutex<Held<HeaderValue>>,
}

impl TokenFile {
    /// Until the file could be read, `first` stands.
    pub(super) fn new(path: PathBuf, first: Option<HeaderValue>) -> Self {
        let held = Held {
            value: first,
            read: None,
            serial: 0,
        };
        Self {
            path,
            held: Mutex::new(held),
        }
    }

    pub(super) async fn present(&self) -> Result<(Option<HeaderValue>, u64), ApiError> {
        let fresh = |held: &Held<HeaderValue>| (held.value.clone(), held.serial);
        {
            let held = lock(&self.held);
            if held.is_fresh() {
                return Ok(fresh(&held));
            }
        }
        let read = read_token(&self.path).await;
        let mut held = lock(&self.held);
        match read {
            Ok(token) => held.keep(token),
            Err(error) if held.value.is_none() => return Err(error),
            Err(error) => {
                tracing::warn!("{error}; the token read before is still used");
                held.read = Some(Instant::now());
            }
        }
        Ok(fresh(&held))
    }

    pub(super) fn refused(&self, serial: u64) {
        lock(&self.held).doubt(serial);
    }
}

async fn read_token(path: &Path) -> Result<HeaderValue, ApiError> {
    let failed = |problem: &dyn std::fmt::Display| {
        ApiError::Credentials(format!("the token file {}: {problem}", path.display()))
    };
    let bytes = read(path).await.map_err(|e| failed(&e))?;
    let text = String::from_utf8(bytes).map_err(|_| failed(&"is not text"))?;
    match text.trim() {
        "" => Err(failed(&"is empty")),
        token => bearer(token).map_err(|e| failed(&e)),
    }
}

async fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use tokio::io::AsyncReadExt as _;
    let mut bytes = Vec::new();
    let file = tokio::fs::File::open(path).await?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

type Pems = (Vec<u8>, Vec<u8>);

pub(super) struct CertificateFiles {
    certificate: Pem,
    key: Pem,
    held: Mutex<Held<(Pems, Identity)>>,
}

impl CertificateFiles {
    /// `pems` is what `files` held when `identity` was made of it.
    pub(super) fn new(files: (Pem, Pem), pems: Pems, identity: Identity) -> Self {
        let mut held = Held {
            value: None,
            read: None,
            serial: 0,
        };
        held.keep((pems, identity));
        Self {
            certificate: files.0,
            key: files.1,
            held: Mutex::new(held),
        }
    }

    pub(super) async fn present(&self) -> Result<(Option<Identity>, u64), ApiError> {
        let identity = |held: &Held<(Pems, Identity)>| held.value.as_ref().map(|(_, i)| i.clone());
        {
            let held = lock(&self.held);
            if held.is_fresh() {
                return Ok((identity(&held), held.serial));
            }
        }
        let read = self.read().await;
        let mut held = lock(&self.held);
        let known = |pems: &Pems| held.value.as_ref().is_some_and(|(known, _)| known == pems);
        match read {
            // The same certificate stays the same identity, so that its connection is kept.
            Ok(pems) if known(&pems) => held.read = Some(Instant::now()),
            Ok(pems) => match load_identity(&pems.0, &pems.1) {
                Ok(identity) => held.keep((pems, identity)),
                Err(error) => self.keep_old(&mut held, &error.to_string()),
            },
            Err(error) => self.keep_old(&mut held, &error),
        }
        Ok((identity(&held), held.serial))
    }

    /// The files may be in the middle of being replaced.
    fn keep_old(&self, held: &mut Held<(Pems, Identity)>, error: &str) {
        let (certificate, key) = (&self.certificate, &self.key);
        tracing::warn!(
            "client certificate {certificate:?}, key {key:?}: {error}; the one read before is still used"
        );
        held.read = Some(Instant::now());
    }

    async fn read(&self) -> Result<Pems, String> {
        Ok((load(&self.certificate).await?, load(&self.key).await?))
    }

    pub(super) fn refused(&self, serial: u64) {
        lock(&self.held).doubt(serial);
    }
}

async fn load(pem: &Pem) -> Result<Vec<u8>, String> {
    match pem {
        Pem::Data(data) => Ok(data.clone()),
        Pem::File(path) => read(path).await.map_err(|e| e.to_string()),
    }
}
