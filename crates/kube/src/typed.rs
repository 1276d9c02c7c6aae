//! Calls with typed objects.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Api, ApiError, Call, Detail, PatchKind, Priority, Verb};

/// An API server, with objects in and out. Clones share one.
#[derive(Clone)]
pub struct Kube {
    api: Arc<dyn Api>,
}

impl Kube {
    pub fn new(api: Arc<dyn Api>) -> Self {
        Self { api }
    }

    pub fn api(&self) -> &Arc<dyn Api> {
        &self.api
    }

    /// Any call whose answer is an object.
    pub async fn object<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        decode(&self.api.call(call).await?)
    }

    /// Any call whose answer is of use for the object's metadata alone.
    pub async fn metadata<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let answer: Described<T> = self.object(call.detail(Detail::Metadata)).await?;
        Ok(answer.metadata)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, ApiError> {
        self.object(Call::new(Verb::Get, path)).await
    }

    pub async fn create<T>(&self, path: String, object: &T) -> Result<T, ApiError>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = Call::new(Verb::Create, path).body(encode(object)?);
        self.object(call).await
    }

    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: String,
        kind: PatchKind,
        patch: &Value,
        priority: Priority,
    ) -> Result<T, ApiError> {
        let call = Call::new(Verb::Patch(kind), path)
            .body(encode(patch)?)
            .priority(priority);
        self.object(call).await
    }

    /// Deletes an object if it still is the one of this UID. Gone already is as good.
    pub async fn delete(
        &self,
        path: String,
        uid: &str,
        grace_seconds: i64,
    ) -> Result<(), ApiError> {
        let options = serde_json::json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": grace_seconds,
            "preconditions": {"uid": uid},
        });
        let call = Call::new(Verb::Delete, path)
            .body(encode(&options)?)
            .detail(Detail::Metadata);
        match self.api.call(call).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}

/// An object without what it is about.
#[derive(Deserialize)]
struct Described<T> {
    metadata: T,
}

fn encode<T: Serialize + ?Sized>(object: &T) -> Result<Bytes, ApiError> {
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(|e| ApiError::Decode(e.to_string()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|e| ApiError::Decode(e.to_string()))
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    /// How far the watch has come; nothing changed.
    Bookmark(String),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    resource_version: String,
}

/// An ERROR line comes back as the error it tells of.
pub fn decode_watch_line<T: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<T>, ApiError> {
    let line: Line<'_> =
        serde_json::from_slice(line).map_err(|e| ApiError::Decode(e.to_string()))?;
    let object = line.object.get().as_bytes();
    match line.kind {
        "ADDED" => decode(object).map(WatchEvent::Added),
        "MODIFIED" => decode(object).map(WatchEvent::Modified),
        "DELETED" => decode(object).map(WatchEvent::Deleted),
        "BOOKMARK" => decode::<Described<Versioned>>(object)
            .map(|v| WatchEvent::Bookmark(v.metadata.resource_version)),
        "ERROR" => Err(ApiError::from_watch(object)),
        other => Err(ApiError::Decode(format!(
            "unknown kind of change {other:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let read = |line: &str| decode_watch_line::<Value>(line.as_bytes());
        let object = serde_json::json!({"a": 1});
        assert_eq!(
            read(r#"{"type":"ADDED","object":{"a":1}}"#),
            Ok(WatchEvent::Added(object))
        );
        assert_eq!(
            read(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#),
            Ok(WatchEvent::Bookmark("7".into()))
        );
        let gone = r#"{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}"#;
        assert!(read(gone).is_err_and(|e| e.is_expired()));
        assert!(matches!(read("{"), Err(ApiError::Decode(_))));
    }
}
