//! Certificates of pods' own, from a signer of the cluster: issued, kept by a later agent, renewed, refused.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::jiff::Timestamp;
use krablet_e2e::Member;
use krablet_e2e::cluster_stage::now;
use krablet_e2e::manifest::single;
use rcgen::{CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData, SignatureAlgorithm};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

use crate::inside::inside;
use crate::server_state::{raw, sample};
use crate::tokens::go_ahead;
use crate::volumes::{at, looked_into};

const REQUESTS: &str =
    "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
const SIGNER: &str = "example.com/pods";
/// Of a certificate, in seconds; a signer may not want it renewed before ten minutes of it are over, and renewals are
/// spread over five more.
const LIFE: i64 = 2 * 3600;
const RENEWED_AFTER: i64 = 600;
const RENEWED_BY: i64 = RENEWED_AFTER + 300;

/// A key that somebody else has the secret of.
struct Theirs(Vec<u8>);

impl PublicKeyData for Theirs {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap().to_string()
}

/// What the signer says of a request that it signs.
fn signed(request: &Value) -> Value {
    let stub = request["spec"]["stubPKCS10Request"].as_str().unwrap();
    let stub = BASE64_STANDARD.decode(stub).unwrap();
    let (_, stub) = X509CertificationRequest::from_der(&stub).unwrap();
    let key = &stub
        .certification_request_info
        .subject_pki
        .subject_public_key;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = Issuer::new(authority, KeyPair::generate().unwrap());
    let (begin, epoch) = (now(), rcgen::date_time_ymd(1970, 1, 1));
    let at = |seconds: i64| epoch + Duration::from_secs(seconds.unsigned_abs());
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(begin), at(begin + LIFE));
    let leaf = params
        .signed_by(&Theirs(key.data.to_vec()), &authority)
        .unwrap();
    json!({
        "conditions": [condition("Issued")],
        "certificateChain": krablet_kube::pem::encoded("CERTIFICATE", leaf.der()),
        "notBefore": time(begin),
        "beginRefreshAt": time(begin + RENEWED_AFTER),
        "notAfter": time(begin + LIFE),
    })
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "BySigner", "message": "because",
           "lastTransitionTime": time(now())})
}

/// The requests for the pod's certificate.
async fn requests(node: &Member, pod: &str) -> Result<Vec<Value>, String> {
    let all = node.list::<Value>(REQUESTS).await?.into_iter();
    Ok(all.filter(|r| r["spec"]["podName"] == pod).collect())
}

/// Waits for a request that nobody has decided, and decides it.
async fn decide(node: &Member, pod: &str, status: impl Fn(&Value) -> Value) -> Value {
    let request = node
        .wait(pod, "a certificate is asked for", async || {
            let all = requests(node, pod).await?;
            let open = |r: &&Value| {
                r["status"]["conditions"]
                    .as_array()
                    .is_none_or(Vec::is_empty)
            };
            let found = all.iter().find(open).cloned();
            found.ok_or_else(|| format!("{} requests", all.len()))
        })
        .await;
    let name = request["metadata"]["name"].as_str().unwrap();
    let patch = json!({"status": status(&request)});
    let path = format!("{REQUESTS}/{name}/status");
    node.plane.patch(&path, &patch).await.unwrap();
    request
}

fn manifest(name: &str) -> Value {
    let mut manifest = single(name, looked_into(json!([at("own", "/own")])));
    let source = json!({"signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "all.pem",
                        "userAnnotations": {"example.com/for": name}});
    manifest["spec"]["volumes"] =
        json!([{"name": "own", "projected": {"sources": [{"podCertificate": source}]}}]);
    manifest
}

/// What the pod sees: a key and a certificate that belong together.
async fn shown(node: &Member, name: &str) -> Result<Vec<u8>, String> {
    let bundle = inside(node, name, "cat /own/all.pem").await?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(bundle.as_bytes()).map_err(|e| e.to_string())?;
    let key = KeyPair::try_from(&key).map_err(|e| e.to_string())?;
    let leaf = CertificateDer::from_pem_slice(bundle.as_bytes()).map_err(|e| e.to_string())?;
    let (_, read) = x509_parser::parse_x509_certificate(&leaf).map_err(|e| e.to_string())?;
    assert_eq!(
        read.public_key().subject_public_key.data,
        key.public_key_raw()
    );
    Ok(leaf.to_vec())
}

/// The node must be of a cluster that has such requests.
pub async fn come_from_a_signer(node: &mut Member) {
    let name = "vol-certificate";
    let pod = node.create(&manifest(name)).await;
    let why = "MountVolume.SetUp failed for volume \"own\" : credential bundle is not issued yet";
    node.event(name, "FailedMount", why).await;
    let request = decide(node, name, signed).await;
    let spec = &request["spec"];
    let uid = pod.metadata.uid.as_deref();
    assert_eq!(spec["podUID"].as_str(), uid);
    assert_eq!(spec["nodeName"], node.name);
    assert_eq!(
        spec["unverifiedUserAnnotations"],
        json!({"example.com/for": name})
    );
    node.running(name).await;
    let first = shown(node, name).await.unwrap();
    let series = "kubelet_podcertificate_states";
    let page = raw(node, "/metrics").await.unwrap();
    let fresh = sample(
        &page,
        series,
        &[("signer_name", SIGNER), ("state", "fresh")],
    );
    assert_eq!(fresh, Ok(1.0));

    refused(node).await;

    // What is still good is kept by another agent.
    node.stage.crash().await;
    node.ready().await;
    let other = "vol-certificate-2";
    node.create(&manifest(other)).await;
    decide(node, other, signed).await;
    node.running(other).await;
    assert_eq!(shown(node, name).await.unwrap(), first);
    assert_eq!(requests(node, name).await.unwrap().len(), 1);

    // One for which it is later than the signer wants to see its certificates.
    node.stage.krablet.kill9().await.unwrap();
    go_ahead(node, RENEWED_BY + 60);
    node.start().await;
    decide(node, name, signed).await;
    node.wait(name, "has another certificate", async || {
        match shown(node, name).await? == first {
            true => Err("it is the first one".to_owned()),
            false => Ok(()),
        }
    })
    .await;
    for name in [name, other] {
        node.end(name).await;
    }
}

async fn refused(node: &Member) {
    let name = "vol-certificate-denied";
    node.create(&manifest(name)).await;
    let denied = |_: &Value| json!({"conditions": [condition("Denied")]});
    let request = decide(node, name, denied).await;
    let request = request["metadata"]["name"].as_str().unwrap();
    let told = format!(
        "PodCertificateRequest default/{request} was denied, reason=\"BySigner\", message=\"because\""
    );
    node.event(name, "Denied", &told).await;
    let why = "MountVolume.SetUp failed for volume \"own\" : PodCertificateRequest was permanently denied: reason=\"BySigner\" message=\"because\"";
    node.event(name, "FailedMount", why).await;
    node.end(name).await;
}
