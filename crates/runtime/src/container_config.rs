//! One container instance in the runtime's words.

use krablet_cri::v1;
use krablet_pod::api::{Container, Pod};
use krablet_pod::{ContainerId, PodRef, paths};

use crate::annotations::{container_annotations, container_labels};
use crate::config::RuntimeConfig;
use crate::env::Envs;
use crate::expand::expand;
use crate::resources::container_resources;
use crate::security::{ImageUser, NodeSecurity, breaks_non_root, container_context, join_groups};

/// Everything that was found out for this instance.
pub(crate) struct ContainerInputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub restart_count: u32,
    /// As the runtime resolved it.
    pub image_ref: &'a str,
    pub user: ImageUser,
    pub envs: Envs,
    pub mounts: Vec<v1::Mount>,
    pub devices: Vec<v1::Device>,
    /// Groups that the pod's volumes ask for.
    pub volume_groups: Vec<i64>,
    /// Whose processes an ephemeral container sees.
    pub target: Option<&'a ContainerId>,
    pub config: &'a RuntimeConfig,
}

/// The error is the message of `CreateContainerConfigError`.
pub(crate) fn container_config(inputs: ContainerInputs<'_>) -> Result<v1::ContainerConfig, String> {
    let ContainerInputs {
        pod,
        container,
        restart_count,
        config,
        ..
    } = inputs;
    let pod_text = format_pod(&PodRef::of(pod));
    if let Some(why) = breaks_non_root(pod, container, &inputs.user, &pod_text) {
        return Err(why);
    }
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        let words = words.iter().flatten();
        let envs = &inputs.envs;
        words
            .map(|word| expand(word, |name| envs.text(name)))
            .collect()
    };
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: restart_count,
        }),
        image: Some(v1::ImageSpec {
            image: inputs.image_ref.to_string(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..v1::ImageSpec::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: env_values(&inputs.envs),
        mounts: inputs.mounts,
        devices: inputs.devices,
        labels: container_labels(pod, container),
        annotations: container_annotations(pod, container, restart_count),
        log_path: paths::container_log_file(&container.name, restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(in_groups(
            linux_config(pod, container, &inputs.user, inputs.target, config)?,
            &inputs.volume_groups,
        )),
        stop_signal: stop_signal(container, config.stop_signals) as i32,
        ..v1::ContainerConfig::default()
    })
}

/// A pod as messages name it: `name_namespace(uid)`.
pub(crate) fn format_pod(pod: &PodRef) -> String {
    format!("{}_{}({})", pod.name, pod.namespace, pod.uid)
}

fn env_values(envs: &Envs) -> Vec<v1::KeyValue> {
    envs.iter()
        .map(|(key, value)| v1::KeyValue {
            key: key.clone(),
            value: value.clone(),
        })
        .collect()
}

fn linux_config(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    target: Option<&ContainerId>,
    config: &RuntimeConfig,
) -> Result<v1::LinuxContainerConfig, String> {
    let seccomp_root = config.paths.root.path().join("seccomp");
    let node = NodeSecurity {
        seccomp_default: config.seccomp_default,
        seccomp_root: &seccomp_root,
        thermal_throttle: &config.node.thermal_throttle,
    };
    let mut security = container_context(pod, container, user, &node)?;
    if let (Some(id), Some(ns)) = (target, security.namespace_options.as_mut()) {
        // A pod that shares its processes anyway needs no target.
        if ns.pid == v1::NamespaceMode::Container as i32 {
            ns.pid = v1::NamespaceMode::Target as i32;
            ns.target_id = id.to_string();
        }
    }
    Ok(v1::LinuxContainerConfig {
        resources: Some(container_resources(
            pod,
            container,
            &config.resources,
            &config.node,
        )),
        security_context: Some(security),
    })
}

/// In these groups too.
fn in_groups(mut linux: v1::LinuxContainerConfig, groups: &[i64]) -> v1::LinuxContainerConfig {
    if let Some(context) = &mut linux.security_context {
        join_groups(&mut context.supplemental_groups, groups);
    }
    linux
}

fn stop_signal(container: &Container, enabled: bool) -> v1::Signal {
    let lifecycle = container.lifecycle.as_ref().filter(|_| enabled);
    let name = lifecycle.and_then(|l| l.stop_signal.as_deref());
    // `SIGRTMIN+1` of the API is `SIGRTMINPLUS1` on the wire.
    let wire = name.map(|n| n.replace('+', "PLUS").replace('-', "MINUS"));
    wire.and_then(|n| v1::Signal::from_str_name(&n))
        .unwrap_or(v1::Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use krablet_pod::api::{Lifecycle, PodSpec, SecurityContext};

    fn pod() -> Pod {
        let mut pod = Pod {
            spec: Some(PodSpec::default()),
            ..Pod::default()
        };
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod
    }

    fn build(container: &Container, config: &RuntimeConfig) -> Result<v1::ContainerConfig, String> {
        container_config(ContainerInputs {
            pod: &pod(),
            container,
            restart_count: 2,
            image_ref: "sha256:1",
            user: ImageUser::Uid(0),
            envs: Envs::from_iter([("A", "a")]),
            mounts: Vec::new(),
            devices: Vec::new(),
            volume_groups: vec![77],
            target: Some(&"target".into()),
            config,
        })
    }

    #[test]
    fn one_instance() {
        let container = Container {
            name: "c".into(),
            image: Some("img:1".into()),
            command: Some(vec!["sh".into(), "-c".into()]),
            args: Some(vec!["echo $(A) $(B) $$(A)".into()]),
            tty: Some(true),
            ..Container::default()
        };
        let got = build(&container, &config()).unwrap();
        assert_eq!(got.metadata.unwrap().attempt, 2);
        let image = got.image.unwrap();
        assert_eq!(
            (&*image.image, &*image.user_specified_image),
            ("sha256:1", "img:1")
        );
        assert_eq!(got.args, ["echo a $(B) $(A)"]);
        assert_eq!(got.log_path, "c/2.log");
        assert_eq!(got.envs[0].value, b"a");
        assert!(got.tty && !got.stdin);
        let context = got.linux.unwrap().security_context.unwrap();
        assert_eq!(context.supplemental_groups, [77]);
        let ns = context.namespace_options.unwrap();
        assert_eq!((ns.pid, &*ns.target_id), (3, "target"));
    }

    #[test]
    fn the_stop_signal_is_behind_its_gate() {
        let container = Container {
            name: "c".into(),
            lifecycle: Some(Lifecycle {
                stop_signal: Some("SIGRTMIN+3".into()),
                ..Lifecycle::default()
            }),
            ..Container::default()
        };
        assert_eq!(build(&container, &config()).unwrap().stop_signal, 0);
        let mut on = config();
        on.stop_signals = true;
        assert_eq!(
            build(&container, &on).unwrap().stop_signal,
            v1::Signal::Sigrtminplus3 as i32
        );
    }

    #[test]
    fn root_is_refused_where_the_spec_forbids_it() {
        let container = Container {
            name: "c".into(),
            security_context: Some(SecurityContext {
                run_as_non_root: Some(true),
                ..SecurityContext::default()
            }),
            ..Container::default()
        };
        assert_eq!(
            build(&container, &config()),
            Err("container has runAsNonRoot and image will run as root (pod: \"web_ns(u)\", container: c)".into())
        );
    }
}
