//! Asking for what an environment takes from elsewhere, all of it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use futures::future::{join, join_all};
use krablet_linux::Files;
use krablet_objects::{Objects, Services};
use krablet_pod::api::{Container, EnvVarSource};
use tracing::error;

use crate::env::{FileKey, FoundFile, Gathered};
use crate::mounts::VolumeSource;

/// A file of variables is no larger than this; the kernel takes less of a process' environment.
const MAX_FILE: usize = 1 << 20;

/// Where to ask.
pub(crate) struct Sources<'a> {
    pub objects: &'a dyn Objects,
    pub services: &'a dyn Services,
    pub files: &'a dyn Files,
    pub volumes: &'a [VolumeSource],
}

pub(crate) async fn gather(
    container: &Container,
    namespace: &str,
    env_files: bool,
    sources: &Sources<'_>,
) -> Gathered {
    let wanted = Wanted::of(container);
    let config_maps = wanted.config_maps.into_iter().map(|name| async move {
        let object = sources.objects.config_map(namespace, name).await;
        (name.to_owned(), object)
    });
    let secrets = wanted.secrets.into_iter().map(|name| async move {
        let object = sources.objects.secret(namespace, name).await;
        (name.to_owned(), object)
    });
    let (config_maps, secrets) = join(join_all(config_maps), join_all(secrets)).await;
    let mut files = BTreeMap::new();
    if env_files {
        for key in wanted.files {
            let found = file(sources, container, &key).await;
            files.insert(key, found);
        }
    }
    Gathered {
        config_maps: config_maps.into_iter().collect(),
        secrets: secrets.into_iter().collect(),
        files,
        services: sources.services.all(),
    }
}

async fn file(
    sources: &Sources<'_>,
    container: &Container,
    (volume, relative): &FileKey,
) -> FoundFile {
    let Some(found) = sources
        .volumes
        .iter()
        .find(|v| v.name == *volume && !v.block)
    else {
        return FoundFile::NoVolume;
    };
    let (top, relative) = (&found.host_path, Path::new(relative));
    match sources.files.read_beneath(top, relative, MAX_FILE).await {
        Ok(bytes) => FoundFile::Read {
            path: top.join(relative),
            bytes,
        },
        Err(e) => {
            error!(containerName = container.name, path = %top.join(relative).display(), err = %e, "Failed to read env file");
            FoundFile::Unreadable
        }
    }
}

/// What a container's environment refers to.
#[derive(Default)]
struct Wanted<'a> {
    config_maps: BTreeSet<&'a str>,
    secrets: BTreeSet<&'a str>,
    files: BTreeSet<FileKey>,
}

impl<'a> Wanted<'a> {
    fn of(container: &'a Container) -> Self {
        let mut wanted = Self::default();
        for source in container.env_from.iter().flatten() {
            if let Some(r) = &source.config_map_ref {
                wanted.config_maps.insert(&r.name);
            } else if let Some(r) = &source.secret_ref {
                wanted.secrets.insert(&r.name);
            }
        }
        for var in container.env.iter().flatten() {
            // A value of its own comes first.
            if var.value.as_deref().unwrap_or_default().is_empty()
                && let Some(source) = &var.value_from
            {
                wanted.add(source);
            }
        }
        wanted
    }

    fn add(&mut self, source: &'a EnvVarSource) {
        if let Some(r) = &source.config_map_key_ref {
            self.config_maps.insert(&r.name);
        } else if let Some(r) = &source.secret_key_ref {
            self.secrets.insert(&r.name);
        } else if let Some(r) = &source.file_key_ref {
            self.files.insert((r.volume_name.clone(), r.path.clone()));
        }
    }
}
