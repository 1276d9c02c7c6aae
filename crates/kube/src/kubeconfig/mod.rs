//! Kubeconfig files: where the API server is, whom to trust, and who we are.
//!
//! Reads what client-go reads of them (YAML or JSON, unknown fields passed over, relative paths from the file's own
//! directory), and writes the one form the kubelet writes after its TLS bootstrap. A complaint names the file and the
//! field; a secret is never printed.

mod fields;
mod read;
mod write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use write::Bootstrapped;

use crate::client::Proxy;

/// A kubeconfig larger than this is a mistake.
const MAX_BYTES: u64 = 4 << 20;

/// What is wrong with a kubeconfig, or with a file it names.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("{path}: cannot read the file: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}: {problem}")]
    Syntax { path: String, problem: String },
    #[error("{path}: {field}: {problem}")]
    Field {
        path: String,
        field: String,
        problem: String,
    },
    #[error("{path}: cannot write the file: {source}")]
    Write { path: String, source: io::Error },
}

impl KubeconfigError {
    /// There is no such kubeconfig.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Text that must not reach a log.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// PEM text, in the kubeconfig itself or in a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    Data(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    /// The text, from the file as it is now.
    pub fn load(&self) -> io::Result<Vec<u8>> {
        match self {
            Pem::Data(data) => Ok(data.clone()),
            Pem::File(path) => read_bounded(path),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Data(data) => write!(f, "[{} bytes]", data.len()),
            Pem::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A cluster, as clients have to know it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub name: String,
    pub server: String,
    /// Whoever signed the server's certificate; the machine's own roots if nothing is said.
    pub certificate_authority: Option<Pem>,
    /// Whom the server's certificate must name, if not the host it is reached by.
    pub tls_server_name: Option<String>,
    pub insecure_skip_tls_verify: bool,
    /// May hold a password.
    pub proxy_url: Option<Secret>,
    /// What exec plugins are told about this cluster.
    pub exec_extension: Option<Value>,
}

/// When an exec plugin may ask the person before the terminal. There is none before an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

/// A command that hands out credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecConfig {
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, Secret)>,
    pub api_version: String,
    pub install_hint: Option<String>,
    pub provide_cluster_info: bool,
    pub interactive_mode: InteractiveMode,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub client_certificate: Option<Pem>,
    pub client_key: Option<Pem>,
    pub token: Option<Secret>,
    pub token_file: Option<PathBuf>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub exec: Option<ExecConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    pub name: String,
    pub cluster: String,
    pub user: String,
}

/// A kubeconfig file, read.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    pub path: PathBuf,
    pub clusters: Vec<Cluster>,
    pub users: Vec<User>,
    pub contexts: Vec<Context>,
    pub current_context: String,
    /// Fields that would change who we are and that we do not know how to heed, by user.
    unheeded: Vec<(String, String)>,
}

impl Kubeconfig {
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = read_bounded(path).map_err(|source| KubeconfigError::Read {
            path: path.display().to_string(),
            source,
        })?;
        Self::parse(path, &bytes)
    }

    /// As if `bytes` stood in the file at `path`.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, KubeconfigError> {
        read::parse(path, bytes)
    }

    /// Cluster and user of the current context, checked for what only shows in use.
    pub fn current(&self) -> Result<(&Cluster, &User), KubeconfigError> {
        let wanted = self.current_context.as_str();
        if wanted.is_empty() {
            return Err(self.bad("current-context", "missing"));
        }
        let context = self.contexts.iter().position(|c| c.name == wanted);
        let Some((at, context)) = context.and_then(|at| Some((at, self.contexts.get(at)?))) else {
            return Err(self.bad("current-context", format!("there is no context {wanted:?}")));
        };
        let unknown = |field: &str, what: &str, name: &str| {
            let problem = match name {
                "" => "missing".to_owned(),
                name => format!("there is no {what} {name:?}"),
            };
            self.bad(format!("contexts[{at}].context.{field}"), problem)
        };
        let cluster = self.clusters.iter().find(|c| c.name == context.cluster);
        let cluster = cluster.ok_or_else(|| unknown("cluster", "cluster", &context.cluster))?;
        let user = self.users.iter().find(|u| u.name == context.user);
        let user = user.ok_or_else(|| unknown("user", "user", &context.user))?;
        self.check_cluster(cluster)?;
        self.check_user(user)?;
        Ok((cluster, user))
    }

    fn check_cluster(&self, cluster: &Cluster) -> Result<(), KubeconfigError> {
        let bad = |name: &str, problem: &str| {
            Err(self.bad(self.cluster_field(cluster, name), problem.to_owned()))
        };
        if cluster.server.is_empty() {
            return bad("server", "missing");
        }
        if let Some(Err(problem)) = cluster.proxy_url.as_ref().map(|u| Proxy::parse(u.expose())) {
            return bad("proxy-url", &problem);
        }
        if cluster.insecure_skip_tls_verify && cluster.certificate_authority.is_some() {
            let problem = "not allowed together with a certificate authority";
            return bad("insecure-skip-tls-verify", problem);
        }
        Ok(())
    }

    fn check_user(&self, user: &User) -> Result<(), KubeconfigError> {
        let bad = |name: &str, problem: &str| {
            Err(self.bad(self.user_field(user, name), problem.to_owned()))
        };
        if let Some((_, field)) = self.unheeded.iter().find(|(name, _)| *name == user.name) {
            return Err(self.bad(field.clone(), "not supported"));
        }
        let basic = user.username.is_some() || user.password.is_some();
        if basic && user.token.is_some() {
            return bad("token", "not allowed together with username and password");
        }
        match (&user.client_certificate, &user.client_key) {
            (Some(_), None) => bad("client-key", "missing, there is a client certificate"),
            (None, Some(_)) => bad("client-certificate", "missing, there is a client key"),
            _ => Ok(()),
        }
    }

    /// `users[2].user.token`
    pub(crate) fn user_field(&self, user: &User, name: &str) -> String {
        let at = self.users.iter().position(|u| u.name == user.name);
        format!("users[{}].user.{name}", at.unwrap_or_default())
    }

    pub(crate) fn cluster_field(&self, cluster: &Cluster, name: &str) -> String {
        let at = self.clusters.iter().position(|c| c.name == cluster.name);
        format!("clusters[{}].cluster.{name}", at.unwrap_or_default())
    }

    pub(crate) fn bad(
        &self,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> KubeconfigError {
        KubeconfigError::Field {
            path: self.path.display().to_string(),
            field: field.into(),
            problem: problem.into(),
        }
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::open(path)?.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let problem = format!("larger than {MAX_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
