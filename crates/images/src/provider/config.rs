//! `CredentialProviderConfig`: which plugins there are, for which images, and how long their answers hold.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_linux::{EntryKind, Files};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::keyring::hex;
use crate::location::Location;

/// More than any such file has.
const LIMIT: usize = 1 << 20;
const GROUP: &str = "kubelet.config.k8s.io";
const KIND: &str = "CredentialProviderConfig";
const CONFIG_VERSIONS: [&str; 3] = ["v1", "v1alpha1", "v1beta1"];
/// What plugins speak.
const PLUGIN_V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const PLUGIN_VERSIONS: [&str; 3] = [
    PLUGIN_V1,
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
const MAX_KEY_NAME: usize = 63;

/// One plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// That of its program in the directory of plugins.
    pub name: String,
    pub match_images: Vec<String>,
    pub default_cache_duration: Duration,
    pub api_version: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenConfig>,
}

/// All plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfigs {
    pub providers: Vec<ProviderConfig>,
    /// Of the files they are written in, as upstream tells it.
    pub hash: String,
}

/// How a plugin wants tokens of service accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    pub audience: String,
    pub required: bool,
    pub cache: TokenCache,
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

/// Who may share what a plugin answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCache {
    /// Pods with the same token.
    Token,
    /// Pods of the same service account.
    ServiceAccount,
}

/// Why the plugins cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("plugin binary directory {0} did not exist")]
    NoBinDir(PathBuf),
    #[error("plugin binary executable {0} did not exist")]
    NoProgram(PathBuf),
    #[error("unable to access path {path:?}: {problem}")]
    Access { path: PathBuf, problem: String },
    #[error("no configuration files found in directory {0:?}")]
    NoFiles(PathBuf),
    #[error("error decoding config {path:?}: {problem}")]
    Decode { path: PathBuf, problem: String },
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Twice(String),
    #[error("failed to validate credential provider config: {}", .0.join(", "))]
    Invalid(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    providers: Vec<Written>,
}

/// A plugin as written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Written {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Vec<String>,
    env: Vec<Variable>,
    token_attributes: Option<WrittenToken>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WrittenToken {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Vec<String>,
    optional_service_account_annotation_keys: Vec<String>,
}

/// Reads the file, or all files of the directory in their order, and finds every plugin's program.
pub async fn read_providers(
    files: &dyn Files,
    path: &Path,
    bin_dir: &Path,
    tokens: bool,
) -> Result<ProviderConfigs, ConfigError> {
    if files.stat(bin_dir).await.is_err() {
        return Err(ConfigError::NoBinDir(bin_dir.to_owned()));
    }
    let (mut written, mut hasher) = (Vec::new(), Sha256::new());
    for file in config_files(files, path).await? {
        let bytes = files
            .read(&file, LIMIT)
            .await
            .map_err(|e| access(&file, &e))?;
        // With their lengths, so that no other files give the same.
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(&bytes);
        written.extend(decode(&bytes).map_err(|problem| ConfigError::Decode {
            path: file,
            problem,
        })?);
    }
    let providers = settle(written, tokens)?;
    for provider in &providers {
        let program = bin_dir.join(&provider.name);
        let kind = files.stat(&program).await.map(|entry| entry.kind);
        if !kind.is_ok_and(|kind| kind == EntryKind::File) {
            return Err(ConfigError::NoProgram(program));
        }
    }
    let hash = format!("sha256:{}", hex(&hasher.finalize()));
    Ok(ProviderConfigs { providers, hash })
}

fn access(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError::Access {
        path: path.to_owned(),
        problem: error.to_string(),
    }
}

async fn config_files(files: &dyn Files, path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let entry = files.stat(path).await.map_err(|e| access(path, &e))?;
    if entry.kind != EntryKind::Directory {
        return Ok(vec![path.to_owned()]);
    }
    let entries = files.list(path).await.map_err(|e| access(path, &e))?;
    let is_config = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        matches!(extension, Some("json" | "yaml" | "yml"))
    };
    let found = entries
        .into_iter()
        .filter(|e| e.kind != EntryKind::Directory);
    let found: Vec<PathBuf> = found.map(|e| e.path).filter(is_config).collect();
    match found.is_empty() {
        true => Err(ConfigError::NoFiles(path.to_owned())),
        false => Ok(found),
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Written>, String> {
    let document = krablet_yaml::parse(bytes).map_err(|e| e.to_string())?;
    if let Some(twice) = document.duplicates.first() {
        return Err(format!(
            "line {}: key {:?} already set",
            twice.line, twice.path
        ));
    }
    let kind = document.value.get("kind").and_then(|k| k.as_str());
    if let Some(kind) = kind
        && kind != KIND
    {
        return Err(format!("failed to decode {kind:?} (wrong Kind)"));
    }
    let file: File = serde_json::from_value(document.value).map_err(|e| e.to_string())?;
    match file.api_version.split_once('/') {
        Some((GROUP, version)) if CONFIG_VERSIONS.contains(&version) => Ok(file.providers),
        Some((GROUP, _)) => Err(format!(
            "no kind {KIND:?} is registered for version {:?}",
            file.api_version
        )),
        _ => Err(format!(
            "failed to decode {KIND}, unexpected Group: {}",
            file.api_version
        )),
    }
}

fn settle(written: Vec<Written>, tokens: bool) -> Result<Vec<ProviderConfig>, ConfigError> {
    let mut names = BTreeSet::new();
    if let Some(twice) = written.iter().find(|w| !names.insert(&w.name)) {
        return Err(ConfigError::Twice(twice.name.clone()));
    }
    let mut problems = Vec::new();
    if written.is_empty() {
        problems.push("providers: Required value: at least 1 item in plugins is required".into());
    }
    let providers = written.into_iter();
    let providers = providers
        .map(|w| provider(w, tokens, &mut problems))
        .collect();
    match problems.is_empty() {
        true => Ok(providers),
        false => Err(ConfigError::Invalid(problems)),
    }
}

/// One plugin as it will be used; what is wrong with it goes to the problems.
fn provider(written: Written, tokens: bool, problems: &mut Vec<String>) -> ProviderConfig {
    let name = &written.name;
    let bad_name = match name.as_str() {
        _ if name.contains('/') => Some("provider name cannot contain '/'"),
        _ if name.contains(' ') => Some("provider name cannot contain spaces"),
        "." => Some("provider name cannot be '.'"),
        ".." => Some("provider name cannot be '..'"),
        "" => Some("provider name cannot be empty"),
        _ => None,
    };
    problems.extend(bad_name.map(|why| format!("providers.name: Invalid value: {name:?}: {why}")));
    check_version(&written.api_version, problems);
    if written.match_images.is_empty() {
        problems.push(
            "providers.matchImages: Required value: at least 1 item in matchImages is required"
                .into(),
        );
    }
    for image in &written.match_images {
        if let Err(why) = Location::parse(image) {
            problems.push(format!(
                "providers.matchImages: Invalid value: {image:?}: match image is invalid: {why}"
            ));
        }
    }
    let duration = cache_duration(written.default_cache_duration.as_deref(), problems);
    let token = written
        .token_attributes
        .map(|t| token(t, &written.api_version, tokens, problems));
    ProviderConfig {
        name: written.name,
        match_images: written.match_images,
        default_cache_duration: duration,
        api_version: written.api_version,
        args: written.args,
        env: written.env.into_iter().map(|v| (v.name, v.value)).collect(),
        token,
    }
}

fn check_version(version: &str, problems: &mut Vec<String>) {
    const FIELD: &str = "providers.apiVersion";
    if version.is_empty() {
        problems.push(format!("{FIELD}: Required value"));
    } else if !PLUGIN_VERSIONS.contains(&version) {
        let known = PLUGIN_VERSIONS.map(|v| format!("{v:?}")).join(", ");
        problems.push(format!(
            "{FIELD}: Unsupported value: {version:?}: supported values: {known}"
        ));
    }
}

fn cache_duration(written: Option<&str>, problems: &mut Vec<String>) -> Duration {
    const FIELD: &str = "providers.defaultCacheDuration";
    let Some(text) = written else {
        problems.push(format!("{FIELD}: Required value"));
        return Duration::ZERO;
    };
    let parsed = text.parse::<krablet_config::Duration>().ok();
    match parsed.map(krablet_config::Duration::to_std) {
        Some(Some(duration)) => return duration,
        Some(None) => problems.push(format!(
            "{FIELD}: Invalid value: {text:?}: must be greater than or equal to 0"
        )),
        None => problems.push(format!("{FIELD}: Invalid value: {text:?}: not a duration")),
    }
    Duration::ZERO
}

fn token(
    written: WrittenToken,
    version: &str,
    enabled: bool,
    problems: &mut Vec<String>,
) -> TokenConfig {
    const FIELD: &str = "providers.tokenAttributes";
    let required = written.required_service_account_annotation_keys;
    let optional = written.optional_service_account_annotation_keys;
    let mut say = |text: String| problems.push(format!("{FIELD}{text}"));
    if !enabled {
        say(": Forbidden: tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled".into());
    }
    if written.service_account_token_audience.is_empty() {
        say(".serviceAccountTokenAudience: Required value".into());
    }
    if written.require_service_account.is_none() {
        say(".requireServiceAccount: Required value".into());
    }
    if version != PLUGIN_V1 {
        say(format!(
            ": Forbidden: tokenAttributes is only supported for {PLUGIN_V1} API version"
        ));
    }
    if written.require_service_account == Some(false) && !required.is_empty() {
        say(".requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set".into());
    }
    for (list, keys) in [("required", &required), ("optional", &optional)] {
        let mut seen = BTreeSet::new();
        for key in keys {
            if !is_qualified(key) {
                say(format!(
                    ".{list}ServiceAccountAnnotationKeys: Invalid value: {key:?}: not a qualified name"
                ));
            }
            if !seen.insert(key) {
                say(format!(
                    ".{list}ServiceAccountAnnotationKeys: Duplicate value: {key:?}"
                ));
            }
        }
    }
    if let Some(both) = required.iter().find(|k| optional.contains(k)) {
        say(format!(
            ": Invalid value: {both:?}: annotation keys cannot be both required and optional"
        ));
    }
    let cache = match written.cache_type.as_str() {
        "Token" => Some(TokenCache::Token),
        "ServiceAccount" => Some(TokenCache::ServiceAccount),
        "" => {
            say(".cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token".into());
            None
        }
        other => {
            say(format!(
                ".cacheType: Unsupported value: {other:?}: supported values: \"ServiceAccount\", \"Token\""
            ));
            None
        }
    };
    TokenConfig {
        audience: written.service_account_token_audience,
        required: written.require_service_account.unwrap_or(true),
        cache: cache.unwrap_or(TokenCache::Token),
        required_annotations: required,
        optional_annotations: optional,
    }
}

/// `[domain/]name`, as keys of annotations are.
fn is_qualified(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let word = |b: u8| b.is_ascii_alphanumeric();
    let framed = |text: &str, inner: &[u8]| {
        let bytes = text.as_bytes();
        let ends =
            bytes.first().is_some_and(|b| word(*b)) && bytes.last().is_some_and(|b| word(*b));
        ends && bytes.iter().all(|b| word(*b) || inner.contains(b))
    };
    let domain = |d: &str| d.len() <= 253 && d.split('.').all(|label| framed(label, b"-"));
    name.len() <= MAX_KEY_NAME && framed(name, b"-_.") && prefix.is_none_or(domain)
}

#[cfg(test)]
mod tests;
