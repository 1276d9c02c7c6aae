//! A node on its own, without a directory of objects: there are none.

use std::sync::Arc;

use async_trait::async_trait;
use krablet_pod::PodUid;
use krablet_pod::api::{ConfigMap, Pod, Secret, Service};

use crate::{NotRead, ObjectError, ObjectKey, Objects, Services};

#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

#[async_trait]
impl Objects for Nowhere {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::NoSource(ObjectKey::config_map(
            namespace, name,
        )))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::NoSource(ObjectKey::secret(namespace, name)))
    }

    fn want(&self, _: &Pod) {}

    fn forget(&self, _: &PodUid) {}
}

impl Services for Nowhere {
    fn all(&self) -> Result<Arc<[Arc<Service>]>, NotRead> {
        Ok(Arc::new([]))
    }
}
