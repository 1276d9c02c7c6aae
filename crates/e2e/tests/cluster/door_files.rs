//! The files that a node was given for its port: whoever replaces them is obeyed, and nobody is cut off.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::{LONG, Member};
use krablet_testbed::{ClientCertificate, Kubeconfig, Pair, Trust, User};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::access::{Door, Guest, master};

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    clients: PathBuf,
}

impl Files {
    fn below(main: &Member) -> Self {
        let dir = main.plane.dir().join("given");
        fs::create_dir(&dir).unwrap();
        Self {
            certificate: dir.join("server.crt"),
            key: dir.join("server.key"),
            clients: dir.join("clients.crt"),
        }
    }

    /// One after the other, as most do it.
    fn show(&self, pair: &Pair) {
        fs::write(&self.certificate, &pair.certificate).unwrap();
        fs::write(&self.key, &pair.key).unwrap();
    }
}

pub async fn are_read_again(main: &Member) {
    let files = Files::below(main);
    let pair = |name| {
        main.plane
            .client_certificate(&ClientCertificate::new(name, ""))
    };
    let (first, second) = (pair("first").unwrap(), pair("second").unwrap());
    let ours = fs::read_to_string(main.plane.ca_file()).unwrap();
    files.show(&first);
    fs::write(&files.clients, format!("{ours}{}", other_authority(main))).unwrap();
    let config = json!({
        "tlsCertFile": files.certificate,
        "tlsPrivateKeyFile": files.key,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": files.clients},
        },
    });
    let joining = Joining {
        config,
        ..Joining::default()
    };
    let mut node = main.prepared_beside("given", joining).await;
    node.start().await;

    let door = Door::of(&node).await;
    let known = Guest::certificate(main, User::Certificate(master("known")));
    let stranger = Guest::certificate(main, User::ForeignCertificate(master("stranger")));
    let mut of_known = Line::open(&door, &known).await;
    let mut of_stranger = Line::open(&door, &stranger).await;
    assert_eq!(of_known.shown(), leaf(&first));
    assert_eq!((of_known.ask().await, of_stranger.ask().await), (200, 200));

    files.show(&second);
    node.wait(
        "door",
        "who comes now is shown the new pair",
        async || match Line::open(&door, &known).await.shown() == leaf(&second) {
            true => Ok(()),
            false => Err("the old one".to_owned()),
        },
    )
    .await;
    assert_eq!((of_known.ask().await, of_stranger.ask().await), (200, 200));

    let new = files.clients.with_extension("new");
    fs::write(&new, ours).unwrap();
    fs::rename(&new, &files.clients).unwrap();
    door.becomes(&node, &stranger, "GET /healthz", 401).await;
    assert_eq!((of_known.ask().await, of_stranger.ask().await), (200, 401));
    node.kubectl(&["delete", "node", &node.name]).await;
    node.down().await;
}

/// The certificate of an authority that is not this cluster's.
fn other_authority(main: &Member) -> String {
    let wish = Kubeconfig {
        trust: Trust::Foreign,
        ..Kubeconfig::default()
    };
    let file = main.plane.kubeconfig_value(&wish).unwrap();
    let text = &file["clusters"][0]["cluster"]["certificate-authority-data"];
    let text = BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap();
    String::from_utf8(text).unwrap()
}

fn leaf(pair: &Pair) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()
}

/// A connection that is kept.
struct Line(TlsStream<TcpStream>);

impl Line {
    async fn open(door: &Door, guest: &Guest) -> Self {
        Self(door.connect(guest).await)
    }

    /// The certificate of the node.
    fn shown(&self) -> CertificateDer<'static> {
        let (_, session) = self.0.get_ref();
        session.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// The code of one more answer.
    async fn ask(&mut self) -> u16 {
        let answer = tokio::time::timeout(LONG, async {
            let asked = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
            self.0.write_all(asked).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(self.0.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap();
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            self.0.read_exact(&mut vec![0; length]).await.unwrap();
            head.split(' ').nth(1).unwrap().parse().unwrap()
        });
        answer.await.expect("an answer")
    }
}
