//! A container's environment. What it takes from elsewhere is gathered first ([`gather`]); which variables come of
//! it, or why one has no value, is then decided here without asking anyone.

mod file;
mod gather;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use krablet_objects::{NotRead, ObjectError};
use krablet_pod::api::{
    ConfigMap, ConfigMapKeySelector, Container, EnvFromSource, EnvVarSource, FileKeySelector, Pod,
    Secret, SecretKeySelector, Service,
};
use krablet_pod::downward::{self, Addresses};
use krablet_pod::{PodRef, marks};

use crate::config::NodeFacts;
use crate::expand::expand_bytes;

pub(crate) use gather::{Sources, gather};

/// In the order of declaration; a name declared again keeps its place and takes the later value. Values are
/// bytes: a secret may hold any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Envs(IndexMap<String, Vec<u8>>);

impl Envs {
    /// As text, for where only text can stand.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.0.iter()
    }

    fn set(&mut self, name: String, value: impl Into<Vec<u8>>) {
        self.0.insert(name, value.into());
    }
}

impl<K: Into<String>, V: Into<Vec<u8>>> FromIterator<(K, V)> for Envs {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        let pairs = pairs.into_iter();
        Self(pairs.map(|(k, v)| (k.into(), v.into())).collect())
    }
}

pub(crate) struct EnvInputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub pod_ips: &'a [String],
    pub node: &'a NodeFacts,
    /// Gate `EnvFiles`.
    pub env_files: bool,
    pub gathered: &'a Gathered,
}

/// Which file of which volume.
pub(crate) type FileKey = (String, String);

/// A file of variables as it was found in a volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundFile {
    NoVolume,
    /// What is wrong is logged: it lies on the node, and is none of the pod's business.
    Unreadable,
    Read {
        path: PathBuf,
        bytes: Vec<u8>,
    },
}

/// What a container's environment takes from elsewhere, as it was found.
pub(crate) struct Gathered {
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectError>>,
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectError>>,
    pub files: BTreeMap<FileKey, FoundFile>,
    pub services: Result<Arc<[Arc<Service>]>, NotRead>,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            config_maps: BTreeMap::new(),
            secrets: BTreeMap::new(),
            files: BTreeMap::new(),
            services: Ok(Arc::new([])),
        }
    }
}

/// The variables, or why one of them has no value: the message of `CreateContainerConfigError`.
pub(crate) fn environment(inputs: &EnvInputs<'_>) -> Result<Envs, String> {
    let services = services_seen(inputs)?;
    let mut envs = Envs::default();
    for source in inputs.container.env_from.iter().flatten() {
        take_all(inputs, source, &mut envs)?;
    }
    for var in inputs.container.env.iter().flatten() {
        let value = match (var.value.as_deref(), &var.value_from) {
            (Some(text), _) if !text.is_empty() => expand_bytes(text, |name| {
                let known = envs.0.get(name).cloned();
                known.or_else(|| services.get(name).map(|v| v.clone().into_bytes()))
            }),
            (_, Some(source)) => match from_source(inputs, source)? {
                Some(value) => value,
                None => continue,
            },
            _ => Vec::new(),
        };
        envs.set(var.name.clone(), value);
    }
    for (name, value) in services {
        if !envs.0.contains_key(&name) {
            envs.set(name, value);
        }
    }
    Ok(envs)
}

/// A pod of the API server waits for the first list of services, which can be expected to come; one that the node
/// decided on may be what makes it come.
fn services_seen(inputs: &EnvInputs<'_>) -> Result<IndexMap<String, String>, String> {
    let services = match &inputs.gathered.services {
        Ok(services) => services.clone(),
        Err(_) if marks::is_static(inputs.pod) => Arc::new([]),
        Err(not_read) => return Err(not_read.to_string()),
    };
    let spec = inputs.pod.spec.as_ref();
    let links = spec.and_then(|s| s.enable_service_links).unwrap_or(true);
    Ok(services::variables(&services, namespace(inputs), links))
}

fn namespace<'a>(inputs: &EnvInputs<'a>) -> &'a str {
    inputs.pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// All keys of an object.
fn take_all(inputs: &EnvInputs<'_>, source: &EnvFromSource, envs: &mut Envs) -> Result<(), String> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    if let Some(r) = &source.config_map_ref {
        let found = object(inputs.gathered.config_maps.get(&r.name), r.optional)?;
        for (key, value) in found.iter().flat_map(|o| o.data.iter().flatten()) {
            envs.set(format!("{prefix}{key}"), value.as_str());
        }
    } else if let Some(r) = &source.secret_ref {
        let found = object(inputs.gathered.secrets.get(&r.name), r.optional)?;
        for (key, value) in found.iter().flat_map(|o| o.data.iter().flatten()) {
            envs.set(format!("{prefix}{key}"), value.0.as_slice());
        }
    }
    Ok(())
}

/// None if it is optional and does not exist; any other failure counts even then.
fn object<T>(
    found: Option<&Result<Arc<T>, ObjectError>>,
    optional: Option<bool>,
) -> Result<Option<Arc<T>>, String> {
    match found {
        Some(Ok(object)) => Ok(Some(object.clone())),
        Some(Err(error)) if error.is_not_found() && optional == Some(true) => Ok(None),
        Some(Err(error)) => Err(error.to_string()),
        None => Ok(None),
    }
}

/// None leaves the variable out.
fn from_source(inputs: &EnvInputs<'_>, source: &EnvVarSource) -> Result<Option<Vec<u8>>, String> {
    let text = |value: String| Some(value.into_bytes());
    if let Some(field) = &source.field_ref {
        let host_ips = inputs.node.host_ips.texts();
        let at = Addresses {
            host_ips: &host_ips,
            pod_ips: inputs.pod_ips,
        };
        downward::field(inputs.pod, field, at).map(text)
    } else if let Some(selector) = &source.resource_field_ref {
        let own = Some(inputs.container);
        downward::resource(inputs.pod, own, selector, &inputs.node.allocatable).map(text)
    } else if let Some(r) = &source.config_map_key_ref {
        config_map_key(inputs, r)
    } else if let Some(r) = &source.secret_key_ref {
        secret_key(inputs, r)
    } else if let Some(r) = source.file_key_ref.as_ref().filter(|_| inputs.env_files) {
        file_key(inputs, r)
    } else {
        Ok(Some(Vec::new()))
    }
}

fn config_map_key(
    inputs: &EnvInputs<'_>,
    r: &ConfigMapKeySelector,
) -> Result<Option<Vec<u8>>, String> {
    let Some(found) = object(inputs.gathered.config_maps.get(&r.name), r.optional)? else {
        return Ok(None);
    };
    let value = found.data.as_ref().and_then(|data| data.get(&r.key));
    match value {
        Some(value) => Ok(Some(value.clone().into_bytes())),
        None => missing(inputs, r.optional, "ConfigMap", &r.name, &r.key),
    }
}

fn secret_key(inputs: &EnvInputs<'_>, r: &SecretKeySelector) -> Result<Option<Vec<u8>>, String> {
    let Some(found) = object(inputs.gathered.secrets.get(&r.name), r.optional)? else {
        return Ok(None);
    };
    let value = found.data.as_ref().and_then(|data| data.get(&r.key));
    match value {
        Some(value) => Ok(Some(value.0.clone())),
        None => missing(inputs, r.optional, "Secret", &r.name, &r.key),
    }
}

fn missing<T>(
    inputs: &EnvInputs<'_>,
    optional: Option<bool>,
    kind: &str,
    name: &str,
    key: &str,
) -> Result<Option<T>, String> {
    match optional {
        Some(true) => Ok(None),
        _ => {
            let namespace = namespace(inputs);
            Err(format!(
                "couldn't find key {key} in {kind} {namespace}/{name}"
            ))
        }
    }
}

fn file_key(inputs: &EnvInputs<'_>, r: &FileKeySelector) -> Result<Option<Vec<u8>>, String> {
    let unreadable = || "couldn't parse env file".to_owned();
    let file_key = (r.volume_name.clone(), r.path.clone());
    let (path, bytes) = match inputs.gathered.files.get(&file_key) {
        Some(FoundFile::Read { path, bytes }) => (path, bytes),
        Some(FoundFile::Unreadable) => return Err(unreadable()),
        Some(FoundFile::NoVolume) | None => {
            return Err(format!(
                "cannot find the volume {:?} referenced by FileKeyRef",
                r.volume_name
            ));
        }
    };
    let value = file::value_of(bytes, &r.key).map_err(|problem| {
        let pod = PodRef::of(inputs.pod);
        tracing::error!(%pod, podUID = %pod.uid, containerName = inputs.container.name, path = %path.display(), err = %problem, "Failed to parse env file");
        unreadable()
    })?;
    match value {
        // An empty value counts as none.
        Some(value) if !value.is_empty() => Ok(Some(value.to_vec())),
        _ if r.optional == Some(true) => Ok(None),
        _ => Err(format!(
            "environment variable key {:?} not found in file {path:?}",
            r.key
        )),
    }
}
