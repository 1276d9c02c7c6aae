//! Certificates as they lie on the shelf: all of a pod under one name.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_checkpoint::Shelf;
use krablet_pod::PodUid;
use serde::{Deserialize, Serialize};

use crate::Wanted;
use crate::course::{Course, Held};

#[derive(Serialize, Deserialize)]
struct Kept {
    volume: String,
    source: usize,
    service_account: String,
    signer: String,
    key_type: String,
    key: String,
    chain: String,
    renew_at: Time,
    expires: Time,
}

pub fn kept_name(uid: &PodUid) -> String {
    format!("pod certificates {uid}")
}

pub(crate) fn put(shelf: &Shelf, uid: &PodUid, courses: &BTreeMap<Wanted, Course>) {
    let kept = courses.iter().filter_map(|(wanted, course)| {
        let (Course::Issued(held) | Course::Renewing(held, _)) = course else {
            return None;
        };
        Some(Kept {
            volume: wanted.volume.clone(),
            source: wanted.source,
            service_account: wanted.service_account.clone(),
            signer: wanted.signer.clone(),
            key_type: wanted.key_type.clone(),
            key: held.key.to_string(),
            chain: held.chain.to_string(),
            renew_at: Time(held.renew_at),
            expires: Time(held.expires),
        })
    });
    shelf.put(&kept_name(uid), &kept.collect::<Vec<_>>());
}

pub(crate) async fn load(shelf: &Shelf, wanted: &Wanted) -> Option<Course> {
    let kept: Vec<Kept> = shelf.load(&kept_name(&wanted.pod.uid)).await?;
    let same = |kept: &Kept| {
        kept.volume == wanted.volume
            && kept.source == wanted.source
            && kept.service_account == wanted.service_account
            && kept.signer == wanted.signer
            && kept.key_type == wanted.key_type
    };
    let kept = kept.into_iter().find(same)?;
    Some(Course::Issued(Held {
        key: kept.key.into(),
        chain: kept.chain.into(),
        renew_at: kept.renew_at.0,
        expires: kept.expires.0,
        told: [false; 2],
    }))
}
