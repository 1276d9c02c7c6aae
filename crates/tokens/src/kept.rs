//! Tokens as they lie on the shelf: all of a pod under one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use krablet_checkpoint::Shelf;
use krablet_pod::PodUid;
use serde::{Deserialize, Serialize};

use crate::{Held, Wanted};

#[derive(Serialize, Deserialize)]
struct Kept {
    service_account: String,
    audience: Option<String>,
    expiration_seconds: Option<i64>,
    token: String,
}

pub fn kept_name(uid: &PodUid) -> String {
    format!("tokens {uid}")
}

pub(crate) fn put(shelf: &Shelf, uid: &PodUid, held: &BTreeMap<Wanted, Held>) {
    let kept = held.iter().map(|(wanted, held)| Kept {
        service_account: wanted.service_account.clone(),
        audience: wanted.audience.clone(),
        expiration_seconds: wanted.expiration_seconds,
        token: held.text.to_string(),
    });
    shelf.put(&kept_name(uid), &kept.collect::<Vec<_>>());
}

pub(crate) async fn load(shelf: &Shelf, wanted: &Wanted) -> Option<Arc<str>> {
    let kept: Vec<Kept> = shelf.load(&kept_name(&wanted.pod.uid)).await?;
    let same = |kept: &Kept| {
        kept.service_account == wanted.service_account
            && kept.audience == wanted.audience
            && kept.expiration_seconds == wanted.expiration_seconds
    };
    kept.into_iter().find(same).map(|kept| kept.token.into())
}
