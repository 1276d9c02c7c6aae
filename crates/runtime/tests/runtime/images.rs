//! Images: policies, back-off, and how many pulls at a time.

use std::time::Duration;

use futures::future::join_all;
use krablet_pod::api::{Container, Pod};
use krablet_runtime::ImageSettings;

use crate::bench::{Bench, config, container, pod};

fn with_image(image: &str, policy: &str) -> Pod {
    let c = Container {
        image: Some(image.into()),
        image_pull_policy: Some(policy.into()),
        ..container("a")
    };
    pod(vec![], vec![c])
}

fn named(name: &str, image: &str) -> Pod {
    let mut pod = with_image(image, "IfNotPresent");
    pod.metadata.uid = Some(format!("u-{name}"));
    pod.metadata.name = Some(name.into());
    pod
}

#[tokio::test(start_paused = true)]
async fn policies() {
    let seconds = Duration::from_secs;
    // (policy, on the node, in the registry, pulled?, waiting reason)
    let cases = [
        ("IfNotPresent", true, false, false, None),
        ("IfNotPresent", false, true, true, None),
        ("IfNotPresent", false, false, true, Some("ErrImagePull")),
        ("Always", true, true, true, None),
        ("Always", true, false, true, Some("ErrImagePull")),
        ("Never", true, false, false, None),
        ("Never", false, true, false, Some("ErrImageNeverPull")),
    ];
    for (policy, present, remote, pulled, reason) in cases {
        let bench = Bench::new();
        if present {
            bench.world.has_image("x:1");
        }
        if remote {
            bench.world.has_remote("x:1", seconds(1));
        }
        let outcome = bench.sync(&with_image("x:1", policy)).await;
        let pulls = bench.world.diary().contains(&"PullImage x:1".to_string());
        let got = outcome.start_errors.get("a").map(|e| e.reason);
        let case = format!("{policy} {present} {remote}");
        assert_eq!((pulls, got), (pulled, reason), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_and_its_events() {
    let bench = Bench::new();
    bench
        .world
        .has_remote("x:latest", Duration::from_millis(1500));
    bench.sync(&with_image("x", "Always")).await;
    assert_eq!(
        bench.events()[..2],
        [
            "Pulling: Pulling image \"x\"",
            "Pulled: Successfully pulled image \"x\" in 1.5s (1.5s including waiting). Image size: 42 bytes.",
        ]
    );
    let pulls = bench.metrics.image_pull_duration.get();
    let pulls: Vec<_> = pulls.iter().map(|(k, seen)| (&*k[0], seen.sum())).collect();
    assert_eq!(pulls, [("0-10MB", 1.5)]);
}

#[tokio::test(start_paused = true)]
async fn failed_pulls_back_off() {
    let bench = Bench::new();
    let pod = with_image("x:1", "IfNotPresent");
    let outcome = bench.sync(&pod).await;
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, "ErrImagePull");
    let text = "rpc error: code = NotFound desc = failed to resolve x:1";
    assert_eq!(error.message, text);
    assert_eq!(
        outcome.error.map(|e| e.to_string()),
        Some(format!(
            "failed to \"StartContainer\" for \"a\" with ErrImagePull: {text:?}"
        ))
    );
    assert_eq!(
        bench.events(),
        [
            "Pulling: Pulling image \"x:1\"".to_string(),
            format!("Failed: Failed to pull image \"x:1\": {text}"),
            "Failed: Error: ErrImagePull".to_string(),
        ]
    );
    bench.world.diary();

    let outcome = bench.sync(&pod).await;
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, "ImagePullBackOff");
    assert_eq!(
        error.message,
        format!("Back-off pulling image \"x:1\": ErrImagePull: {text}")
    );
    assert!(outcome.error.is_none() && !outcome.acted);
    assert_eq!(
        bench.events(),
        [
            "BackOff: Back-off pulling image \"x:1\"",
            "Failed: Error: ImagePullBackOff",
        ]
    );
    assert!(bench.world.diary().is_empty());

    let until = outcome.retry_at.expect("an end of the back-off");
    assert_eq!(until.0, Duration::from_secs(10));
    bench.world.has_remote("x:1", Duration::ZERO);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(bench.sync(&pod).await.start_errors.is_empty());
}

#[tokio::test(start_paused = true)]
async fn names_that_are_none() {
    let bench = Bench::new();
    let outcome = bench.sync(&with_image("No Image", "IfNotPresent")).await;
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, "InvalidImageName");
    assert!(
        error.message.starts_with(
            "Failed to apply default image tag \"No Image\": couldn't parse image name"
        )
    );
}

/// Pods that pull one after another or together, beside one whose image is there.
async fn pulling(settings: ImageSettings) -> (Bench, Vec<Pod>) {
    let bench = Bench::with(krablet_runtime::RuntimeConfig {
        images: settings,
        ..config()
    });
    let pods: Vec<Pod> = (0..4)
        .map(|i| {
            let image = format!("x{i}:1");
            bench.world.has_remote(&image, Duration::from_secs(60));
            named(&format!("p{i}"), &image)
        })
        .collect();
    (bench, pods)
}

#[tokio::test(start_paused = true)]
async fn serial_parallel_and_limited() {
    let cases = [
        (true, None, 1),
        (false, Some(2), 2),
        (false, None, 4),
        (true, Some(3), 1),
    ];
    for (serialize_pulls, max_parallel_pulls, most) in cases {
        let (bench, pods) = pulling(ImageSettings {
            serialize_pulls,
            max_parallel_pulls,
            ..ImageSettings::default()
        })
        .await;
        join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
        let seen = bench.world.state().most_pulls;
        assert_eq!(seen, most, "{serialize_pulls} {max_parallel_pulls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_there_waits_for_no_pull() {
    let (bench, pods) = pulling(ImageSettings::default()).await;
    let cached = named("quick", "img:1");
    let slow = join_all(pods.iter().map(|p| bench.sync_fresh(p)));
    let quick = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.sync_fresh(&cached).await;
        bench.world.wall()
    };
    let begun = bench.world.wall();
    let (_, done) = tokio::join!(slow, quick);
    assert_eq!(done - begun, 1_000_000_000);
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_a_second() {
    let (bench, pods) = pulling(ImageSettings {
        serialize_pulls: false,
        qps: 1.0,
        burst: 3,
        ..ImageSettings::default()
    })
    .await;
    let outcomes = join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    let refused: Vec<_> = outcomes
        .iter()
        .filter_map(|o| o.start_errors.get("a"))
        .collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].message, "pull QPS exceeded");
}

#[tokio::test(start_paused = true)]
async fn a_pull_given_up_gives_its_turn_to_the_next() {
    let (bench, pods) = pulling(ImageSettings::default()).await;
    let first = tokio::time::timeout(Duration::from_secs(10), bench.sync_fresh(&pods[0]));
    assert!(first.await.is_err());
    let outcome = bench.sync_fresh(&pods[1]).await;
    assert!(outcome.start_errors.is_empty());
}
