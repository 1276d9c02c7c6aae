//! How pods are reached from outside, and how much may go in and out.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use krablet_cri::{RuntimeService, v1};
use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::free_port;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UdpSocket};

use crate::door::refused;
use crate::inside::end_all;

/// Where libcni keeps what plugins were given.
const CNI_RESULTS: &str = "/var/lib/cni/results";

fn serving(name: &str, ports: Value) -> Value {
    single(
        name,
        with(
            tool("main", &["tcp", "-port", "8080"]),
            json!({"ports": ports}),
        ),
    )
}

async fn connects(node: &Member, pod: &str, ip: IpAddr, port: u16) {
    node.wait(pod, &format!("is reached at {ip}:{port}"), async || {
        let connect = tokio::time::timeout(Duration::from_secs(5), TcpStream::connect((ip, port)));
        let connected = connect.await.map_err(|e| e.to_string())?;
        connected.map(drop).map_err(|e| e.to_string())
    })
    .await;
}

/// What is sent comes back.
async fn echoes(node: &Member, pod: &str, ip: IpAddr, port: u16) {
    node.wait(pod, &format!("echoes at {ip}:{port}"), async || {
        let socket = UdpSocket::bind(("0.0.0.0", 0))
            .await
            .map_err(|e| e.to_string())?;
        socket
            .connect((ip, port))
            .await
            .map_err(|e| e.to_string())?;
        socket.send(b"hello").await.map_err(|e| e.to_string())?;
        let mut answer = [0; 16];
        let received = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut answer));
        let length = received
            .await
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())?;
        match &answer[..length] {
            b"hello" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Ports of the node that lead to pods, by address and protocol; who comes second is refused.
pub async fn of_the_node(node: &Member) {
    let known = node
        .node()
        .await
        .unwrap()
        .status
        .unwrap()
        .addresses
        .unwrap();
    let address = known.iter().find(|a| a.type_ == "InternalIP").unwrap();
    let ip: IpAddr = address.address.parse().unwrap();
    let port = free_port().unwrap();
    let everywhere = json!([{"containerPort": 8080, "hostPort": port}]);
    node.run(&serving("port-everywhere", everywhere.clone()))
        .await;
    connects(node, "port-everywhere", ip, port).await;
    // The same number of another protocol is another port.
    let datagrams = json!({"ports": [{"containerPort": 9000, "hostPort": port, "protocol": "UDP", "hostIP": ip}]});
    let echo = with(tool("main", &["udp", "-port", "9000"]), datagrams);
    node.run(&single("port-udp", echo)).await;
    echoes(node, "port-udp", ip, port).await;
    let message =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let narrow = json!([{"containerPort": 8080, "hostPort": port, "hostIP": ip}]);
    refused(node, &serving("port-taken", narrow), "NodePorts", message).await;
    by_one_address(node, ip, port).await;
    end_all(node, &["port-udp", "port-everywhere"]).await;
}

/// The address of IPv4 that an interface of the machine has.
fn address_of(interface: &str) -> IpAddr {
    let arguments = ["-4", "-brief", "address", "show", "dev", interface];
    let output = Command::new("ip").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace();
    let address = words.find_map(|word| word.split_once('/')?.0.parse().ok());
    address.unwrap_or_else(|| panic!("{interface} has no address: {text}"))
}

/// A port of one of the node's addresses is shut at the others, one of all addresses is not; `everywhere` is such a one.
async fn by_one_address(node: &Member, ip: IpAddr, everywhere: u16) {
    let bridge = address_of(&node.stage.bed.bridge());
    let port = free_port().unwrap();
    let at = |ip: IpAddr| json!([{"containerPort": 8080, "hostPort": port, "hostIP": ip}]);
    node.run(&serving("port-narrow", at(ip))).await;
    connects(node, "port-narrow", ip, port).await;
    connects(node, "port-everywhere", bridge, everywhere).await;
    let elsewhere = TcpStream::connect((bridge, port)).await;
    let kind = elsewhere.map(drop).map_err(|e| e.kind());
    assert_eq!(kind, Err(ErrorKind::ConnectionRefused));
    // It is free there for another pod.
    node.run(&serving("port-too", at(bridge))).await;
    connects(node, "port-too", bridge, port).await;
    connects(node, "port-narrow", ip, port).await;
    end_all(node, &["port-narrow", "port-too"]).await;
}

/// A pod on the node's network is where the node is, and its ports are the node's.
pub async fn on_the_nodes_network(node: &Member) {
    let name = "port-host-network";
    let port = free_port().unwrap();
    let listen = tool("main", &["tcp", "-port", &port.to_string()]);
    let listen = with(listen, json!({"ports": [{"containerPort": port}]}));
    let spec = json!({"hostNetwork": true, "containers": [listen]});
    let made = node.run(&pod(name, spec)).await;
    let found = status::status(&made).unwrap();
    assert_eq!(found.pod_ip, found.host_ip);
    let own = &made.spec.as_ref().unwrap().containers[0]
        .ports
        .as_ref()
        .unwrap()[0];
    assert_eq!(own.host_port, Some(i32::from(port)));
    connects(node, name, "127.0.0.1".parse().unwrap(), port).await;
    let message =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let taken = json!([{"containerPort": 8080, "hostPort": port}]);
    refused(node, &serving("port-of-node", taken), "NodePorts", message).await;
    node.end(name).await;
}

/// What the network plugins were told when the pod's sandbox was made.
async fn told_plugins(node: &Member, uid: &str) -> Value {
    let sandboxes = node.stage.runtime.list_pod_sandbox(None).await.unwrap();
    let own = |s: &v1::PodSandbox| s.metadata.as_ref().is_some_and(|m| m.uid == uid);
    let sandboxes: Vec<String> = sandboxes.into_iter().filter(own).map(|s| s.id).collect();
    let text = std::fs::read_dir(CNI_RESULTS)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            sandboxes.iter().any(|id| name.contains(id.as_str()))
        })
        .map(|path| std::fs::read_to_string(path).unwrap());
    let all: Value = serde_json::from_str(&text.expect("a result of the plugins")).unwrap();
    all["capabilityArgs"].clone()
}

/// The annotations of traffic limits come to the network plugins, and so do ports.
pub async fn limits_of_traffic(node: &Member) {
    let name = "traffic";
    let port = free_port().unwrap();
    let mut manifest = serving(name, json!([{"containerPort": 8080, "hostPort": port}]));
    manifest["metadata"]["annotations"] = json!({
        "kubernetes.io/ingress-bandwidth": "10M",
        "kubernetes.io/egress-bandwidth": "1Mi",
    });
    let made = node.run(&manifest).await;
    let told = told_plugins(node, &status::uid(&made)).await;
    assert_eq!(told["bandwidth"]["IngressRate"], 10_000_000, "{told}");
    assert_eq!(told["bandwidth"]["EgressRate"], 1 << 20, "{told}");
    let mapping = &told["portMappings"][0];
    assert_eq!(mapping["HostPort"], port, "{told}");
    assert_eq!(mapping["ContainerPort"], 8080, "{told}");
    node.end(name).await;

    let bad = "traffic-bad";
    let mut manifest = serving(bad, json!([]));
    manifest["metadata"]["annotations"] = json!({"kubernetes.io/ingress-bandwidth": "fast"});
    node.create(&manifest).await;
    let why = "reading pod bandwidth annotations: quantities must match the regular expression";
    let told = node.event(bad, "FailedCreatePodSandBox", why).await;
    let message = told.message.unwrap_or_default();
    assert!(
        message.starts_with("Failed to create pod sandbox: rpc error: code = "),
        "{message}"
    );
    node.end(bad).await;
}

/// Ports of SCTP come to the network plugins, and are other ports than those of TCP.
pub async fn of_sctp(node: &Member) {
    let name = "port-sctp";
    let port = free_port().unwrap();
    let by =
        |protocol: &str| json!([{"containerPort": 8080, "hostPort": port, "protocol": protocol}]);
    let made = node.run(&serving(name, by("SCTP"))).await;
    let told = told_plugins(node, &status::uid(&made)).await;
    let mapping = &told["portMappings"][0];
    let protocol = mapping["Protocol"].as_str().unwrap_or_default();
    assert_eq!(protocol.to_lowercase(), "sctp", "{told}");
    assert_eq!(mapping["HostPort"], port, "{told}");
    node.run(&serving("port-tcp", by("TCP"))).await;
    let message =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let taken = serving("port-sctp-taken", by("SCTP"));
    refused(node, &taken, "NodePorts", message).await;
    node.end("port-tcp").await;
    node.end(name).await;
}
