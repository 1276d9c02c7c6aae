//! Pulls that are given up with their pods: who gets the image afterwards.

use std::time::Duration;

use krablet_images::{PullRecords, Standing, Verification};
use krablet_pod::api::{Container, Pod};

use crate::bench::{Bench, container, pod};

const IMAGE: &str = "r.io/team/app:1";

fn wanting(name: &str, image: &str, policy: &str) -> Pod {
    let c = Container {
        image: Some(image.into()),
        image_pull_policy: Some(policy.into()),
        ..container("a")
    };
    let mut pod = pod(vec![], vec![c]);
    pod.metadata.uid = Some(format!("u-{name}"));
    pod.metadata.name = Some(name.into());
    pod
}

/// A node whose registry answers in an hour.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.world.has_remote(IMAGE, Duration::from_secs(60 * 60));
    bench
}

impl Bench {
    /// A pod's pull, given up after a while.
    async fn give_up(&self, image: &str) {
        let pod = wanting("gone", image, "Always");
        let synced = tokio::time::timeout(Duration::from_secs(10), self.sync_fresh(&pod));
        assert!(synced.await.is_err());
    }

    /// Why a pod waits, and whether it pulled.
    async fn gets(&self, image: &str, policy: &str) -> (Option<&'static str>, bool) {
        self.world.diary();
        let pod = wanting(policy, image, policy);
        let outcome = self.sync_fresh(&pod).await;
        let diary = self.world.diary();
        let pulled = diary.iter().any(|line| line.starts_with("PullImage"));
        (outcome.start_errors.get("a").map(|e| e.reason), pulled)
    }

    /// The image's name leads to something else.
    fn changes(&self, image: &str) {
        self.world.has_image(image);
        let mut state = self.world.state();
        let image = state.images.get_mut(image).unwrap();
        image.id.push_str("-new");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_there_is_as_free_as_before() {
    let bench = bench();
    bench.world.has_image(IMAGE);
    let pulls = bench.give_up(IMAGE);
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.gets(IMAGE, "Never").await, (None, false), "meanwhile");
    };
    tokio::join!(pulls, others);
    for policy in ["Never", "IfNotPresent"] {
        assert_eq!(bench.gets(IMAGE, policy).await, (None, false), "{policy}");
    }
    let root = std::path::Path::new("/root");
    let (files, clock) = (bench.files.clone(), bench.clock.clone());
    let next = PullRecords::new(Verification::default(), root, files, clock);
    let id = format!("sha256:{IMAGE}");
    next.settle_intents(&[(id.clone(), vec![IMAGE.into()])])
        .await;
    assert_eq!(next.standing(IMAGE, &id).await, Standing::Free);
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_brings_after_all_is_for_those_who_may_pull_it() {
    for was_there in [true, false] {
        let bench = bench();
        if was_there {
            bench.world.has_image(IMAGE);
        }
        bench.give_up(IMAGE).await;
        bench.changes(IMAGE);
        bench.world.state().remote.clear();
        let cases = [
            ("Never", (Some("ErrImageNeverPull"), false)),
            ("IfNotPresent", (Some("ErrImagePull"), true)),
            ("Never", (Some("ErrImageNeverPull"), false)),
        ];
        for (policy, expected) in cases {
            let got = bench.gets(IMAGE, policy).await;
            assert_eq!(got, expected, "{was_there} {policy}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_leaves_nothing_behind() {
    let bench = bench();
    let other = "r.io/team/other:1";
    tokio::join!(bench.give_up(IMAGE), bench.give_up(other));
    // The other never had its turn: whatever comes by its name comes from elsewhere.
    bench.world.has_image(other);
    assert_eq!(bench.gets(other, "Never").await, (None, false));
}
