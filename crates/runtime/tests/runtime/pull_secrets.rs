//! Pull secrets: which are tried, what a mended one does, and who gets an image that is there.

use std::time::Duration;

use base64::Engine as _;
use krablet_pod::api::{Container, LocalObjectReference, Pod, Secret};
use serde_json::json;

use crate::bench::{Bench, container, pod};

const IMAGE: &str = "r.io/team/app:1";

fn secret(name: &str, uid: &str, password: &str) -> Secret {
    let config = json!({"auths": {"r.io": {"username": "u", "password": password}}}).to_string();
    raw_secret(name, uid, &config)
}

fn raw_secret(name: &str, uid: &str, config: &str) -> Secret {
    let data = base64::prelude::BASE64_STANDARD.encode(config);
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": uid},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": data},
    }))
    .unwrap()
}

fn with_secrets(name: &str, policy: &str, secrets: &[&str]) -> Pod {
    let c = Container {
        image: Some(IMAGE.into()),
        image_pull_policy: Some(policy.into()),
        ..container("a")
    };
    let mut pod = pod(vec![], vec![c]);
    pod.metadata.uid = Some(format!("u-{name}"));
    pod.metadata.name = Some(name.into());
    let refs = secrets.iter().map(|name| LocalObjectReference {
        name: (*name).into(),
    });
    pod.spec.as_mut().unwrap().image_pull_secrets = Some(refs.collect());
    pod
}

/// A node whose registry wants `right` for the image.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.world.has_remote(IMAGE, Duration::ZERO);
    let wanted = (IMAGE.to_owned(), "right".to_owned());
    bench.world.state().passwords.extend([wanted]);
    bench
}

impl Bench {
    /// The waiting reason of a pod that is synced as if never seen before.
    async fn waiting(&self, pod: &Pod) -> Option<&'static str> {
        let outcome = self.sync_fresh(pod).await;
        outcome.start_errors.get("a").map(|e| e.reason)
    }

    fn pulls(&self) -> usize {
        let diary = self.world.diary();
        diary.iter().filter(|l| l.starts_with("PullImage")).count()
    }
}

#[tokio::test(start_paused = true)]
async fn one_after_the_other_until_the_registry_is_content() {
    let bench = bench();
    bench.objects.put_secret(secret("one", "1", "wrong"));
    bench.objects.put_secret(secret("two", "2", "right"));
    let pod = with_secrets("p", "IfNotPresent", &["one", "", "two"]);
    assert_eq!(bench.waiting(&pod).await, None);
    assert_eq!(bench.pulls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_missing_one_is_told_and_done_without() {
    let bench = bench();
    bench.objects.put_secret(secret("two", "2", "right"));
    let pod = with_secrets("p", "IfNotPresent", &["none", "two", "nil"]);
    assert_eq!(bench.waiting(&pod).await, None);
    assert_eq!(
        bench.events()[0],
        "FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (none, nil); attempting to pull the image may not succeed."
    );
}

#[tokio::test(start_paused = true)]
async fn a_mended_secret_ends_the_back_off() {
    let bench = bench();
    bench.objects.put_secret(secret("s", "1", "wrong"));
    let pod = with_secrets("p", "IfNotPresent", &["s"]);
    assert_eq!(bench.waiting(&pod).await, Some("ErrImagePull"));
    assert_eq!(bench.waiting(&pod).await, Some("ImagePullBackOff"));
    let mut same = secret("s", "1", "wrong");
    same.metadata.labels = Some([("touched".into(), "yes".into())].into());
    bench.objects.put_secret(same);
    assert_eq!(bench.waiting(&pod).await, Some("ImagePullBackOff"));
    assert_eq!(bench.pulls(), 1);
    bench.objects.put_secret(secret("s", "1", "right"));
    assert_eq!(bench.waiting(&pod).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_broken_secret_is_named() {
    let bench = bench();
    bench.objects.put_secret(raw_secret("s", "1", "{geheim"));
    let pod = with_secrets("p", "IfNotPresent", &["s"]);
    let outcome = bench.sync_fresh(&pod).await;
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, "ErrImagePull");
    let why = "pull secret ns/s: error occurred while trying to unmarshal json";
    assert_eq!(error.message, why);
    let told = bench.events();
    assert!(told.contains(&format!("Failed: Failed to pull image {IMAGE:?}: {why}")));
    assert!(!told.concat().contains("geheim"));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_there_is_for_those_who_may_pull_it() {
    let bench = bench();
    bench.objects.put_secret(secret("s", "1", "right"));
    let owner = with_secrets("owner", "IfNotPresent", &["s"]);
    assert_eq!(bench.waiting(&owner).await, None);
    assert_eq!(bench.pulls(), 1);
    // (secrets, policy, waiting reason, pulls)
    let cases: [(&[&str], &str, Option<&str>, usize); 4] = [
        (&["s"], "IfNotPresent", None, 0),
        (&["s"], "Never", None, 0),
        (&[], "Never", Some("ErrImageNeverPull"), 0),
        (&[], "IfNotPresent", Some("ErrImagePull"), 1),
    ];
    for (secrets, policy, reason, pulls) in cases {
        let other = with_secrets(&format!("other-{policy}"), policy, secrets);
        let got = (bench.waiting(&other).await, bench.pulls());
        assert_eq!(got, (reason, pulls), "{secrets:?} {policy}");
    }
}

/// Pods that wait for the same image behind a slow pull go on as soon as it is there.
#[tokio::test(start_paused = true)]
async fn who_waits_for_an_image_that_comes_need_not_pull_it() {
    let bench = Bench::new();
    bench
        .world
        .has_remote("r.io/team/app:1", Duration::from_secs(60));
    let pods: Vec<Pod> = (0..3)
        .map(|n| with_secrets(&format!("p{n}"), "IfNotPresent", &[]))
        .collect();
    let begun = bench.world.wall();
    let outcomes = futures::future::join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    assert!(outcomes.iter().all(|o| o.start_errors.is_empty()));
    assert_eq!(bench.world.wall() - begun, 60_000_000_000);
    assert_eq!(bench.pulls(), 1);
}
