//! Why a container could not be started: what becomes its waiting reason.

use std::collections::BTreeMap;

pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";
pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

/// Waiting reason and message of a container that should run and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    pub reason: &'static str,
    pub message: String,
}

/// By container name.
pub type StartErrors = BTreeMap<String, StartError>;
