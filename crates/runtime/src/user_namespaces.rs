//! Pods with users of their own. The range of ids a pod has stands in its directory, and is free again
//! when the directory is gone: a crash at any point neither loses a range nor gives one away twice.

use std::io;

use krablet_core::user_namespaces::{IdMapping, decode, encode};
use krablet_cri::v1;
use krablet_linux::EntryKind;
use krablet_pod::api::Pod;
use krablet_pod::{PodRef, PodUid};

use crate::handlers::{class_of, features};
use crate::pod_runtime::PodRuntime;

const FILE: &str = "userns";
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o750;
/// A record is a few words; what is longer is none.
const LIMIT: usize = 64 << 10;

impl PodRuntime {
    /// What the runtime is told of the pod's users; nothing for one that has those of the node.
    pub(crate) async fn user_namespace(
        &self,
        pod: &Pod,
    ) -> Result<Option<v1::UserNamespace>, String> {
        let spec = pod.spec.as_ref();
        if spec.and_then(|s| s.host_users) != Some(false) {
            return Ok(None);
        }
        self.check_user_namespaces(class_of(pod)).await?;
        let uid = PodRef::of(pod).uid;
        // Two pods must not find the same range free.
        let _alone = self.inner.id_ranges.lock().await;
        let own = self.recorded(&uid).await;
        let mapping = match own.map_err(|e| format!("user namespace: {e}"))? {
            Some(mapping) => mapping,
            None => {
                let made = self.allocate(&uid).await;
                made.map_err(|e| format!("create user namespace: {e}"))?
            }
        };
        let ids = vec![v1::IdMapping {
            host_id: mapping.host_id,
            container_id: mapping.container_id,
            length: mapping.length,
        }];
        Ok(Some(v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: ids.clone(),
            gids: ids,
        }))
    }

    async fn check_user_namespaces(&self, class: Option<&str>) -> Result<(), String> {
        let deps = &self.inner.deps;
        let handler = deps.classes.handler(class).await?;
        let refused = match handler.as_str() {
            "" => "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
                .to_owned(),
            handler => format!(
                "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
            ),
        };
        let status = deps.runtime.status().await;
        let status = status.map_err(|e| format!("{refused}: {e}"))?;
        match features(&status.runtime_handlers, Some(&handler)).user_namespaces {
            true => Ok(()),
            false => Err(refused),
        }
    }

    async fn recorded(&self, uid: &PodUid) -> Result<Option<IdMapping>, String> {
        let path = self.inner.config.paths.root.pod(uid).join(FILE);
        match self.inner.deps.files.read(&path, LIMIT).await {
            Ok(bytes) => decode(&bytes).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    async fn allocate(&self, uid: &PodUid) -> Result<IdMapping, String> {
        let (root, files) = (&self.inner.config.paths.root, &self.inner.deps.files);
        let entries = match files.list(&root.pods()).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e.to_string()),
        };
        let mut taken = Vec::new();
        for entry in entries.iter().filter(|e| e.kind == EntryKind::Directory) {
            let Some(name) = entry.path.file_name().and_then(|n| n.to_str()) else {
                continue;
            };
            let other = PodUid::from(name);
            // Of a pod whose record makes no sense nobody knows what it has.
            taken.extend(self.recorded(&other).await?);
        }
        let mapping = self.inner.config.node.id_space.free(&taken)?;
        let dir = root.pod(uid);
        let made = files.create_dir_all(&dir, DIR_MODE).await;
        made.map_err(|e| e.to_string())?;
        let (path, record) = (dir.join(FILE), encode(mapping));
        let written = files.write_atomic(&path, &record, FILE_MODE).await;
        written.map_err(|e| e.to_string())?;
        Ok(mapping)
    }
}

/// Puts a container into the user namespace of its sandbox: its mounts show files to users as if there
/// were none.
pub(crate) fn entered(
    mut container: v1::ContainerConfig,
    sandbox: &v1::PodSandboxConfig,
) -> v1::ContainerConfig {
    let of_sandbox = sandbox.linux.as_ref().and_then(|l| {
        let options = l.security_context.as_ref()?.namespace_options.as_ref()?;
        options.userns_options.clone()
    });
    let Some(users) = of_sandbox else {
        return container;
    };
    for mount in &mut container.mounts {
        mount.uid_mappings.clone_from(&users.uids);
        mount.gid_mappings.clone_from(&users.gids);
    }
    let context = container
        .linux
        .as_mut()
        .and_then(|l| l.security_context.as_mut());
    if let Some(options) = context.and_then(|c| c.namespace_options.as_mut()) {
        options.userns_options = Some(users);
    }
    container
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(host_id: u32) -> Vec<v1::IdMapping> {
        vec![v1::IdMapping {
            host_id,
            container_id: 0,
            length: 65_536,
        }]
    }

    fn container() -> v1::ContainerConfig {
        v1::ContainerConfig {
            mounts: vec![v1::Mount::default()],
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(v1::NamespaceOption::default()),
                    ..v1::LinuxContainerSecurityContext::default()
                }),
                ..v1::LinuxContainerConfig::default()
            }),
            ..v1::ContainerConfig::default()
        }
    }

    fn sandbox(users: Option<v1::UserNamespace>) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            linux: Some(v1::LinuxPodSandboxConfig {
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        userns_options: users,
                        ..v1::NamespaceOption::default()
                    }),
                    ..v1::LinuxSandboxSecurityContext::default()
                }),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }

    #[test]
    fn a_container_has_the_users_of_its_sandbox() {
        let users = v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: ids(131_072),
            gids: ids(131_072),
        };
        let got = entered(container(), &sandbox(Some(users.clone())));
        assert_eq!(got.mounts[0].uid_mappings, ids(131_072));
        assert_eq!(got.mounts[0].gid_mappings, ids(131_072));
        let context = got.linux.unwrap().security_context.unwrap();
        let options = context.namespace_options.unwrap();
        assert_eq!(options.userns_options, Some(users));
        assert_eq!(entered(container(), &sandbox(None)), container());
    }
}
