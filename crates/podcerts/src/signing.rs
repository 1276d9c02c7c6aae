//! Who is asked for certificates.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_kube::{ApiError, Call, Kube, Verb, paths};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Wanted;

/// Why nobody was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAsked {
    /// What users read.
    pub text: String,
    /// Nobody refused: the server is away, or busy.
    pub passing: bool,
}

/// The boundary: a request made at the API server.
#[async_trait]
pub trait Signing: Send + Sync {
    /// The name the request got. `stub` is a PKCS#10 request in DER.
    async fn ask(&self, wanted: &Wanted, stub: Vec<u8>) -> Result<String, NotAsked>;
}

/// The API server, asked by this node.
pub struct KubeSigning {
    pub kube: Kube,
    pub node_name: String,
    pub node: watch::Receiver<Option<Arc<Node>>>,
}

#[async_trait]
impl Signing for KubeSigning {
    async fn ask(&self, wanted: &Wanted, stub: Vec<u8>) -> Result<String, NotAsked> {
        let namespace = &*wanted.pod.namespace;
        let path = paths::service_account(namespace, &wanted.service_account);
        let account = self.kube.metadata(Call::new(Verb::Get, path)).await;
        let account: ObjectMeta = account.map_err(not_asked("while fetching service account"))?;
        let node = self
            .node
            .borrow()
            .as_ref()
            .and_then(|node| node.metadata.uid.clone());
        let node = node.ok_or_else(|| NotAsked {
            text: "the Node object is not known yet".to_owned(),
            passing: true,
        })?;
        let asker = Asker {
            account: account.uid.unwrap_or_default(),
            node_name: &self.node_name,
            node,
        };
        let body = request(wanted, &asker, stub);
        let call = Call::new(Verb::Create, paths::pod_certificate_requests(namespace))
            .body(body.to_string());
        let made: Result<ObjectMeta, ApiError> = self.kube.metadata(call).await;
        let made = made.map_err(not_asked("while creating on API"))?;
        Ok(made.name.unwrap_or_default())
    }
}

fn not_asked(doing: &str) -> impl Fn(ApiError) -> NotAsked {
    move |e| NotAsked {
        text: format!("{doing}: {e}"),
        passing: e.is_passing(),
    }
}

/// Who asks for a pod: the UIDs of its service account and of the node, and the node's name.
struct Asker<'a> {
    account: String,
    node_name: &'a str,
    node: String,
}

fn request(wanted: &Wanted, asker: &Asker<'_>, stub: Vec<u8>) -> Value {
    let pod = &wanted.pod;
    let (name, uid) = (&*pod.name, pod.uid.as_str());
    let mut spec = json!({
        "signerName": wanted.signer,
        "podName": name,
        "podUID": uid,
        "serviceAccountName": wanted.service_account,
        "serviceAccountUID": asker.account,
        "nodeName": asker.node_name,
        "nodeUID": asker.node,
        "stubPKCS10Request": ByteString(stub),
    });
    if let Some(seconds) = wanted.max_seconds {
        spec["maxExpirationSeconds"] = seconds.into();
    }
    if !wanted.annotations.is_empty() {
        spec["unverifiedUserAnnotations"] = json!(wanted.annotations);
    }
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    json!({
        "apiVersion": "certificates.k8s.io/v1beta1",
        "kind": "PodCertificateRequest",
        "metadata": {"namespace": &*pod.namespace, "generateName": "req-", "ownerReferences": [owner]},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::wanted;

    #[test]
    fn a_request_names_the_pod_its_account_and_its_node() {
        let asker = Asker {
            account: "sa-uid".to_owned(),
            node_name: "n1",
            node: "node-uid".to_owned(),
        };
        let mut wanted = wanted("u");
        let plain = request(&wanted, &asker, b"stub".to_vec());
        let spec = json!({
            "signerName": "example.com/ca", "podName": "web", "podUID": "u",
            "serviceAccountName": "robot", "serviceAccountUID": "sa-uid",
            "nodeName": "n1", "nodeUID": "node-uid", "stubPKCS10Request": "c3R1Yg==",
        });
        assert_eq!(plain["spec"], spec);
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u"}]);
        assert_eq!(plain["metadata"]["ownerReferences"], owner);
        wanted.max_seconds = Some(3600);
        wanted.annotations = [("example.com/a".to_owned(), "b".to_owned())].into();
        let full = request(&wanted, &asker, Vec::new());
        assert_eq!(full["spec"]["maxExpirationSeconds"], 3600);
        let annotations = json!({"example.com/a": "b"});
        assert_eq!(full["spec"]["unverifiedUserAnnotations"], annotations);
    }
}
