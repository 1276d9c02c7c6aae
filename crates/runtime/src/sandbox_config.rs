//! A pod's sandbox in the runtime's words.

use std::collections::{BTreeMap, BTreeSet};

use krablet_cri::v1;
use krablet_pod::api::{Container, Pod};
use krablet_pod::{PodRef, paths};

use crate::annotations::{sandbox_annotations, sandbox_labels};
use crate::config::RuntimeConfig;
use crate::hostname::{kernel_hostname, pod_hostname};
use crate::resources::{overhead, sandbox_resources};
use crate::security::{is_host_network, join_groups, sandbox_context};

/// What the spec alone does not tell.
pub(crate) struct SandboxInputs<'a> {
    pub pod: &'a Pod,
    pub attempt: u32,
    pub cgroup_parent: &'a str,
    pub dns: v1::DnsConfig,
    /// The pod's own users; none for those of the node.
    pub users: Option<v1::UserNamespace>,
    /// Groups that the pod's volumes ask for.
    pub volume_groups: Vec<i64>,
    pub config: &'a RuntimeConfig,
}

pub(crate) fn sandbox_config(inputs: SandboxInputs<'_>) -> Result<v1::PodSandboxConfig, String> {
    let SandboxInputs { pod, config, .. } = inputs;
    let reference = PodRef::of(pod);
    // A pod on the node's network has the node's name, which the runtime knows.
    let hostname = match is_host_network(pod) {
        true => String::new(),
        false => {
            let name = pod_hostname(pod, &config.dns)?;
            kernel_hostname(pod, &name)?
        }
    };
    let mut security_context = sandbox_context(pod)?;
    join_groups(
        &mut security_context.supplemental_groups,
        &inputs.volume_groups,
    );
    if let Some(options) = &mut security_context.namespace_options {
        options.userns_options = inputs.users;
    }
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let log_directory = paths::pod_log_dir(&config.paths.pod_logs, &reference);
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: reference.name.to_string(),
            uid: reference.uid.to_string(),
            namespace: reference.namespace.to_string(),
            attempt: inputs.attempt,
        }),
        hostname,
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(inputs.dns),
        port_mappings: containers.flat_map(port_mappings).collect(),
        labels: sandbox_labels(pod),
        annotations: sandbox_annotations(pod),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_parent.to_string(),
            security_context: Some(security_context),
            sysctls: sysctls(pod),
            overhead: Some(overhead(pod, &config.resources, &config.node)),
            resources: Some(sandbox_resources(pod, &config.resources, &config.node)),
        }),
    })
}

/// Ports of one container; a name or a combination given again counts once.
fn port_mappings(container: &Container) -> Vec<v1::PortMapping> {
    let mut seen = BTreeSet::new();
    let ports = container.ports.iter().flatten();
    ports
        .filter(|p| {
            let name = p.name.clone().filter(|n| !n.is_empty());
            seen.insert(match name {
                Some(name) => (name, 0, 0, None, None),
                None => (
                    String::new(),
                    p.container_port,
                    p.host_port.unwrap_or(0),
                    p.protocol.clone(),
                    p.host_ip.clone(),
                ),
            })
        })
        .map(|p| v1::PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp as i32,
                Some("SCTP") => v1::Protocol::Sctp as i32,
                _ => v1::Protocol::Tcp as i32,
            },
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: p.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

/// The runtime knows sysctls with dots alone.
fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let list = context.and_then(|c| c.sysctls.as_ref());
    list.into_iter()
        .flatten()
        .map(|s| (dotted(&s.name), s.value.clone()))
        .collect()
}

/// `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`: the first separator tells which form it is.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            })
            .collect(),
        _ => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use krablet_pod::api::{ContainerPort, PodSecurityContext, PodSpec, Sysctl};

    fn pod(spec: PodSpec) -> Pod {
        let mut pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod
    }

    fn build(pod: &Pod) -> v1::PodSandboxConfig {
        sandbox_config(SandboxInputs {
            pod,
            attempt: 3,
            cgroup_parent: "/kubepods/podu",
            dns: v1::DnsConfig::default(),
            users: None,
            volume_groups: vec![77, 8],
            config: &config(),
        })
        .unwrap()
    }

    #[test]
    fn identity_and_places() {
        let got = build(&pod(PodSpec::default()));
        let metadata = got.metadata.unwrap();
        assert_eq!((metadata.name.as_str(), metadata.attempt), ("web", 3));
        assert_eq!(got.log_directory, "/logs/pods/ns_web_u");
        assert_eq!(got.hostname, "web");
        let linux = got.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/podu");
        assert_eq!(linux.resources.unwrap().cpu_shares, 2);
    }

    #[test]
    fn a_host_network_pod_has_no_hostname_of_its_own() {
        let got = build(&pod(PodSpec {
            host_network: Some(true),
            ..PodSpec::default()
        }));
        assert_eq!(got.hostname, "");
    }

    #[test]
    fn groups_of_volumes_count_once() {
        let got = build(&pod(PodSpec {
            security_context: Some(PodSecurityContext {
                fs_group: Some(7),
                supplemental_groups: Some(vec![8]),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }));
        let context = got.linux.unwrap().security_context.unwrap();
        assert_eq!(context.supplemental_groups, [7, 8, 77]);
    }

    #[test]
    fn ports_count_once() {
        let port = |name: &str, container_port, host_port| ContainerPort {
            name: Some(name.to_string()).filter(|n| !n.is_empty()),
            container_port,
            host_port,
            protocol: Some("UDP".into()),
            ..ContainerPort::default()
        };
        let container = Container {
            ports: Some(vec![
                port("dns", 53, Some(53)),
                port("dns", 54, None),
                port("", 80, None),
                port("", 80, None),
                port("", 80, Some(8080)),
            ]),
            ..Container::default()
        };
        let got = build(&pod(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }));
        let ports: Vec<_> = got
            .port_mappings
            .iter()
            .map(|p| (p.container_port, p.host_port, p.protocol))
            .collect();
        assert_eq!(ports, [(53, 53, 1), (80, 0, 1), (80, 8080, 1)]);
    }

    #[test]
    fn sysctls_have_dots() {
        let sysctl = |name: &str| Sysctl {
            name: name.into(),
            value: "1".into(),
        };
        let got = build(&pod(PodSpec {
            security_context: Some(PodSecurityContext {
                sysctls: Some(vec![
                    sysctl("net.ipv4.ip_forward"),
                    sysctl("net/ipv4/conf/eth0.1/rp_filter"),
                ]),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }));
        let names: Vec<_> = got.linux.unwrap().sysctls.into_keys().collect();
        assert_eq!(
            names,
            ["net.ipv4.conf.eth0/1.rp_filter", "net.ipv4.ip_forward"]
        );
    }
}
