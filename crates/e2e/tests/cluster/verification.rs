//! Who gets an image that is on the node already, by what the node is told to verify.

use krablet_cri::ImageService;
use krablet_e2e::Member;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::single;
use krablet_testbed::{Access, Registry};
use serde_json::{Value, json};

use crate::images::{NOBODY, PASSWORD, SECRETS, holding, secret, waits, with_secret};
use crate::inside::end_all;

const PRESENT: &str = "already present on machine and can be accessed by the pod";

/// A node with a registry that wants a login, and a secret of the node's name with it.
struct Guarded {
    node: Member,
    registry: Registry,
}

impl Guarded {
    async fn up(main: &Member, name: &str, config: impl FnOnce(&str) -> Value) -> Self {
        let registry = Registry::up().await.unwrap();
        let joining = Joining {
            config: config(&registry.host()),
            ..Joining::default()
        };
        let mut node = main.prepared_beside(name, joining).await;
        registry.introduce(&node.stage.bed).unwrap();
        node.start().await;
        let key = secret(name, &registry, PASSWORD);
        node.plane.create(SECRETS, &key).await.unwrap();
        Self { node, registry }
    }

    /// An image in a repository, and its name.
    async fn image(&self, repository: &str) -> String {
        let access = Access::basic("crab", PASSWORD);
        let name = format!("{repository}:v1");
        self.registry.put(&name, access).await.unwrap().0
    }

    /// The same, and somebody else than the agent has brought it to the node.
    async fn preloaded(&self, repository: &str) -> String {
        let image = self.image(repository).await;
        let login = format!("crab:{PASSWORD}");
        let pull = ["images", "pull", "--plain-http", "--user", &login, &image];
        self.node.stage.bed.ctr(&pull).await.unwrap();
        let store = self.node.stage.bed.images().unwrap();
        self.node
            .wait("node", "the runtime knows the image", async || {
                let images = store.list_images().await.map_err(|e| e.to_string())?;
                let names: Vec<String> = images.into_iter().flat_map(|i| i.repo_tags).collect();
                match names.contains(&image) {
                    true => Ok(()),
                    false => Err(format!("{names:?}")),
                }
            })
            .await;
        image
    }

    /// A pod without a secret, and one that will not have anything pulled, get what is there.
    async fn is_for_everybody(&self, pods: [&str; 2], image: &str, repository: &str) {
        let asked = self.registry.asked(repository);
        for (pod, policy) in pods.into_iter().zip(["IfNotPresent", "Never"]) {
            self.node.run(&single(pod, holding(image, policy))).await;
            let told = format!("Container image {image:?} {PRESENT}");
            self.node.event(pod, "Pulled", &told).await;
        }
        let now = self.registry.asked(repository);
        assert_eq!(now, asked, "nobody asks the registry for {image}");
    }

    /// The same pods are refused.
    async fn is_not_for(&self, pods: [&str; 2], image: &str) {
        let [pulls, never] = pods;
        let node = &self.node;
        node.create(&single(pulls, holding(image, "IfNotPresent")))
            .await;
        let told = waits(node, pulls, "ImagePullBackOff", NOBODY).await;
        let begins = format!("Back-off pulling image {image:?}: ErrImagePull: ");
        assert!(told.starts_with(&begins), "{told}");
        node.create(&single(never, holding(image, "Never"))).await;
        let why = format!("Container image {image:?} is not present with pull policy of Never");
        waits(node, never, "ErrImageNeverPull", &why).await;
        node.event(never, "ErrImageNeverPull", &why).await;
    }

    /// A pod with the secret has it pulled; the next one finds it.
    async fn is_for_who_has_the_secret(&self, pods: [&str; 2], image: &str, repository: &str) {
        let [first, second] = pods;
        let node = &self.node;
        let pod = |name: &str| with_secret(name, image, "IfNotPresent", &node.name);
        node.run(&pod(first)).await;
        let told = format!("Successfully pulled image {image:?} in ");
        node.event(first, "Pulled", &told).await;
        let asked = self.registry.asked(repository);
        node.run(&pod(second)).await;
        let told = format!("Container image {image:?} {PRESENT}");
        node.event(second, "Pulled", &told).await;
        assert_eq!(self.registry.asked(repository), asked);
    }
}

pub async fn always(main: &Member) {
    let policy = |_: &str| json!({"imagePullCredentialsVerificationPolicy": "AlwaysVerify"});
    let guarded = Guarded::up(main, "verifying", policy).await;
    let image = guarded.preloaded("always/app").await;
    guarded.is_not_for(["av-none", "av-never"], &image).await;
    let with = ["av-key", "av-key-too"];
    guarded
        .is_for_who_has_the_secret(with, &image, "always/app")
        .await;
    let all = ["av-none", "av-never", "av-key", "av-key-too"];
    end_all(&guarded.node, &all).await;
    guarded.node.down().await;
}

pub async fn never(main: &Member) {
    let policy = |_: &str| json!({"imagePullCredentialsVerificationPolicy": "NeverVerify"});
    let guarded = Guarded::up(main, "believing", policy).await;
    let image = guarded.image("never/app").await;
    let with = ["nv-key", "nv-key-too"];
    guarded
        .is_for_who_has_the_secret(with, &image, "never/app")
        .await;
    guarded
        .is_for_everybody(["nv-none", "nv-never"], &image, "never/app")
        .await;
    let preloaded = guarded.preloaded("never/brought").await;
    let pods = ["nv-brought", "nv-brought-never"];
    guarded
        .is_for_everybody(pods, &preloaded, "never/brought")
        .await;
    let all = ["nv-key", "nv-key-too", "nv-none", "nv-never"];
    end_all(&guarded.node, &all).await;
    end_all(&guarded.node, &pods).await;
    guarded.node.down().await;
}

pub async fn all_but_a_list(main: &Member) {
    let policy = |host: &str| {
        json!({
            "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": [format!("{host}/one/app"), format!("{host}/all/*")],
        })
    };
    let guarded = Guarded::up(main, "listing", policy).await;
    for (repository, pods) in [
        ("one/app", ["lv-one", "lv-one-never"]),
        ("all/of/them", ["lv-all", "lv-all-never"]),
    ] {
        let image = guarded.preloaded(repository).await;
        guarded.is_for_everybody(pods, &image, repository).await;
        end_all(&guarded.node, &pods).await;
    }
    let image = guarded.preloaded("one/other").await;
    let refused = ["lv-none", "lv-never"];
    guarded.is_not_for(refused, &image).await;
    let with = ["lv-key", "lv-key-too"];
    guarded
        .is_for_who_has_the_secret(with, &image, "one/other")
        .await;
    end_all(&guarded.node, &refused).await;
    end_all(&guarded.node, &with).await;
    guarded.node.down().await;
}
