//! As much of SPDY/3.1 as a client of a node's streams needs: streams are opened, and what comes on them is read.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use krablet_net::trust::AnyCertificate;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Adler-32 of the dictionary of SPDY/3, which a header block has to name. It is not used any further.
const DICTIONARY: u32 = 0xe3c6_a7c2;
const FIN: u8 = 1;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const GO_AWAY: u16 = 7;

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What is told on one of the streams.
#[derive(Debug)]
pub struct Told {
    /// As the streams were opened: 0, 1, …
    pub stream: usize,
    pub bytes: usize,
    /// Nothing more comes on it.
    pub last: bool,
}

pub struct Spdy {
    io: BufReader<Box<dyn Stream>>,
    opened: usize,
    payload: Vec<u8>,
}

impl Spdy {
    /// By TLS, believing whoever answers.
    pub async fn by_tls(stream: TcpStream, path: &str, protocol: &str) -> Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let name = ServerName::try_from("node")?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
        Self::begin(Box::new(stream.await?), path, protocol).await
    }

    /// At the place the runtime has named.
    pub async fn at(url: &str, protocol: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").context("no plain URL")?;
        let (authority, path) = rest.split_once('/').context("no path")?;
        let (host, port) = authority.rsplit_once(':').context("no port")?;
        let stream = plain(host, port.parse()?).await?;
        Self::begin(Box::new(stream), &format!("/{path}"), protocol).await
    }

    async fn begin(mut stream: Box<dyn Stream>, path: &str, protocol: &str) -> Result<Self> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < 16 * 1024, "the answer does not end");
            let byte = stream.read_u8().await;
            head.push(byte.with_context(|| String::from_utf8_lossy(&head).into_owned())?);
        }
        let head = String::from_utf8_lossy(&head);
        ensure!(head.starts_with("HTTP/1.1 101"), "{head}");
        Ok(Self {
            io: BufReader::with_capacity(256 * 1024, stream),
            opened: 0,
            payload: Vec::new(),
        })
    }

    /// Opens a stream. Nothing is said on it from here, but it is not ended either: that would end a forwarded port.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> Result<()> {
        let block = self.header_block(headers);
        let id = u32::try_from(2 * self.opened + 1)?;
        let length = u32::try_from(10 + block.len())?;
        let mut frame = vec![0x80, 3];
        frame.extend(SYN_STREAM.to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend(id.to_be_bytes());
        // No parent, no priority.
        frame.extend([0; 6]);
        frame.extend(block);
        self.opened += 1;
        self.io.write_all(&frame).await?;
        Ok(self.io.flush().await?)
    }

    /// A part of one zlib stream that lasts as long as the connection; what is in it is not compressed.
    fn header_block(&self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend((text.len() as u32).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut block = Vec::new();
        if self.opened == 0 {
            block.extend([0x78, 0x20]);
            block.extend(DICTIONARY.to_be_bytes());
        }
        let length = plain.len() as u16;
        block.push(0);
        block.extend(length.to_le_bytes());
        block.extend((!length).to_le_bytes());
        block.extend(plain);
        // Nothing once more, or the reader waits for what comes after it.
        block.extend([0, 0, 0, 0xff, 0xff]);
        block
    }

    /// The next that is told, nothing at the end; control frames are passed over.
    pub async fn next(&mut self) -> Result<Option<Told>> {
        loop {
            let Ok(first) = self.io.read_u32().await else {
                return Ok(None);
            };
            let second = self.io.read_u32().await?;
            let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
            self.payload.resize(length, 0);
            self.io.read_exact(&mut self.payload).await?;
            let is_control = first >> 31 == 1;
            if !is_control {
                return Ok(Some(Told {
                    stream: (first as usize).saturating_sub(1) / 2,
                    bytes: length,
                    last: flags & FIN != 0,
                }));
            }
            if let kind @ (RST_STREAM | GO_AWAY) = (first & 0xffff) as u16 {
                bail!("the stream was ended by a frame of kind {kind}");
            }
        }
    }

    /// What was told last.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

pub async fn plain(host: &str, port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
