//! More that is asked of a node: its own logs, pages about the agent, checkpoints, streams over WebSocket, large copies, and
//! the certificate it shows.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, status};
use krablet_net::trust::AnyCertificate;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::pem::Pem;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SERVING: &str = "kubernetes.io/kubelet-serving";

fn proxy(node: &Member, path: &str) -> String {
    format!("/api/v1/nodes/{}/proxy{path}", node.name)
}

async fn raw(node: &Member, path: &str) -> String {
    node.kubectl(&["get", "--raw", &proxy(node, path)]).await
}

async fn refused(node: &Member, arguments: &[&str]) -> String {
    let said = node.plane.kubectl(arguments).await;
    format!("{:#}", said.unwrap_err())
}

/// Pages about the node and its agent, through the API server.
pub async fn pages(node: &Member) {
    let listing = raw(node, "/logs/").await;
    assert!(listing.starts_with("<!doctype html>"), "{listing}");
    let outside = proxy(node, "/logs/..%2f..%2fetc%2fpasswd");
    let why = refused(node, &["get", "--raw", &outside]).await;
    assert!(!why.contains("root:"), "{why}");
    for check in ["ping", "log", "syncloop"] {
        assert_eq!(raw(node, &format!("/healthz/{check}")).await, "ok");
    }
    let all = raw(node, "/healthz?verbose").await;
    assert!(all.contains("[+]syncloop ok"), "{all}");
    let slis = raw(node, "/metrics/slis").await;
    let line = r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 1"#;
    assert!(slis.contains(line), "{slis}");
    let flags = raw(node, "/flagz").await;
    assert!(flags.contains("\nv=4\n"), "{flags}");
    let status = raw(node, "/statusz").await;
    assert!(status.contains("Binary version: 1.36"), "{status}");
    let heap = raw(node, "/debug/pprof/heap").await;
    assert!(heap.contains("VmRSS:"), "{heap}");
}

/// The runtime here lacks the tool that writes a process to a file (criu), and its own words for that come back in the
/// kubelet's.
pub async fn checkpoints(node: &Member) {
    let pod = node
        .run(&single("frozen", shell("main", "exec tail -f /dev/null")))
        .await;
    let id = status::id(status::container(&pod, "main").unwrap());
    let why = format!(
        "checkpointing of default/frozen/main failed (rpc error: code = Unknown desc = \
         failed to checkpoint container \"{id}\": criu binary not found in shim path or system PATH)"
    );
    for (asked, code, text) in [
        ("nobody/main", 404, "pod does not exist"),
        ("frozen/other", 404, "container other does not exist"),
        (
            "frozen/main?timeout=soon",
            404,
            "cannot parse value of timeout parameter",
        ),
        ("frozen/main", 500, &why),
        ("frozen/main?timeout=20", 500, &why),
    ] {
        let answer = ask(node, "POST", &format!("/checkpoint/default/{asked}")).await;
        assert_eq!(answer, (code, text.to_owned()), "{asked}");
    }
    let admin = node.plane.admin_kubeconfig();
    let path = proxy(node, "/checkpoint/default/frozen/main");
    let post = ["create", "--raw", &path, "-f", "-"];
    let said = node.plane.kubectl_as(&admin, &post, Some("{}")).await;
    let said = said.unwrap_err().to_string();
    let expected = format!(
        "Error from server (InternalError): an error on the server ({why:?}) has prevented the request from succeeding"
    );
    assert!(said.contains(&expected), "{said}");
    // The place for such files is there for root alone, and nothing is left in it.
    let directory = node.stage.krablet.root_dir().join("checkpoints");
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    let after = node.pod("frozen").await.unwrap();
    assert_eq!(status::id(status::container(&after, "main").unwrap()), id);
    status::all_running(&after).unwrap();
    node.end("frozen").await;
}

/// Two hundred megabytes there and back.
pub async fn large_copy(node: &Member) {
    // The runtime and the API server close behind their last byte, and kubectl's next ping resets what is still on its way from
    // them; a command that goes on for a while has it read by then.
    let slow = r#"busybox tar "$@"; code=$?; sleep 3; exit $code"#;
    let script = format!(
        "rm -f /bin/tar; printf '#!/bin/sh\\n%s\\n' '{slow}' > /bin/tar; chmod +x /bin/tar; exec tail -f /dev/null"
    );
    node.run(&single("large", shell("main", &script))).await;
    let here = node.dir().join("large");
    let back = node.dir().join("large-back");
    let made = here.clone();
    // Scenarios share a thread.
    let made = tokio::task::spawn_blocking(move || {
        let bytes: Vec<u8> = (0..50_000_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&made, &bytes).unwrap();
        bytes
    });
    let bytes = made.await.unwrap();
    let there = "default/large:/tmp/large";
    node.kubectl(&["cp", here.to_str().unwrap(), there]).await;
    node.kubectl(&["cp", there, back.to_str().unwrap()]).await;
    assert!(
        tokio::fs::read(&back).await.unwrap() == bytes,
        "the copy differs"
    );
    for file in [here, back] {
        std::fs::remove_file(file).unwrap();
    }
    node.end("large").await;
}

/// A node that asks the cluster for the certificate it shows, and answers queries for logs.
pub async fn serving_certificate(main: &Member) {
    let joining = Joining {
        config: json!({"serverTLSBootstrap": true, "enableSystemLogQuery": true}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("shown", joining).await;
    node.start().await;
    let request = node
        .wait("certificate", "is asked for", async || {
            let all: Vec<CertificateSigningRequest> = node.list(REQUESTS).await?;
            let user = format!("system:node:{}", node.name);
            let mine = |r: &CertificateSigningRequest| {
                r.spec.signer_name == SERVING && r.spec.username.as_ref() == Some(&user)
            };
            all.into_iter().find(mine).ok_or("not yet".to_owned())
        })
        .await;
    let usages = request.spec.usages.unwrap();
    assert_eq!(usages, ["digital signature", "server auth"]);
    let why = refused(&node, &["get", "--raw", &proxy(&node, "/healthz")]).await;
    assert!(why.contains("tls") || why.contains("handshake"), "{why}");

    let name = request.metadata.name.unwrap();
    node.kubectl(&["certificate", "approve", &name]).await;
    let path = proxy(&node, "/healthz");
    node.wait("certificate", "is shown", async || {
        let said = node.plane.kubectl(&["get", "--raw", &path]).await;
        said.map_err(|e| format!("{e:#}"))
    })
    .await;
    let current = node.dir().join("pki/kubelet-server-current.pem");
    names_the_node(&current, &node).await;
    let none = raw(&node, "/logs/?query=no-such-service").await;
    assert_eq!(none, "\nlog not found for no-such-service\n");
    let why = refused(
        &node,
        &["get", "--raw", &proxy(&node, "/logs/?tailLines=1")],
    )
    .await;
    assert!(why.contains("cannot be empty with options"), "{why}");
    node.kubectl(&["delete", "node", &node.name]).await;
    node.down().await;
}

/// The certificate on disk is the one of the cluster, for this node's name and address.
async fn names_the_node(current: &Path, node: &Member) {
    // It is shown before it is written down.
    let text = node.wait("certificate", "is written down", async || {
        std::fs::read(current).map_err(|e| e.to_string())
    });
    let text = text.await;
    let mut blocks = Pem::iter_from_buffer(&text).map(Result::unwrap);
    let leaf = blocks.find(|block| block.label == "CERTIFICATE").unwrap();
    let leaf = leaf.parse_x509().unwrap();
    let subject = leaf.subject().to_string();
    assert!(subject.contains("O=system:nodes"), "{subject}");
    assert!(
        subject.contains(&format!("CN=system:node:{}", node.name)),
        "{subject}"
    );
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    let names = format!("{:?}", names.value.general_names);
    assert!(
        names.contains(&format!("DNSName({:?})", node.name)),
        "{names}"
    );
    assert!(names.contains("IPAddress("), "{names}");
}

/// A client that speaks WebSocket to the node itself: output, errors and the exit code come in channels.
pub async fn web_socket(node: &Member) {
    node.run(&single("socket", shell("main", "exec tail -f /dev/null")))
        .await;
    let script = "command=sh&command=-c&command=echo%20out;%20echo%20err%20%3E%262;%20exit%207";
    let path = format!("/exec/default/socket/main?output=1&error=1&{script}");
    let (mut stream, head) = open_web_socket(node, &path).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut channels = [const { Vec::new() }; 5];
    while let Some(message) = message(&mut stream).await {
        if let Some((channel, text)) = message.split_first() {
            channels[usize::from(*channel)].extend_from_slice(text);
        }
    }
    let text = |n: usize| String::from_utf8_lossy(&channels[n]).into_owned();
    assert_eq!((text(1), text(2)), ("out\n".to_owned(), "err\n".to_owned()));
    let status: Value = serde_json::from_slice(&channels[3]).unwrap();
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "7");
    node.end("socket").await;
}

/// Ports are named in the question there; each has a channel for what is sent and one for errors.
pub async fn web_socket_to_a_port(node: &Member) {
    node.run(&single("forward", tool("main", &["http", "-port", "8080"])))
        .await;
    let (_, head) = open_web_socket(node, "/portForward/default/forward?port=0").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let (mut stream, head) = open_web_socket(node, "/portForward/default/forward?port=8080").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let question = b"\0GET / HTTP/1.0\r\n\r\n";
    // A whole binary message, masked with nothing.
    let mut frame = vec![
        0x82,
        0x80 | u8::try_from(question.len()).unwrap(),
        0,
        0,
        0,
        0,
    ];
    frame.extend_from_slice(question);
    stream.write_all(&frame).await.unwrap();
    let mut channels = [const { Vec::new() }; 2];
    while let Some(message) = message(&mut stream).await {
        if let Some((channel, text)) = message.split_first() {
            channels[usize::from(*channel)].extend_from_slice(text);
        }
        if String::from_utf8_lossy(&channels[0]).contains("\r\n\r\n") {
            break;
        }
    }
    let port = 8080u16.to_le_bytes();
    let [data, errors] = channels;
    assert_eq!((&data[..2], &*errors), (&port[..], &port[..]));
    let answer = String::from_utf8_lossy(&data[2..]).into_owned();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    node.end("forward").await;
}

/// The connection, and how the server answers the wish to make it a WebSocket.
async fn open_web_socket(node: &Member, path: &str) -> (TlsStream<TcpStream>, String) {
    let mut stream = connect(node).await;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(head).unwrap())
}

/// The next message of a server; `None` when it says farewell.
async fn message(stream: &mut TlsStream<TcpStream>) -> Option<Vec<u8>> {
    let kind = stream.read_u8().await.ok()? & 0x0f;
    let length = match stream.read_u8().await.ok()? & 0x7f {
        126 => u64::from(stream.read_u16().await.ok()?),
        127 => stream.read_u64().await.ok()?,
        short => u64::from(short),
    };
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut bytes).await.ok()?;
    (kind != 8).then_some(bytes)
}

/// Host and port of the node's own server, as the Node object tells them.
pub async fn address(node: &Member) -> (String, u16) {
    let object = node.node().await.unwrap();
    let status = object.status.unwrap();
    let mut addresses = status.addresses.unwrap().into_iter();
    let host = addresses.find(|a| a.type_ == "InternalIP").unwrap().address;
    let endpoint = status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap();
    (host, u16::try_from(endpoint.port).unwrap())
}

/// What the node's own port answers, as the API server is answered: the code and the text.
pub async fn ask(node: &Member, method: &str, path: &str) -> (u16, String) {
    let mut stream = connect(node).await;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, text.to_owned())
}

/// To the node's own port, as the API server comes.
async fn connect(node: &Member) -> TlsStream<TcpStream> {
    let (host, port) = address(node).await;
    let authority = node.plane.ca_file();
    let pki = authority.parent().unwrap();
    let chain = CertificateDer::pem_file_iter(pki.join("apiserver-kubelet-client.crt")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(pki.join("apiserver-kubelet-client.key")).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        // The certificate of this node is its own, and known to nobody.
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_client_auth_cert(chain, key)
        .unwrap();
    let stream = TcpStream::connect((host, port)).await.unwrap();
    let name = ServerName::try_from("node").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}
