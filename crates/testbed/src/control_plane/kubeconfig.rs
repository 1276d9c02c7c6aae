//! Kubeconfig files for whoever is to talk to the API server: rightly, or wrongly on purpose.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::pki::{ClientCertificate, Pair};

/// What a kubeconfig is to say. The default is the right server, the right authority and nobody.
#[derive(Clone, Debug, Default)]
pub struct Kubeconfig {
    /// Another server than the control plane's.
    pub server: Option<String>,
    pub trust: Trust,
    pub user: User,
}

/// Whom the client is to believe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    #[default]
    Cluster,
    /// An authority of the same name that did not sign the server's certificate.
    Foreign,
}

/// Who the client says it is.
#[derive(Clone, Debug, Default)]
pub enum User {
    #[default]
    Nobody,
    Token(String),
    /// Signed by the cluster's authority, embedded in the file.
    Certificate(ClientCertificate),
    /// Signed by an authority the server does not know.
    ForeignCertificate(ClientCertificate),
}

/// The user's entry for a certificate.
pub fn with_certificate(pair: &Pair) -> Value {
    json!({
        "client-certificate-data": STANDARD.encode(&pair.certificate),
        "client-key-data": STANDARD.encode(&pair.key),
    })
}

/// The file as a value: one cluster, one user, one context.
pub fn document(server: &str, authority: &str, user_name: &str, user: &Value) -> Value {
    let context = format!("{user_name}@kubernetes");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "kubernetes",
            "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(authority)},
        }],
        "users": [{"name": user_name, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": "kubernetes", "user": user_name}}],
        "current-context": context,
        "preferences": {},
    })
}

/// Writes a file that only its owner can read, as everything with a key or a token in it must be.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing {}", path.display()))
}
