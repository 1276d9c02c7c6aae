//! Labels and annotations on sandboxes and containers in the runtime: the memory of a node that
//! outlives its agent. Keys and formats are the kubelet's, so either agent can read the other's.

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// What the instance was started with, as JSON: krablet's own, a kubelet passes over it.
pub const CONTAINER_RESOURCES: &str = "io.krablet.container.resources";
pub const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
