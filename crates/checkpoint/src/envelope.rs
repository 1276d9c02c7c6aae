//! The form of a state file: `{"version":1,"kind":"…","checksum":"…","data":…}`.
//!
//! The checksum is the SHA-256 of the bytes of `data` as they stand in the file.

use std::borrow::Cow;
use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::SIZE_LIMIT;
use crate::error::{CheckpointError, Flaw};

const VERSION: u64 = 1;

/// Something that is kept in a state file of its own.
pub trait State: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Stands in the file, so that no file is taken for one of another content.
    const KIND: &'static str;
}

#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    kind: &'a str,
    checksum: &'a str,
    data: &'a RawValue,
}

/// What every version begins with.
#[derive(Deserialize)]
struct Head {
    version: u64,
}

#[derive(Deserialize)]
struct Read<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    checksum: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
}

pub(crate) fn encode<T: State>(value: &T) -> Result<Vec<u8>, CheckpointError> {
    encode_as(T::KIND, value)
}

pub(crate) fn encode_as(kind: &str, value: &impl Serialize) -> Result<Vec<u8>, CheckpointError> {
    let data = serde_json::value::to_raw_value(value)?;
    if data.get().len() > SIZE_LIMIT {
        return Err(CheckpointError::TooLarge(data.get().len()));
    }
    let written = Written {
        version: VERSION,
        kind,
        checksum: &checksum(data.get()),
        data: &data,
    };
    Ok(serde_json::to_vec(&written)?)
}

pub(crate) fn decode<T: State>(bytes: &[u8]) -> Result<T, Flaw> {
    decode_as(T::KIND, bytes)
}

pub(crate) fn decode_as<T: DeserializeOwned>(kind: &'static str, bytes: &[u8]) -> Result<T, Flaw> {
    let malformed = |e: serde_json::Error| Flaw::Malformed(e.to_string());
    let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
    if head.version != VERSION {
        return Err(Flaw::Version(head.version));
    }
    let read: Read<'_> = serde_json::from_slice(bytes).map_err(malformed)?;
    if read.kind != kind {
        return Err(Flaw::Kind {
            found: read.kind.into_owned(),
            expected: kind,
        });
    }
    if read.checksum != checksum(read.data.get()) {
        return Err(Flaw::Checksum);
    }
    serde_json::from_str(read.data.get()).map_err(|e| Flaw::Content(e.to_string()))
}

pub(crate) fn checksum(data: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in digest(data.as_bytes()) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Tells equal content from changed content.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
