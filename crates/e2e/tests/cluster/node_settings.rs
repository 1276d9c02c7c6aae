//! What a user may say of a node, as the cluster sees it.

use std::net::{IpAddr, Ipv6Addr};

use k8s_openapi::api::core::v1::{Node, Pod};
use krablet_e2e::Member;
use krablet_e2e::cluster_stage::{Joining, condition, now};
use krablet_e2e::manifest::{pod, shell, single, tool};
use krablet_e2e::status;
use krablet_testbed::Bed;
use serde_json::{Value, json};

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
const NO_NODE: &str = "There is no Node object";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const ARCH: &str = "kubernetes.io/arch";
/// A label and a taint of the user's own.
const RACK: &str = "example.com/rack";
const NEW: &str = "example.com/new";

fn addresses(node: &Node) -> Vec<(String, String)> {
    let listed = node
        .status
        .iter()
        .flat_map(|s| s.addresses.iter().flatten());
    listed
        .map(|a| (a.type_.clone(), a.address.clone()))
        .collect()
}

fn listed(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(kind, address): &(&str, &str)| ((*kind).to_owned(), (*address).to_owned());
    list.iter().map(own).collect()
}

/// The address under which this machine's nodes are known.
async fn machine_ip(main: &Member) -> String {
    let all = addresses(&main.ready().await);
    let is_v4 = |ip: &str| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4());
    let own = all.into_iter().find(|(k, a)| k == "InternalIP" && is_v4(a));
    own.unwrap().1
}

/// A pod the scheduler may put on this node only.
async fn schedule(node: &Member, name: &str) {
    let mut wish = single(name, tool("main", &["hold"]));
    wish["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node.name});
    node.create_unbound(&wish).await;
}

async fn is_missing(node: &Member, path: &str) {
    let answer = node.plane.request("GET", path, None).await.unwrap();
    assert_eq!(answer.status, 404, "{path}: {}", answer.body);
}

/// Waits until the agent has looked for its Node in vain twice more.
async fn looked_in_vain(node: &Member) {
    let looks = || node.stage.krablet.log().matches(NO_NODE).count();
    let before = looks();
    node.wait("Node", "is looked for in vain", async || match looks() {
        now if now >= before + 2 => Ok(()),
        now => Err(format!("{now} times, {before} before")),
    })
    .await;
}

/// `--register-node=false`: the Node is somebody else's to make, and to take away.
pub async fn registered_by_somebody_else(main: &Member) {
    let joining = Joining {
        args: vec!["--register-node=false".to_owned()],
        config: json!({"nodeStatusUpdateFrequency": "1s"}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("made-by-hand", joining).await;
    let path = format!("/api/v1/nodes/{}", node.name);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    node.stage.start().await;
    looked_in_vain(&node).await;
    is_missing(&node, &path).await;
    is_missing(&node, &format!("{leases}/{}", node.name)).await;

    let object = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name, "made": "by-hand"}},
    });
    let admin = node.plane.admin_kubeconfig();
    let text = object.to_string();
    let made = node
        .plane
        .kubectl_as(&admin, &["create", "-f", "-"], Some(&text));
    made.await.unwrap();
    let object = node.ready().await;
    let labels = object.metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get("made").map(String::as_str), Some("by-hand"));
    let kinds: Vec<String> = addresses(&object).into_iter().map(|a| a.0).collect();
    assert_eq!(kinds, ["InternalIP", "Hostname"]);
    let found = object.status.as_ref().unwrap();
    assert_eq!(found.allocatable.as_ref().unwrap()["pods"].0, "110");
    node.beats_after(0).await;
    let owners = node.lease().await.unwrap().metadata.owner_references;
    let owner = owners.unwrap().remove(0);
    assert_eq!(Some(owner.uid), object.metadata.uid);

    schedule(&node, "on-made-by-hand").await;
    let pod = node.running("on-made-by-hand").await;
    assert_eq!(pod.spec.unwrap().node_name.as_ref(), Some(&node.name));
    node.end("on-made-by-hand").await;

    node.plane.delete(&path).await.unwrap();
    looked_in_vain(&node).await;
    is_missing(&node, &path).await;
    let log = node.stage.krablet.log();
    assert!(!log.contains("Attempting to register node"), "{log}");
    node.down().await;
}

/// `--cloud-provider=external`: nothing is scheduled before somebody has looked at the node, and what that one says
/// of its addresses stands.
pub async fn of_an_external_cloud(main: &Member) {
    let (name, ip) = ("in-a-cloud", machine_ip(main).await);
    let joining = Joining {
        args: vec![
            "--cloud-provider=external".to_owned(),
            "--provider-id=lab://zone-1/in-a-cloud".to_owned(),
            format!("--node-ip={ip}"),
            format!("--node-labels={RACK}=r1,{ZONE}=z1"),
            format!("--register-with-taints={NEW}=yes:NoSchedule"),
        ],
        config: json!({"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s"}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside(name, joining).await;
    node.start().await;
    let object = node.node().await.unwrap();
    let spec = object.spec.clone().unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("lab://zone-1/in-a-cloud"));
    let taints = spec.taints.unwrap();
    for (key, value) in [(UNINITIALIZED, "true"), (NEW, "yes")] {
        let taint = taints.iter().find(|t| t.key == key).unwrap();
        let shown = (taint.value.as_deref(), taint.effect.as_str());
        assert_eq!(shown, (Some(value), "NoSchedule"), "{key}");
    }
    assert_eq!(labels(&object, &[RACK, ZONE, HOSTNAME]), ["r1", "z1", name]);
    let annotations = object.metadata.annotations.clone().unwrap_or_default();
    assert_eq!(annotations.get(PROVIDED_IP), Some(&ip));
    let hinted = listed(&[("InternalIP", &ip), ("Hostname", name)]);
    assert_eq!(addresses(&object), hinted);

    schedule(&node, "in-the-cloud").await;
    node.until("in-the-cloud", "waits for the cloud", |pod| {
        let conditions = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let waits = conditions.into_iter().any(|c| {
            let told = c.message.as_deref().unwrap_or_default();
            c.reason.as_deref() == Some("Unschedulable") && told.contains("untolerated taint")
        });
        match waits {
            true => Ok(()),
            false => Err(status::shown(pod)),
        }
    })
    .await;

    // What a cloud controller does.
    let given = [
        ("InternalIP", ip.as_str()),
        ("ExternalIP", "203.0.113.9"),
        ("Hostname", name),
    ];
    let entry = |(kind, address): &(&str, &str)| json!({"type": kind, "address": address});
    let entries: Vec<Value> = given.iter().map(entry).collect();
    let patch = json!({"status": {"addresses": entries}});
    let path = format!("/api/v1/nodes/{name}/status");
    node.plane.patch(&path, &patch).await.unwrap();
    let lift = [UNINITIALIZED, NEW].map(|key| format!("{key}-"));
    node.kubectl(&["taint", "node", name, &lift[0], &lift[1]])
        .await;
    let moment = now();

    let pod = node.running("in-the-cloud").await;
    let host_ip = pod.status.unwrap().host_ip;
    assert_eq!(host_ip.as_ref(), Some(&ip));
    node.wait("node", "has told its status since", async || {
        let object = node.node().await?;
        let told = condition(&object, "Ready").and_then(|c| c.last_heartbeat_time.clone());
        match told.as_ref().is_some_and(|t| t.0.as_second() > moment) {
            true => Ok(()),
            false => Err(format!("{told:?}")),
        }
    })
    .await;
    let object = node.node().await.unwrap();
    assert_eq!(addresses(&object), listed(&given));
    let taints = object.spec.clone().unwrap().taints.unwrap_or_default();
    assert!(!taints.iter().any(|t| t.key == UNINITIALIZED), "{taints:?}");
    node.end("in-the-cloud").await;
    is_found_again(&mut node).await;
    node.down().await;
}

/// What labels say, of those that are there.
fn labels<'a>(node: &'a Node, keys: &[&str]) -> Vec<&'a str> {
    let all = node.metadata.labels.as_ref();
    let value = |key: &&str| Some(all?.get(*key)?.as_str());
    keys.iter().filter_map(value).collect()
}

/// The Node is there when the agent starts. The labels that are the machine's are put right; of all else that was given
/// for a new one nothing is, for somebody may have meant it.
async fn is_found_again(node: &mut Member) {
    let before = node.node().await.unwrap();
    let [own_name, own_arch] = labels(&before, &[HOSTNAME, ARCH])[..] else {
        panic!("{:?}", before.metadata.labels);
    };
    node.stage.krablet.kill9().await.unwrap();
    let mut edited = json!({RACK: "r9", ZONE: "z9", "example.com/team": "blue"});
    edited[HOSTNAME] = json!("elsewhere");
    edited[ARCH] = Value::Null;
    let path = format!("/api/v1/nodes/{}", node.name);
    let patch = json!({"metadata": {"labels": edited}});
    node.plane.patch(&path, &patch).await.unwrap();
    node.start().await;
    let keys = [HOSTNAME, ARCH, ZONE, RACK, "example.com/team"];
    let after = node
        .wait("node", "its labels are put right", async || {
            let object = node.node().await?;
            match labels(&object, &keys) == [own_name, own_arch, "z1", "r9", "blue"] {
                true => Ok(object),
                false => Err(format!("{:?}", object.metadata.labels)),
            }
        })
        .await;
    assert_eq!(after.metadata.uid, before.metadata.uid);
    let taints = after.spec.unwrap().taints.unwrap_or_default();
    let given = |key: &str| taints.iter().any(|t| t.key == key);
    assert!(!given(NEW) && !given(UNINITIALIZED), "{taints:?}");
}

/// A network of IPv6 that nobody else on this machine has.
fn own_prefix() -> [u16; 4] {
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let half = |high, low| u16::from_be_bytes([high, low]);
    [0xfd6b, 0x7261, half(a, b), half(c, d)]
}

fn in_prefix([a, b, c, d]: [u16; 4], last: u16) -> Ipv6Addr {
    Ipv6Addr::new(a, b, c, d, 0, 0, 0, last)
}

async fn ip(arguments: &[&str]) {
    let run = tokio::process::Command::new("ip").args(arguments).output();
    let output = run.await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments:?}: {told}");
}

/// The bed's pods get an address of each family from now on. The bridge is made here, with the addresses it would get
/// and one of IPv6, and goes with the bed; so nothing of the machine's own is touched, not even its forwarding.
async fn two_families(bed: &Bed, prefix: [u16; 4]) {
    let path = bed.dir().join("cni/10-bed.conflist");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut network: Value = serde_json::from_str(&text).unwrap();
    let plugin = &mut network["plugins"][0];
    plugin["isGateway"] = json!(false);
    let ipam = &mut plugin["ipam"];
    let subnet = ipam["ranges"][0][0]["subnet"].as_str().unwrap().to_owned();
    let subnet_v6 = format!("{}/64", in_prefix(prefix, 0));
    let ranges = ipam["ranges"].as_array_mut().unwrap();
    ranges.push(json!([{"subnet": subnet_v6}]));
    bed.stop_containerd().await.unwrap();
    std::fs::write(&path, network.to_string()).unwrap();
    let bridge = bed.bridge();
    let gateway = subnet.replacen(".0/", ".1/", 1);
    let gateway_v6 = format!("{}/64", in_prefix(prefix, 1));
    ip(&["link", "add", &bridge, "type", "bridge"]).await;
    ip(&["address", "add", &gateway, "dev", &bridge]).await;
    let add = ["-6", "address", "add", &gateway_v6, "dev", &bridge, "nodad"];
    ip(&add).await;
    ip(&["link", "set", &bridge, "up"]).await;
    bed.start_containerd().await.unwrap();
}

/// The pod's addresses and its host's.
fn ips(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let found = pod.status.clone().unwrap_or_default();
    let pod_ips: Vec<String> = found.pod_ips.into_iter().flatten().map(|i| i.ip).collect();
    let host_ips: Vec<String> = found.host_ips.into_iter().flatten().map(|i| i.ip).collect();
    assert_eq!(found.pod_ip.as_ref(), pod_ips.first());
    assert_eq!(found.host_ip.as_ref(), host_ips.first());
    (pod_ips, host_ips)
}

/// A node and its pods with an address of each family.
pub async fn of_two_families(main: &Member) {
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        eprintln!("SKIPPED addresses of two families: this kernel has no IPv6");
        return;
    }
    let prefix = own_prefix();
    let (v4, v6) = (machine_ip(main).await, in_prefix(prefix, 1).to_string());
    let joining = Joining {
        args: vec![format!("--node-ip={v4},{v6}")],
        ..Joining::default()
    };
    let mut node = main.prepared_beside("of-two-families", joining).await;
    two_families(&node.stage.bed, prefix).await;
    node.start().await;
    let object = node.node().await.unwrap();
    let expected = listed(&[
        ("InternalIP", &v4),
        ("InternalIP", &v6),
        ("Hostname", &node.name),
    ]);
    assert_eq!(addresses(&object), expected);
    let hosts = vec![v4, v6];

    let (own, host) = ips(&node.run(&single("has-two", tool("main", &["hold"]))).await);
    let families: Vec<bool> = own
        .iter()
        .map(|ip| ip.parse::<IpAddr>().unwrap().is_ipv6())
        .collect();
    assert_eq!((families, &host), (vec![false, true], &hosts), "{own:?}");

    let mut shares = single("shares-two", tool("main", &["hold"]));
    shares["spec"]["hostNetwork"] = json!(true);
    assert_eq!(ips(&node.run(&shares).await), (hosts.clone(), hosts));

    let script = "printf '%s %s' \"$OWN\" \"$HOST\" > /dev/termination-log";
    let mut reads = shell("main", script);
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    reads["env"] = json!([
        {"name": "OWN", "valueFrom": field("status.podIPs")},
        {"name": "HOST", "valueFrom": field("status.hostIPs")},
    ]);
    let spec = json!({"containers": [reads], "restartPolicy": "Never"});
    node.create(&pod("reads-two", spec)).await;
    let read = node.phase("reads-two", "Succeeded").await;
    let told = status::ended(&read, "main").unwrap().message.clone();
    let (own, host) = ips(&read);
    let expected = format!("{} {}", own.join(","), host.join(","));
    assert_eq!((own.len(), told), (2, Some(expected)));
    for name in ["has-two", "shares-two", "reads-two"] {
        node.end(name).await;
    }
    node.down().await;
}
