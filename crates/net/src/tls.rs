//! TLS: unverified for probes and hooks, whose servers present whatever they have; verified
//! against the machine's roots for the URL source.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::NetError;
use crate::trust::{AnyCertificate, certificate_problem, machine_roots, tls_error};

#[derive(Clone)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    unverified: Arc<ClientConfig>,
    /// Read when first needed: most nodes never do.
    verified: Arc<OnceCell<Arc<ClientConfig>>>,
}

impl Tls {
    pub fn new() -> Result<Self, NetError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let unverified = builder(&provider)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider.clone())));
        Ok(Self {
            provider,
            unverified: finish(unverified),
            verified: Arc::default(),
        })
    }

    async fn config(&self, verify: bool) -> Result<Arc<ClientConfig>, NetError> {
        if !verify {
            return Ok(self.unverified.clone());
        }
        let load = || async {
            let roots = tokio::task::spawn_blocking(machine_roots)
                .await
                .map_err(|e| NetError::Failed(format!("tls: reading root certificates: {e}")))?;
            let config = builder(&self.provider)?.with_root_certificates(roots);
            Ok(finish(config))
        };
        self.verified.get_or_try_init(load).await.cloned()
    }

    pub async fn handshake(
        &self,
        stream: TcpStream,
        host: &str,
        verify: bool,
        deadline: Instant,
    ) -> Result<TlsStream<FirstBytes>, NetError> {
        let name = ServerName::try_from(host.to_string())
            .map_err(|_| NetError::Failed(format!("tls: invalid server name {host:?}")))?;
        let connector = TlsConnector::from(self.config(verify).await?);
        let stream = FirstBytes {
            stream,
            first: [0; 5],
            len: 0,
        };
        let handshake = connector.connect(name, stream).into_fallible();
        match timeout_at(deadline, handshake).await {
            Err(_) => Err(NetError::Timeout),
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err((_, stream))) if stream.first == *b"HTTP/" => Err(NetError::PlainHttp),
            Ok(Err((error, _))) => Err(NetError::Failed(failure(&error))),
        }
    }
}

fn failure(error: &io::Error) -> String {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(problem)) => {
            format!("tls: {}", certificate_problem(problem))
        }
        _ if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".into(),
        _ => format!("tls: {}", crate::dial::words(error)),
    }
}

fn builder(
    provider: &Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, NetError> {
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| NetError::Failed(format!("tls: {e}")))
}

fn finish(builder: ConfigBuilder<ClientConfig, WantsClientCert>) -> Arc<ClientConfig> {
    let mut config = builder.with_no_client_auth();
    // Each connection stands alone; nothing is kept for a next one.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Remembers the first bytes a server sent, to tell plain HTTP from a broken handshake.
pub struct FirstBytes {
    stream: TcpStream,
    first: [u8; 5],
    len: usize,
}

impl AsyncRead for FirstBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let this = &mut *self;
        let fresh = buf.filled().get(before..).unwrap_or_default();
        for (slot, byte) in this.first.iter_mut().skip(this.len).zip(fresh) {
            *slot = *byte;
            this.len += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FirstBytes {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
