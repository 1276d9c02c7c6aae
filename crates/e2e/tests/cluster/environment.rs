//! What containers find in their environment, and what becomes of them while something of it is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use krablet_cri::RuntimeService;
use krablet_e2e::manifest::{pod, shell, single, tool, with};
use krablet_e2e::{LONG, Member, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::{Value, json};

use crate::hanging::connections;
use crate::inside::{end_all, running_id, waits};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SERVICES: &str = "/api/v1/namespaces/default/services";
/// More than an API server lets one connection carry.
const CROWD: usize = 160;

/// A container with this environment that waits. No shell: it would drop names that are none to it.
fn holding(fields: Value) -> Value {
    with(tool("main", &["hold"]), fields)
}

fn from(name: &str, source: Value) -> Value {
    json!({"name": name, "valueFrom": source})
}

fn config_map_key(name: &str, key: &str) -> Value {
    json!({"configMapKeyRef": {"name": name, "key": key}})
}

async fn config_map(node: &Member, name: &str, data: Value) {
    let object = json!({"metadata": {"name": name}, "data": data});
    node.plane.create(CONFIG_MAPS, &object).await.unwrap();
}

/// What the kernel tells of the first process of the pod's container `main`.
async fn first_process(node: &Member, pod: &str, file: &str) -> Vec<u8> {
    let running = running_id(node, pod, Some("main")).await.unwrap();
    let command = vec!["/bin/cat".to_owned(), format!("/proc/1/{file}")];
    let runtime = &node.stage.runtime;
    let said = runtime.exec_sync(&running, command, Duration::from_secs(30));
    let said = said.await.unwrap();
    assert_eq!(said.exit_code, 0, "{said:?}");
    said.stdout
}

async fn environ(node: &Member, pod: &str) -> BTreeMap<String, Vec<u8>> {
    let environ = first_process(node, pod, "environ").await;
    let pairs = environ.split(|b| *b == 0).filter(|p| !p.is_empty());
    let pair = |pair: &[u8]| {
        let at = pair.iter().position(|b| *b == b'=').unwrap();
        let name = String::from_utf8(pair[..at].to_vec()).unwrap();
        (name, pair[at + 1..].to_vec())
    };
    pairs.map(pair).collect()
}

/// As text, without what comes from elsewhere than the spec.
async fn told(node: &Member, pod: &str, prefix: &str) -> Vec<String> {
    let environ = environ(node, pod).await.into_iter();
    let ours = environ.filter(|(name, _)| name.starts_with(prefix));
    ours.map(|(name, value)| format!("{name}={}", value.escape_ascii()))
        .collect()
}

/// Keys, whole objects, prefixes, references among them, and what may be absent.
pub async fn keys_and_whole_objects(node: &Member) {
    config_map(
        node,
        "env-keys",
        json!({"plain": "one", "dotted.name": "two"}),
    )
    .await;
    let secret =
        json!({"metadata": {"name": "env-keys"}, "data": {"word": "aHVzaA==", "other": "dHdv"}});
    node.plane.create(SECRETS, &secret).await.unwrap();
    let absent = json!({"name": "env-absent", "key": "k", "optional": true});
    let keyless = json!({"name": "env-keys", "key": "absent", "optional": true});
    let container = holding(json!({
        "envFrom": [
            {"prefix": "X_", "configMapRef": {"name": "env-keys"}},
            {"prefix": "X_S_", "secretRef": {"name": "env-keys"}},
            {"prefix": "X_NONE_", "secretRef": {"name": "env-absent", "optional": true}},
        ],
        "env": [
            {"name": "X_FIRST", "value": "1"},
            from("X_KEY", config_map_key("env-keys", "plain")),
            from("X_SECRET", json!({"secretKeyRef": {"name": "env-keys", "key": "word"}})),
            from("X_ABSENT_OBJECT", json!({"configMapKeyRef": absent})),
            from("X_ABSENT_KEY", json!({"secretKeyRef": keyless})),
            {"name": "X_JOINED", "value": "$(X_FIRST)-$(X_SECRET)-$(X_S_word)-$(X_LATER)-$$(X_FIRST)"},
            {"name": "X_LATER", "value": "3"},
            {"name": "X_plain", "value": "mine"},
            {"name": "X_EMPTY"},
        ],
        "args": ["hold", "$(X_JOINED) $(X_UNKNOWN) $$(X_KEY)"],
    }));
    node.run(&single("env-keys", container)).await;
    assert_eq!(
        told(node, "env-keys", "X_").await,
        [
            "X_EMPTY=",
            "X_FIRST=1",
            "X_JOINED=1-hush-hush-$(X_LATER)-$(X_FIRST)",
            "X_KEY=one",
            "X_LATER=3",
            "X_SECRET=hush",
            "X_S_other=two",
            "X_S_word=hush",
            "X_dotted.name=two",
            "X_plain=mine",
        ]
    );
    let arguments = first_process(node, "env-keys", "cmdline").await;
    let last = arguments.split(|b| *b == 0).rfind(|a| !a.is_empty());
    assert_eq!(
        String::from_utf8_lossy(last.unwrap()),
        "1-hush-hush-$(X_LATER)-$(X_FIRST) $(X_UNKNOWN) $(X_KEY)"
    );
    node.end("env-keys").await;
}

/// Less than a pod that nobody wakes is looked at again.
const WOKEN: Duration = Duration::from_secs(30);

/// Waits until the pod runs, for less than the minute after which it would be looked at without a reason.
async fn soon_running(node: &Member, name: &str) -> Pod {
    node.wait_long(WOKEN, name, "is woken and runs", async || {
        let pod = node.pod(name).await?;
        status::all_running(&pod)?;
        Ok(pod)
    })
    .await
}

/// The container waits with the reason in its status and an event, and starts when the reason is gone.
pub async fn what_is_missing_is_told_and_heals(node: &Member) {
    let env = json!([from("X", config_map_key("env-late", "key"))]);
    let container = holding(json!({"env": env}));
    node.create(&single("env-late", container)).await;
    lacking(node, "env-lacking").await;
    let waits = async |message: &str| cannot_begin(node, "env-late", "main", message).await;
    waits("configmap \"env-late\" not found").await;
    config_map(node, "env-late", json!({"other": "1"})).await;
    waits("couldn't find key key in ConfigMap default/env-late").await;
    let patch = json!({"data": {"key": "there"}});
    let path = format!("{CONFIG_MAPS}/env-late");
    node.plane.patch(&path, &patch).await.unwrap();
    let pod = soon_running(node, "env-late").await;
    assert_eq!(status::container(&pod, "main").unwrap().restart_count, 0);
    assert_eq!(told(node, "env-late", "X").await, ["X=there"]);
    for (container, message) in LACKING {
        cannot_begin(node, "env-lacking", container, message).await;
    }
    end_all(node, &["env-late", "env-lacking"]).await;
}

/// What each container of one pod is told of what it lacks.
const LACKING: [(&str, &str); 4] = [
    (
        "secret-key",
        "couldn't find key none in Secret default/env-lacking",
    ),
    ("secret", "secret \"env-none\" not found"),
    ("whole-map", "configmap \"env-none\" not found"),
    ("path", "missing value for NOBODY"),
];

/// Makes a pod of these containers. None of them keeps another from being told.
async fn lacking(node: &Member, name: &str) {
    let secret = json!({"metadata": {"name": name}, "stringData": {"some": "x"}});
    node.plane.create(SECRETS, &secret).await.unwrap();
    let of_secret = |name: &str| json!({"env": [from("X", json!({"secretKeyRef": {"name": name, "key": "none"}}))]});
    let whole = json!({"envFrom": [{"configMapRef": {"name": "env-none"}}]});
    let mount = json!({"name": "data", "mountPath": "/data", "subPathExpr": "of-$(NOBODY)"});
    let fields = [
        of_secret(name),
        of_secret("env-none"),
        whole,
        json!({"volumeMounts": [mount]}),
    ];
    let named = LACKING.iter().zip(fields);
    let containers = named.map(|((name, _), fields)| with(tool(name, &["hold"]), fields));
    let spec = json!({
        "containers": containers.collect::<Vec<Value>>(),
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    node.create(&pod(name, spec)).await;
}

/// Waits until status and event say why the container cannot be made.
async fn cannot_begin(node: &Member, pod: &str, container: &str, message: &str) {
    waits(node, pod, container, "CreateContainerConfigError", message).await;
    node.event(pod, "Failed", &format!("Error: {message}"))
        .await;
}

/// The same for a secret of which all is taken.
pub async fn a_secret_that_comes_late(node: &Member) {
    let env = json!([{"secretRef": {"name": "env-late-secret"}}]);
    let container = holding(json!({"envFrom": env}));
    node.create(&single("env-late-secret", container)).await;
    node.until("env-late-secret", "waits", |pod| {
        let message = status::waiting(pod, "main")?.1;
        match message == "secret \"env-late-secret\" not found" {
            true => Ok(()),
            false => Err(message),
        }
    })
    .await;
    let secret = json!({"metadata": {"name": "env-late-secret"}, "stringData": {"X": "1"}, "immutable": true});
    node.plane.create(SECRETS, &secret).await.unwrap();
    soon_running(node, "env-late-secret").await;
    assert_eq!(told(node, "env-late-secret", "X").await, ["X=1"]);
    node.end("env-late-secret").await;
}

/// Fields of the pod and resources of its containers.
pub async fn what_a_pod_learns_of_itself(node: &Member) {
    let field = |name: &str, path: &str| from(name, json!({"fieldRef": {"fieldPath": path}}));
    let resource = |name: &str, resource: &str, divisor: &str| {
        from(
            name,
            json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}}),
        )
    };
    let of_other = |name: &str, resource: &str, divisor: &str| {
        let r = json!({"containerName": "other", "resource": resource, "divisor": divisor});
        from(name, json!({"resourceFieldRef": r}))
    };
    let container = holding(json!({
        "resources": {
            "requests": {"cpu": "30m", "memory": "20Mi", "ephemeral-storage": "7Mi"},
            "limits": {"memory": "40Mi"},
        },
        "env": [
            field("X_NAME", "metadata.name"),
            field("X_NAMESPACE", "metadata.namespace"),
            field("X_UID", "metadata.uid"),
            field("X_LABEL", "metadata.labels['app']"),
            field("X_ANNOTATION", "metadata.annotations['note']"),
            field("X_NODE", "spec.nodeName"),
            field("X_ACCOUNT", "spec.serviceAccountName"),
            field("X_HOST", "status.hostIP"),
            field("X_IP", "status.podIP"),
            field("X_IPS", "status.podIPs"),
            resource("X_CPU", "requests.cpu", "1m"),
            resource("X_CPUS", "requests.cpu", "0"),
            resource("X_MEMORY", "limits.memory", "1Mi"),
            resource("X_ALL_CPUS", "limits.cpu", "1m"),
            resource("X_DISK", "requests.ephemeral-storage", "1Mi"),
            resource("X_WHOLE_DISK", "limits.ephemeral-storage", "0"),
            of_other("X_OTHER_MEMORY", "limits.memory", "1"),
            of_other("X_OTHER_DISK", "limits.ephemeral-storage", "1Ki"),
        ],
    }));
    let limits = json!({"limits": {"memory": "48Mi", "ephemeral-storage": "64Mi"}});
    let other = with(tool("other", &["hold"]), json!({"resources": limits}));
    let mut manifest = pod("env-self", json!({"containers": [container, other]}));
    manifest["metadata"]["labels"] = json!({"app": "self"});
    manifest["metadata"]["annotations"] = json!({"note": "a \"quoted\" one"});
    let pod = node.run(&manifest).await;
    let known = status::status(&pod).unwrap();
    let (host, ip) = (
        known.host_ip.clone().unwrap(),
        known.pod_ip.clone().unwrap(),
    );
    let allocatable = node.node().await.unwrap().status.unwrap().allocatable;
    let allocatable = allocatable.unwrap();
    let disk = &allocatable["ephemeral-storage"].0;
    let disk = match disk.strip_suffix("Ki") {
        Some(kilobytes) => kilobytes.parse::<u64>().unwrap() * 1024,
        None => disk.parse().unwrap(),
    };
    let cpus = &allocatable["cpu"].0;
    let cpus = match cpus.strip_suffix('m') {
        Some(millis) => millis.to_owned(),
        None => format!("{cpus}000"),
    };
    let expected = [
        "X_ACCOUNT=default".to_owned(),
        format!("X_ALL_CPUS={cpus}"),
        "X_ANNOTATION=a \\\"quoted\\\" one".to_owned(),
        "X_CPU=30".to_owned(),
        "X_CPUS=1".to_owned(),
        "X_DISK=7".to_owned(),
        format!("X_HOST={host}"),
        format!("X_IP={ip}"),
        format!("X_IPS={ip}"),
        "X_LABEL=self".to_owned(),
        "X_MEMORY=40".to_owned(),
        "X_NAME=env-self".to_owned(),
        "X_NAMESPACE=default".to_owned(),
        format!("X_NODE={}", node.name),
        "X_OTHER_DISK=65536".to_owned(),
        format!("X_OTHER_MEMORY={}", 48 << 20),
        format!("X_UID={}", status::uid(&pod)),
        format!("X_WHOLE_DISK={disk}"),
    ];
    assert_eq!(told(node, "env-self", "X_").await, expected);
    node.end("env-self").await;
}

/// The API server's service always, those of the namespace unless the pod wants none.
pub async fn services_of_the_namespace(node: &Member) {
    let spec = json!({
        "selector": {"app": "nobody"},
        "ports": [{"name": "http-main", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    });
    let service = json!({"metadata": {"name": "env-linked"}, "spec": spec});
    let made = node.plane.create(SERVICES, &service).await.unwrap();
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let master = node
        .plane
        .get_json(&format!("{SERVICES}/kubernetes"))
        .await
        .unwrap();
    let master = master["spec"]["clusterIP"].as_str().unwrap().to_owned();
    // The service may be known here a moment after the pod: such a pod is not told of it, as ever.
    let name = "env-linked";
    node.wait(name, "sees the service", async || {
        let env = json!([{"name": "X", "value": "http://$(ENV_LINKED_SERVICE_HOST)"}]);
        node.run(&single(name, holding(json!({"env": env})))).await;
        let seen = told(node, name, "ENV_LINKED").await;
        let joined = told(node, name, "X").await;
        let api = told(node, name, "KUBERNETES_SERVICE_HOST").await;
        node.end(name).await;
        let expected = [
            format!("ENV_LINKED_PORT=tcp://{ip}:80"),
            format!("ENV_LINKED_PORT_53_UDP=udp://{ip}:53"),
            format!("ENV_LINKED_PORT_53_UDP_ADDR={ip}"),
            "ENV_LINKED_PORT_53_UDP_PORT=53".to_owned(),
            "ENV_LINKED_PORT_53_UDP_PROTO=udp".to_owned(),
            format!("ENV_LINKED_PORT_80_TCP=tcp://{ip}:80"),
            format!("ENV_LINKED_PORT_80_TCP_ADDR={ip}"),
            "ENV_LINKED_PORT_80_TCP_PORT=80".to_owned(),
            "ENV_LINKED_PORT_80_TCP_PROTO=tcp".to_owned(),
            format!("ENV_LINKED_SERVICE_HOST={ip}"),
            "ENV_LINKED_SERVICE_PORT=80".to_owned(),
            "ENV_LINKED_SERVICE_PORT_DNS=53".to_owned(),
            "ENV_LINKED_SERVICE_PORT_HTTP_MAIN=80".to_owned(),
        ];
        let right = seen == expected
            && joined == [format!("X=http://{ip}")]
            && api == [format!("KUBERNETES_SERVICE_HOST={master}")];
        match right {
            true => Ok(()),
            false => Err(format!("{seen:?} {joined:?} {api:?}")),
        }
    })
    .await;
    let spec = json!({"containers": [holding(json!({}))], "enableServiceLinks": false});
    node.run(&pod("env-unlinked", spec)).await;
    let seen = environ(node, "env-unlinked").await;
    assert!(seen.keys().all(|name| !name.starts_with("ENV_LINKED")));
    assert_eq!(seen["KUBERNETES_SERVICE_HOST"], master.into_bytes());
    node.end("env-unlinked").await;
    node.plane
        .delete(&format!("{SERVICES}/env-linked"))
        .await
        .unwrap();
}

/// Variables that an init container wrote into a file.
pub async fn variables_from_a_file(node: &Member) {
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let script = "echo \"WORD='from init' # said\" > /data/env; ln -s /etc/passwd /data/out";
    let key = |name: &str, path: &str, key: &str, optional: bool| {
        let r = json!({"volumeName": "data", "path": path, "key": key, "optional": optional});
        from(name, json!({"fileKeyRef": r}))
    };
    let spec = |env: Value| {
        json!({
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [with(shell("init", script), json!({"volumeMounts": mount}))],
            "containers": [holding(json!({"env": env}))],
        })
    };
    let env = json!([
        key("X_WORD", "env", "WORD", false),
        key("X_NONE", "env", "NONE", true)
    ]);
    node.run(&pod("env-file", spec(env))).await;
    assert_eq!(told(node, "env-file", "X_").await, ["X_WORD=from init"]);
    // A link to a file of the node leads nowhere. A file without the key is named.
    let out = "env-file-out";
    let mut manifest = pod(out, spec(json!([key("X_WORD", "out", "root", false)])));
    let keyless = json!({"env": [key("X_WORD", "env", "NONE", false)]});
    let containers = manifest["spec"]["containers"].as_array_mut();
    let keyless = with(tool("keyless", &["hold"]), keyless);
    containers.unwrap().push(keyless);
    let made = node.create(&manifest).await;
    cannot_begin(node, out, "main", "couldn't parse env file").await;
    let pods = node.stage.krablet.root_dir().join("pods");
    let volume = pods
        .join(status::uid(&made))
        .join("volumes/kubernetes.io~empty-dir/data/env");
    let why = format!("environment variable key \"NONE\" not found in file {volume:?}");
    cannot_begin(node, out, "keyless", &why).await;
    end_all(node, &["env-file", out]).await;
}

/// How many single objects of a kind nodes watch.
async fn watched(node: &Member, resource: &str) -> usize {
    let metrics = node.kubectl(&["get", "--raw", "/metrics"]).await;
    let ours = metrics.lines().filter(|line| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains(&format!("resource=\"{resource}\""))
            && line.contains("scope=\"resource\"")
            && line.contains("verb=\"WATCH\"")
    });
    let count = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    ours.filter_map(count).sum::<f64>() as usize
}

/// Watches, heartbeats and statuses share a connection. What the agent joined by may take a moment to be closed.
async fn one_connection(node: &Member) {
    node.wait(
        "node",
        "holds one connection",
        async || match connections(node).len() {
            1 => Ok(()),
            count => Err(format!("{count} connections")),
        },
    )
    .await;
}

/// A pod that refers to very many objects starts, each is watched as long as it is there and may change, and none
/// when it has gone.
pub async fn watches_go_with_their_pods() {
    let node = Member::founding(ControlPlaneOptions::default(), "watcher").await;
    // Those that the control plane itself has.
    let before = watched(&node, "configmaps").await;
    let mut env = Vec::new();
    for number in 0..CROWD {
        let name = format!("crowd-{number}");
        // Every fourth will not change.
        let immutable = number % 4 == 0;
        let object =
            json!({"metadata": {"name": name}, "data": {"k": name}, "immutable": immutable});
        node.plane.create(CONFIG_MAPS, &object).await.unwrap();
        env.push(from(&format!("X_{number}"), config_map_key(&name, "k")));
    }
    let mutable = CROWD - CROWD / 4;
    let container = holding(json!({"env": env}));
    let few = holding(json!({"env": env[..8]}));
    node.run(&single("few", few)).await;
    one_connection(&node).await;
    node.end("few").await;
    let others = holding(json!({"env": [from("X", config_map_key("crowd-1", "k"))]}));
    node.run(&single("crowd", container)).await;
    node.run(&single("other", others)).await;
    assert_eq!(told(&node, "crowd", "X_").await.len(), CROWD);
    let counts = async |expected: usize| {
        node.wait_long(LONG, "crowd", "is watched", async || {
            match watched(&node, "configmaps").await {
                found if found == before + expected => Ok(()),
                found => Err(format!("{found} watches, not {before} and {expected}")),
            }
        })
        .await;
    };
    counts(mutable).await;
    node.end("crowd").await;
    counts(1).await;
    node.end("other").await;
    counts(0).await;
    node.down().await;
}
