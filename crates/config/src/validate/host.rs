//! Rules that depend on the machine, apart from the others so that those stay pure.

use super::Checks;
use crate::problem::Problem;
use crate::types::KubeletConfiguration;

/// Ids are handed to user namespaces in blocks of this size.
const ID_BLOCK: i64 = 65536;

/// What the rules need to know about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Whether cgroup v2 is mounted alone at /sys/fs/cgroup.
    pub cgroup_v2: bool,
}

/// Every problem of the configuration on this machine.
#[must_use]
pub fn validate_host(config: &KubeletConfiguration, host: HostFacts) -> Vec<Problem> {
    let mut checks = Checks::default();
    let cgroups = &config.cgroups;
    if !host.cgroup_v2 {
        checks.require(!cgroups.fail_cgroup_v1, "failCgroupV1", || {
            "this host uses cgroup v1; set it to false to run here nevertheless".to_owned()
        });
        checks.require(
            cgroups.single_process_oom_kill != Some(false),
            "singleProcessOOMKill",
            || "must not be false on cgroup v1".to_owned(),
        );
    }
    checks.found
}

/// User namespace sizes, the same on every Linux machine.
pub(super) fn check_user_namespaces(config: &KubeletConfiguration, checks: &mut Checks) {
    const FIELD: &str = "userNamespaces.idsPerPod";
    let ids = config
        .runtime
        .user_namespaces
        .as_ref()
        .and_then(|u| u.ids_per_pod);
    let Some(ids) = ids else {
        return;
    };
    checks.between(FIELD, ids, ID_BLOCK, u32::MAX.into());
    checks.require(ids % ID_BLOCK == 0, FIELD, || {
        format!("{ids} must be a multiple of {ID_BLOCK}")
    });
}
