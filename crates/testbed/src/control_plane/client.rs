//! A client of the API server that costs a test next to nothing: one request, one connection.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::pki::Pair;
use crate::Response;
use crate::http;

const PATIENCE: Duration = Duration::from_secs(30);

/// How a client makes itself known.
pub enum Credentials<'a> {
    Certificate(&'a Pair),
    Token(String),
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    port: u16,
    tls: Arc<ClientConfig>,
    token: Option<String>,
}

impl Client {
    pub fn new(port: u16, authority: &str, credentials: Credentials<'_>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let (tls, token) = match credentials {
            Credentials::Token(token) => (builder.with_no_client_auth(), Some(token)),
            Credentials::Certificate(pair) => {
                let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())?;
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
                (builder.with_client_auth_cert(vec![certificate], key)?, None)
            }
        };
        Ok(Self {
            port,
            tls: Arc::new(tls),
            token,
        })
    }

    /// The server has moved.
    pub fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// The answer, whatever its status.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response> {
        let ask = async {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let name = ServerName::try_from("127.0.0.1")?;
            let connector = TlsConnector::from(Arc::clone(&self.tls));
            let stream = connector.connect(name, stream).await?;
            http::exchange(stream, &self.text(method, path, body)).await
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await;
        answer
            .context("no answer in time")
            .flatten()
            .with_context(|| format!("{method} {path}"))
    }

    fn text(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let authorization = self
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Accept: application/json, */*\r\nContent-Type: {kind}\r\n{authorization}\
             Content-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        )
    }

    /// The answer as JSON; an error unless the server is content.
    pub async fn json(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = self.request(method, path, body).await?;
        if !(200..300).contains(&answer.status) {
            bail!("{method} {path}: {} {}", answer.status, answer.body);
        }
        serde_json::from_str(&answer.body).with_context(|| format!("{method} {path}"))
    }
}
