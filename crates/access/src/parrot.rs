//! For tests: an API server that answers whatever it was told to, and what it may be told.

use std::sync::Arc;

use bytes::Bytes;
use krablet_kube::{Api, ApiError, Call, Kube, Watch};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

struct Parrot(Bytes);

#[async_trait::async_trait]
impl Api for Parrot {
    async fn call(&self, _: Call) -> Result<Bytes, ApiError> {
        Ok(self.0.clone())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        Err(ApiError::Connection("nothing to watch".into()))
    }

    fn reconnect(&self) {}
}

pub(crate) fn kube(answer: &[u8]) -> Kube {
    Kube::new(Arc::new(Parrot(Bytes::copy_from_slice(answer))))
}

pub(crate) fn block_on<T>(asked: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(asked)
}

/// The status of an answer: the fields it should have with something in them, or anything at all.
pub(crate) fn status(fields: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "(true|admin|system:masters|[ -~]{0,8})".prop_map(Value::from),
    ]
    .boxed();
    let key = prop_oneof![
        4 => select(fields).prop_map(str::to_owned),
        1 => "[a-z]{1,4}",
    ]
    .boxed();
    let flags = prop_oneof![3 => any::<bool>().prop_map(Value::from), 1 => leaf.clone()];
    let nearly = btree_map(select(fields), flags, 0..=fields.len());
    let anything = leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key.clone(), inner, 0..5).prop_map(|map| map.into_iter().collect()),
        ]
    });
    prop_oneof![
        anything,
        nearly.prop_map(|map| map.into_iter().collect::<Value>())
    ]
}
