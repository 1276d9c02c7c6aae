//! An authority and what it signs. Certificates are valid from 2020 to 2040, and the tests' clock says which year it
//! is.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use krablet_kube::kubeconfig::Pem;
use krablet_kube::{Identity, Trust, load_identity};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

pub struct PemPair {
    pub certificate: String,
    pub key: String,
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn valid(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    params
}

impl Authority {
    pub fn new() -> Self {
        let mut params = valid(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Self { issuer }
    }

    pub fn trust(&self) -> Trust {
        Trust::Authority(Pem::Data(
            pem("CERTIFICATE", self.issuer.der()).into_bytes(),
        ))
    }

    fn pair(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> PemPair {
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        PemPair {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
        }
    }

    pub fn client(&self) -> PemPair {
        let mut params = valid(&[]);
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:n");
        self.pair(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A server called `api`, which asks for client certificates of this authority.
    pub fn server(&self, protocols: &[&str]) -> ServerConfig {
        let pair = self.pair(valid(&["api"]), ExtendedKeyUsagePurpose::ServerAuth);
        let identity = pair.identity();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let clients = clients.allow_unauthenticated().build().unwrap();
        let key: PrivateKeyDer<'static> =
            rustls::pki_types::pem::PemObject::from_pem_slice(pair.key.as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(identity.cert.clone(), key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        config
    }
}

impl PemPair {
    pub fn identity(&self) -> Identity {
        load_identity(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }
}
