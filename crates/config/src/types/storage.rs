//! Volumes and local storage.

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Volumes and local storage.
    pub struct Storage {
        /// How often the disk usage of volumes is measured; negative turns it off.
        volume_stats_agg_period: Duration = "volumeStatsAggPeriod" empty(Duration::from_mins(1));
        /// Directory of FlexVolume plugins.
        volume_plugin_dir: String =
            "volumePluginDir" empty("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned());
        /// Leave attaching and detaching volumes to the controller manager.
        enable_controller_attach_detach: bool = "enableControllerAttachDetach" absent(true);
        /// Count and limit local ephemeral storage.
        local_storage_capacity_isolation: bool = "localStorageCapacityIsolation" absent(true);
    }
}
