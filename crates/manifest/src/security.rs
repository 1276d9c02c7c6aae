//! Security contexts of pods and containers, sysctls, user namespaces.

use std::collections::BTreeSet;

use krablet_pod::api::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use crate::names;
use crate::problem::{Path, Report, list, on};
use crate::volumes::descending;

/// Longest file name the kernel takes, without its closing zero.
const PROFILE_MAX: usize = 4095;
/// Sysctls of the IPC namespace that no prefix covers.
const IPC_SYSCTLS: [&str; 10] = [
    "kernel.msg",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shm",
    "kernel.shm_rmid_forced",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
];

pub(crate) fn pod(report: &mut Report, path: &Path, spec: &PodSpec) {
    let Some(context) = &spec.security_context else {
        return;
    };
    let path = path.child("securityContext");
    for (field, id) in [
        ("fsGroup", context.fs_group),
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
    ] {
        if let Some(id) = id {
            report.invalid_each(&path.child(field), &id, names::user_or_group_id(id));
        }
    }
    for (i, id) in list(&context.supplemental_groups).iter().enumerate() {
        let path = path.child("supplementalGroups").index(i);
        report.invalid_each(&path, id, names::user_or_group_id(*id));
    }
    if on(spec.share_process_namespace) && on(spec.host_pid) {
        report.invalid(
            &path.child("shareProcessNamespace"),
            &true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(report, &path.child("sysctls"), context, spec);
    for (field, value, words) in [
        (
            "fsGroupChangePolicy",
            &context.fs_group_change_policy,
            ["Always", "OnRootMismatch"],
        ),
        (
            "supplementalGroupsPolicy",
            &context.supplemental_groups_policy,
            ["Merge", "Strict"],
        ),
        (
            "seLinuxChangePolicy",
            &context.se_linux_change_policy,
            ["MountOption", "Recursive"],
        ),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !words.contains(value)) {
            report.unsupported(&path.child(field), value, &words);
        }
    }
    seccomp(
        report,
        &path.child("seccompProfile"),
        context.seccomp_profile.as_ref(),
    );
    apparmor(
        report,
        &path.child("appArmorProfile"),
        context.app_armor_profile.as_ref(),
    );
}

fn sysctls(report: &mut Report, path: &Path, context: &PodSecurityContext, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in list(&context.sysctls).iter().enumerate() {
        let path = path.index(i).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            report.required(&path, "");
        } else if !names::is_sysctl(name) {
            let detail = format!(
                "must have at most {} characters and be dot- or slash-separated names of [-_a-z0-9]",
                names::SYSCTL_MAX
            );
            report.invalid(&path, name, detail);
        } else if !seen.insert(name) {
            report.duplicate(&path, name);
        }
        let dotted = name.replace('/', ".");
        let ipc = IPC_SYSCTLS.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.");
        if on(spec.host_network) && dotted.starts_with("net.") {
            report.invalid(
                &path,
                name,
                "may not be specified when 'hostNetwork' is true",
            );
        } else if on(spec.host_ipc) && ipc {
            report.invalid(&path, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn seccomp(report: &mut Report, path: &Path, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    let local = profile.localhost_profile.as_deref();
    match profile.type_.as_str() {
        "" => report.required(
            &path.child("type"),
            "type is required when seccompProfile is set",
        ),
        "Localhost" => match local {
            None => report.required(
                &path.child("localhostProfile"),
                "must be set when seccomp type is Localhost",
            ),
            Some(file) => descending(report, &path.child("localhostProfile"), file),
        },
        "RuntimeDefault" | "Unconfined" => {}
        other => report.unsupported(
            &path.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
    if let (Some(file), true) = (local, profile.type_ != "Localhost") {
        report.invalid(
            &path.child("localhostProfile"),
            file,
            "can only be set when seccomp type is Localhost",
        );
    }
}

fn apparmor(report: &mut Report, path: &Path, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    let local_path = path.child("localhostProfile");
    let local = profile.localhost_profile.as_deref();
    match profile.type_.as_str() {
        "" => report.required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        ),
        "Localhost" => match local {
            None | Some("") => {
                report.required(&local_path, "must be set when AppArmor type is Localhost")
            }
            Some(name) if name.trim() != name => {
                report.invalid(&local_path, name, "must not be padded with whitespace");
            }
            Some(name) if name.len() > PROFILE_MAX => report.too_long(&local_path, PROFILE_MAX),
            Some(_) => {}
        },
        "RuntimeDefault" | "Unconfined" => {
            if let Some(name) = local {
                report.invalid(
                    &local_path,
                    name,
                    "can only be set when AppArmor type is Localhost",
                );
            }
        }
        other => report.unsupported(
            &path.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
}

pub(crate) fn container(
    report: &mut Report,
    path: &Path,
    context: &SecurityContext,
    host_users: bool,
) {
    for (field, id) in [
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
    ] {
        if let Some(id) = id {
            report.invalid_each(&path.child(field), &id, names::user_or_group_id(id));
        }
    }
    if let Some(mount) = context.proc_mount.as_deref() {
        let path = path.child("procMount");
        if !matches!(mount, "Default" | "Unmasked") {
            report.unsupported(&path, mount, &["Default", "Unmasked"]);
        }
        if host_users && mount == "Unmasked" {
            report.invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(
        report,
        &path.child("seccompProfile"),
        context.seccomp_profile.as_ref(),
    );
    apparmor(
        report,
        &path.child("appArmorProfile"),
        context.app_armor_profile.as_ref(),
    );
    if context.allow_privilege_escalation == Some(false) {
        let path = path.child("allowPrivilegeEscalation");
        if on(context.privileged) {
            report.invalid(
                &path,
                &false,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = context
            .capabilities
            .as_ref()
            .map(|capabilities| list(&capabilities.add));
        if added.is_some_and(|added| added.iter().any(|name| name == "CAP_SYS_ADMIN")) {
            report.invalid(
                &path,
                &false,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

/// A pod with users of its own may not share the host's other namespaces.
pub(crate) fn host_users(report: &mut Report, path: &Path, spec: &PodSpec) {
    if spec.host_users.unwrap_or(true) {
        return;
    }
    for (field, shared) in [
        ("hostNetwork", spec.host_network),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
    ] {
        if on(shared) {
            report.forbidden(&path.child(field), "when `hostUsers` is false");
        }
    }
    for (path, container) in crate::containers::all(path, spec) {
        if !list(&container.volume_devices).is_empty() {
            report.forbidden(&path.child("volumeDevices"), "when `hostUsers` is false");
        }
    }
}

/// The operating system a pod says it is for, and what that rules out.
pub(crate) fn os(report: &mut Report, path: &Path, spec: &PodSpec) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => report.required(&path.child("os").child("name"), ""),
        "windows" => {}
        "linux" => {
            let detail = "windows options cannot be set for a linux pod";
            let pod = spec.security_context.as_ref();
            if pod.is_some_and(|context| context.windows_options.is_some()) {
                report.forbidden(
                    &path.child("securityContext").child("windowsOptions"),
                    detail,
                );
            }
            for (path, container) in crate::containers::all(path, spec) {
                let context = container.security_context.as_ref();
                if context.is_some_and(|context| context.windows_options.is_some()) {
                    report.forbidden(
                        &path.child("securityContext").child("windowsOptions"),
                        detail,
                    );
                }
            }
        }
        other => report.unsupported(&path.child("os"), other, &["linux", "windows"]),
    }
}
