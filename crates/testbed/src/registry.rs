//! A small image registry on this machine: plain HTTP, pull only. It holds variants of the tool image, and each of its
//! repositories can be open, want a password or a token, be slow, or fail.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::Bed;
use crate::cache::sha256;
use crate::images::{self, Variant};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// What a repository wants to hear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Open,
    /// User and password with every request.
    Basic(String, String),
    /// A token, for user and password.
    Token(String, String),
}

impl Access {
    pub fn basic(user: &str, password: &str) -> Self {
        Self::Basic(user.to_owned(), password.to_owned())
    }

    pub fn token(user: &str, password: &str) -> Self {
        Self::Token(user.to_owned(), password.to_owned())
    }

    fn login(&self) -> Option<String> {
        match self {
            Access::Open => None,
            Access::Basic(user, password) | Access::Token(user, password) => {
                Some(format!("{user}:{password}"))
            }
        }
    }
}

/// How a repository behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manners {
    #[default]
    Quick,
    /// Answers nothing until it is told otherwise.
    Held,
    /// Answers with this status.
    Failing(u16),
}

#[derive(Debug, Default)]
struct Repository {
    access: Access,
    manners: Manners,
    /// Digests by tag.
    tags: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Shelves {
    repositories: BTreeMap<String, Repository>,
    /// Media type and content by digest.
    blobs: BTreeMap<String, (&'static str, Bytes)>,
    /// What was asked for: method and path.
    asked: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    shelves: Mutex<Shelves>,
    /// Rings when manners change.
    changes: watch::Sender<u64>,
}

impl Shared {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registry, up until it is dropped.
#[derive(Debug)]
pub struct Registry {
    shared: Arc<Shared>,
    server: AbortHandle,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Registry {
    /// An empty registry on a port of its own.
    pub async fn up() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            shelves: Mutex::default(),
            changes: watch::Sender::new(0),
        });
        let server = tokio::spawn(serve(listener, shared.clone())).abort_handle();
        Ok(Self { shared, server })
    }

    /// Host and port, as they stand in the names of images.
    pub fn host(&self) -> String {
        self.shared.address.to_string()
    }

    /// Tells a bed's containerd that this registry speaks plain HTTP.
    pub fn introduce(&self, bed: &Bed) -> Result<()> {
        let host = self.host();
        let dir = bed.dir().join("certs.d").join(&host);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let text = format!(
            "server = \"http://{host}\"\n[host.\"http://{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
        );
        Ok(fs::write(dir.join("hosts.toml"), text)?)
    }

    /// Puts a tool image of its own under this name, such as `team/app:v1`; returns its full name and its digest.
    pub async fn put(&self, name: &str, access: Access) -> Result<(String, String)> {
        let full = format!("{}/{name}", self.host());
        let variant = Variant::named(&full);
        let layers = tokio::task::spawn_blocking(move || images::layers(&variant)).await??;
        let (repository, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let mut shelves = self.shared.shelves();
        let config = shelves.store(CONFIG, layers.config.into());
        let stored = layers.layers.into_iter();
        let stored: Vec<_> = stored.map(|l| shelves.store(LAYER, l.into())).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": stored,
        });
        let manifest = shelves.store(MANIFEST, manifest.to_string().into());
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        let entry = shelves
            .repositories
            .entry(repository.to_owned())
            .or_default();
        entry.access = access;
        entry.tags.insert(tag.to_owned(), digest.clone());
        Ok((full, digest))
    }

    /// Changes what a repository wants to hear.
    pub fn set_access(&self, repository: &str, access: Access) {
        let mut shelves = self.shared.shelves();
        shelves
            .repositories
            .entry(repository.to_owned())
            .or_default()
            .access = access;
    }

    /// Changes how a repository behaves; requests that it holds go on if they may.
    pub fn set_manners(&self, repository: &str, manners: Manners) {
        let mut shelves = self.shared.shelves();
        shelves
            .repositories
            .entry(repository.to_owned())
            .or_default()
            .manners = manners;
        drop(shelves);
        self.shared.changes.send_modify(|n| *n += 1);
    }

    /// How often the manifest of a repository was asked for.
    pub fn asked(&self, repository: &str) -> usize {
        let place = format!("/v2/{repository}/manifests/");
        let shelves = self.shared.shelves();
        shelves
            .asked
            .iter()
            .filter(|line| line.contains(&place))
            .count()
    }
}

impl Shelves {
    /// Keeps content, and describes it as manifests do.
    fn store(&mut self, media_type: &'static str, content: Bytes) -> serde_json::Value {
        let digest = format!("sha256:{}", sha256(&content));
        let size = content.len();
        self.blobs.insert(digest.clone(), (media_type, content));
        json!({"mediaType": media_type, "digest": digest, "size": size})
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let answer = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(answer(&shared, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that goes away has nothing to be told.
            let _ = connection
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(shared: &Shared, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    shared
        .shelves()
        .asked
        .push(format!("{} {path}", request.method()));
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "pull only");
    }
    let authorization = request.headers().get("authorization");
    let authorization = authorization.and_then(|value| value.to_str().ok());
    if path == "/token" {
        return token(
            shared,
            request.uri().query().unwrap_or_default(),
            authorization,
        );
    }
    let Some((repository, kind, name)) = split(&path) else {
        return plain(StatusCode::OK, "{}");
    };
    let manners = patience(shared, repository).await;
    if let Manners::Failing(status) = manners {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return plain(status, "the registry is not well");
    }
    let head = *request.method() == Method::HEAD;
    found(shared, repository, kind, name, authorization, head)
}

/// Waits while the repository holds its requests.
async fn patience(shared: &Shared, repository: &str) -> Manners {
    let mut changes = shared.changes.subscribe();
    loop {
        changes.borrow_and_update();
        let manners = shared
            .shelves()
            .repositories
            .get(repository)
            .map(|r| r.manners);
        match manners.unwrap_or_default() {
            Manners::Held => {}
            manners => return manners,
        }
        if changes.changed().await.is_err() {
            return Manners::Quick;
        }
    }
}

/// `/v2/REPOSITORY/manifests/NAME` or `/v2/REPOSITORY/blobs/DIGEST`.
fn split(path: &str) -> Option<(&str, &str, &str)> {
    let rest = path.strip_prefix("/v2/")?;
    let (rest, name) = rest.rsplit_once('/')?;
    let (repository, kind) = rest.rsplit_once('/')?;
    matches!(kind, "manifests" | "blobs").then_some((repository, kind, name))
}

fn found(
    shared: &Shared,
    repository: &str,
    kind: &str,
    name: &str,
    authorization: Option<&str>,
    head: bool,
) -> Answer {
    let shelves = shared.shelves();
    let Some(entry) = shelves.repositories.get(repository) else {
        return plain(StatusCode::NOT_FOUND, "no such repository");
    };
    if let Some(challenge) = challenge(shared, repository, &entry.access, authorization) {
        let mut refusal = plain(StatusCode::UNAUTHORIZED, "who are you?");
        if let Ok(value) = challenge.parse() {
            refusal.headers_mut().insert("www-authenticate", value);
        }
        return refusal;
    }
    let digest = match kind {
        "manifests" => entry.tags.get(name).map_or(name, String::as_str),
        _ => name,
    };
    let Some((media_type, content)) = shelves.blobs.get(digest) else {
        return plain(StatusCode::NOT_FOUND, "no such thing");
    };
    let body = if head { Bytes::new() } else { content.clone() };
    let answer = Response::builder()
        .header("content-type", *media_type)
        .header("content-length", content.len())
        .header("docker-content-digest", digest)
        .body(Full::new(body));
    answer.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "no answer"))
}

/// What a client that may not have it is told to bring; `None` for one who may.
fn challenge(
    shared: &Shared,
    repository: &str,
    access: &Access,
    authorization: Option<&str>,
) -> Option<String> {
    let login = access.login()?;
    let (expected, challenge) = match access {
        Access::Token(..) => {
            let realm = format!("http://{}/token", shared.address);
            let scope = format!("repository:{repository}:pull");
            let text = format!("Bearer realm=\"{realm}\",service=\"registry\",scope=\"{scope}\"");
            (format!("Bearer {}", token_of(repository, &login)), text)
        }
        _ => (basic(&login), "Basic realm=\"registry\"".to_owned()),
    };
    (authorization != Some(expected.as_str())).then_some(challenge)
}

fn basic(login: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(login))
}

fn token_of(repository: &str, login: &str) -> String {
    sha256(format!("{repository} {login}").as_bytes())
}

/// Gives a token for the repository in the scope to whoever has its password.
fn token(shared: &Shared, query: &str, authorization: Option<&str>) -> Answer {
    let scope = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("scope="));
    let scope = scope
        .unwrap_or_default()
        .replace("%3A", ":")
        .replace("%2F", "/");
    let repository = scope.split(':').nth(1).unwrap_or_default();
    let shelves = shared.shelves();
    let login = shelves
        .repositories
        .get(repository)
        .and_then(|r| r.access.login());
    match login.filter(|login| authorization == Some(basic(login).as_str())) {
        Some(login) => {
            let token = json!({"token": token_of(repository, &login), "expires_in": 300});
            plain(StatusCode::OK, &token.to_string())
        }
        None => plain(StatusCode::UNAUTHORIZED, "{}"),
    }
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(
            split("/v2/a/b/manifests/v1"),
            Some(("a/b", "manifests", "v1"))
        );
        assert_eq!(
            split("/v2/a/blobs/sha256:1"),
            Some(("a", "blobs", "sha256:1"))
        );
        assert_eq!(split("/v2/"), None);
        assert_eq!(split("/v2/a/tags/list"), None);
    }
}
