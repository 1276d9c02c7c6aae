//! The calls of CRI's runtime service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, Result, RuntimeService, v1};
use krablet_pod::observed::ContainerState;
use krablet_pod::{PodUid, labels};
use tokio::time::sleep;

use super::machine::{self, KILLED, Machine};
use super::weather::CallInfo;
use super::{Shared, SimRuntime, lock};

/// A name that is given back unless what it was taken for came to be.
struct Reservation {
    shared: Arc<Shared>,
    name: String,
    used: bool,
}

impl Reservation {
    fn take(call: &'static str, shared: &Arc<Shared>, name: String) -> Result<Self> {
        let taken = lock(&shared.machine).reserve(&name);
        taken.map_err(|(code, text)| Error::new(call, code, text))?;
        Ok(Self {
            shared: shared.clone(),
            name,
            used: false,
        })
    }

    /// The name belongs to what was made.
    fn keep(mut self) {
        self.used = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.used {
            lock(&self.shared.machine).release(&self.name);
        }
    }
}

fn selected(of: &BTreeMap<String, String>, wanted: Option<&BTreeMap<String, String>>) -> bool {
    wanted.is_none_or(|wanted| wanted.iter().all(|(k, v)| of.get(k) == Some(v)))
}

fn uid(labels: &BTreeMap<String, String>) -> Option<PodUid> {
    labels.get(labels::POD_UID).map(|uid| uid.as_str().into())
}

fn named<T>(call: &'static str, answer: std::result::Result<T, (Code, String)>) -> Result<T> {
    answer.map_err(|(code, text)| Error::new(call, code, text))
}

fn no_such<T>(call: &'static str, id: &str) -> Result<T> {
    Err(Error::new(
        call,
        Code::NotFound,
        format!("{id:?}: not found"),
    ))
}

/// SIGTERM, the wait, SIGKILL.
async fn stop(shared: Arc<Shared>, id: String, grace: Duration) -> Result<()> {
    const CALL: &str = "StopContainer";
    if shared.options.weather.pretends(CALL) {
        return Ok(());
    }
    let on_term = {
        let machine = lock(&shared.machine);
        let Some(container) = machine.containers.get(&id) else {
            return no_such(CALL, &id);
        };
        match container.state {
            ContainerState::Running => container.life.on_term,
            // There is nobody to be told.
            ContainerState::Unknown => Some((Duration::ZERO, KILLED)),
            _ => return Ok(()),
        }
    };
    let wait = match on_term {
        Some((after, code)) if after <= grace => {
            // What was told to end does so, whether or not somebody still waits for it.
            shared.exit_later(&id, after, code, false);
            after
        }
        _ => grace,
    };
    sleep(wait).await;
    // Ended by now, or by force.
    tokio::task::yield_now().await;
    shared.change(|machine, wall| machine.kill(&id, wall));
    Ok(())
}

#[async_trait]
impl RuntimeService for SimRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        self.read(self.info("Version", ""), |_| {
            Ok(v1::VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "sim".into(),
                runtime_version: "1.0.0".into(),
                runtime_api_version: "v1".into(),
            })
        })
        .await
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        self.read(self.info("Status", ""), |_| {
            let ready = |kind: &str| v1::RuntimeCondition {
                r#type: kind.into(),
                status: true,
                ..Default::default()
            };
            Ok(v1::StatusResponse {
                status: Some(v1::RuntimeStatus {
                    conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
                }),
                ..Default::default()
            })
        })
        .await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        self.read(self.info("RuntimeConfig", ""), |_| {
            Ok(v1::RuntimeConfigResponse {
                linux: Some(v1::LinuxRuntimeConfiguration {
                    cgroup_driver: v1::CgroupDriver::Cgroupfs.into(),
                }),
            })
        })
        .await
    }

    async fn update_runtime_config(&self, _pod_cidr: &str) -> Result<()> {
        self.read(self.info("UpdateRuntimeConfig", ""), |_| Ok(()))
            .await
    }

    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        _runtime_handler: &str,
    ) -> Result<String> {
        const CALL: &str = "RunPodSandbox";
        let name = machine::sandbox_name(&config);
        let info = CallInfo {
            pod: uid(&config.labels),
            ..self.info(CALL, &name)
        };
        let reservation = Reservation::take(CALL, &self.shared, name)?;
        let deadline = 2 * self.shared.options.deadline;
        self.change(info, deadline, move |shared| async move {
            reservation.keep();
            let made = shared.change(|machine, wall| machine.run_sandbox(config, wall));
            Ok(made.id)
        })
        .await
    }

    async fn stop_pod_sandbox(&self, sandbox_id: &str) -> Result<()> {
        const CALL: &str = "StopPodSandbox";
        let id = sandbox_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(self.info(CALL, sandbox_id), deadline, |shared| async move {
            if shared.options.weather.pretends(CALL) {
                return Ok(());
            }
            named(CALL, shared.change(|m, wall| m.stop_sandbox(&id, wall)))
        })
        .await
    }

    async fn remove_pod_sandbox(&self, sandbox_id: &str) -> Result<()> {
        const CALL: &str = "RemovePodSandbox";
        let id = sandbox_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(self.info(CALL, sandbox_id), deadline, |shared| async move {
            named(CALL, shared.change(|m, wall| m.remove_sandbox(&id, wall)))
        })
        .await
    }

    async fn pod_sandbox_status(&self, sandbox_id: &str) -> Result<v1::PodSandboxStatus> {
        const CALL: &str = "PodSandboxStatus";
        self.read(self.info(CALL, sandbox_id), |machine| {
            match machine.sandboxes.get(sandbox_id) {
                Some(sandbox) => Ok(sandbox.status()),
                None => no_such(CALL, sandbox_id),
            }
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        let selector = filter.map(|f| f.label_selector);
        let selector = selector.as_ref();
        let info = CallInfo {
            pod: selector.and_then(uid),
            ..self.info("ListPodSandbox", "")
        };
        self.read(info, |machine| {
            let all = machine.sandboxes.values();
            let chosen = all.filter(|s| selected(&s.config.labels, selector));
            Ok(chosen.map(machine::Sandbox::listed).collect())
        })
        .await
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        const CALL: &str = "CreateContainer";
        let name = machine::container_name(&config, &sandbox_config);
        let info = CallInfo {
            pod: uid(&config.labels),
            container: config.metadata.as_ref().map(|m| m.name.clone()),
            ..self.info(CALL, sandbox_id)
        };
        let reservation = Reservation::take(CALL, &self.shared, name)?;
        let sandbox = sandbox_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(info, deadline, move |shared| async move {
            let made = shared.change(|m, wall| m.create_container(&sandbox, config, wall));
            let made = named(CALL, made)?;
            reservation.keep();
            Ok(made.id)
        })
        .await
    }

    async fn start_container(&self, container_id: &str) -> Result<()> {
        const CALL: &str = "StartContainer";
        let id = container_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(
            self.info(CALL, &id.clone()),
            deadline,
            |shared| async move {
                let weather = &shared.options.weather;
                let container = lock(&shared.machine).containers.get(&id).cloned();
                let life = container.map(|c| weather.life(&c)).unwrap_or_default();
                let started = shared.change(|m, wall| m.start_container(&id, life, wall));
                named(CALL, started)?;
                if let Some((after, code)) = life.ends {
                    shared.exit_later(&id, after, code, true);
                }
                Ok(())
            },
        )
        .await
    }

    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<()> {
        let id = container_id.to_owned();
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let deadline = grace + self.shared.options.deadline;
        let info = self.info("StopContainer", container_id);
        self.change(info, deadline, move |shared| stop(shared, id, grace))
            .await
    }

    async fn remove_container(&self, container_id: &str) -> Result<()> {
        const CALL: &str = "RemoveContainer";
        let id = container_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(
            self.info(CALL, &id.clone()),
            deadline,
            |shared| async move {
                let container = lock(&shared.machine).containers.get(&id).cloned();
                if container.is_some_and(|c| shared.options.weather.keeps(&c)) {
                    return Ok(());
                }
                named(CALL, shared.change(|m, wall| m.remove_container(&id, wall)))
            },
        )
        .await
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>> {
        let selector = filter.map(|f| f.label_selector);
        let selector = selector.as_ref();
        let info = CallInfo {
            pod: selector.and_then(uid),
            ..self.info("ListContainers", "")
        };
        let weather = self.shared.options.weather.clone();
        self.read(info, |machine| {
            let all = machine.containers.values();
            let chosen = all.filter(|c| selected(&c.config.labels, selector));
            let mut listed = chosen.map(machine::Instance::listed).collect();
            weather.show_list(machine, &mut listed);
            Ok(listed)
        })
        .await
    }

    async fn container_status(&self, container_id: &str) -> Result<v1::ContainerStatus> {
        const CALL: &str = "ContainerStatus";
        let weather = self.shared.options.weather.clone();
        self.read(self.info(CALL, container_id), |machine| {
            match machine.containers.get(container_id) {
                Some(container) => {
                    let mut status = container.status();
                    weather.show_status(&mut status);
                    Ok(status)
                }
                None => no_such(CALL, container_id),
            }
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        const CALL: &str = "UpdateContainerResources";
        let info = self.info(CALL, &request.container_id);
        let deadline = self.shared.options.deadline;
        let number = lock(&self.shared.machine).number();
        self.change(info, deadline, move |shared| async move {
            if shared.options.weather.pretends(CALL) {
                return Ok(());
            }
            let (id, linux) = (request.container_id, request.linux);
            let update = |m: &mut Machine, _: i64| m.update_container(&id, number, linux);
            named(CALL, shared.change(update))
        })
        .await
    }

    async fn reopen_container_log(&self, container_id: &str) -> Result<()> {
        const CALL: &str = "ReopenContainerLog";
        let info = self.info(CALL, container_id);
        let id = container_id.to_owned();
        let deadline = self.shared.options.deadline;
        self.change(info, deadline, |shared| async move {
            let machine = lock(&shared.machine);
            match machine.containers.get(&id) {
                Some(c) if c.is_running() => match &shared.options.files {
                    Some(files) => files
                        .append(std::path::Path::new(&c.log_path), b"")
                        .map_err(|e| Error::new(CALL, Code::Unknown, e.to_string())),
                    None => Ok(()),
                },
                _ => no_such(CALL, &id),
            }
        })
        .await
    }

    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        _timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        const CALL: &str = "ExecSync";
        let weather = self.shared.options.weather.clone();
        self.read(self.info(CALL, container_id), |machine| {
            match machine.containers.get(container_id) {
                Some(c) if c.is_running() => Ok(v1::ExecSyncResponse {
                    exit_code: weather.exec(c, &command),
                    ..Default::default()
                }),
                _ => no_such(CALL, container_id),
            }
        })
        .await
    }

    async fn container_events(&self) -> Result<EventStream> {
        self.read(self.info("GetContainerEvents", ""), |_| Ok(()))
            .await?;
        Ok(lock(&self.shared.subscribers).subscribe())
    }
}
