//! What containers see of their volumes: content, rights, and how both follow what others change.

use krablet_cri::RuntimeService;
use krablet_e2e::manifest::{pod, scratch_volume, shell, single, with};
use krablet_e2e::{Member, status};
use krablet_testbed::images;
use serde_json::{Value, json};

use crate::inside::{end_all, inside, running_id, says};
use crate::volume_events::claims_that_cannot_be_had;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// A container that waits, and is there to be looked into.
pub fn looked_into(mounts: Value) -> Value {
    with(
        shell("main", "exec sleep 10000"),
        json!({"volumeMounts": mounts}),
    )
}

pub fn at(volume: &str, path: &str) -> Value {
    json!({"name": volume, "mountPath": path})
}

pub async fn config_map(node: &Member, name: &str, data: Value) {
    let object = json!({"metadata": {"name": name}, "data": data});
    node.plane.create(CONFIG_MAPS, &object).await.unwrap();
}

pub async fn secret(node: &Member, name: &str, data: Value) {
    let object = json!({"metadata": {"name": name}, "stringData": data});
    node.plane.create(SECRETS, &object).await.unwrap();
}

pub async fn content_is_seen_and_follows(node: &Member) {
    let name = "vol-content";
    let bytes = json!({"raw": "AP8KgA=="});
    let object = json!({"metadata": {"name": name}, "data": {"plain": "one", "gone": "soon"}, "binaryData": bytes});
    node.plane.create(CONFIG_MAPS, &object).await.unwrap();
    secret(node, name, json!({"word": "hidden"})).await;
    let spec = json!({
        "containers": [looked_into(json!([
            at("conf", "/conf"), at("keys", "/keys"), at("self", "/self"), at("all", "/all"),
            with(at("conf", "/part"), json!({"subPath": "plain"})),
        ]))],
        "volumes": [
            {"name": "conf", "configMap": {"name": name, "defaultMode": 0o440}},
            {"name": "keys", "secret": {"secretName": name,
                "items": [{"key": "word", "path": "deep/word", "mode": 0o400}]}},
            {"name": "self", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1"}}]}},
            {"name": "all", "projected": {"sources": [
                {"secret": {"name": name}},
                {"configMap": {"name": name, "items": [{"key": "plain", "path": "renamed"}]}},
                {"configMap": {"name": "vol-none", "optional": true}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"serviceAccountToken": {"path": "token", "audience": "vault"}}]}},
        ],
    });
    let mut manifest = pod(name, spec);
    manifest["metadata"]["labels"] = json!({"app": "one"});
    manifest["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    node.run(&manifest).await;
    for (script, expected) in [
        ("cat /conf/plain /keys/deep/word", "onehidden"),
        ("cat /part /all/renamed", "oneone"),
        ("cat /all/word /all/name", "hiddenvol-content"),
        ("cat /self/labels", "app=\"one\""),
        ("cat /self/memory", "67108864"),
        (
            "stat -Lc %a /conf/plain /keys/deep/word /all/word",
            "440\n400\n644",
        ),
        ("ls /conf", "gone\nplain\nraw"),
        ("busybox hexdump -ve '/1 \"%02x\"' /conf/raw", "00ff0a80"),
        ("ls /all", "name\nrenamed\ntoken\nword"),
        ("echo x > /conf/new || echo refused", "refused"),
        // Secrets live in memory.
        ("grep -c ' /keys tmpfs' /proc/mounts", "1"),
    ] {
        let said = inside(node, name, script).await;
        assert_eq!(said.as_deref(), Ok(expected), "{script}");
    }
    let layout = inside(node, name, "ls -la /conf").await.unwrap();
    assert!(layout.contains("plain -> ..data/plain"), "{layout}");
    assert!(layout.contains("..data -> ..20"), "{layout}");
    token_is_the_pods(node, name).await;

    let path = format!("{CONFIG_MAPS}/{name}");
    let patch = json!({"data": {"plain": "two", "gone": null, "fresh": "x"}});
    node.plane.patch(&path, &patch).await.unwrap();
    says(
        node,
        name,
        "cat /conf/plain /conf/fresh /all/renamed",
        "twoxtwo",
    )
    .await;
    says(node, name, "ls /conf", "fresh\nplain\nraw").await;
    let patch = json!({"stringData": {"word": "other"}});
    node.plane
        .patch(&format!("{SECRETS}/{name}"), &patch)
        .await
        .unwrap();
    says(node, name, "cat /keys/deep/word /all/word", "otherother").await;
    node.kubectl(&["label", "pod", name, "--overwrite", "app=two"])
        .await;
    says(node, name, "cat /self/labels", "app=\"two\"").await;
    // An object that was not there comes.
    config_map(node, "vol-none", json!({"late": "here"})).await;
    says(node, name, "cat /all/late", "here").await;
    // A part of a volume stays what it was.
    assert_eq!(inside(node, name, "cat /part").await.as_deref(), Ok("one"));
    node.end(name).await;
}

/// The API server takes the token for the pod's service account, bound to this pod.
async fn token_is_the_pods(node: &Member, name: &str) {
    let token = inside(node, name, "cat /all/token").await.unwrap();
    let review = json!({"spec": {"token": token, "audiences": ["vault"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = node.plane.create(reviews, &review).await.unwrap();
    let told = &answer["status"];
    assert_eq!(told["authenticated"], true, "{answer}");
    assert_eq!(
        told["user"]["username"],
        "system:serviceaccount:default:default"
    );
    let bound = &told["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert_eq!(*bound, json!([name]));
}

pub async fn what_is_missing_is_told_and_heals(node: &Member) {
    let name = "vol-missing";
    secret(node, name, json!({"other": "x"})).await;
    let mut manifest = single(
        name,
        looked_into(json!([at("conf", "/conf"), at("keys", "/keys")])),
    );
    manifest["spec"]["volumes"] = json!([
        {"name": "conf", "configMap": {"name": name}},
        {"name": "keys", "secret": {"secretName": name, "items": [{"key": "word", "path": "word"}]}},
    ]);
    node.create(&manifest).await;
    for told in [
        format!("MountVolume.SetUp failed for volume \"conf\" : configmap \"{name}\" not found"),
        "MountVolume.SetUp failed for volume \"keys\" : references non-existent secret key: word"
            .to_owned(),
    ] {
        node.event(name, "FailedMount", &told).await;
    }
    node.until(name, "waits", |pod| {
        let (reason, _) = status::waiting(pod, "main")?;
        match reason == "ContainerCreating" {
            true => Ok(()),
            false => Err(status::shown(pod)),
        }
    })
    .await;
    config_map(node, name, json!({"plain": "late"})).await;
    let patch = json!({"stringData": {"word": "later"}});
    node.plane
        .patch(&format!("{SECRETS}/{name}"), &patch)
        .await
        .unwrap();
    node.running(name).await;
    says(node, name, "cat /conf/plain /keys/word", "latelater").await;
    // Gone again, the pod keeps what it has, also through a restart of its container.
    node.plane
        .delete(&format!("{CONFIG_MAPS}/{name}"))
        .await
        .unwrap();
    let id = running_id(node, name, None).await.unwrap();
    node.stage.runtime.stop_container(&id, 0).await.unwrap();
    node.until(name, "was started again", |pod| {
        let restarts = status::status(pod)?.container_statuses.iter().flatten();
        match restarts.into_iter().any(|c| c.restart_count > 0) {
            true => status::all_running(pod),
            false => Err(status::shown(pod)),
        }
    })
    .await;
    says(node, name, "cat /conf/plain", "late").await;
    node.end(name).await;
}

pub async fn a_group_owns_what_it_shares(node: &Member) {
    let name = "vol-group";
    config_map(node, name, json!({"plain": "x"})).await;
    let scratch = node.stage.scratch(name);
    std::fs::create_dir(scratch.join("old")).unwrap();
    std::fs::write(scratch.join("old/file"), "x").unwrap();
    let source = json!({"local": {"path": scratch}, "nodeAffinity": on_node(node)});
    bound_claim(node, name, source).await;
    let container = looked_into(json!([
        at("disk", "/disk"),
        at("ram", "/ram"),
        at("conf", "/conf"),
        at("claim", "/claim"),
        at("token", "/token"),
    ]));
    let mut manifest = single(name, container);
    manifest["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"});
    manifest["spec"]["volumes"] = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "conf", "configMap": {"name": name, "defaultMode": 0o400}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": name}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    ]);
    node.run(&manifest).await;
    for (script, expected) in [
        ("id -G", "3000 2000 4000"),
        (
            "stat -c '%a %g' /disk /ram /claim",
            "2777 2000\n3777 2000\n2775 2000",
        ),
        ("stat -Lc '%a %u %g' /conf/plain", "440 0 2000"),
        ("stat -Lc '%a %u %g' /token/t", "640 1000 2000"),
        (
            "stat -c '%a %g' /claim/old /claim/old/file",
            "2775 2000\n664 2000",
        ),
        ("cat /conf/plain", "x"),
        (
            "echo y > /claim/old/mine && stat -c '%u %g' /claim/old/mine",
            "1000 2000",
        ),
        (
            "dd if=/dev/zero of=/ram/big bs=1M count=2 2>/dev/null || echo full",
            "full",
        ),
    ] {
        let said = inside(node, name, script).await;
        assert_eq!(said.as_deref(), Ok(expected), "{script}");
    }
    node.end(name).await;
    assert!(
        scratch.join("old/mine").exists(),
        "what a claim holds stays"
    );
    release_claim(node, name).await;
}

pub async fn parts_of_volumes(node: &Member) {
    let name = "vol-parts";
    config_map(node, name, json!({"one": "1", "two": "2"})).await;
    // A link of the host that names its way from the root, and comes back into the volume.
    let scratch = node.stage.scratch(name);
    let newest = scratch.join("releases/5");
    std::fs::create_dir_all(&newest).unwrap();
    std::fs::write(newest.join("file"), "five").unwrap();
    std::os::unix::fs::symlink(&newest, scratch.join("current")).unwrap();
    let container = with(
        looked_into(json!([
            part("scratch", "/current", "current"),
            part("scratch", "/current-file", "current/file"),
            part("scratch", "/added", "current/new/dir"),
            part("disk", "/new", "made/here"),
            part("conf", "/etc/two.conf", "two"),
            part("disk", "/linked", "inside"),
            with(
                at("disk", "/by-name"),
                json!({"subPathExpr": "of-$(POD_NAME)"})
            ),
            with(at("disk", "/all"), json!({"readOnly": true})),
        ])),
        json!({"env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
    );
    let init = with(
        shell(
            "links",
            "mkdir /disk/real && echo here > /disk/real/file && busybox ln -s real /disk/inside && busybox ln -s / /disk/outside",
        ),
        json!({"volumeMounts": [at("disk", "/disk")]}),
    );
    let mut manifest = pod(
        name,
        json!({"initContainers": [init], "containers": [container]}),
    );
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "conf", "configMap": {"name": name}},
        scratch_volume(&scratch),
    ]);
    manifest["spec"]["volumes"] = volumes;
    node.run(&manifest).await;
    for (script, expected) in [
        ("cat /etc/two.conf /linked/file", "2here"),
        ("cat /current/file /current-file", "fivefive"),
        ("echo z > /added/file && cat /current/new/dir/file", "z"),
        ("echo x > /new/file && cat /all/made/here/file", "x"),
        ("echo y > /by-name/file && cat /all/of-vol-parts/file", "y"),
        ("stat -c %a /all/made /all/made/here", "777\n777"),
        ("echo x > /all/file || echo refused", "refused"),
    ] {
        let said = inside(node, name, script).await;
        assert_eq!(said.as_deref(), Ok(expected), "{script}");
    }
    ways_out_of_volumes(node, manifest).await;
    node.end(name).await;
}

/// A part of a volume.
fn part(volume: &str, path: &str, sub: &str) -> Value {
    with(at(volume, path), json!({"subPath": sub}))
}

/// The same pod with ways out of its volume gets nowhere, neither to what is there nor to what is not.
async fn ways_out_of_volumes(node: &Member, mut manifest: Value) {
    let name = "vol-escape";
    manifest["metadata"]["name"] = json!(name);
    let container = |name: &str, sub: &str| {
        with(
            looked_into(json!([part("disk", "/host", sub)])),
            json!({"name": name}),
        )
    };
    manifest["spec"]["containers"] = json!([
        container("main", "outside/etc"),
        container("maker", "outside/krablet-none"),
    ]);
    node.create(&manifest).await;
    for (container, what) in [
        ("main", "prepare subPath"),
        ("maker", "create subPath directory"),
    ] {
        let told = format!("failed to {what} for volumeMount \"disk\" of container {container:?}");
        node.until(name, "is refused", |pod| {
            let (reason, message) = status::waiting(pod, container)?;
            match reason == "CreateContainerConfigError" && message == told {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    }
    assert!(!std::path::Path::new("/krablet-none").exists());
    node.end(name).await;
}

pub fn on_node(node: &Member) -> Value {
    let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}})
}

/// A claim and a volume of this source, bound to each other as the control plane would.
pub async fn bound_claim(node: &Member, name: &str, source: Value) {
    let shape = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": ""});
    let claim = with(
        shape.clone(),
        json!({"volumeName": name, "resources": {"requests": {"storage": "1Mi"}},
            "volumeMode": source.get("volumeMode")}),
    );
    let claim = json!({"metadata": {"name": name}, "spec": claim});
    let claim = node.plane.create(CLAIMS, &claim).await.unwrap();
    let volume = with(
        shape,
        json!({
            "capacity": {"storage": "1Mi"}, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                         "name": name, "uid": claim["metadata"]["uid"]},
        }),
    );
    let notes = json!({"pv.beta.kubernetes.io/gid": "4000"});
    let volume =
        json!({"metadata": {"name": name, "annotations": notes}, "spec": with(volume, source)});
    node.plane.create(VOLUMES, &volume).await.unwrap();
    let path = format!("{CLAIMS}/{name}/status");
    let bound = json!({"status": {"phase": "Bound"}});
    node.plane.patch(&path, &bound).await.unwrap();
}

pub async fn release_claim(node: &Member, name: &str) {
    node.plane
        .delete(&format!("{CLAIMS}/{name}"))
        .await
        .unwrap();
    node.plane
        .delete(&format!("{VOLUMES}/{name}"))
        .await
        .unwrap();
}

pub async fn claims(node: &Member) {
    let (local, host) = ("vol-local", "vol-host");
    for name in [local, host] {
        std::fs::write(node.stage.scratch(name).join("data"), name).unwrap();
    }
    let here = on_node(node);
    bound_claim(
        node,
        local,
        json!({"local": {"path": node.stage.scratch(local)}, "nodeAffinity": here}),
    )
    .await;
    bound_claim(
        node,
        host,
        json!({"hostPath": {"path": node.stage.scratch(host)}}),
    )
    .await;
    let name = "vol-claims";
    let mut manifest = single(
        name,
        looked_into(json!([at("l", "/local"), at("h", "/host")])),
    );
    manifest["spec"]["volumes"] = json!([
        {"name": "l", "persistentVolumeClaim": {"claimName": local}},
        {"name": "h", "persistentVolumeClaim": {"claimName": host, "readOnly": true}},
    ]);
    node.run(&manifest).await;
    says(
        node,
        name,
        "cat /local/data /host/data",
        "vol-localvol-host",
    )
    .await;
    says(node, name, "echo new > /local/new && cat /local/new", "new").await;
    says(
        node,
        name,
        "echo new > /host/new || echo refused",
        "refused",
    )
    .await;
    node.end(name).await;
    let kept = std::fs::read_to_string(node.stage.scratch(local).join("new")).unwrap();
    assert_eq!(kept, "new\n");

    of_other_nodes(node).await;
    claims_that_cannot_be_had(node).await;
    // A claim that is not bound.
    let unbound = json!({"metadata": {"name": "vol-unbound"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "", "volumeName": "vol-nowhere", "resources": {"requests": {"storage": "1Mi"}}}});
    node.plane.create(CLAIMS, &unbound).await.unwrap();
    let mut waiting = single("vol-waiting", looked_into(json!([at("v", "/v")])));
    waiting["spec"]["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "vol-unbound"}}]);
    node.create(&waiting).await;
    node.event(
        "vol-waiting",
        "FailedMount",
        "error processing PVC default/vol-unbound: PVC is not bound",
    )
    .await;
    node.end("vol-waiting").await;
    for name in [local, host] {
        release_claim(node, name).await;
    }
    node.plane
        .delete(&format!("{CLAIMS}/vol-unbound"))
        .await
        .unwrap();
}

/// Claims whose volumes are elsewhere, as file systems and as devices.
async fn of_other_nodes(node: &Member) {
    let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]});
    let away = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}});
    let as_device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]});
    for (name, mode, container, reason, step) in [
        (
            "vol-away",
            "Filesystem",
            looked_into(json!([at("v", "/v")])),
            "FailedMount",
            "MountVolume",
        ),
        (
            "vol-away-disk",
            "Block",
            with(shell("main", "exec sleep 10000"), as_device),
            "FailedMapVolume",
            "MapVolume",
        ),
    ] {
        let source = json!({"local": {"path": "/etc"}, "nodeAffinity": away, "volumeMode": mode});
        bound_claim(node, name, source).await;
        let mut manifest = single(name, container);
        manifest["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        node.create(&manifest).await;
        let why = format!(
            "{step}.NodeAffinity check failed for volume {name:?} : no matching NodeSelectorTerms"
        );
        node.event(name, reason, &why).await;
        node.end(name).await;
        release_claim(node, name).await;
    }
}

/// The token, the authority and the namespace that every pod gets if it does not refuse them.
pub async fn identity_of_a_pod(node: &Member) {
    let name = "vol-identity";
    let mut manifest = single(name, shell("main", "exec sleep 10000"));
    manifest["spec"]["nodeName"] = json!(node.name);
    node.plane
        .create(krablet_e2e::cluster_stage::PODS, &manifest)
        .await
        .unwrap();
    node.running(name).await;
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    says(node, name, &format!("ls {dir}"), "ca.crt\nnamespace\ntoken").await;
    says(node, name, &format!("cat {dir}/namespace"), "default").await;
    let authority = inside(node, name, &format!("cat {dir}/ca.crt"))
        .await
        .unwrap();
    assert!(
        authority.starts_with("-----BEGIN CERTIFICATE-----"),
        "{authority}"
    );
    node.end(name).await;
}

/// Another image's files as a volume.
pub async fn an_image_as_a_volume(node: &Member) {
    let name = "vol-image";
    let mut manifest = single(
        name,
        looked_into(json!([
            at("art", "/art"),
            with(at("art", "/etc-of-it"), json!({"subPath": "etc"}))
        ])),
    );
    manifest["spec"]["volumes"] = json!([{"name": "art", "image": {"reference": images::TOOL_V2, "pullPolicy": "IfNotPresent"}}]);
    node.run(&manifest).await;
    let expected = format!("{0}\n{0}", images::TOOL_V2);
    says(node, name, "cat /art/etc/image /etc-of-it/image", &expected).await;
    says(node, name, "echo x > /art/new || echo refused", "refused").await;

    // A part that the image does not have.
    let none = "vol-image-none";
    manifest["metadata"]["name"] = json!(none);
    manifest["spec"]["containers"][0]["volumeMounts"] =
        json!([with(at("art", "/art"), json!({"subPath": "nowhere"}))]);
    node.create(&manifest).await;
    let why = "no such file or directory";
    let told = crate::images::waits(node, none, "CreateContainerError", why).await;
    assert!(told.contains("nowhere"), "{told}");
    node.event(none, "Failed", &format!("Error: {told}")).await;
    end_all(node, &[name, none]).await;
}
