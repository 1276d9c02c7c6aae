//! Exec plugins: a command that prints an `ExecCredential` with a token, a client certificate, or both.
//!
//! Run when there is nothing yet, when what it gave has expired, and after the server refused it; never twice at the
//! same time.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use http::HeaderValue;
use jiff::Timestamp;
use krablet_linux::WallClock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::{Identity, Presented, bearer, load_identity};
use crate::ApiError;
use crate::kubeconfig::{Cluster, ExecConfig, InteractiveMode};
use crate::single::Single;

/// For one run of a plugin.
const DEADLINE: Duration = Duration::from_secs(60);
/// A token and a certificate chain are a few kilobytes.
const MAX_OUTPUT: u64 = 1 << 20;
/// As much of what a plugin complained about as is worth repeating.
const MAX_COMPLAINT: u64 = 1024;
/// How a plugin learns what is asked of it.
const INFO: &str = "KUBERNETES_EXEC_INFO";

pub(super) struct Exec {
    plugin: Arc<Plugin>,
    clock: Arc<dyn WallClock>,
    running: Single<Result<Arc<Answer>, ApiError>>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    answer: Option<Arc<Answer>>,
    /// That of the answer, or of an earlier one that gave the same certificate.
    identity: Option<Identity>,
    serial: u64,
    refused: bool,
}

impl Last {
    fn presented(&self) -> Option<Presented> {
        let answer = self.answer.as_ref()?;
        Some(Presented {
            authorization: answer.authorization.clone(),
            identity: self.identity.clone(),
            serial: self.serial,
        })
    }

    /// All who waited for one run come here with the same answer.
    fn keep(&mut self, answer: Arc<Answer>) {
        if self
            .answer
            .as_ref()
            .is_some_and(|a| Arc::ptr_eq(a, &answer))
        {
            return;
        }
        // A certificate given again is the same identity, so that its connection is kept.
        let same = match (&self.identity, &answer.identity) {
            (Some(before), Some(now)) => before.cert == now.cert,
            _ => false,
        };
        if !same {
            self.identity = answer.identity.clone();
        }
        self.answer = Some(answer);
        self.serial += 1;
        self.refused = false;
    }
}

/// What a plugin gave.
#[derive(Debug)]
struct Answer {
    authorization: Option<HeaderValue>,
    identity: Option<Identity>,
    expires: Option<Timestamp>,
}

struct Plugin {
    config: ExecConfig,
    /// The value of [`INFO`].
    info: String,
}

impl Exec {
    pub(super) fn new(
        config: ExecConfig,
        cluster: &Cluster,
        authority: Option<Vec<u8>>,
        clock: Arc<dyn WallClock>,
    ) -> Self {
        let info = info(&config, cluster, authority).to_string();
        Self {
            plugin: Arc::new(Plugin { config, info }),
            clock,
            running: Single::default(),
            last: Mutex::default(),
        }
    }

    pub(super) async fn present(&self) -> Result<Presented, ApiError> {
        if let Some(presented) = self.held() {
            return Ok(presented);
        }
        let plugin = self.plugin.clone();
        let begin = || async move { plugin.run().await.map(Arc::new) }.boxed();
        let answer = self.running.run(DEADLINE, begin).await?;
        let mut last = self.lock();
        last.keep(answer);
        Ok(last.presented().unwrap_or_default())
    }

    fn held(&self) -> Option<Presented> {
        let last = self.lock();
        let answer = last.answer.as_ref().filter(|_| !last.refused)?;
        let expired = answer.expires.is_some_and(|at| self.clock.now() >= at);
        if expired { None } else { last.presented() }
    }

    pub(super) fn refused(&self, serial: u64) {
        let mut last = self.lock();
        last.refused |= last.serial == serial;
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn info(config: &ExecConfig, cluster: &Cluster, authority: Option<Vec<u8>>) -> Value {
    let mut spec = json!({"interactive": false});
    if config.provide_cluster_info {
        let mut told = json!({"server": cluster.server});
        if let Some(name) = &cluster.tls_server_name {
            told["tls-server-name"] = json!(name);
        }
        if cluster.insecure_skip_tls_verify {
            told["insecure-skip-tls-verify"] = json!(true);
        }
        if let Some(proxy) = &cluster.proxy_url {
            told["proxy-url"] = json!(proxy.expose());
        }
        if let Some(authority) = authority {
            told["certificate-authority-data"] = json!(STANDARD.encode(authority));
        }
        if let Some(extension) = &cluster.exec_extension {
            told["config"] = extension.clone();
        }
        spec["cluster"] = told;
    }
    json!({"kind": "ExecCredential", "apiVersion": config.api_version, "spec": spec})
}

impl Plugin {
    async fn run(&self) -> Result<Answer, ApiError> {
        if self.config.interactive_mode == InteractiveMode::Always {
            return Err(self.failed("wants a terminal (interactiveMode Always), there is none"));
        }
        match tokio::time::timeout(DEADLINE, self.output()).await {
            Ok(output) => self.answer(&output?),
            Err(_) => Err(self.failed(format!("did not end within {DEADLINE:?}"))),
        }
    }

    fn failed(&self, problem: impl std::fmt::Display) -> ApiError {
        ApiError::Credentials(format!("exec plugin {}: {problem}", self.config.command))
    }

    /// What the command printed. Dropping this ends it.
    async fn output(&self) -> Result<Vec<u8>, ApiError> {
        let config = &self.config;
        let env = config
            .env
            .iter()
            .map(|(name, value)| (name, value.expose()));
        let spawned = Command::new(&config.command)
            .args(&config.args)
            .envs(env)
            .env(INFO, &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned.map_err(|error| self.not_started(&error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (output, complaint, ended) = tokio::join!(
            read_some(stdout, MAX_OUTPUT),
            read_some(stderr, MAX_COMPLAINT),
            child.wait()
        );
        let ended = ended.map_err(|error| self.failed(error))?;
        if !ended.success() {
            let complaint = String::from_utf8_lossy(&complaint.0).trim().to_owned();
            return Err(self.failed(match complaint.as_str() {
                "" => format!("failed: {ended}"),
                text => format!("failed: {ended}: {text}"),
            }));
        }
        match output {
            (output, false) => Ok(output),
            (_, true) => Err(self.failed(format!("printed more than {MAX_OUTPUT} bytes"))),
        }
    }

    fn not_started(&self, error: &std::io::Error) -> ApiError {
        let hint = self.config.install_hint.as_deref().unwrap_or_default();
        match (error.kind(), hint.trim()) {
            (std::io::ErrorKind::NotFound, "") => self.failed("not found"),
            (std::io::ErrorKind::NotFound, hint) => self.failed(format!("not found. {hint}")),
            _ => self.failed(format!("cannot be started: {error}")),
        }
    }

    fn answer(&self, output: &[u8]) -> Result<Answer, ApiError> {
        let read: ExecCredential = serde_json::from_slice(output)
            // The position, not the text: it holds secrets.
            .map_err(|e| {
                let at = (e.line(), e.column());
                self.failed(format!(
                    "printed no ExecCredential (line {}, column {})",
                    at.0, at.1
                ))
            })?;
        let (version, wanted) = (&read.api_version, &self.config.api_version);
        if read.kind != "ExecCredential" || version != wanted {
            let problem = format!(
                "want an ExecCredential of {wanted}, got {} of {version}",
                read.kind
            );
            return Err(self.failed(problem));
        }
        let status = read.status.ok_or_else(|| self.failed("gave no status"))?;
        let word = |text: Option<String>| text.filter(|text| !text.is_empty());
        let pair = (
            word(status.client_certificate_data),
            word(status.client_key_data),
        );
        let identity = match pair {
            (Some(certificate), Some(key)) => {
                let identity = load_identity(certificate.as_bytes(), key.as_bytes());
                Some(identity.map_err(|e| self.failed(e))?)
            }
            (None, None) => None,
            _ => return Err(self.failed("gave a certificate or a key, not both")),
        };
        let token = word(status.token).map(|token| bearer(&token)).transpose();
        let authorization = token.map_err(|e| self.failed(format!("the token {e}")))?;
        if authorization.is_none() && identity.is_none() {
            return Err(self.failed("gave neither a token nor a certificate"));
        }
        let expires = status.expiration_timestamp.map(|time| {
            let bad = |_| self.failed(format!("expirationTimestamp {time:?} is no time"));
            time.parse::<Timestamp>().map_err(bad)
        });
        Ok(Answer {
            authorization,
            identity,
            expires: expires.transpose()?,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// The first `limit` bytes, and whether there were more. Reads to the end, so that the writer is never stuck.
async fn read_some<R: AsyncRead + Unpin>(stream: Option<R>, limit: u64) -> (Vec<u8>, bool) {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else {
        return (kept, false);
    };
    // A stream that breaks is at its end; the exit code tells the rest.
    let _ = (&mut stream).take(limit).read_to_end(&mut kept).await;
    let rest = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    (kept, rest.is_ok_and(|more| more > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::Secret;

    fn config() -> ExecConfig {
        ExecConfig {
            command: "login".into(),
            args: Vec::new(),
            env: vec![("A".into(), Secret::new("b"))],
            api_version: "client.authentication.k8s.io/v1".into(),
            install_hint: None,
            provide_cluster_info: true,
            interactive_mode: InteractiveMode::Never,
        }
    }

    #[test]
    fn plugins_are_told_of_the_cluster() {
        let cluster = Cluster {
            server: "https://a:6443".into(),
            tls_server_name: Some("b".into()),
            proxy_url: Some(Secret::new("http://p:3128")),
            exec_extension: Some(json!({"audience": "c"})),
            ..Cluster::default()
        };
        let told = info(&config(), &cluster, Some(b"ca".to_vec()));
        let expected = json!({
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1",
            "spec": {"interactive": false, "cluster": {
                "server": "https://a:6443",
                "tls-server-name": "b",
                "proxy-url": "http://p:3128",
                "certificate-authority-data": "Y2E=",
                "config": {"audience": "c"},
            }},
        });
        assert_eq!(told, expected);
        let quiet = ExecConfig {
            provide_cluster_info: false,
            ..config()
        };
        let told = info(&quiet, &cluster, None);
        assert_eq!(told["spec"], json!({"interactive": false}));
    }

    #[test]
    fn answers_that_cannot_be_used() {
        let plugin = Plugin {
            config: config(),
            info: String::new(),
        };
        let of = |status: Value| {
            let version = "client.authentication.k8s.io/v1";
            json!({"kind": "ExecCredential", "apiVersion": version, "status": status}).to_string()
        };
        let cases = [
            (
                "{".to_owned(),
                "printed no ExecCredential (line 1, column 1)",
            ),
            (
                json!({"kind": "ExecCredential", "apiVersion": "x"}).to_string(),
                "want an ExecCredential of client.authentication.k8s.io/v1, got ExecCredential of x",
            ),
            (of(Value::Null), "gave no status"),
            (of(json!({})), "gave neither a token nor a certificate"),
            (
                of(json!({"clientKeyData": "a"})),
                "gave a certificate or a key, not both",
            ),
            (
                of(json!({"token": "a\nb"})),
                "the token holds characters no header can carry",
            ),
            (
                of(json!({"token": "a", "expirationTimestamp": "soon"})),
                "expirationTimestamp \"soon\" is no time",
            ),
        ];
        for (output, expected) in cases {
            let error = plugin.answer(output.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("exec plugin login: {expected}"));
        }
    }
}
