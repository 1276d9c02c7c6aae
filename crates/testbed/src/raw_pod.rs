//! A pod made by CRI calls alone: the floor the agent is measured against, and something for a bed
//! to hold when no agent is there.

use std::path::PathBuf;

use anyhow::Result;
use krablet_cri::RuntimeService;
use krablet_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxPodSandboxConfig, PodSandboxConfig,
    PodSandboxMetadata, PortMapping,
};

use crate::{Bed, images};

/// A sandbox with one running container of the tool image.
#[derive(Clone, Debug)]
pub struct RawPod {
    pub name: String,
    pub sandbox: String,
    pub container: String,
}

impl RawPod {
    /// Runs `/tool` with these arguments in a pod of its own.
    pub async fn run(
        bed: &Bed,
        runtime: &impl RuntimeService,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        Self::run_with_ports(bed, runtime, name, arguments, &[]).await
    }

    /// The same with host ports: `(port on the machine, port of the container)`.
    pub async fn run_with_ports(
        bed: &Bed,
        runtime: &impl RuntimeService,
        name: &str,
        arguments: &[&str],
        ports: &[(u16, u16)],
    ) -> Result<Self> {
        let sandbox_config = sandbox_config(bed, name, ports);
        let sandbox = runtime.run_pod_sandbox(sandbox_config.clone(), "").await?;
        let container_config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: images::TOOL.to_owned(),
                ..ImageSpec::default()
            }),
            args: arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect(),
            log_path: "main.log".to_owned(),
            ..ContainerConfig::default()
        };
        let container = runtime
            .create_container(&sandbox, container_config, sandbox_config)
            .await?;
        runtime.start_container(&container).await?;
        Ok(Self {
            name: name.to_owned(),
            sandbox,
            container,
        })
    }

    /// Stops and removes it, its container without a grace period.
    pub async fn remove(&self, runtime: &impl RuntimeService) -> Result<()> {
        runtime.stop_container(&self.container, 0).await?;
        runtime.stop_pod_sandbox(&self.sandbox).await?;
        runtime.remove_container(&self.container).await?;
        Ok(runtime.remove_pod_sandbox(&self.sandbox).await?)
    }

    /// The pod's address.
    pub async fn ip(&self, runtime: &impl RuntimeService) -> Result<String> {
        let status = runtime.pod_sandbox_status(&self.sandbox).await?;
        Ok(status.network.unwrap_or_default().ip)
    }

    /// Where the runtime writes the container's log.
    pub fn log(&self, bed: &Bed) -> PathBuf {
        log_directory(bed, &self.name).join("main.log")
    }
}

fn log_directory(bed: &Bed, name: &str) -> PathBuf {
    bed.dir().join("raw-logs").join(name)
}

fn sandbox_config(bed: &Bed, name: &str, ports: &[(u16, u16)]) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: log_directory(bed, name).display().to_string(),
        port_mappings: ports
            .iter()
            .map(|(host, container)| PortMapping {
                host_port: i32::from(*host),
                container_port: i32::from(*container),
                ..PortMapping::default()
            })
            .collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/pod-{name}", bed.cgroup_parent()),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}
