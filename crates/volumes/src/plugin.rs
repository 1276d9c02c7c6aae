//! The door through which a kind of volume comes into the house.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use krablet_pod::PodUid;
use krablet_pod::api::{Pod, PodSpec, Volume};
use krablet_pod::paths::RootDir;

use crate::error::SetUpError;
use crate::record::RecordedVolume;

/// A volume as a container can be given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Where it stands on the host.
    pub host_path: PathBuf,
    /// Nobody may write to it, whatever the container's mount says.
    pub read_only: bool,
    /// The runtime may relabel it for SELinux; what belongs to the host is left as it is.
    pub se_linux_relabel: bool,
    /// Name of the plugin, e.g. `kubernetes.io/empty-dir`.
    pub plugin: &'static str,
}

/// A pod's volumes by name.
pub type PodMounts = BTreeMap<String, MountedVolume>;

/// One volume of one pod, to be set up.
#[derive(Clone, Copy)]
pub struct VolumeRequest<'a> {
    pub root: &'a RootDir,
    pub uid: &'a PodUid,
    pub pod: &'a Pod,
    pub volume: &'a Volume,
}

impl VolumeRequest<'_> {
    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// The group that shall own what the pod's volumes hold.
    pub fn fs_group(&self) -> Option<i64> {
        self.spec()?.security_context.as_ref()?.fs_group
    }
}

/// One kind of volume.
#[async_trait]
pub trait VolumePlugin: Send + Sync {
    /// As upstream names it, e.g. `kubernetes.io/empty-dir`.
    fn name(&self) -> &'static str;

    fn supports(&self, volume: &Volume) -> bool;

    /// What `set_up` will put below the pod's directory, to be recorded first. None if the volume
    /// stands elsewhere and nothing of it is ours to take away.
    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError>;

    /// Makes the volume ready. May be called again for a volume that is, or is half made.
    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<MountedVolume, SetUpError>;
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
