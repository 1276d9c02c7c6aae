//! Images from a registry: who may pull, what is told when it fails, what is kept.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use krablet_cri::{ImageService, RuntimeService, v1};
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::{Access, BedOptions, Manners, Registry, images};
use serde_json::{Value, json};

use crate::resources;

pub const SECRETS: &str = "/api/v1/namespaces/default/secrets";
pub const PASSWORD: &str = "open-sesame-417";
/// What containerd says of a registry that wants a login when it has none.
pub const NOBODY: &str = "no basic auth credentials";

async fn registry(node: &Member) -> Registry {
    let registry = Registry::up().await.unwrap();
    registry.introduce(&node.stage.bed).unwrap();
    registry
}

/// A container of this image that does nothing.
pub fn holding(image: &str, policy: &str) -> Value {
    with(
        tool("main", &["hold"]),
        json!({"image": image, "imagePullPolicy": policy}),
    )
}

pub fn with_secret(name: &str, image: &str, policy: &str, secret: &str) -> Value {
    pod(
        name,
        json!({"containers": [holding(image, policy)], "imagePullSecrets": [{"name": secret}]}),
    )
}

/// A secret for the registry, in the newer form.
pub fn secret(name: &str, registry: &Registry, password: &str) -> Value {
    let config = json!({"auths": {registry.host(): {"username": "crab", "password": password}}});
    json!({
        "metadata": {"name": name},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": config.to_string()},
    })
}

/// Waits until `main` waits for this reason; gives the message.
pub async fn waits(node: &Member, name: &str, reason: &str, text: &str) -> String {
    node.until(name, &format!("waits: {reason}: {text}"), |pod| {
        let (found, message) = status::waiting(pod, "main")?;
        match found == reason && message.contains(text) {
            true => Ok(message),
            false => Err(status::shown(pod)),
        }
    })
    .await
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| std::fs::read_to_string(e.path()).unwrap_or_default())
        .collect()
}

pub async fn a_pull_secret_right_wrong_and_mended(node: &Member) {
    let registry = registry(node).await;
    let (image, _) = registry
        .put("secret/app:v1", Access::basic("crab", PASSWORD))
        .await
        .unwrap();
    let (name, key) = ("mended", "registry-key");
    node.create(&with_secret(name, &image, "IfNotPresent", key))
        .await;
    let missing = format!(
        "Unable to retrieve some image pull secrets ({key}); attempting to pull the image may not succeed."
    );
    node.event(name, "FailedToRetrieveImagePullSecret", &missing)
        .await;
    waits(node, name, "ImagePullBackOff", "ErrImagePull: ").await;

    // There at last, and wrong.
    let asked = registry.asked("secret/app");
    node.plane
        .create(SECRETS, &secret(key, &registry, "wrong"))
        .await
        .unwrap();
    node.wait(name, "tries the secret at once", async || {
        match registry.asked("secret/app") {
            more if more > asked => Ok(()),
            same => Err(format!("asked {same} times")),
        }
    })
    .await;
    let told = waits(node, name, "ImagePullBackOff", "401 Unauthorized").await;
    assert!(
        told.starts_with(&format!("Back-off pulling image {image:?}: ErrImagePull: ")),
        "{told}"
    );
    node.event(
        name,
        "BackOff",
        &format!("Back-off pulling image {image:?}"),
    )
    .await;
    node.event(name, "Failed", &format!("Failed to pull image {image:?}: "))
        .await;

    // From the second failure on it would be 20 s or more until the next try.
    crate::pulls::failed(node, name, "401 Unauthorized", 2).await;
    let mended = secret(key, &registry, PASSWORD);
    node.plane
        .patch(&format!("{SECRETS}/{key}"), &mended)
        .await
        .unwrap();
    node.running(name).await;
    crate::pulls::within_the_back_off(node, name, "401 Unauthorized").await;
    node.event(
        name,
        "Pulled",
        &format!("Successfully pulled image {image:?} in "),
    )
    .await;

    who_else_may_have_it(node, &registry, &image, key).await;
    let log = node.stage.krablet.log();
    assert!(
        !log.contains(PASSWORD),
        "the password stands in the agent's log"
    );
    node.end(name).await;
}

/// The image is there now, for those who have the secret.
async fn who_else_may_have_it(node: &Member, registry: &Registry, image: &str, key: &str) {
    let asked = registry.asked("secret/app");
    node.run(&with_secret("mended-too", image, "IfNotPresent", key))
        .await;
    let present = "already present on machine and can be accessed by the pod";
    node.event("mended-too", "Pulled", present).await;
    assert_eq!(
        registry.asked("secret/app"),
        asked,
        "nobody asks the registry again"
    );
    node.create(&single("mended-not", holding(image, "IfNotPresent")))
        .await;
    waits(node, "mended-not", "ImagePullBackOff", NOBODY).await;
    node.create(&single("mended-never", holding(image, "Never")))
        .await;
    let not_there = format!("Container image {image:?} is not present with pull policy of Never");
    waits(node, "mended-never", "ErrImageNeverPull", &not_there).await;
    let records = node.stage.krablet.root_dir().join("image_manager/pulled");
    let records = files(&records).concat();
    assert!(
        records.contains(&format!("\"name\":\"{key}\"")),
        "{records}"
    );
    for name in ["mended-too", "mended-not", "mended-never"] {
        node.end(name).await;
    }
}

pub async fn tokens_and_digests(node: &Member) {
    let registry = registry(node).await;
    let (image, digest) = registry
        .put("token/app:v1", Access::token("crab", PASSWORD))
        .await
        .unwrap();
    // The older form of secret, with the login as one word.
    let login = BASE64_STANDARD.encode(format!("crab:{PASSWORD}"));
    let config = json!({format!("http://{}/v2/", registry.host()): {"auth": login}});
    let key = json!({
        "metadata": {"name": "token-key"},
        "type": "kubernetes.io/dockercfg",
        "stringData": {".dockercfg": config.to_string()},
    });
    node.plane.create(SECRETS, &key).await.unwrap();
    let by_digest = format!("{}@{digest}", image.trim_end_matches(":v1"));
    let running = node
        .run(&with_secret(
            "by-digest",
            &by_digest,
            "IfNotPresent",
            "token-key",
        ))
        .await;
    let found = status::container(&running, "main").unwrap();
    assert_eq!(found.image_id, by_digest);
    let other = by_digest.replace(digest.get(7..).unwrap(), &"0".repeat(64));
    node.create(&with_secret("no-digest", &other, "Always", "token-key"))
        .await;
    waits(node, "no-digest", "ImagePullBackOff", "not found").await;
    for name in ["by-digest", "no-digest"] {
        node.end(name).await;
    }
}

pub async fn names_policies_and_failures(node: &Member) {
    let registry = registry(node).await;
    node.create(&single("bad-name", holding("Not:An:Image", "IfNotPresent")))
        .await;
    let why = "Failed to apply default image tag \"Not:An:Image\": couldn't parse image name \"Not:An:Image\": invalid reference format: repository name (library/Not) must be lowercase";
    waits(node, "bad-name", "InvalidImageName", why).await;
    node.event("bad-name", "InspectFailed", why).await;

    let absent = format!("{}/never/app:v1", registry.host());
    node.create(&single("never", holding(&absent, "Never")))
        .await;
    let why = format!("Container image {absent:?} is not present with pull policy of Never");
    waits(node, "never", "ErrImageNeverPull", &why).await;
    node.event("never", "ErrImageNeverPull", &why).await;

    let (image, _) = registry.put("ill/app:v1", Access::Open).await.unwrap();
    registry.set_manners("ill/app", Manners::Failing(500));
    node.create(&single("ill", holding(&image, "IfNotPresent")))
        .await;
    waits(node, "ill", "ImagePullBackOff", "500 Internal Server Error").await;
    registry.set_manners("ill/app", Manners::Quick);
    node.running("ill").await;
    crate::inside::end_all(node, &["bad-name", "never", "ill"]).await;
    crate::pulls::a_secret_that_cannot_be_read(node, &registry).await;
}

pub async fn a_cached_image_waits_for_no_pull(node: &Member) {
    let registry = registry(node).await;
    let (image, _) = registry.put("slow/app:v1", Access::Open).await.unwrap();
    registry.set_manners("slow/app", Manners::Held);
    for name in ["slow-one", "slow-two"] {
        node.create(&single(name, holding(&image, "IfNotPresent")))
            .await;
        node.event(name, "Pulling", "").await;
    }
    node.run(&single("quick", tool("main", &["hold"]))).await;
    assert!(status::running(&node.pod("slow-one").await.unwrap(), "main").is_err());
    registry.set_manners("slow/app", Manners::Quick);
    for name in ["slow-one", "slow-two", "quick"] {
        node.running(name).await;
        node.end(name).await;
    }
}

/// A plugin that keeps what it was asked beside itself, and knows the password.
fn plugin(dir: &Path, name: &str, registry: &Registry) {
    let answer = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Image",
        "cacheDuration": "1h",
        "auth": {registry.host(): {"username": "crab", "password": PASSWORD}},
    });
    let asked = dir.join(format!("{name}.asked"));
    let script = format!(
        "#!/bin/sh\ncat >> {}\necho \"$1 $WORD\" >> {}\necho '{answer}'\n",
        asked.display(),
        asked.display()
    );
    let path = dir.join(name);
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

pub fn provider(name: &str, place: &str, token: Option<Value>) -> Value {
    let mut provider = json!({
        "name": name,
        "matchImages": [place],
        "defaultCacheDuration": "10m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "args": ["get"],
        "env": [{"name": "WORD", "value": "please"}],
    });
    if let Some(token) = token {
        provider["tokenAttributes"] = token;
    }
    provider
}

pub async fn credential_providers(node: &Member) {
    let registry = Registry::up().await.unwrap();
    let dir = node.stage.scratch("plugins");
    let host = registry.host();
    for name in ["keys", "token-keys"] {
        plugin(&dir, name, &registry);
    }
    let token = json!({
        "serviceAccountTokenAudience": "registry.example.com",
        "cacheType": "ServiceAccount",
        "requireServiceAccount": true,
        "requiredServiceAccountAnnotationKeys": ["example.com/team"],
    });
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [
            provider("keys", &format!("{host}/plain"), None),
            provider("token-keys", &format!("{host}/account"), Some(token)),
        ],
    });
    let file = dir.join("providers.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let joining = Joining {
        args: vec![
            format!("--image-credential-provider-config={}", file.display()),
            format!("--image-credential-provider-bin-dir={}", dir.display()),
        ],
        ..Joining::default()
    };
    let mut keyed = node.prepared_beside("keyed", joining).await;
    registry.introduce(&keyed.stage.bed).unwrap();
    keyed.start().await;
    let access = || Access::basic("crab", PASSWORD);

    let (plain, _) = registry.put("plain/app:v1", access()).await.unwrap();
    keyed
        .run(&single("plain-one", holding(&plain, "Always")))
        .await;
    keyed
        .run(&single("plain-two", holding(&plain, "Always")))
        .await;
    let asked = std::fs::read_to_string(dir.join("keys.asked")).unwrap();
    assert_eq!(
        asked.matches("CredentialProviderRequest").count(),
        1,
        "the answer is kept: {asked}"
    );
    assert!(
        asked.contains(&format!("{host}/plain/app\"")) && asked.contains("get please"),
        "{asked}"
    );

    with_an_account(&keyed, &registry, &dir, access()).await;
    let log = keyed.stage.krablet.log();
    assert!(
        !log.contains(PASSWORD),
        "the password stands in the agent's log"
    );
    for name in ["plain-one", "plain-two"] {
        keyed.end(name).await;
    }
    keyed.down().await;
}

/// A plugin that wants tokens of service accounts which have opted in.
async fn with_an_account(keyed: &Member, registry: &Registry, dir: &Path, access: Access) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let name = "nodes-ask-for-registry-tokens";
    let role = json!({
        "metadata": {"name": name},
        "rules": [{
            "apiGroups": [""],
            "resources": ["registry.example.com"],
            "verbs": ["request-serviceaccounts-token-audience"],
        }],
    });
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    });
    let plane = &keyed.plane;
    plane
        .create(&format!("{rbac}/clusterroles"), &role)
        .await
        .unwrap();
    plane
        .create(&format!("{rbac}/clusterrolebindings"), &binding)
        .await
        .unwrap();
    let account =
        json!({"metadata": {"name": "puller", "annotations": {"example.com/team": "reef"}}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    plane.create(accounts, &account).await.unwrap();
    let (image, _) = registry.put("account/app:v1", access).await.unwrap();
    keyed
        .create(&single("no-account", holding(&image, "IfNotPresent")))
        .await;
    waits(keyed, "no-account", "ImagePullBackOff", NOBODY).await;
    assert!(
        !dir.join("token-keys.asked").exists(),
        "the default account has not opted in"
    );
    let mut with_account = single("account", holding(&image, "IfNotPresent"));
    with_account["spec"]["serviceAccountName"] = json!("puller");
    keyed.run(&with_account).await;
    let asked = std::fs::read_to_string(dir.join("token-keys.asked")).unwrap();
    assert!(asked.contains("\"serviceAccountToken\":\"ey"), "{asked}");
    assert!(asked.contains("\"example.com/team\":\"reef\""), "{asked}");
    let records = keyed.stage.krablet.root_dir().join("image_manager/pulled");
    let records = files(&records).concat();
    assert!(
        records.contains("kubernetesServiceAccounts") && records.contains("\"puller\""),
        "{records}"
    );
    for name in ["no-account", "account"] {
        keyed.end(name).await;
    }
}

pub async fn runtime_classes(node: &Member) {
    let handler = r#"[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
runtime_type = "io.containerd.runc.v2"
"#;
    let joining = Joining {
        bed: BedOptions {
            containerd_config: handler.to_owned(),
            ..BedOptions::default()
        },
        ..Joining::default()
    };
    let mut classy = node.prepared_beside("classy", joining).await;
    classy.start().await;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = json!({
        "metadata": {"name": "special"},
        "handler": "other",
        "overhead": {"podFixed": {"cpu": "10m", "memory": "16Mi"}},
    });
    classy.plane.create(classes, &class).await.unwrap();
    let limits = json!({"resources": {"limits": {"cpu": "100m", "memory": "32Mi"}}});
    let main = with(tool("main", &["hold"]), limits);
    let spec = json!({"containers": [main], "runtimeClassName": "special"});
    let made = classy.wait("special", "is let in", async || {
        // The API server learns of a new class a moment later.
        let mut pod = pod("special", spec.clone());
        pod["spec"]["nodeName"] = json!(classy.name);
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        let made = classy
            .plane
            .create(krablet_e2e::cluster_stage::PODS, &pod)
            .await;
        made.map_err(|e| format!("{e:#}"))
    });
    made.await;
    let running = classy.running("special").await;
    // What the class costs is the pod's beside what its containers may have.
    let cgroup = resources::cgroup(&classy, "special", "").await;
    let held_to = (resources::quota(&cgroup), resources::memory(&cgroup));
    assert_eq!(held_to, ("11000".to_owned(), (48 << 20).to_string()));
    let uid = status::uid(&running);
    let sandboxes = classy.stage.runtime.list_pod_sandbox(None).await.unwrap();
    let of_pod = |s: &&v1::PodSandbox| s.metadata.as_ref().is_some_and(|m| m.uid == uid);
    let handlers: Vec<&str> = sandboxes
        .iter()
        .filter(of_pod)
        .map(|s| s.runtime_handler.as_str())
        .collect();
    assert_eq!(handlers, ["other"]);

    // Only a static pod gets as far as here with a class that nobody knows.
    let spec = json!({"containers": [tool("main", &["hold"])], "runtimeClassName": "nobodys"});
    classy.stage.apply("nobodys", &pod("nobodys", spec));
    let why = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"nobodys\" not found";
    classy
        .wait("nobodys", "the class is not known", async || {
            let log = classy.stage.krablet.log();
            let told = log.lines().any(|line| {
                line.contains("nobodys-classy") && line.replace('\\', "").contains(why)
            });
            told.then_some(()).ok_or_else(|| "not told yet".to_owned())
        })
        .await;
    classy.stage.remove("nobodys");
    classy.end("special").await;
    classy
        .plane
        .delete(&format!("{classes}/special"))
        .await
        .unwrap();
    classy.down().await;
}

pub async fn unused_images_go_by_age(node: &Member) {
    let joining = Joining {
        config: json!({"imageMinimumGCAge": "1s", "imageMaximumGCAge": "10s"}),
        ..Joining::default()
    };
    let mut tidy = node.prepared_beside("tidy", joining).await;
    let registry = registry(&tidy).await;
    let (image, _) = registry.put("tidy/app:v1", Access::Open).await.unwrap();
    tidy.start().await;
    tidy.run(&single("tidied", holding(&image, "IfNotPresent")))
        .await;
    tidy.wait("node", "images nobody uses are gone", async || {
        let held = held(&tidy).await;
        match held.iter().any(|name| name == images::TOOL) {
            true => Err(format!("{held:?}")),
            false => Ok(()),
        }
    })
    .await;
    let kept = held(&tidy).await;
    assert!(kept.contains(&image), "one that is in use stays: {kept:?}");
    assert!(
        kept.iter().any(|n| n == images::PAUSE),
        "one that is pinned stays: {kept:?}"
    );
    tidy.end("tidied").await;
    tidy.wait("node", "the image of the pod is gone", async || {
        let held = held(&tidy).await;
        match held.contains(&image) {
            true => Err(format!("{held:?}")),
            false => Ok(()),
        }
    })
    .await;
    let metrics = tidy.stage.krablet.metrics().await.unwrap();
    assert!(
        metrics.contains("kubelet_image_garbage_collected_total{reason=\"age\"}"),
        "{metrics}"
    );
    tidy.down().await;
}

/// The names of all images in the runtime.
async fn held(node: &Member) -> Vec<String> {
    let store = node.stage.bed.images().unwrap();
    let images = store.list_images().await.unwrap();
    images.into_iter().flat_map(|i| i.repo_tags).collect()
}

async fn tools_are_gone(node: &Member, why: &str) {
    node.wait("node", why, async || {
        let held = held(node).await;
        let is_tool = |name: &String| name == images::TOOL || name == images::TOOL_V2;
        match held.iter().any(is_tool) {
            true => Err(format!("{held:?}")),
            false => Ok(()),
        }
    })
    .await;
}

/// A disk that is fuller than the node likes costs the images that nobody uses.
pub async fn unused_images_go_for_space(node: &Member) {
    let joining = Joining {
        config: json!({
            "imageGCHighThresholdPercent": 2,
            "imageGCLowThresholdPercent": 1,
            "imageMinimumGCAge": "1ns",
        }),
        ..Joining::default()
    };
    let mut full = node.prepared_beside("full", joining).await;
    let registry = registry(&full).await;
    let (image, _) = registry.put("full/app:v1", Access::Open).await.unwrap();
    full.start().await;
    tools_are_gone(&full, "unused images are gone").await;
    full.run(&single("fills", holding(&image, "IfNotPresent")))
        .await;
    let archive = images::standard().unwrap().display().to_string();
    let import = ["images", "import", archive.as_str()];
    full.stage.bed.ctr(&import).await.unwrap();
    // Looked at again from the start on.
    full.stage.crash().await;
    tools_are_gone(&full, "they are gone again").await;
    let kept = held(&full).await;
    assert!(kept.contains(&image), "one that is in use stays: {kept:?}");
    assert!(
        kept.iter().any(|n| n == images::PAUSE),
        "one that is pinned stays: {kept:?}"
    );
    // More than all of them was wanted.
    let why = "Insufficient free disk space on the node's image filesystem (";
    full.event(&full.name, "FreeDiskSpaceFailed", why).await;
    let metrics = full.stage.krablet.metrics().await.unwrap();
    assert!(
        metrics.contains("kubelet_image_garbage_collected_total{reason=\"space\"} 2"),
        "{metrics}"
    );
    full.end("fills").await;
    full.down().await;
}
