//! The registry as a real containerd sees it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::time::Duration;

use krablet_cri::ImageService;
use krablet_cri::v1::{AuthConfig, ImageSpec};
use krablet_testbed::{Access, Bed, BedOptions, Manners, Registry, eventually};

const LONG: Duration = Duration::from_secs(120);

fn spec(image: &str) -> ImageSpec {
    ImageSpec {
        image: image.to_owned(),
        ..ImageSpec::default()
    }
}

fn login(user: &str, password: &str) -> Option<AuthConfig> {
    Some(AuthConfig {
        username: user.to_owned(),
        password: password.to_owned(),
        ..AuthConfig::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_pulls_from_it() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let registry = Registry::up().await.unwrap();
    registry.introduce(&bed).unwrap();
    let images = bed.images().unwrap();
    let pull = async |image: &str, auth| images.pull_image(spec(image), auth, None).await;

    let (open, digest) = registry.put("open/app:v1", Access::Open).await.unwrap();
    pull(&open, None).await.unwrap();
    let held = images.image_status(spec(&open)).await.unwrap().unwrap();
    assert!(held.repo_digests[0].ends_with(&digest), "{held:?}");
    let by_digest = format!("{}@{digest}", open.trim_end_matches(":v1"));
    pull(&by_digest, None).await.unwrap();
    assert!(registry.asked("open/app") > 0);

    for (name, access) in [
        ("basic/app:v1", Access::basic("u", "p")),
        ("token/app:v1", Access::token("u", "p")),
    ] {
        let (image, _) = registry.put(name, access).await.unwrap();
        assert!(pull(&image, None).await.is_err(), "{name}");
        assert!(pull(&image, login("u", "x")).await.is_err(), "{name}");
        pull(&image, login("u", "p")).await.expect(name);
    }

    let (failing, _) = registry.put("bad/app:v1", Access::Open).await.unwrap();
    registry.set_manners("bad/app", Manners::Failing(503));
    assert!(pull(&failing, None).await.is_err());
    registry.set_manners("bad/app", Manners::Held);
    let before = registry.asked("bad/app");
    let later = async {
        eventually(LONG, "the registry is asked", async || {
            let asked = registry.asked("bad/app") > before;
            asked.then_some(()).ok_or_else(String::new)
        })
        .await;
        registry.set_manners("bad/app", Manners::Quick);
    };
    let (pulled, ()) = tokio::join!(pull(&failing, None), later);
    pulled.unwrap();
    bed.down().await.unwrap();
}
