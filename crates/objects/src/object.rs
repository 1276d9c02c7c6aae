//! A configMap or a secret, as small as it is of use.

use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_kube::{ApiError, Call, Kube, Verb, paths};
use krablet_pod::api::{ConfigMap, Secret};
use serde::de::DeserializeOwned;

use crate::{Kind, ObjectError, ObjectKey};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

/// Of which object, by its UID, which resource version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(Option<String>, Option<String>);

impl Object {
    /// As the configMap that was asked for by this key.
    pub(crate) fn config_map(self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError> {
        match self {
            Object::ConfigMap(object) => Ok(object),
            Object::Secret(_) => Err(ObjectError::not_found(key)),
        }
    }

    /// As the secret that was asked for by this key.
    pub(crate) fn secret(self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError> {
        match self {
            Object::Secret(object) => Ok(object),
            Object::ConfigMap(_) => Err(ObjectError::not_found(key)),
        }
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Object::ConfigMap(object) => &object.metadata,
            Object::Secret(object) => &object.metadata,
        }
    }

    /// Its content will never change.
    pub(crate) fn is_immutable(&self) -> bool {
        let immutable = match self {
            Object::ConfigMap(object) => object.immutable,
            Object::Secret(object) => object.immutable,
        };
        immutable == Some(true)
    }

    pub(crate) fn version(&self) -> Version {
        let meta = self.meta();
        Version(meta.uid.clone(), meta.resource_version.clone())
    }

    /// The same object in the same version.
    pub(crate) fn is_same(&self, other: &Object) -> bool {
        self.version() == other.version()
    }

    /// An answer from a server's memory may be of an earlier time.
    pub(crate) fn is_older(&self, other: &Object) -> bool {
        let version = |o: &Object| {
            let text = o.meta().resource_version.as_deref().unwrap_or_default();
            text.parse::<u64>().unwrap_or(0)
        };
        version(self) < version(other)
    }
}

/// Where the list is in which the object would be.
pub(crate) fn list_path(key: &ObjectKey) -> String {
    match key.kind {
        Kind::ConfigMap => paths::config_maps(&key.namespace),
        Kind::Secret => paths::secrets(&key.namespace),
    }
}

/// Asks for it, once. What the server remembers is enough for a look whether something is new.
pub(crate) async fn fetch(
    kube: &Kube,
    key: &ObjectKey,
    remembered: bool,
) -> Result<Object, ApiError> {
    Ok(match key.kind {
        Kind::ConfigMap => Object::ConfigMap(get(kube, key, remembered).await?),
        Kind::Secret => Object::Secret(get(kube, key, remembered).await?),
    })
}

async fn get<T>(kube: &Kube, key: &ObjectKey, remembered: bool) -> Result<Arc<T>, ApiError>
where
    T: DeserializeOwned + Metadata<Ty = ObjectMeta>,
{
    let path = format!("{}/{}", list_path(key), key.name);
    let mut call = Call::new(Verb::Get, path);
    if remembered {
        call = call.query("resourceVersion", "0");
    }
    let mut object: T = kube.object(call).await?;
    slim(&mut object);
    Ok(Arc::new(object))
}

/// Which object it is, in which version: more of its metadata nobody asks for. What `kubectl apply` writes into an
/// annotation is the whole object once more.
pub(crate) fn slim<T: Metadata<Ty = ObjectMeta>>(object: &mut T) {
    let meta = object.metadata_mut();
    *meta = ObjectMeta {
        namespace: meta.namespace.take(),
        name: meta.name.take(),
        uid: meta.uid.take(),
        resource_version: meta.resource_version.take(),
        ..ObjectMeta::default()
    };
}
