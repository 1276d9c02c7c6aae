//! What pods are called, and by what names they find others: resolvers, hosts files, hostnames.

use std::fs;
use std::path::Path;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, tool, with};
use krablet_e2e::{Member, status};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::inside::{end_all, inside, says};

const RESOLVER: &str =
    "nameserver 192.0.2.1\nsearch corp.test.\noptions rotate\n# no more\noptions ndots:2\n";
const FAILED: &str = "FailedCreatePodSandBox";

/// A pod that waits, with these fields in its spec.
fn waiting(name: &str, fields: Value) -> Value {
    let spec = json!({"containers": [tool("main", &["hold"])]});
    pod(name, with(spec, fields))
}

/// On a node of its own, which knows of a cluster's DNS.
pub async fn resolvers_hosts_and_hostnames(main: &Member) {
    let resolver = main.stage.scratch("names").join("resolv.conf");
    fs::write(&resolver, RESOLVER).unwrap();
    let joining = Joining {
        config: json!({
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.test",
            "resolvConf": resolver,
        }),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("named", joining).await;
    node.start().await;
    resolvers(&node).await;
    limits_of_resolvers(&node).await;
    hosts_and_hostnames(&node).await;
    on_the_nodes_network(&node).await;
    too_long_a_name(&node).await;
    resolver_file_goes_bad(&mut node, &resolver).await;
    node.down().await;
}

async fn resolvers(node: &Member) {
    const CLUSTER: &str = "search default.svc.cluster.test svc.cluster.test cluster.test corp.test\nnameserver 10.96.0.10\noptions ndots:5";
    const HOST: &str = "search corp.test\nnameserver 192.0.2.1\noptions rotate ndots:2";
    let own = json!({
        "nameservers": ["192.0.2.1", "192.0.2.9"],
        "searches": ["own.test"],
        "options": [{"name": "ndots", "value": "7"}, {"name": "edns0"}],
    });
    let cases = [
        ("dns-cluster", json!({}), CLUSTER.to_owned()),
        (
            "dns-host",
            json!({"dnsPolicy": "Default"}),
            HOST.to_owned(),
        ),
        (
            "dns-mixed",
            json!({"dnsPolicy": "Default", "dnsConfig": own}),
            "search corp.test own.test\nnameserver 192.0.2.1\nnameserver 192.0.2.9\noptions rotate ndots:7 edns0".to_owned(),
        ),
        (
            "dns-own",
            json!({"dnsPolicy": "None", "dnsConfig": own}),
            "search own.test\nnameserver 192.0.2.1\nnameserver 192.0.2.9\noptions ndots:7 edns0".to_owned(),
        ),
        (
            "dns-net-host",
            json!({"hostNetwork": true}),
            HOST.to_owned(),
        ),
        (
            "dns-net-cluster",
            json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
            CLUSTER.to_owned(),
        ),
    ];
    for (name, fields, _) in &cases {
        node.create(&waiting(name, fields.clone())).await;
    }
    for (name, _, expected) in &cases {
        node.running(name).await;
        let seen = inside(node, name, "cat /etc/resolv.conf").await.unwrap();
        assert_eq!(seen, *expected, "{name}");
    }
    end_all(node, &cases.each_ref().map(|case| case.0)).await;
}

async fn limits_of_resolvers(node: &Member) {
    let name = "dns-limits";
    let searches: Vec<String> = (0..32).map(|n| format!("s{n}.test")).collect();
    let servers: Vec<String> = (1..=3).map(|n| format!("198.51.100.{n}")).collect();
    let wide = json!({"nameservers": servers, "searches": searches});
    node.run(&waiting(
        name,
        json!({"dnsPolicy": "Default", "dnsConfig": wide}),
    ))
    .await;
    let told = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 192.0.2.1 198.51.100.1 198.51.100.2";
    node.event(name, "DNSConfigForming", told).await;
    let kept = format!("corp.test {}", searches[..31].join(" "));
    let told = format!(
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {kept}"
    );
    node.event(name, "DNSConfigForming", &told).await;
    let seen = inside(node, name, "cat /etc/resolv.conf").await.unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], format!("search {kept}"));
    assert_eq!(lines[3], "nameserver 198.51.100.2");
    let long = "dns-long-line";
    too_long_a_search_line(node, long).await;
    end_all(node, &[name, long]).await;
}

/// Few domains, and just as many letters as the API server lets a pod have: with the node's own it is too many.
async fn too_long_a_search_line(node: &Member, name: &str) {
    let domain = |n: u32| format!("s{n}.{}", ["x".repeat(63).as_str(); 3].join("."));
    let mut searches: Vec<String> = (0..10).map(domain).collect();
    searches.push("y".repeat(2048 - searches.join(" ").len() - 1));
    let wide = json!({"searches": searches});
    let fields = json!({"dnsPolicy": "Default", "dnsConfig": wide});
    node.run(&waiting(name, fields)).await;
    let kept = format!("corp.test {}", searches[..10].join(" "));
    let told = format!(
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {kept}"
    );
    // Whatever becomes of the rest of so long a message.
    node.event(name, "DNSConfigForming", &told[..1000]).await;
    let seen = inside(node, name, "cat /etc/resolv.conf").await.unwrap();
    assert_eq!(seen.lines().next(), Some(format!("search {kept}").as_str()));
}

/// The hosts file of a pod with an address of its own, up to the pod's own lines.
const HEAD: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
const ALIASES: &str = "\n\n# Entries added by HostAliases.\n192.0.2.7\tdb\tdb.test";

async fn hosts_and_hostnames(node: &Member) {
    let alias = json!([{"ip": "192.0.2.7", "hostnames": ["db", "db.test"]}]);
    let long = format!("{}-b", "a".repeat(62));
    // Name, fields, what `hostname` says, how the hosts file ends after the address.
    let cases = [
        (
            "host-plain",
            json!({"hostAliases": alias}),
            "host-plain",
            format!("\thost-plain{ALIASES}"),
        ),
        (
            "host-sub",
            json!({"hostname": "front", "subdomain": "sub"}),
            "front",
            "\tfront.sub.default.svc.cluster.test\tfront".to_owned(),
        ),
        (
            "host-full",
            json!({"hostname": "front", "subdomain": "sub", "setHostnameAsFQDN": true}),
            "front.sub.default.svc.cluster.test",
            "\tfront.sub.default.svc.cluster.test\tfront".to_owned(),
        ),
        (
            "host-own",
            json!({"hostnameOverride": "whoever.example", "subdomain": "sub"}),
            "whoever.example",
            "\twhoever.example".to_owned(),
        ),
        (
            long.as_str(),
            json!({}),
            &long[..62],
            format!("\t{}", &long[..62]),
        ),
    ];
    for (name, fields, ..) in &cases {
        node.create(&waiting(name, fields.clone())).await;
    }
    for (name, _, hostname, line) in &cases {
        let seen = node.running(name).await;
        let ip = status::status(&seen).unwrap().pod_ip.clone().unwrap();
        let said = inside(node, name, "hostname; cat /etc/hosts").await;
        let expected = format!("{hostname}\n{HEAD}{ip}{line}");
        assert_eq!(said.as_deref(), Ok(expected.as_str()), "{name}");
    }
    end_all(node, &cases.each_ref().map(|case| case.0)).await;
    // A container that brings its own file keeps it.
    let name = "host-mounted";
    let file = node.stage.scratch(name).join("hosts");
    fs::write(&file, "127.0.0.1 mine\n").unwrap();
    let mut manifest = waiting(
        name,
        json!({"volumes": [{"name": "hosts", "hostPath": {"path": file, "type": "File"}}]}),
    );
    manifest["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "hosts", "mountPath": "/etc/hosts"}]);
    node.run(&manifest).await;
    says(node, name, "cat /etc/hosts", "127.0.0.1 mine").await;
    node.end(name).await;
}

async fn on_the_nodes_network(node: &Member) {
    let name = "host-of-node";
    let alias = json!([{"ip": "192.0.2.7", "hostnames": ["db", "db.test"]}]);
    node.run(&waiting(
        name,
        json!({"hostNetwork": true, "hostAliases": alias}),
    ))
    .await;
    let machine = fs::read_to_string("/etc/hosts").unwrap();
    let expected = format!(
        "# Kubernetes-managed hosts file (host network).\n{machine}{}",
        &ALIASES[1..]
    );
    let seen = inside(node, name, "cat /etc/hosts").await;
    assert_eq!(seen.as_deref(), Ok(expected.as_str()));
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    says(node, name, "hostname", machine.trim()).await;
    node.end(name).await;
}

async fn too_long_a_name(node: &Member) {
    let name = "host-too-long";
    let fields = json!({"hostname": "h".repeat(40), "subdomain": "sub", "setHostnameAsFQDN": true});
    node.create(&waiting(name, fields)).await;
    let full = format!("{}.sub.default.svc.cluster.test", "h".repeat(40));
    let why = format!(
        "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long (64 characters is the max, {} characters requested)",
        full.len()
    );
    node.event(name, FAILED, &why).await;
    node.end(name).await;
}

/// The file is read for every sandbox: what is wrong with it is told, and heals. What would not fit
/// into pods is told at the start.
async fn resolver_file_goes_bad(node: &mut Member, file: &Path) {
    let name = "dns-bad-file";
    fs::write(file, "nameserver\n").unwrap();
    node.create(&waiting(name, json!({}))).await;
    let why = "Failed to create pod sandbox: Encountered error while parsing resolv conf file. Error: nameserver list is empty ";
    node.event(name, FAILED, why).await;
    let domains: Vec<String> = (0..30).map(|n| format!("s{n}.test")).collect();
    fs::write(file, format!("search {}\n", domains.join(" "))).unwrap();
    let mended = Instant::now();
    node.running(name).await;
    println!(
        "{name}: runs {:?} after the file was mended",
        mended.elapsed()
    );
    node.end(name).await;
    node.stage.crash().await;
    let told = format!(
        "Resolv.conf file '{}' contains search line consisting of more than 29 domains!",
        file.display()
    );
    node.event(&node.name, "CheckLimitsForResolvConf", &told)
        .await;
}

/// A node that knows of no cluster DNS uses its own, and says so.
pub async fn without_a_cluster_dns(node: &Member) {
    let name = "dns-none";
    let made = node.run(&waiting(name, json!({}))).await;
    let why = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let of_pod = format!("pod: \"{name}_default({})\". {why}", status::uid(&made));
    node.event(name, "MissingClusterDNS", &of_pod).await;
    node.event(&node.name, "MissingClusterDNS", why).await;
    let machine = fs::read_to_string("/etc/resolv.conf").unwrap();
    let servers = machine.lines().filter(|l| l.starts_with("nameserver"));
    let servers = servers.take(3).collect::<Vec<_>>().join("\n");
    says(
        node,
        name,
        "grep ^nameserver /etc/resolv.conf || true",
        &servers,
    )
    .await;
    node.end(name).await;
}
