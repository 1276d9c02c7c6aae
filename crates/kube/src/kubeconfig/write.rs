//! The kubeconfig the kubelet leaves behind when it has got its certificate.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use krablet_linux::Files;
use serde_json::Value;

use super::{Cluster, KubeconfigError, Pem};

/// The cluster of the bootstrap kubeconfig, and the pair that was got there.
pub struct Bootstrapped<'a> {
    pub cluster: &'a Cluster,
    /// Holds both the certificate and its key.
    pub pem: &'a Path,
}

impl Bootstrapped<'_> {
    /// The file's text, in the order and with the names tools know from the kubelet.
    pub fn text(&self) -> String {
        let mut text = String::from("apiVersion: v1\nclusters:\n- cluster:\n");
        let mut field = |name: &str, value: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "    {name}: {value}");
        };
        match &self.cluster.certificate_authority {
            Some(Pem::File(path)) => {
                field("certificate-authority", &scalar(&path.to_string_lossy()));
            }
            Some(Pem::Data(data)) => {
                field(
                    "certificate-authority-data",
                    &scalar(&STANDARD.encode(data)),
                );
            }
            None => {}
        }
        if self.cluster.insecure_skip_tls_verify {
            field("insecure-skip-tls-verify", "true");
        }
        // The kubelet loses it here, and does not find the server when it starts again.
        if let Some(proxy) = &self.cluster.proxy_url {
            field("proxy-url", &scalar(proxy.expose()));
        }
        field("server", &scalar(&self.cluster.server));
        if let Some(name) = &self.cluster.tls_server_name {
            field("tls-server-name", &scalar(name));
        }
        let pem = scalar(&self.pem.display().to_string());
        text.push_str("  name: default-cluster\n");
        text.push_str("contexts:\n- context:\n    cluster: default-cluster\n");
        text.push_str("    namespace: default\n    user: default-auth\n  name: default-context\n");
        text.push_str("current-context: default-context\nkind: Config\n");
        text.push_str("users:\n- name: default-auth\n  user:\n");
        let _ = writeln!(text, "    client-certificate: {pem}\n    client-key: {pem}");
        text
    }

    /// For our eyes alone, and whole or not at all. Creates the directory if need be.
    pub async fn write(&self, files: &dyn Files, path: &Path) -> Result<(), KubeconfigError> {
        let failed = |source| KubeconfigError::Write {
            path: path.display().to_string(),
            source,
        };
        if let Some(directory) = path.parent()
            && files.stat(directory).await.is_err()
        {
            files
                .create_dir_all(directory, 0o755)
                .await
                .map_err(failed)?;
        }
        let text = self.text();
        files
            .write_atomic(path, text.as_bytes(), 0o600)
            .await
            .map_err(failed)
    }
}

/// Plain where YAML reads it back as the same text, quoted elsewhere.
fn scalar(text: &str) -> String {
    let read = krablet_yaml::parse(text.as_bytes()).map(|document| document.value);
    match read {
        Ok(Value::String(read)) if read == text => text.to_owned(),
        _ => Value::String(text.to_owned()).to_string(),
    }
}
