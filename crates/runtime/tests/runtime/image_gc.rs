//! Garbage collection of images over the in-memory runtime.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::image_gc::ImageGcPolicy;
use krablet_images::{PullRecords, Standing, Verification};
use krablet_linux::fake::MemorySpace;
use krablet_metrics::ImageMetrics;
use krablet_pod::api::{Container, Pod};
use krablet_runtime::images::gc::{ImageGc, ImageGcDeps};

use crate::bench::{Bench, container, pod};

struct Cleaner {
    gc: ImageGc,
    space: MemorySpace,
    metrics: ImageMetrics,
}

fn cleaner(bench: &Bench, policy: ImageGcPolicy, mounted: &[&str]) -> Cleaner {
    let space = MemorySpace::new(1000, 900);
    let metrics = ImageMetrics::default();
    let mounted: BTreeSet<String> = mounted.iter().map(|m| m.to_string()).collect();
    let gc = ImageGc::new(
        policy,
        ImageGcDeps {
            runtime: Arc::new(bench.world.clone()),
            images: Arc::new(bench.world.clone()),
            space: Arc::new(space.clone()),
            recorder: bench.recorder.clone(),
            clock: bench.clock.clone(),
            metrics: metrics.clone(),
            records: Some(bench.records.clone()),
            mounted: Arc::new(move || mounted.clone()),
        },
    );
    Cleaner { gc, space, metrics }
}

fn with_image(image: &str) -> Pod {
    let c = Container {
        image: Some(image.into()),
        ..container("a")
    };
    pod(vec![], vec![c])
}

fn images(bench: &Bench) -> Vec<String> {
    bench.world.state().images.keys().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_loses_unused_images_until_it_is_better() {
    let bench = Bench::new();
    bench.sync(&with_image("img:1")).await;
    for name in ["a:1", "docker.io/library/b:1", "c:1", "pin:1"] {
        bench.world.has_image(name);
    }
    bench.world.state().images.get_mut("pin:1").unwrap().pinned = true;
    let mut cleaner = cleaner(&bench, ImageGcPolicy::default(), &["b:1"]);
    cleaner.gc.round().await;
    assert_eq!(images(&bench).len(), 5, "there is room");
    cleaner.space.change(|space| space.available = 100);
    cleaner.gc.round().await;
    assert_eq!(images(&bench).len(), 5, "they have only just come");
    tokio::time::advance(Duration::from_secs(120)).await;
    bench.events();
    cleaner.gc.round().await;
    assert_eq!(images(&bench), ["docker.io/library/b:1", "img:1", "pin:1"]);
    let counted = cleaner.metrics.garbage_collected.get();
    assert_eq!(counted.values().copied().collect::<Vec<_>>(), [2]);
    let told = bench.events();
    let not_enough = "Insufficient free disk space on the node's image filesystem (90% of 1000 B used). Failed to free sufficient space by deleting unused images (freed 84 bytes).";
    assert!(
        told[0].starts_with(&format!("FreeDiskSpaceFailed: {not_enough}")),
        "{told:?}"
    );
    assert!(
        told[1].starts_with(&format!("ImageGCFailed: {not_enough}")),
        "the second failure in a row: {told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn enough_is_enough() {
    let bench = Bench::new();
    for name in ["a:1", "b:1", "c:1"] {
        bench.world.has_image(name);
    }
    let mut cleaner = cleaner(&bench, ImageGcPolicy::default(), &[]);
    cleaner.gc.round().await;
    tokio::time::advance(Duration::from_secs(300)).await;
    cleaner.space.change(|space| space.available = 120);
    cleaner.gc.round().await;
    assert_eq!(images(&bench).len(), 2, "80 bytes are two images");
    assert_eq!(bench.events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn by_age_whatever_the_disk_says() {
    let bench = Bench::new();
    bench.sync(&with_image("img:1")).await;
    bench.world.has_image("a:1");
    let policy = ImageGcPolicy {
        high_percent: 100,
        max_age: Some(Duration::from_secs(60)),
        ..ImageGcPolicy::default()
    };
    let cleaner = cleaner(&bench, policy, &[]);
    let running = tokio::spawn(cleaner.gc.run());
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(images(&bench), ["a:1", "img:1"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(images(&bench), ["img:1"]);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_from_the_second_on() {
    let bench = Bench::new();
    let mut cleaner = cleaner(&bench, ImageGcPolicy::default(), &[]);
    bench.world.fail("ListImages", "no");
    cleaner.gc.round().await;
    assert_eq!(bench.events(), [""; 0]);
    cleaner.gc.round().await;
    bench.world.fail("ImageFsInfo", "no");
    cleaner.gc.round().await;
    assert_eq!(bench.events(), [""; 0], "a success in between");
    cleaner.space.change(|space| space.capacity = 0);
    cleaner.gc.round().await;
    assert_eq!(
        bench.events(),
        [
            "InvalidDiskCapacity: invalid capacity 0 on image filesystem",
            "ImageGCFailed: invalid capacity 0 on image filesystem",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn records_follow_the_images() {
    let bench = Bench::new();
    bench.world.has_remote("r.io/a:1", Duration::ZERO);
    bench.sync(&with_image("r.io/a:1")).await;
    let pulled = bench.records.standing("r.io/a:1", "sha256:r.io/a:1").await;
    assert_eq!(pulled, Standing::Free);
    let strict = || {
        let root = std::path::Path::new("/root");
        PullRecords::new(
            Verification::AlwaysVerify,
            root,
            bench.files.clone(),
            bench.clock.clone(),
        )
    };
    assert_eq!(
        strict().standing("r.io/a:1", "sha256:r.io/a:1").await,
        Standing::Free
    );
    bench.world.state().images.remove("r.io/a:1");
    tokio::time::advance(Duration::from_secs(10)).await;
    cleaner(&bench, ImageGcPolicy::default(), &[])
        .gc
        .round()
        .await;
    assert_eq!(
        strict().standing("r.io/a:1", "sha256:r.io/a:1").await,
        Standing::Unknown
    );
}
