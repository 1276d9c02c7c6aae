//! How a node itself is set up to pull: credentials of its own, and how many pulls at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Event;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, single, with};
use krablet_e2e::{Member, status};
use krablet_testbed::{Access, Manners, Registry};
use serde_json::{Value, json};

use crate::images::{self, PASSWORD, holding};
use crate::inside::says;
use crate::volumes::{at, looked_into};

/// A file of the node lets every pod pull, whatever its own secrets are worth.
pub async fn credentials_of_the_node(main: &Member) {
    let registry = Registry::up().await.unwrap();
    let plugins = main.stage.scratch("nonsense");
    let joining = Joining {
        config: json!({"registryPullQPS": 1, "registryBurst": 1, "serializeImagePulls": false}),
        args: talking_nonsense(&plugins, &registry.host()),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("trusted", joining).await;
    registry.introduce(&node.stage.bed).unwrap();
    let access = || Access::basic("crab", PASSWORD);
    let (image, _) = registry.put("node/app:v1", access()).await.unwrap();
    let (other, _) = registry.put("node/other:v1", access()).await.unwrap();
    let (elsewhere, _) = registry.put("team/app:v1", access()).await.unwrap();
    let place = format!("{}/node", registry.host());
    let config = json!({"auths": {place: {"username": "crab", "password": PASSWORD}}});
    let root = node.stage.krablet.root_dir();
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("config.json"), config.to_string()).unwrap();
    node.start().await;

    node.run(&single("node-key", holding(&image, "IfNotPresent")))
        .await;
    node.plane
        .create(
            images::SECRETS,
            &images::secret("node-wrong", &registry, "wrong"),
        )
        .await
        .unwrap();
    let both = images::with_secret("node-both", &other, "IfNotPresent", "node-wrong");
    node.run(&both).await;
    // For another place it is of no use.
    node.create(&single("node-no-key", holding(&elsewhere, "IfNotPresent")))
        .await;
    images::waits(&node, "node-no-key", "ImagePullBackOff", images::NOBODY).await;
    let log = node.stage.krablet.log();
    assert!(
        !log.contains(PASSWORD),
        "the password stands in the agent's log"
    );
    crate::inside::end_all(&node, &["node-key", "node-both", "node-no-key"]).await;
    a_provider_that_talks_nonsense(&node, &registry).await;
    more_than_the_node_may_begin(&node, &registry).await;
    node.down().await;
}

/// As many pulls at once as the node may have, and the next when one of them is done.
pub async fn side_by_side(main: &Member) {
    let joining = Joining {
        config: json!({"serializeImagePulls": false, "maxParallelImagePulls": 2}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("parallel", joining).await;
    let registry = Registry::up().await.unwrap();
    registry.introduce(&node.stage.bed).unwrap();
    let places = ["side/a", "side/b", "side/c"];
    node.start().await;
    let mut pods = Vec::new();
    for place in places {
        let (image, _) = registry
            .put(&format!("{place}:v1"), Access::Open)
            .await
            .unwrap();
        registry.set_manners(place, Manners::Held);
        let name = place.replace('/', "-");
        node.create(&single(&name, holding(&image, "IfNotPresent")))
            .await;
        node.event(&name, "Pulling", "").await;
        pods.push(name);
    }
    let asked = || -> Vec<&str> {
        let asked = places.iter().filter(|place| registry.asked(place) > 0);
        asked.copied().collect()
    };
    let are_asked = async |count: usize| {
        node.wait(
            "side",
            &format!("{count} are asked for"),
            async || match asked() {
                some if some.len() == count => Ok(some),
                some => Err(format!("{some:?}")),
            },
        )
        .await
    };
    let first = are_asked(2).await;
    registry.set_manners(first[0], Manners::Quick);
    node.running(&first[0].replace('/', "-")).await;
    are_asked(3).await;
    for place in places {
        registry.set_manners(place, Manners::Quick);
    }
    for name in &pods {
        node.running(name).await;
    }
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    crate::inside::end_all(&node, &names).await;
    between_registries(&node, &registry).await;
    an_image_volume_that_cannot_be_had(&node, &registry).await;
    node.down().await;
}

/// Two pulls at once, and one registry has both: the next free one is for the other, whoever came first.
async fn between_registries(node: &Member, slow: &Registry) {
    let other = Registry::up().await.unwrap();
    other.introduce(&node.stage.bed).unwrap();
    let queue = [
        (slow, "fair/a"),
        (slow, "fair/b"),
        (slow, "fair/late"),
        (&other, "fair/other"),
    ];
    let name = |place: &str| place.replace('/', "-");
    for (registry, place) in queue {
        let put = registry.put(&format!("{place}:v1"), Access::Open).await;
        registry.set_manners(place, Manners::Held);
        let (image, _) = put.unwrap();
        node.create(&single(&name(place), holding(&image, "IfNotPresent")))
            .await;
        node.event(&name(place), "Pulling", "").await;
    }
    let is_asked = async |registry: &Registry, place: &str| {
        let what = format!("{place} is asked for");
        node.wait(&name(place), &what, async || match registry.asked(place) {
            0 => Err("not yet".to_owned()),
            _ => Ok(()),
        })
        .await;
    };
    is_asked(slow, "fair/a").await;
    is_asked(slow, "fair/b").await;
    assert_eq!((slow.asked("fair/late"), other.asked("fair/other")), (0, 0));
    slow.set_manners("fair/a", Manners::Quick);
    is_asked(&other, "fair/other").await;
    assert_eq!(
        slow.asked("fair/late"),
        0,
        "its registry has a pull already"
    );
    for (registry, place) in queue {
        registry.set_manners(place, Manners::Quick);
    }
    let names = queue.map(|(_, place)| name(place));
    for name in &names {
        node.running(name).await;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    crate::inside::end_all(node, &names).await;
}

/// The container waits for the image as it would for its own.
async fn an_image_volume_that_cannot_be_had(node: &Member, registry: &Registry) {
    let name = "pull-art";
    let (image, _) = registry.put("art/app:v1", Access::Open).await.unwrap();
    registry.set_manners("art/app", Manners::Failing(500));
    let mut manifest = single(name, looked_into(json!([at("art", "/art")])));
    manifest["spec"]["volumes"] =
        json!([{"name": "art", "image": {"reference": image, "pullPolicy": "IfNotPresent"}}]);
    node.create(&manifest).await;
    let why = format!("Failed to pull image {image:?}: ");
    node.event(name, "Failed", &why).await;
    let why = "500 Internal Server Error";
    images::waits(node, name, "ImagePullBackOff", why).await;
    registry.set_manners("art/app", Manners::Quick);
    node.running(name).await;
    says(node, name, "cat /art/etc/image", &image).await;
    node.end(name).await;

    let never = "pull-art-never";
    let absent = format!("{}/art/absent:v1", registry.host());
    manifest["metadata"]["name"] = json!(never);
    manifest["spec"]["volumes"] =
        json!([{"name": "art", "image": {"reference": absent, "pullPolicy": "Never"}}]);
    node.create(&manifest).await;
    let why = format!("Container image {absent:?} is not present with pull policy of Never");
    images::waits(node, never, "ErrImageNeverPull", &why).await;
    node.end(never).await;
}

/// More pulls in a second than the node may begin are told, and tried again later.
async fn more_than_the_node_may_begin(node: &Member, registry: &Registry) {
    let name = "pull-burst";
    let containers = (0..6).map(|n| {
        let image = format!("{}/burst/absent-{n}:v1", registry.host());
        with(
            holding(&image, "IfNotPresent"),
            json!({"name": format!("c{n}")}),
        )
    });
    let containers: Vec<Value> = containers.collect();
    node.create(&pod(name, json!({"containers": containers})))
        .await;
    node.event(name, "Failed", ": pull QPS exceeded").await;
    node.until(name, "tells why a container waits", |pod| {
        let waits = (0..6).filter_map(|n| status::waiting(pod, &format!("c{n}")).ok());
        let waits: Vec<_> = waits.collect();
        let told = waits.iter().any(|(reason, message)| {
            let reason = ["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str());
            reason && message.contains("pull QPS exceeded")
        });
        told.then_some(()).ok_or_else(|| format!("{waits:?}"))
    })
    .await;
    node.end(name).await;
}

/// A pull secret that is JSON and yet no file of logins is named, and nothing of what is in it is told.
pub async fn a_secret_that_cannot_be_read(node: &Member, registry: &Registry) {
    let (name, key) = ("pull-garbled", "garbled-key");
    let access = Access::basic("crab", PASSWORD);
    let (image, _) = registry.put("garbled/app:v1", access).await.unwrap();
    let host = registry.host();
    let mut garbled = images::secret(key, registry, PASSWORD);
    let login = json!({"auths": {&host: {"auth": PASSWORD}}});
    garbled["stringData"] = json!({".dockerconfigjson": login.to_string()});
    node.plane.create(images::SECRETS, &garbled).await.unwrap();
    node.create(&images::with_secret(name, &image, "IfNotPresent", key))
        .await;
    let why =
        format!("pull secret default/{key}: illegal base64 data in the auth field of {host:?}");
    let told = images::waits(node, name, "ErrImagePull", &why).await;
    assert_eq!(told, why);
    let why = format!("Failed to pull image {image:?}: {why}");
    node.event(name, "Failed", &why).await;
    assert_eq!(registry.asked("garbled/app"), 0);
    let mended = images::secret(key, registry, PASSWORD);
    let path = format!("{}/{key}", images::SECRETS);
    node.plane.patch(&path, &mended).await.unwrap();
    node.running(name).await;
    let log = node.stage.krablet.log();
    assert!(!log.contains(PASSWORD), "the password stands in the log");
    node.end(name).await;
}

/// A plugin that talks nonsense costs the pods its images are for, and nobody else.
async fn a_provider_that_talks_nonsense(node: &Member, registry: &Registry) {
    for (place, why) in [
        ("babble", "error reading GVK from response"),
        ("broken", "exit status 3"),
    ] {
        let access = Access::basic("crab", PASSWORD);
        let image = registry.put(&format!("{place}/app:v1"), access).await;
        let (image, _) = image.unwrap();
        let name = format!("pull-{place}");
        node.create(&single(&name, holding(&image, "IfNotPresent")))
            .await;
        images::waits(node, &name, "ImagePullBackOff", images::NOBODY).await;
        let log = node.stage.krablet.log();
        let told = log.lines().any(|line| {
            line.contains("Failed to provide credentials for image")
                && line.contains(place)
                && line.contains(why)
        });
        assert!(told, "the log names the plugin and says: {why}");
        node.end(&name).await;
    }
}

/// Plugins of that kind, and the arguments that have them asked.
fn talking_nonsense(dir: &Path, host: &str) -> Vec<String> {
    let scripts = [("babble", "echo 'ask me later'"), ("broken", "exit 3")];
    let providers = scripts.map(|(name, script)| {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\ncat > /dev/null\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        images::provider(name, &format!("{host}/{name}"), None)
    });
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": providers,
    });
    let file = dir.join("providers.yaml");
    fs::write(&file, config.to_string()).unwrap();
    vec![
        format!("--image-credential-provider-config={}", file.display()),
        format!("--image-credential-provider-bin-dir={}", dir.display()),
    ]
}

/// How often something was told of a pod in events of this reason with this text, and at which second last.
async fn told(node: &Member, pod: &str, reason: &str, text: &str) -> Result<(i32, i64), String> {
    let path =
        format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{pod}");
    let events: Vec<Event> = node.list(&path).await?;
    let is = |e: &&Event| {
        e.reason.as_deref() == Some(reason)
            && e.message.as_deref().unwrap_or_default().contains(text)
    };
    let of = || events.iter().filter(is);
    let count = of().map(|e| e.count.unwrap_or(1)).sum();
    let last = of().filter_map(|e| Some(e.last_timestamp.as_ref()?.0.as_second()));
    last.max()
        .map(|last| (count, last))
        .ok_or_else(|| format!("no {reason} yet: {text}"))
}

/// Waits until pulls for the pod have failed that often with this text.
pub async fn failed(node: &Member, pod: &str, text: &str, times: i32) {
    node.wait(
        pod,
        &format!("fails {times} times: {text}"),
        async || match told(node, pod, "Failed", text).await? {
            (count, _) if count >= times => Ok(()),
            (count, _) => Err(format!("failed {count} times")),
        },
    )
    .await;
}

/// Something other than the end of the back-off started the pull that came after the failures with this text.
pub async fn within_the_back_off(node: &Member, pod: &str, text: &str) {
    let (failures, failed) = told(node, pod, "Failed", text).await.unwrap();
    let (_, pulling) = told(node, pod, "Pulling", "").await.unwrap();
    let seconds = (10_i64 << (failures - 1).min(5)).min(300);
    let ends = failed + seconds;
    assert!(
        (failed..ends).contains(&pulling),
        "failed {failures} times, at last at {failed}; pulled at {pulling}, the back-off ends at {ends}"
    );
}
