//! The door through which a kind of volume comes into the house.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_pod::PodUid;
use krablet_pod::api::{PersistentVolume, PersistentVolumeSpec, Pod, PodSpec, Volume};
use krablet_pod::paths::RootDir;

use crate::attempt::Attempt;
use crate::error::SetUpError;
use crate::record::RecordedVolume;

/// A volume as a container can be given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// What its directories are called: a persistent volume goes by its own name.
    pub spec_name: String,
    /// Where it stands on the host.
    pub host_path: PathBuf,
    /// Nobody may write to it, whatever the container's mount says.
    pub read_only: bool,
    /// The runtime may relabel it for SELinux; what belongs to the host is left as it is.
    pub se_linux_relabel: bool,
    /// It is a device, not a file system.
    pub block: bool,
    /// A group that whoever uses it has to be in.
    pub group: Option<i64>,
    /// Name of the plugin, e.g. `kubernetes.io/empty-dir`.
    pub plugin: &'static str,
}

/// A pod's volumes by name.
pub type PodMounts = BTreeMap<String, MountedVolume>;

/// A volume that stands, and what is to be known of it.
#[derive(Debug)]
pub struct Standing {
    pub volume: MountedVolume,
    /// When its content has to be renewed.
    pub renew_at: Option<Timestamp>,
    /// Why its content is older than it should be.
    pub stale: Option<SetUpError>,
}

impl From<MountedVolume> for Standing {
    fn from(volume: MountedVolume) -> Self {
        Self {
            volume,
            renew_at: None,
            stale: None,
        }
    }
}

/// Where a volume comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The pod's own spec says all.
    Inline(&'a Volume),
    /// The pod's claim is bound to this.
    Persistent {
        volume: &'a PersistentVolume,
        /// The claim is used for reading only.
        read_only: bool,
    },
}

impl<'a> Source<'a> {
    /// Of a persistent volume.
    pub fn persistent(&self) -> Option<&'a PersistentVolumeSpec> {
        match self {
            Source::Inline(_) => None,
            Source::Persistent { volume, .. } => volume.spec.as_ref(),
        }
    }

    /// What messages and directories call it: a persistent volume goes by its own name.
    pub fn name(&self) -> &'a str {
        match self {
            Source::Inline(volume) => &volume.name,
            Source::Persistent { volume, .. } => {
                volume.metadata.name.as_deref().unwrap_or_default()
            }
        }
    }

    pub fn is_read_only_claim(&self) -> bool {
        matches!(
            self,
            Source::Persistent {
                read_only: true,
                ..
            }
        )
    }

    /// It is used as a device.
    pub fn is_block(&self) -> bool {
        let mode = self.persistent().and_then(|s| s.volume_mode.as_deref());
        mode == Some("Block")
    }

    /// The group its administrator noted at it.
    pub fn group(&self) -> Option<i64> {
        let Source::Persistent { volume, .. } = self else {
            return None;
        };
        let notes = volume.metadata.annotations.as_ref()?;
        notes.get("pv.beta.kubernetes.io/gid")?.parse().ok()
    }

    /// Options its administrator wants it to be mounted with.
    pub fn mount_options(&self) -> Vec<String> {
        let spec = self.persistent();
        spec.and_then(|s| s.mount_options.clone())
            .unwrap_or_default()
    }
}

/// One volume of one pod, to be set up.
#[derive(Clone, Copy)]
pub struct VolumeRequest<'a> {
    pub root: &'a RootDir,
    pub uid: &'a PodUid,
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    pub source: Source<'a>,
    pub attempt: Attempt<'a>,
}

impl<'a> VolumeRequest<'a> {
    pub fn spec(&self) -> Option<&'a PodSpec> {
        self.pod.spec.as_ref()
    }

    /// The group that shall own what the pod's volumes hold.
    pub fn fs_group(&self) -> Option<i64> {
        self.spec()?.security_context.as_ref()?.fs_group
    }

    /// A volume whose top belongs to the group already need not be looked through.
    pub fn only_if_top_differs(&self) -> bool {
        let context = self.spec().and_then(|s| s.security_context.as_ref());
        let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
        policy == Some("OnRootMismatch")
    }

    pub fn name(&self) -> &'a str {
        self.source.name()
    }

    pub fn namespace(&self) -> &'a str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Below the pod's directory, as it is recorded.
    pub(crate) fn relative_dir(&self, plugin: &str) -> PathBuf {
        PathBuf::from("volumes")
            .join(escape(plugin))
            .join(self.name())
    }

    pub(crate) fn dir(&self, plugin: &str) -> PathBuf {
        self.root.pod(self.uid).join(self.relative_dir(plugin))
    }

    /// A link to a device, which the runtime resolves; below the pod's directory.
    pub(crate) fn relative_link(&self, plugin: &str) -> PathBuf {
        PathBuf::from("volumeDevices")
            .join(escape(plugin))
            .join(self.name())
    }

    pub(crate) fn link(&self, plugin: &str) -> PathBuf {
        self.root.pod(self.uid).join(self.relative_link(plugin))
    }

    /// What is recorded of a volume that is mounted in the pod's directory or, as a device, has a link there.
    pub(crate) fn recorded(&self, plugin: &str) -> RecordedVolume {
        let block = self.source.is_block();
        RecordedVolume {
            name: self.volume.name.clone(),
            plugin: plugin.to_owned(),
            path: match block {
                true => self.relative_link(plugin),
                false => self.relative_dir(plugin),
            },
            mounted: !block,
            outside: None,
        }
    }

    /// A disk that the pod is shown here, mounted or as a device.
    pub(crate) fn stands_at(
        &self,
        host_path: PathBuf,
        plugin: &'static str,
        read_only: bool,
    ) -> Standing {
        let volume = MountedVolume {
            spec_name: self.name().to_owned(),
            host_path,
            read_only,
            se_linux_relabel: !read_only,
            block: self.source.is_block(),
            group: self.source.group(),
            plugin,
        };
        volume.into()
    }
}

/// One kind of volume.
#[async_trait]
pub trait VolumePlugin: Send + Sync {
    /// As upstream names it, e.g. `kubernetes.io/empty-dir`.
    fn name(&self) -> &'static str;

    fn supports(&self, source: &Source<'_>) -> bool;

    /// Its content follows something that changes: `set_up` is called at every sync of the pod, and does nothing when
    /// nothing has changed.
    fn follows(&self) -> bool {
        false
    }

    /// What `set_up` will put below the pod's directory, to be recorded first. None if the volume
    /// stands elsewhere and nothing of it is ours to take away.
    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError>;

    /// Makes the volume ready. May be called again for a volume that is, or is half made.
    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError>;

    /// Takes away what `set_up` made outside the pod's directory, once nothing is mounted in that any more. May be
    /// called again.
    async fn tear_down(&self, _: &RecordedVolume) -> Result<(), SetUpError> {
        Ok(())
    }

    /// What is remembered of a pod's volumes is of no more use.
    fn forget(&self, _: &PodUid) {}
}

/// A plugin's name as a directory's.
pub(crate) fn escape(plugin: &str) -> String {
    plugin.replace('/', "~")
}

/// The kind of a volume in the words of its manifest.
pub fn kind_of(volume: &Volume) -> &'static str {
    let v = volume;
    let kinds = [
        ("hostPath", v.host_path.is_some()),
        ("awsElasticBlockStore", v.aws_elastic_block_store.is_some()),
        ("azureDisk", v.azure_disk.is_some()),
        ("azureFile", v.azure_file.is_some()),
        ("cephfs", v.cephfs.is_some()),
        ("cinder", v.cinder.is_some()),
        ("configMap", v.config_map.is_some()),
        ("csi", v.csi.is_some()),
        ("downwardAPI", v.downward_api.is_some()),
        ("ephemeral", v.ephemeral.is_some()),
        ("fc", v.fc.is_some()),
        ("flexVolume", v.flex_volume.is_some()),
        ("flocker", v.flocker.is_some()),
        ("gcePersistentDisk", v.gce_persistent_disk.is_some()),
        ("gitRepo", v.git_repo.is_some()),
        ("glusterfs", v.glusterfs.is_some()),
        ("image", v.image.is_some()),
        ("iscsi", v.iscsi.is_some()),
        ("nfs", v.nfs.is_some()),
        ("persistentVolumeClaim", v.persistent_volume_claim.is_some()),
        ("photonPersistentDisk", v.photon_persistent_disk.is_some()),
        ("portworxVolume", v.portworx_volume.is_some()),
        ("projected", v.projected.is_some()),
        ("quobyte", v.quobyte.is_some()),
        ("rbd", v.rbd.is_some()),
        ("scaleIO", v.scale_io.is_some()),
        ("secret", v.secret.is_some()),
        ("storageos", v.storageos.is_some()),
        ("vsphereVolume", v.vsphere_volume.is_some()),
    ];
    // A volume without a source is an empty directory, as the API server defaults it.
    kinds
        .iter()
        .find(|(_, set)| *set)
        .map_or("emptyDir", |(kind, _)| kind)
}
