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
/// In hexadecimal digits.
const CHECKSUM_LEN: usize = 64;

/// Something that is kept in a state file of its own.
pub trait State: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Stands in the file, so that no file is taken for one of another content.
    const KIND: &'static str;
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

/// In one piece, with a blank that the checksum is put into: the pods of a node are megabytes, written every second while
/// they come.
pub(crate) fn encode_as(kind: &str, value: &impl Serialize) -> Result<Vec<u8>, CheckpointError> {
    let kind = serde_json::to_string(kind)?;
    let mut bytes = format!(r#"{{"version":{VERSION},"kind":{kind},"checksum":""#).into_bytes();
    let blank = bytes.len()..bytes.len() + CHECKSUM_LEN;
    bytes.resize(blank.end, b'0');
    bytes.extend_from_slice(br#"","data":"#);
    let begin = bytes.len();
    serde_json::to_writer(&mut bytes, value)?;
    let data = &bytes[begin..];
    if data.len() > SIZE_LIMIT {
        return Err(CheckpointError::TooLarge(data.len()));
    }
    let checksum = checksum(data);
    bytes[blank].copy_from_slice(checksum.as_bytes());
    bytes.push(b'}');
    Ok(bytes)
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
    if read.checksum != checksum(read.data.get().as_bytes()) {
        return Err(Flaw::Checksum);
    }
    serde_json::from_slice(read.data.get().as_bytes()).map_err(|e| Flaw::Content(e.to_string()))
}

pub(crate) fn checksum(data: &[u8]) -> String {
    let mut hex = String::with_capacity(CHECKSUM_LEN);
    for byte in digest(data) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Tells equal content from changed content.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
