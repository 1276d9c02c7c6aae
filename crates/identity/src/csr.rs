//! The request for a certificate: the key, the PKCS#10 text, the object at the API server, and what
//! that object says.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_kube::pem;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use sha2::{Digest as _, Sha512_256};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use crate::IdentityError;
use crate::names::Names;
use crate::pair::{NODES, Subject, key_pem, node_user};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// In this order they are part of a request's name. Key encipherment is for RSA keys only.
const USAGES: [&str; 2] = ["digital signature", "client auth"];
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];
/// For requests nobody has to find again.
const GENERATE_NAME: &str = "csr-";

/// An ECDSA P-256 key that is to get a certificate.
pub(crate) struct NodeKey {
    pair: KeyPair,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

impl NodeKey {
    pub(crate) fn generate() -> Result<Self, IdentityError> {
        let pair = KeyPair::generate().map_err(wrong)?;
        Ok(Self { pair })
    }

    pub(crate) fn from_pem(text: &[u8]) -> Result<Self, IdentityError> {
        let key = PrivateKeyDer::from_pem_slice(text)
            .map_err(|_| IdentityError::Key("there is no private key in it".into()))?;
        let pair = KeyPair::from_der_and_sign_algo(&key, &rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(|_| IdentityError::Key("the key is no ECDSA key of P-256".into()))?;
        Ok(Self { pair })
    }

    pub(crate) fn to_pem(&self) -> String {
        match PrivateKeyDer::try_from(self.pair.serialized_der()) {
            Ok(key) => key_pem(&key),
            Err(_) => pem::encoded("PRIVATE KEY", self.pair.serialized_der()),
        }
    }

    /// As in a certificate (SubjectPublicKeyInfo, DER).
    pub(crate) fn public_key(&self) -> Vec<u8> {
        self.pair.subject_public_key_info()
    }

    #[cfg(test)]
    pub(crate) fn raw_public_key(&self) -> Vec<u8> {
        self.pair.public_key_raw().to_vec()
    }

    /// The PKCS#10 request of this node, signed with the key.
    pub(crate) fn request(&self, node: &str) -> Result<String, IdentityError> {
        self.request_with(node, Vec::new())
    }

    /// The same, for a certificate that is shown under these names.
    pub(crate) fn serving_request(
        &self,
        node: &str,
        names: &Names,
    ) -> Result<String, IdentityError> {
        self.request_with(node, names.alternatives()?)
    }

    fn request_with(&self, node: &str, names: Vec<SanType>) -> Result<String, IdentityError> {
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, NODES);
        name.push(DnType::CommonName, node_user(node));
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.subject_alt_names = names;
        let request = params.serialize_request(&self.pair).map_err(wrong)?;
        Ok(pem::encoded("CERTIFICATE REQUEST", request.der()))
    }
}

pub(crate) fn wrong(error: rcgen::Error) -> IdentityError {
    IdentityError::Key(error.to_string())
}

/// The name of a node's first request: the same for the same key and node, so that it is found
/// again after a crash. Computed as the kubelet does.
pub(crate) fn request_name(public_key: &[u8], node: &str) -> String {
    let mut hash = Sha512_256::new();
    let user = node_user(node);
    let parts = [public_key, user.as_bytes(), NODES.as_bytes()];
    for part in parts.into_iter().chain(USAGES.map(str::as_bytes)) {
        // The delimiter is not in the alphabet, so no two inputs make one stream.
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update(b"|");
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

/// The object to create; without a name the server makes one up.
pub(crate) fn signing_request(name: Option<&str>, request: String) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: name.map(str::to_owned),
            generate_name: name.is_none().then(|| GENERATE_NAME.to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// The same for a serving certificate.
pub(crate) fn serving_signing_request(request: String) -> CertificateSigningRequest {
    let mut wanted = signing_request(None, request);
    wanted.spec.signer_name = SERVING_SIGNER.to_owned();
    wanted.spec.usages = Some(SERVING_USAGES.map(str::to_owned).to_vec());
    wanted
}

/// What has become of a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    Waiting,
    /// Chain as PEM.
    Issued(Vec<u8>),
    Against(IdentityError),
}

pub(crate) fn verdict(csr: &CertificateSigningRequest) -> Verdict {
    let status = csr.status.as_ref();
    let conditions = status.and_then(|s| s.conditions.as_deref());
    let conditions = conditions.unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|c| c.type_ == kind);
    if let Some(condition) = find("Denied") {
        let (name, reason, message) = words(csr, condition);
        return Verdict::Against(IdentityError::Denied {
            name,
            reason,
            message,
        });
    }
    if let Some(condition) = find("Failed") {
        let (name, reason, message) = words(csr, condition);
        return Verdict::Against(IdentityError::Failed {
            name,
            reason,
            message,
        });
    }
    let certificate = status.and_then(|s| s.certificate.as_ref());
    match certificate {
        Some(certificate) if find("Approved").is_some() && !certificate.0.is_empty() => {
            Verdict::Issued(certificate.0.clone())
        }
        _ => Verdict::Waiting,
    }
}

fn words(
    csr: &CertificateSigningRequest,
    condition: &CertificateSigningRequestCondition,
) -> (String, String, String) {
    (
        csr.metadata.name.clone().unwrap_or_default(),
        condition.reason.clone().unwrap_or_default(),
        condition.message.clone().unwrap_or_default(),
    )
}

/// Whether a request that was found under our name can bring a certificate for our key, else why
/// not.
pub(crate) fn reusable(
    found: &CertificateSigningRequest,
    key: &NodeKey,
    node: &str,
    now: Timestamp,
) -> Result<(), String> {
    let der = CertificateSigningRequestDer::from_pem_slice(&found.spec.request.0)
        .map_err(|e| format!("it holds no request: {e}"))?;
    let (_, request) = X509CertificationRequest::from_der(&der)
        .map_err(|e| format!("its request cannot be read: {e}"))?;
    let info = &request.certification_request_info;
    if Subject::of(&info.subject) != Subject::of_node(node) {
        return Err(format!("it asks for {}", info.subject));
    }
    if found.spec.signer_name != SIGNER {
        return Err(format!("it is for the signer {}", found.spec.signer_name));
    }
    if info.subject_pki.raw != key.public_key() {
        return Err("it is for another key".into());
    }
    match verdict(found) {
        Verdict::Issued(chain) => not_expired(&chain, now),
        Verdict::Waiting | Verdict::Against(_) => Ok(()),
    }
}

fn not_expired(chain: &[u8], now: Timestamp) -> Result<(), String> {
    let leaf = CertificateDer::from_pem_slice(chain)
        .map_err(|e| format!("its certificate is no PEM: {e}"))?;
    let (_, leaf) = X509Certificate::from_der(&leaf)
        .map_err(|e| format!("its certificate cannot be read: {e}"))?;
    let end = leaf.validity().not_after;
    match now.as_second() > end.timestamp() {
        true => Err(format!("its certificate expired at {end}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus;

    use super::*;
    use crate::testing::{Authority, at};

    #[test]
    fn the_request_is_the_nodes_own() {
        let key = NodeKey::generate().unwrap();
        let text = key.request("node-1").unwrap();
        let csr = signing_request(None, text);
        let json = serde_json::to_value(&csr).unwrap();
        assert_eq!(json["kind"], "CertificateSigningRequest");
        assert_eq!(json["apiVersion"], "certificates.k8s.io/v1");
        assert_eq!(json["metadata"]["generateName"], "csr-");
        assert_eq!(json["metadata"].get("name"), None);
        assert_eq!(
            json["spec"]["usages"],
            serde_json::json!(["digital signature", "client auth"])
        );
        assert_eq!(json["spec"]["signerName"], SIGNER);
        assert_eq!(reusable(&csr, &key, "node-1", at(0)), Ok(()));
        let der = CertificateSigningRequestDer::from_pem_slice(&csr.spec.request.0).unwrap();
        let (_, parsed) = X509CertificationRequest::from_der(&der).unwrap();
        let subject = Subject::of(&parsed.certification_request_info.subject);
        assert_eq!(subject.common_name, "system:node:node-1");
        assert_eq!(subject.organizations, ["system:nodes"]);
        assert!(parsed.requested_extensions().is_none());
    }

    #[test]
    fn keys_survive_their_pem_and_show_nothing() {
        let key = NodeKey::generate().unwrap();
        let again = NodeKey::from_pem(key.to_pem().as_bytes()).unwrap();
        assert_eq!(key.public_key(), again.public_key());
        assert_eq!(key.to_pem(), again.to_pem());
        assert_eq!(format!("{key:?}"), "NodeKey(..)");
        // As the kubelet writes it (SEC 1), made by openssl.
        let sec1 = "-----BEGIN EC PRIVATE KEY-----\n\
            MHcCAQEEIPsFFOFr7EQvF8xzgVPTcCbHrCa3vPCmmG0eeaxJOdlVoAoGCCqGSM49\n\
            AwEHoUQDQgAEV43ufw+Mbs6vpO5gHpdht6UUiAoEH9wKdgv40LKB76TGAONE3N7R\n\
            sLPTAEzxj4YP0dt3RWy+O5bcrn1/66axNw==\n\
            -----END EC PRIVATE KEY-----\n";
        let key = NodeKey::from_pem(sec1.as_bytes()).unwrap();
        assert_eq!(key.to_pem(), sec1);
        assert!(NodeKey::from_pem(b"-----BEGIN").is_err());
    }

    #[test]
    fn the_name_depends_on_key_and_node_only() {
        let name = request_name(b"key", "node-1");
        assert_eq!(name, request_name(b"key", "node-1"));
        assert_ne!(name, request_name(b"key", "node-2"));
        assert_ne!(name, request_name(b"yek", "node-1"));
        // Computed apart from this code, by the kubelet's recipe.
        assert_eq!(name, "node-csr-8NRQyPCdKdiYYXxB3t620OaxwG013oHmZ6pGpmmKGog");
    }

    fn decided(condition: &str, certificate: Option<Vec<u8>>) -> CertificateSigningRequest {
        let condition = CertificateSigningRequestCondition {
            type_: condition.into(),
            status: "True".into(),
            reason: Some("Policy".into()),
            message: Some("not you".into()),
            ..Default::default()
        };
        let mut csr = signing_request(Some("node-csr-x"), String::new());
        csr.status = Some(CertificateSigningRequestStatus {
            certificate: certificate.map(ByteString),
            conditions: Some(vec![condition]),
        });
        csr
    }

    #[test]
    fn what_becomes_of_a_request() {
        let shown = |csr: CertificateSigningRequest| match verdict(&csr) {
            Verdict::Waiting => "waiting".to_owned(),
            Verdict::Issued(chain) => format!("issued {}", chain.len()),
            Verdict::Against(error) => error.to_string(),
        };
        let cases = [
            (signing_request(None, String::new()), "waiting"),
            (decided("Approved", None), "waiting"),
            (decided("Approved", Some(Vec::new())), "waiting"),
            (decided("Approved", Some(vec![1, 2])), "issued 2"),
            // Signed without approval: not for us to use.
            (decided("Other", Some(vec![1, 2])), "waiting"),
            (
                decided("Denied", None),
                "certificate signing request node-csr-x was denied, reason: Policy, message: not you",
            ),
            (
                decided("Failed", Some(vec![1])),
                "certificate signing request node-csr-x failed, reason: Policy, message: not you",
            ),
        ];
        for (csr, expected) in cases {
            assert_eq!(shown(csr), expected);
        }
    }

    #[test]
    fn a_request_of_somebody_else_is_not_used() {
        let key = NodeKey::generate().unwrap();
        let csr = signing_request(Some("x"), key.request("node-1").unwrap());
        let other_key = NodeKey::generate().unwrap();
        let mut other_signer = csr.clone();
        other_signer.spec.signer_name = "example.com/signer".into();
        let mut torn = csr.clone();
        torn.spec.request.0.truncate(40);
        let why = |csr, key, node| reusable(csr, key, node, at(0)).unwrap_err();
        assert_eq!(why(&csr, &other_key, "node-1"), "it is for another key");
        assert!(why(&csr, &key, "node-2").starts_with("it asks for O=system:nodes"));
        assert_eq!(
            why(&other_signer, &key, "node-1"),
            "it is for the signer example.com/signer"
        );
        assert!(why(&torn, &key, "node-1").starts_with("it holds no request"));
        let mut issued = decided("Approved", None);
        issued.spec = csr.spec.clone();
        let chain = Authority::new().sign(&csr.spec.request.0, at(0), at(60));
        issued.status.as_mut().unwrap().certificate = Some(ByteString(chain));
        assert_eq!(reusable(&issued, &key, "node-1", at(60)), Ok(()));
        let expired = reusable(&issued, &key, "node-1", at(61)).unwrap_err();
        assert!(
            expired.starts_with("its certificate expired at"),
            "{expired}"
        );
    }
}
