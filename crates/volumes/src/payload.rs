//! What goes into the files of a volume, as values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use krablet_linux::{TreeFile, TreeFiles};
use krablet_pod::Quantity;
use krablet_pod::api::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, PodCertificateProjection, PodSpec, Secret,
    SecurityContext,
};
use krablet_pod::containers::{all, ephemeral_containers};
use krablet_pod::downward::{self, Addresses};
use krablet_podcerts::Bundle;

use crate::error::SetUpError;

/// Of files whose spec names none.
pub(crate) const DEFAULT_MODE: i32 = 0o644;
/// Of files that are for one user alone.
const PRIVATE_MODE: i32 = 0o600;
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// Files by the paths that users gave them.
pub(crate) type Files = BTreeMap<String, TreeFile>;

pub(crate) fn file(bytes: impl Into<Vec<u8>>, mode: i32) -> TreeFile {
    TreeFile {
        bytes: bytes.into(),
        // Nothing beyond the plain rights: no set-user bit on a secret.
        mode: u32::try_from(mode).unwrap_or_default() & 0o777,
        owner: None,
    }
}

pub(crate) fn of_config_map(
    items: &[KeyToPath],
    object: &ConfigMap,
    mode: i32,
    optional: bool,
) -> Result<Files, SetUpError> {
    let text = |key: &str| {
        object
            .data
            .as_ref()?
            .get(key)
            .map(|v| v.as_bytes().to_vec())
    };
    let binary = |key: &str| object.binary_data.as_ref()?.get(key).map(|v| v.0.clone());
    if items.is_empty() {
        let texts = object.data.iter().flatten();
        let texts = texts.map(|(k, v)| (k.clone(), file(v.as_bytes(), mode)));
        let binaries = object.binary_data.iter().flatten();
        let binaries = binaries.map(|(k, v)| (k.clone(), file(v.0.clone(), mode)));
        return Ok(texts.chain(binaries).collect());
    }
    chosen(items, mode, optional, SetUpError::NoConfigKey, |key| {
        text(key).or_else(|| binary(key))
    })
}

pub(crate) fn of_secret(
    items: &[KeyToPath],
    object: &Secret,
    mode: i32,
    optional: bool,
) -> Result<Files, SetUpError> {
    if items.is_empty() {
        let all = object.data.iter().flatten();
        return Ok(all
            .map(|(k, v)| (k.clone(), file(v.0.clone(), mode)))
            .collect());
    }
    chosen(items, mode, optional, SetUpError::NoSecretKey, |key| {
        object.data.as_ref()?.get(key).map(|v| v.0.clone())
    })
}

fn chosen(
    items: &[KeyToPath],
    mode: i32,
    optional: bool,
    missing: fn(String) -> SetUpError,
    value: impl Fn(&str) -> Option<Vec<u8>>,
) -> Result<Files, SetUpError> {
    let mut files = Files::new();
    for item in items {
        match value(&item.key) {
            Some(bytes) => {
                let content = file(bytes, item.mode.unwrap_or(mode));
                files.insert(item.path.clone(), content);
            }
            None if optional => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(files)
}

pub(crate) fn of_downward(
    items: &[DownwardAPIVolumeFile],
    pod: &Pod,
    mode: i32,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<Files, SetUpError> {
    let mut files = Files::new();
    let mut problems = Vec::new();
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            // Only what stands in the pod's metadata: the rest is for environments.
            (Some(field), _) if field.field_path.starts_with("metadata.") => {
                downward::field(pod, field, Addresses::default())
            }
            (Some(field), _) => Err(format!("unsupported fieldPath: {}", field.field_path)),
            (None, Some(resource)) => downward::resource(pod, None, resource, allocatable),
            (None, None) => Ok(String::new()),
        };
        match value {
            Ok(text) => {
                let content = file(text, item.mode.unwrap_or(mode));
                files.insert(item.path.clone(), content);
            }
            Err(problem) => problems.push(problem),
        }
    }
    match problems.len() {
        0 => Ok(files),
        1 => Err(SetUpError::Downward(problems.remove(0))),
        _ => Err(SetUpError::Several(problems)),
    }
}

/// A file for the pod's users alone, where it is known who they are: one user, or a group.
pub(crate) fn private(bytes: Vec<u8>, mode: i32, pod: &Pod, fs_group: Option<i64>) -> TreeFile {
    let user = pod.spec.as_ref().and_then(only_user);
    let mode = match user.is_some() || fs_group.is_some() {
        true => PRIVATE_MODE,
        false => mode,
    };
    TreeFile {
        owner: user.and_then(|u| u32::try_from(u).ok()),
        ..file(bytes, mode)
    }
}

/// The files of a certificate: all in one, and each part by itself, where the pod wants them.
pub(crate) fn of_certificate(
    source: &PodCertificateProjection,
    bundle: &Bundle,
    file: impl Fn(&str) -> TreeFile,
) -> Files {
    let whole = format!("{}{}", bundle.key, bundle.chain);
    let parts = [
        (&source.credential_bundle_path, &*whole),
        (&source.key_path, &*bundle.key),
        (&source.certificate_chain_path, &*bundle.chain),
    ];
    let wanted = parts.into_iter().filter_map(|(path, text)| {
        let path = path.as_ref().filter(|path| !path.is_empty())?;
        Some((path.clone(), file(text)))
    });
    wanted.collect()
}

/// The one user that all containers of the pod run as.
fn only_user(spec: &PodSpec) -> Option<i64> {
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let own = |c: Option<&SecurityContext>| c.and_then(|c| c.run_as_user).or(of_pod);
    let ordinary = all(spec).map(|c| own(c.container.security_context.as_ref()));
    let ephemeral = ephemeral_containers(spec).iter();
    let ephemeral = ephemeral.map(|c| own(c.security_context.as_ref()));
    let mut users = ordinary.chain(ephemeral);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// Paths as they may stand in a volume. Of two for one place the later counts.
pub(crate) fn checked(files: Files) -> Result<TreeFiles, SetUpError> {
    files
        .into_iter()
        .map(|(path, file)| Ok((checked_path(&path)?, file)))
        .collect()
}

fn checked_path(path: &str) -> Result<PathBuf, SetUpError> {
    let wrong = |why: String| Err(SetUpError::Path(why));
    if path.is_empty() {
        return wrong("must not be empty: \"\"".to_owned());
    }
    if path.starts_with('/') {
        return wrong(format!("must be relative path: {path}"));
    }
    if path.len() > MAX_PATH {
        return wrong(format!(
            "must be less than or equal to {MAX_PATH} characters"
        ));
    }
    for item in path.split('/') {
        if item == ".." {
            return wrong(format!("must not contain '..': {path}"));
        }
        if item.len() > MAX_NAME {
            return wrong(format!(
                "filenames must be less than or equal to {MAX_NAME} characters"
            ));
        }
    }
    if path.starts_with("..") {
        return wrong(format!("must not start with '..': {path}"));
    }
    let clean: PathBuf = Path::new(path).components().collect();
    let clean = crate::used::clean(&clean.to_string_lossy());
    match clean.as_os_str().is_empty() {
        true => wrong(format!("must not be empty: {path:?}")),
        false => Ok(clean),
    }
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
