mod given_up;

use krablet_linux::HostFiles;

use super::*;
use crate::docker_config::read_dockercfg;
use crate::keyring::{Coordinates, Keyring, Source};

struct Clock;

impl WallClock for Clock {
    fn now(&self) -> jiff::Timestamp {
        "2024-10-21T12:26:40.5Z".parse().unwrap()
    }
}

struct World {
    dir: tempfile::TempDir,
    records: PullRecords,
    metrics: ImageMetrics,
}

const ID: &str = "sha256:1234";

fn world(policy: Verification) -> World {
    over(tempfile::tempdir().unwrap(), policy)
}

/// An agent's records over a directory.
fn over(dir: tempfile::TempDir, policy: Verification) -> World {
    let metrics = ImageMetrics::default();
    let records = PullRecords::new(policy, dir.path(), Arc::new(HostFiles), Arc::new(Clock));
    let records = records.counting(metrics.clone());
    World {
        dir,
        records,
        metrics,
    }
}

fn credential(source: Option<Source>, password: &str) -> Credential {
    let json = serde_json::json!({"r.io": {"username": "u", "password": password}});
    let mut ring = Keyring::default();
    ring.add(
        source.as_ref(),
        &read_dockercfg(json.to_string().as_bytes()).unwrap(),
    );
    ring.lookup("r.io/a").remove(0)
}

fn secret(name: &str, password: &str) -> Credential {
    let coordinates = Coordinates {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    };
    credential(Some(Source::Secret(coordinates)), password)
}

fn account(name: &str) -> Credential {
    let coordinates = Coordinates {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    };
    credential(Some(Source::ServiceAccount(coordinates)), "token")
}

impl World {
    /// Intents and records, as counted.
    fn on_disk(&self) -> [u64; 2] {
        let gauges = [&self.metrics.intents_on_disk, &self.metrics.records_on_disk];
        gauges.map(|gauge| gauge.get().into_values().sum())
    }

    /// How looks at the records ended, as counted.
    fn checks(&self) -> Vec<String> {
        let all = self.metrics.must_pull_checks.get().into_iter();
        all.map(|(result, count)| format!("{} {count}", result.join(" ")))
            .collect()
    }

    async fn pull(&self, image: &str, used: Option<&Credential>) {
        let intent = self.records.intend(image, None).await.unwrap();
        self.records.pulled(intent, ID, used).await;
    }

    /// Whether a pod with these credentials gets the image that is there.
    async fn may(&self, image: &str, held: &[Credential]) -> bool {
        match self.records.standing(image, ID).await {
            Standing::Free => true,
            Standing::Unknown => false,
            Standing::Known(known) => self.records.allows(image, ID, &known, held).await,
        }
    }

    fn files(&self, sub: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("image_manager").join(sub));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .map(|e| std::fs::read_to_string(e.path()).unwrap())
            .collect()
    }
}

#[tokio::test]
async fn policies() {
    let allow = |list: &[&str]| {
        Verification::NeverVerifyAllowlistedImages(list.iter().map(|s| s.to_string()).collect())
    };
    // (policy, a preloaded image, one pulled with a secret, for a pod without it)
    let cases = [
        (Verification::NeverVerify, true, true),
        (Verification::NeverVerifyPreloadedImages, true, false),
        (Verification::AlwaysVerify, false, false),
        (allow(&["r.io/a"]), true, true),
        (allow(&["r.io/*"]), true, true),
        (allow(&["r.io/ab"]), false, false),
    ];
    for (policy, preloaded, pulled) in cases {
        let world = world(policy.clone());
        assert_eq!(world.may("r.io/a:1", &[]).await, preloaded, "{policy:?}");
        world.pull("r.io/a:1", Some(&secret("s", "p"))).await;
        assert_eq!(world.may("r.io/a:1", &[]).await, pulled, "{policy:?}");
    }
}

#[tokio::test]
async fn who_may_have_what_was_pulled_with_a_secret() {
    let world = world(Verification::default());
    world.pull("r.io/a:1", Some(&secret("s", "p"))).await;
    assert!(world.may("r.io/a:1", &[secret("s", "p")]).await);
    assert!(
        world.may("r.io/a:2", &[secret("s", "p")]).await,
        "the tag does not matter"
    );
    assert!(
        !world.may("r.io/b:1", &[secret("s", "p")]).await,
        "the name does"
    );
    assert!(!world.may("r.io/a:1", &[secret("t", "other")]).await);
    assert!(!world.may("r.io/a:1", &[credential(None, "p")]).await);
    // The same content in another secret; from then on that secret counts whatever its content.
    assert!(world.may("r.io/a:1", &[secret("t", "p")]).await);
    assert!(world.may("r.io/a:1", &[secret("t", "renewed")]).await);
    assert!(world.may("r.io/a:1", &[secret("v", "renewed")]).await);
    let all = world.files("pulled").concat();
    assert_eq!(all.matches("credentialHash").count(), 3, "{all}");
    assert!(!all.contains("renewed"), "{all}");
}

#[tokio::test]
async fn service_accounts_and_everybody() {
    let world = world(Verification::default());
    world.pull("r.io/a:1", Some(&account("sa"))).await;
    assert!(world.may("r.io/a:1", &[account("sa")]).await);
    assert!(!world.may("r.io/a:1", &[account("sb")]).await);
    assert!(!world.may("r.io/a:1", &[secret("sa", "token")]).await);
    world.pull("r.io/a:1", None).await;
    assert!(world.may("r.io/a:1", &[]).await);
    world.pull("r.io/a:1", Some(&secret("s", "p"))).await;
    assert!(world.may("r.io/a:1", &[]).await, "what was free stays free");
}

#[tokio::test]
async fn files_are_the_kubelets() {
    let world = world(Verification::default());
    let intent = world
        .records
        .intend("docker.io/testing/test:latest", None)
        .await
        .unwrap();
    let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
    assert!(
        world
            .dir
            .path()
            .join("image_manager/pulling")
            .join(name)
            .exists()
    );
    assert_eq!(
        world.files("pulling"),
        [concat!(
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
            r#""image":"docker.io/testing/test:latest"}"#,
            "\n"
        )]
    );
    world.records.pulled(intent, ID, None).await;
    assert_eq!(world.files("pulling"), [""; 0]);
    assert_eq!(
        world.files("pulled"),
        [concat!(
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
            r#""lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"sha256:1234","#,
            r#""credentialMapping":{"docker.io/testing/test":{"nodePodsAccessible":true}}}"#,
            "\n"
        )]
    );
}

#[tokio::test]
async fn older_and_broken_files() {
    let world = world(Verification::NeverVerifyPreloadedImages);
    let path = world.dir.path().join("image_manager/pulled");
    std::fs::create_dir_all(&path).unwrap();
    let path = path.join(file_name(ID));
    let alpha = format!(
        r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"{ID}","credentialMapping":{{"r.io/a":{{"kubernetesSecrets":[{{"uid":"uid-s","namespace":"ns","name":"s","credentialHash":"x"}}]}}}}}}"#
    );
    std::fs::write(&path, &alpha).unwrap();
    assert!(world.may("r.io/a", &[secret("s", "p")]).await);
    assert!(!world.may("r.io/a", &[]).await);
    for broken in [
        "{",
        "{}",
        &alpha.replace("v1alpha1", "v7"),
        &alpha.replace("uid-s\"", "u\",\"x\":\""),
    ] {
        std::fs::write(&path, broken).unwrap();
        assert!(!world.may("r.io/a", &[secret("s", "p")]).await, "{broken}");
    }
    world.pull("r.io/a", Some(&secret("s", "p"))).await;
    assert!(world.may("r.io/a", &[secret("s", "p")]).await);
}

#[tokio::test]
async fn intents_outlive_a_crash() {
    let world = world(Verification::default());
    let two = [
        world.records.intend("r.io/a:1", None).await,
        world.records.intend("r.io/a:1", None).await,
    ];
    let [first, second] = two.map(Result::unwrap);
    world.records.failed(first).await;
    assert_eq!(world.files("pulling").len(), 1, "another pull goes on");
    assert!(!world.may("r.io/a:1", &[]).await);
    drop(second);
    // The next agent finds the image and does not know who may have it.
    let next = PullRecords::new(
        Verification::default(),
        world.dir.path(),
        Arc::new(HostFiles),
        Arc::new(Clock),
    );
    assert_eq!(next.standing("r.io/a:1", ID).await, Standing::Unknown);
    next.settle_intents(&[(ID.into(), vec!["r.io/a:1".into()])])
        .await;
    assert_eq!(
        (world.files("pulling").len(), world.files("pulled").len()),
        (0, 1)
    );
    assert_eq!(next.standing("r.io/a:1", ID).await, Standing::Unknown);
    let intent = next.intend("r.io/b:1", None).await.unwrap();
    next.failed(intent).await;
    assert_eq!(world.files("pulling").len(), 0);
}

#[tokio::test]
async fn records_of_images_that_are_gone_go_too() {
    let world = world(Verification::default());
    world.pull("r.io/a:1", None).await;
    let early: jiff::Timestamp = "2024-10-21T12:26:40Z".parse().unwrap();
    let late: jiff::Timestamp = "2024-10-21T12:27:00Z".parse().unwrap();
    assert_eq!(world.on_disk(), [0, 1]);
    world.records.prune(&[], early).await;
    world.records.prune(&[ID.into()], late).await;
    assert_eq!(world.files("pulled").len(), 1);
    world.records.prune(&[], late).await;
    assert_eq!(world.files("pulled").len(), 0);
    assert_eq!(world.on_disk(), [0, 0]);
}

#[tokio::test]
async fn what_an_earlier_agent_left_is_counted_with_the_first_change() {
    let earlier = world(Verification::default());
    earlier.pull("r.io/a:1", None).await;
    drop(earlier.records.intend("r.io/b:1", None).await.unwrap());
    let metrics = ImageMetrics::default();
    let records = PullRecords::new(
        Verification::default(),
        earlier.dir.path(),
        Arc::new(HostFiles),
        Arc::new(Clock),
    );
    let next = World {
        records: records.counting(metrics.clone()),
        metrics,
        dir: earlier.dir,
    };
    let _intent = next.records.intend("r.io/c:1", None).await.unwrap();
    assert_eq!(next.on_disk(), [2, 1]);
}

#[tokio::test]
async fn looks_at_the_records_are_counted_by_what_came_of_them() {
    let world = world(Verification::AlwaysVerify);
    let (mine, theirs) = (secret("mine", "p"), secret("theirs", "q"));
    let intent = world.records.intend("r.io/a:1", None).await.unwrap();
    assert_eq!(world.on_disk(), [1, 0]);
    world.records.pulled(intent, ID, Some(&mine)).await;
    assert_eq!(world.on_disk(), [0, 1]);
    // Nobody pulled that one by this name.
    assert!(!world.may("r.io/b:1", &[]).await);
    assert!(!world.may("r.io/a:1", &[theirs]).await);
    assert!(world.may("r.io/a:1", &[mine]).await);
    world.records.check_failed();
    assert_eq!(
        world.checks(),
        ["credentialRecordFound 1", "error 1", "mustAuthenticate 2"]
    );

    let trusting = self::world(Verification::NeverVerify);
    assert!(trusting.may("r.io/a:1", &[]).await);
    assert_eq!(trusting.checks(), ["credentialPolicyAllowed 1"]);
}
