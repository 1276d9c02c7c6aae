//! Security contexts and namespaces of sandboxes and containers.

use std::path::Path;

use krablet_core::admission::app_armor_profile;
use krablet_cri::v1;
use krablet_cri::v1::security_profile::ProfileType;
use krablet_pod::api::{
    AppArmorProfile, Capabilities, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions,
    SeccompProfile, SecurityContext,
};
use krablet_pod::containers;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Whom an image runs as when the spec does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    Uid(i64),
    Name(String),
}

impl ImageUser {
    /// An image that says nothing runs as root.
    pub(crate) fn of(image: Option<&v1::Image>) -> Self {
        match image {
            Some(v1::Image { uid: Some(uid), .. }) => ImageUser::Uid(uid.value),
            Some(image) if !image.username.is_empty() => ImageUser::Name(image.username.clone()),
            _ => ImageUser::Uid(0),
        }
    }
}

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    spec(pod)?.security_context.as_ref()
}

pub(crate) fn is_host_network(pod: &Pod) -> bool {
    spec(pod).and_then(|s| s.host_network).unwrap_or(false)
}

/// Which namespaces the pod shares, and with whom.
pub(crate) fn namespaces(pod: &Pod) -> v1::NamespaceOption {
    let set = |flag: Option<bool>| flag.unwrap_or(false);
    let s = spec(pod);
    let host = |on: bool, otherwise: v1::NamespaceMode| match on {
        true => v1::NamespaceMode::Node as i32,
        false => otherwise as i32,
    };
    let shared = set(s.and_then(|s| s.share_process_namespace));
    let pid = match shared {
        true => v1::NamespaceMode::Pod,
        false => v1::NamespaceMode::Container,
    };
    v1::NamespaceOption {
        network: host(is_host_network(pod), v1::NamespaceMode::Pod),
        ipc: host(set(s.and_then(|s| s.host_ipc)), v1::NamespaceMode::Pod),
        pid: host(set(s.and_then(|s| s.host_pid)), pid),
        ..v1::NamespaceOption::default()
    }
}

/// The container's security context over the pod's.
pub(crate) fn effective(pod: &Pod, container: &Container) -> SecurityContext {
    let own = container.security_context.clone().unwrap_or_default();
    let Some(pod) = pod_context(pod) else {
        return own;
    };
    SecurityContext {
        se_linux_options: own.se_linux_options.or(pod.se_linux_options.clone()),
        run_as_user: own.run_as_user.or(pod.run_as_user),
        run_as_group: own.run_as_group.or(pod.run_as_group),
        run_as_non_root: own.run_as_non_root.or(pod.run_as_non_root),
        ..own
    }
}

/// `None`: may run.
pub(crate) fn breaks_non_root(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    pod_text: &str,
) -> Option<String> {
    let context = effective(pod, container);
    if context.run_as_non_root != Some(true) {
        return None;
    }
    let whose = format!("(pod: {pod_text:?}, container: {})", container.name);
    match (context.run_as_user, user) {
        (Some(0), _) => Some(format!(
            "container's runAsUser breaks non-root policy {whose}"
        )),
        (Some(_), _) => None,
        (None, ImageUser::Name(name)) => Some(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {whose}"
        )),
        (None, ImageUser::Uid(0)) => Some(format!(
            "container has runAsNonRoot and image will run as root {whose}"
        )),
        (None, ImageUser::Uid(uid)) if !(1..=i64::from(i32::MAX)).contains(uid) => Some(format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({})): must be between 0 and {}, inclusive {whose}",
            i32::MAX,
            i32::MAX
        )),
        (None, ImageUser::Uid(_)) => None,
    }
}

/// What the node adds to a container's security context.
pub(crate) struct NodeSecurity<'a> {
    pub seccomp_default: bool,
    /// Where local seccomp profiles lie.
    pub seccomp_root: &'a Path,
    /// More paths to mask.
    pub thermal_throttle: &'a [String],
}

pub(crate) fn container_context(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    node: &NodeSecurity<'_>,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let context = effective(pod, container);
    let own = container.security_context.as_ref();
    let of_pod = pod_context(pod);
    let seccomp = own
        .and_then(|c| c.seccomp_profile.as_ref())
        .or(of_pod.and_then(|c| c.seccomp_profile.as_ref()));
    let apparmor = own.and_then(|c| c.app_armor_profile.as_ref());
    let (apparmor, apparmor_profile) = match app_armor_profile(pod, &container.name, apparmor) {
        Some(profile) => {
            let (profile, old_form) = app_armor(&profile)?;
            (Some(profile), old_form)
        }
        None => (None, String::new()),
    };
    let (masked_paths, readonly_paths) = proc_paths(&context, node.thermal_throttle);
    let mut result = v1::LinuxContainerSecurityContext {
        capabilities: context.capabilities.as_ref().map(capabilities),
        privileged: context.privileged.unwrap_or(false),
        namespace_options: Some(namespaces(pod)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(int64),
        run_as_group: context.run_as_group.map(int64),
        readonly_rootfs: context.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(of_pod),
        supplemental_groups_policy: groups_policy(of_pod)?,
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp_profile(seccomp, node)?),
        apparmor,
        apparmor_profile,
        ..v1::LinuxContainerSecurityContext::default()
    };
    if result.run_as_user.is_none() {
        match user {
            ImageUser::Uid(uid) => result.run_as_user = Some(int64(*uid)),
            ImageUser::Name(name) => result.run_as_username = name.clone(),
        }
    }
    Ok(result)
}

pub(crate) fn sandbox_context(pod: &Pod) -> Result<v1::LinuxSandboxSecurityContext, String> {
    let privileged = |c: &Container| {
        let context = c.security_context.as_ref();
        context.and_then(|c| c.privileged).unwrap_or(false)
    };
    let context = pod_context(pod);
    Ok(v1::LinuxSandboxSecurityContext {
        privileged: spec(pod).is_some_and(|s| containers::all(s).any(|c| privileged(c.container))),
        // Whatever the containers ask for, the pause process needs no more than the default.
        seccomp: Some(profile(ProfileType::RuntimeDefault)),
        run_as_user: context.and_then(|c| c.run_as_user).map(int64),
        run_as_group: context.and_then(|c| c.run_as_group).map(int64),
        namespace_options: Some(namespaces(pod)),
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context)?,
        selinux_options: context
            .and_then(|c| c.se_linux_options.as_ref())
            .map(selinux),
        ..v1::LinuxSandboxSecurityContext::default()
    })
}

fn int64(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

fn groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(context) = context else {
        return Vec::new();
    };
    let more = context.supplemental_groups.iter().flatten().copied();
    context.fs_group.into_iter().chain(more).collect()
}

/// Each group counts once.
pub(crate) fn join_groups(groups: &mut Vec<i64>, more: &[i64]) {
    for group in more {
        if !groups.contains(group) {
            groups.push(*group);
        }
    }
}

fn groups_policy(context: Option<&PodSecurityContext>) -> Result<i32, String> {
    let policy = context.and_then(|c| c.supplemental_groups_policy.as_deref());
    match policy {
        None | Some("Merge") => Ok(v1::SupplementalGroupsPolicy::Merge as i32),
        Some("Strict") => Ok(v1::SupplementalGroupsPolicy::Strict as i32),
        Some(other) => Err(format!("unsupported supplementalGroupsPolicy: {other}")),
    }
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

fn capabilities(c: &Capabilities) -> v1::Capability {
    v1::Capability {
        add_capabilities: c.add.clone().unwrap_or_default(),
        drop_capabilities: c.drop.clone().unwrap_or_default(),
        ..v1::Capability::default()
    }
}

/// Masked and read-only paths; none of either for an unmasked `/proc`.
fn proc_paths(context: &SecurityContext, more: &[String]) -> (Vec<String>, Vec<String>) {
    if context.proc_mount.as_deref() == Some("Unmasked") {
        return (Vec::new(), Vec::new());
    }
    let masked = MASKED_PATHS.map(String::from).into_iter();
    (
        masked.chain(more.iter().cloned()).collect(),
        READ_ONLY_PATHS.map(String::from).to_vec(),
    )
}

fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: String::new(),
    }
}

fn seccomp_profile(
    wanted: Option<&SeccompProfile>,
    node: &NodeSecurity<'_>,
) -> Result<v1::SecurityProfile, String> {
    let Some(wanted) = wanted else {
        return Ok(profile(match node.seccomp_default {
            true => ProfileType::RuntimeDefault,
            false => ProfileType::Unconfined,
        }));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Localhost" => match wanted.localhost_profile.as_deref() {
            None | Some("") => {
                Err("localhostProfile must be set if seccompProfile type is Localhost.".into())
            }
            Some(file) => Ok(v1::SecurityProfile {
                profile_type: ProfileType::Localhost as i32,
                localhost_ref: node.seccomp_root.join(file).to_string_lossy().into_owned(),
            }),
        },
        _ => Ok(profile(ProfileType::Unconfined)),
    }
}

/// The profile, and its form for runtimes that read the old field.
fn app_armor(wanted: &AppArmorProfile) -> Result<(v1::SecurityProfile, String), String> {
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok((
            profile(ProfileType::RuntimeDefault),
            "runtime/default".into(),
        )),
        "Unconfined" => Ok((profile(ProfileType::Unconfined), "unconfined".into())),
        "Localhost" => match wanted.localhost_profile.as_deref() {
            None => Err("missing localhost apparmor profile name".into()),
            Some(name) => Ok((
                v1::SecurityProfile {
                    profile_type: ProfileType::Localhost as i32,
                    localhost_ref: name.into(),
                },
                format!("localhost/{name}"),
            )),
        },
        other => Err(format!("unknown apparmor profile type: {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeSecurity<'static> {
        NodeSecurity {
            seccomp_default: false,
            seccomp_root: Path::new("/root/seccomp"),
            thermal_throttle: &[],
        }
    }

    fn pod(context: Option<PodSecurityContext>) -> Pod {
        Pod {
            spec: Some(PodSpec {
                security_context: context,
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn container(context: SecurityContext) -> Container {
        Container {
            name: "c".into(),
            security_context: Some(context),
            ..Container::default()
        }
    }

    #[test]
    fn the_container_wins_over_the_pod() {
        let p = pod(Some(PodSecurityContext {
            run_as_user: Some(1000),
            run_as_group: Some(2000),
            fs_group: Some(7),
            supplemental_groups: Some(vec![8, 9]),
            supplemental_groups_policy: Some("Strict".into()),
            ..PodSecurityContext::default()
        }));
        let c = container(SecurityContext {
            run_as_user: Some(5),
            privileged: Some(true),
            read_only_root_filesystem: Some(true),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                add: Some(vec!["NET_ADMIN".into()]),
                drop: Some(vec!["ALL".into()]),
            }),
            ..SecurityContext::default()
        });
        let got = container_context(&p, &c, &ImageUser::Uid(0), &node()).unwrap();
        assert_eq!(got.run_as_user.map(|v| v.value), Some(5));
        assert_eq!(got.run_as_group.map(|v| v.value), Some(2000));
        assert_eq!(got.supplemental_groups, [7, 8, 9]);
        assert_eq!(got.supplemental_groups_policy, 1);
        assert!(got.privileged && got.readonly_rootfs && got.no_new_privs);
        assert_eq!(got.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert_eq!(
            got.seccomp.unwrap().profile_type,
            ProfileType::Unconfined as i32
        );
        assert_eq!(got.masked_paths.len(), 12);
        assert_eq!(got.readonly_paths.len(), 5);
    }

    #[test]
    fn defaults_come_from_the_image_and_the_node() {
        let c = container(SecurityContext {
            proc_mount: Some("Unmasked".into()),
            ..SecurityContext::default()
        });
        let strict = NodeSecurity {
            seccomp_default: true,
            ..node()
        };
        let got = container_context(&pod(None), &c, &ImageUser::Name("app".into()), &strict);
        let got = got.unwrap();
        assert_eq!(
            (got.run_as_user, got.run_as_username.as_str()),
            (None, "app")
        );
        assert_eq!(
            got.seccomp.unwrap().profile_type,
            ProfileType::RuntimeDefault as i32
        );
        assert!(got.masked_paths.is_empty() && got.readonly_paths.is_empty());
    }

    #[test]
    fn local_profiles() {
        let local = |file: Option<&str>| SeccompProfile {
            type_: "Localhost".into(),
            localhost_profile: file.map(String::from),
        };
        let got = seccomp_profile(Some(&local(Some("a/b.json"))), &node()).unwrap();
        assert_eq!(got.localhost_ref, "/root/seccomp/a/b.json");
        assert!(seccomp_profile(Some(&local(None)), &node()).is_err());
        let armor = AppArmorProfile {
            type_: "Localhost".into(),
            localhost_profile: Some("p".into()),
        };
        assert_eq!(app_armor(&armor).unwrap().1, "localhost/p");
    }

    #[test]
    fn app_armor_of_the_container_its_annotation_and_the_pod() {
        let armor = |type_: &str| {
            Some(AppArmorProfile {
                type_: type_.into(),
                localhost_profile: None,
            })
        };
        let found = |own: Option<AppArmorProfile>, noted: Option<&str>| {
            let mut p = pod(Some(PodSecurityContext {
                app_armor_profile: armor("Unconfined"),
                ..PodSecurityContext::default()
            }));
            let key = "container.apparmor.security.beta.kubernetes.io/c";
            let notes = noted.map(|value| [(key.to_owned(), value.to_owned())].into());
            p.metadata.annotations = notes;
            let c = container(SecurityContext {
                app_armor_profile: own,
                ..SecurityContext::default()
            });
            let got = container_context(&p, &c, &ImageUser::Uid(0), &node()).unwrap();
            got.apparmor_profile
        };
        assert_eq!(found(None, None), "unconfined");
        assert_eq!(found(None, Some("localhost/p")), "localhost/p");
        assert_eq!(
            found(armor("RuntimeDefault"), Some("localhost/p")),
            "runtime/default"
        );
    }

    #[test]
    fn labels_of_selinux_are_passed_on() {
        let labels = |level: &str| SELinuxOptions {
            user: Some("u".into()),
            role: Some("r".into()),
            type_: Some("t".into()),
            level: Some(level.into()),
        };
        let p = pod(Some(PodSecurityContext {
            se_linux_options: Some(labels("s0")),
            ..PodSecurityContext::default()
        }));
        let show = |o: Option<v1::SeLinuxOption>| {
            let o = o.unwrap();
            [o.user, o.role, o.r#type, o.level].join(":")
        };
        let of = |own: Option<SELinuxOptions>| {
            let c = container(SecurityContext {
                se_linux_options: own,
                ..SecurityContext::default()
            });
            let got = container_context(&p, &c, &ImageUser::Uid(0), &node()).unwrap();
            show(got.selinux_options)
        };
        assert_eq!(
            show(sandbox_context(&p).unwrap().selinux_options),
            "u:r:t:s0"
        );
        assert_eq!(of(None), "u:r:t:s0");
        assert_eq!(of(Some(labels("s1"))), "u:r:t:s1");
    }

    #[test]
    fn non_root_is_kept() {
        let wants = |user: Option<i64>| {
            container(SecurityContext {
                run_as_non_root: Some(true),
                run_as_user: user,
                ..SecurityContext::default()
            })
        };
        let root = ImageUser::Uid(0);
        let cases = [
            (wants(Some(0)), root.clone(), Some("runAsUser breaks")),
            (wants(Some(7)), root.clone(), None),
            (wants(None), root.clone(), Some("image will run as root")),
            (wants(None), ImageUser::Uid(7), None),
            (
                wants(None),
                ImageUser::Name("app".into()),
                Some("non-numeric user (app)"),
            ),
            (container(SecurityContext::default()), root, None),
        ];
        for (c, user, expected) in cases {
            let got = breaks_non_root(&pod(None), &c, &user, "web_ns(u)");
            match expected {
                None => assert_eq!(got, None),
                Some(part) => assert!(got.as_ref().is_some_and(|m| m.contains(part)), "{got:?}"),
            }
        }
    }

    #[test]
    fn namespaces_follow_the_spec() {
        let show = |spec: PodSpec| {
            let pod = Pod {
                spec: Some(spec),
                ..Pod::default()
            };
            let n = namespaces(&pod);
            (n.network, n.pid, n.ipc)
        };
        assert_eq!(show(PodSpec::default()), (0, 1, 0));
        let shared = PodSpec {
            share_process_namespace: Some(true),
            ..PodSpec::default()
        };
        assert_eq!(show(shared), (0, 0, 0));
        let host = PodSpec {
            host_network: Some(true),
            host_pid: Some(true),
            host_ipc: Some(true),
            ..PodSpec::default()
        };
        assert_eq!(show(host), (2, 2, 2));
    }

    #[test]
    fn a_sandbox_is_privileged_if_a_container_is() {
        let mut p = pod(Some(PodSecurityContext::default()));
        assert!(!sandbox_context(&p).unwrap().privileged);
        p.spec.as_mut().unwrap().containers = vec![container(SecurityContext {
            privileged: Some(true),
            ..SecurityContext::default()
        })];
        assert!(sandbox_context(&p).unwrap().privileged);
    }
}
