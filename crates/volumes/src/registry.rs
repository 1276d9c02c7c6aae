//! The kinds of volumes this agent brings along.

use std::sync::Arc;

use crate::content::{Content, ContentDeps, ContentKind, Renderer};
use crate::disk::{DiskKind, Disks};
use crate::empty_dir::EmptyDir;
use crate::host_path::HostPath;
use crate::image::Image;
use crate::local::Local;
use crate::nfs::Nfs;
use crate::plugin::VolumePlugin;
use crate::volumes::{VolumesConfig, VolumesDeps};

pub(crate) fn built_in(config: &VolumesConfig, deps: &VolumesDeps) -> Vec<Arc<dyn VolumePlugin>> {
    let VolumesDeps {
        files,
        trees,
        mounts,
        tools,
        ..
    } = deps.clone();
    let directories = Arc::new(EmptyDir::new(
        files.clone(),
        mounts.clone(),
        config.node_memory,
    ));
    let content = ContentDeps {
        files: files.clone(),
        trees,
        clock: deps.clock.clone(),
        directories: directories.clone(),
        renderer: Arc::new(Renderer {
            objects: deps.objects.clone(),
            tokens: deps.tokens.clone(),
            certificates: deps.certificates.clone(),
            trust_bundles: deps.trust_bundles.clone(),
            node: deps.node.clone(),
        }),
    };
    let content = ContentKind::ALL.map(|kind| {
        let plugin: Arc<dyn VolumePlugin> = Arc::new(Content::new(kind, content.clone()));
        plugin
    });
    let mut plugins: Vec<Arc<dyn VolumePlugin>> = vec![
        directories,
        Arc::new(HostPath::new(files.clone(), config.host_path_deadline)),
        Arc::new(Image),
        Arc::new(Local::new(config.root.clone(), deps)),
        Arc::new(Nfs {
            files,
            mounts,
            tools,
        }),
    ];
    plugins.extend(content);
    let disks = [DiskKind::Iscsi, DiskKind::FibreChannel].map(|kind| {
        let disks = Disks::new(kind, config.root.clone(), deps);
        let plugin: Arc<dyn VolumePlugin> = Arc::new(disks);
        plugin
    });
    plugins.extend(disks);
    plugins
}
