//! Event reasons as people and scripts know them.

// Containers.
pub const CREATED: &str = "Created";
pub const STARTED: &str = "Started";
pub const FAILED: &str = "Failed";
pub const KILLING: &str = "Killing";
pub const BACK_OFF: &str = "BackOff";
pub const EXCEEDED_GRACE_PERIOD: &str = "ExceededGracePeriod";

// Pods.
pub const FAILED_KILL_POD: &str = "FailedKillPod";
pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
pub const HOST_IPS_IP_FAMILY_MISMATCH: &str = "HostIPsIPFamilyMismatch";
pub const FAILED_SYNC: &str = "FailedSync";
pub const FAILED_VALIDATION: &str = "FailedValidation";
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
pub const FAILED_TO_MAKE_POD_DATA_DIRECTORIES: &str = "FailedToMakePodDataDirectories";
pub const LIFECYCLE_HTTP_FALLBACK: &str = "LifecycleHTTPFallback";
pub const FAILED_MOUNT: &str = "FailedMount";
pub const FAILED_MAP_VOLUME: &str = "FailedMapVolume";
pub const ALREADY_MOUNTED_VOLUME: &str = "AlreadyMountedVolume";
pub const VOLUME_PERMISSION_CHANGE_IN_PROGRESS: &str = "VolumePermissionChangeInProgress";

// Persistent volumes.
pub const FAILED_MOUNT_ON_FILESYSTEM_MISMATCH: &str = "FailedMountOnFilesystemMismatch";

// Images.
pub const PULLING: &str = "Pulling";
pub const PULLED: &str = "Pulled";
pub const INSPECT_FAILED: &str = "InspectFailed";
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
pub const FAILED_TO_RETRIEVE_PULL_SECRET: &str = "FailedToRetrieveImagePullSecret";

// Probes and hooks.
pub const UNHEALTHY: &str = "Unhealthy";
pub const PROBE_WARNING: &str = "ProbeWarning";
pub const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
pub const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";

// Sandboxes.
pub const SANDBOX_CHANGED: &str = "SandboxChanged";
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
pub const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";

// Node.
pub const STARTING: &str = "Starting";
pub const CGROUP_V1: &str = "CgroupV1";
pub const POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK: &str = "PossibleMemoryBackedVolumesOnDisk";
pub const CONTAINER_GC_FAILED: &str = "ContainerGCFailed";
pub const IMAGE_GC_FAILED: &str = "ImageGCFailed";
pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
