//! One container's way to running: back-off, image, config, create, start, postStart.

mod addresses;
mod mounting;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use krablet_core::Mono;
use krablet_core::actions::KillReason;
use krablet_core::backoff::{Backoff, restart_event, restart_message};
use krablet_core::resize;
use krablet_core::restart::{count_from_log_names, next_restart_count};
use krablet_core::start::{self, StartError};
use krablet_cri::v1;
use krablet_events::{Subject, reason};
use krablet_pod::api::{Container, Pod};
use krablet_pod::containers::ContainerKind;
use krablet_pod::observed::{ContainerState, ObservedPod};
use krablet_pod::{ActuatedContainer, ContainerId, PodRef, SandboxId, paths};
use tokio_util::sync::CancellationToken;

use crate::container_config::{ContainerInputs, container_config};
use crate::counters;
use crate::env::{EnvInputs, Sources, environment, gather};
use crate::gate::{GateHold, StartClass};
use crate::hooks::HookTarget;
use crate::image_volumes::{ImageVolumes, ImageWait};
use crate::images::{ImageRequest, PullIdentity, PullPolicy, ReadyImage};
use crate::kill::{KillCause, KillJob};
use crate::mounts::{self, VolumeSource};
use crate::pod_runtime::PodRuntime;
use crate::security::{ImageUser, is_host_network};
use crate::user_namespaces;

use addresses::family_ordered;

pub(crate) const LOG_DIR_MODE: u32 = 0o755;

/// What the starts of one sync share.
pub(crate) struct PodStart<'a> {
    pub pod: &'a Pod,
    pub pod_ref: PodRef,
    pub observed: &'a ObservedPod,
    pub volumes: &'a [VolumeSource],
    pub sandbox_id: SandboxId,
    pub sandbox: v1::PodSandboxConfig,
    pub ips: Vec<String>,
    /// Images found on the node in this sync, by the name in the spec.
    pub images: BTreeMap<String, Arc<v1::Image>>,
    pub identity: PullIdentity,
    pub gate: GateHold,
    /// The runtime was asked to change something.
    pub acted: bool,
    /// Instances that were made, with what they were given.
    pub started: Vec<(String, ActuatedContainer)>,
    pub image_waits: Vec<ImageWait>,
}

pub(crate) struct Starting<'a> {
    pub kind: ContainerKind,
    pub container: &'a Container,
    /// Whose processes an ephemeral container joins.
    pub target: Option<&'a str>,
}

/// Why it does not run.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub error: StartError,
    /// The end of its back-off, if that is why.
    pub retry_at: Option<Mono>,
}

/// Why a start did not come to its end.
#[derive(Debug)]
pub(crate) enum Stopped {
    Failed(StartFailure),
    Cancelled,
}

impl From<StartFailure> for Stopped {
    fn from(failure: StartFailure) -> Self {
        Stopped::Failed(failure)
    }
}

fn failure(reason: &'static str, message: impl Into<String>) -> StartFailure {
    StartFailure {
        error: StartError {
            reason,
            message: message.into(),
        },
        retry_at: None,
    }
}

impl Starting<'_> {
    fn subject(&self, pod: &PodRef) -> Subject {
        Subject::container(pod, self.kind, &self.container.name)
    }

    fn image(&self) -> &str {
        self.container.image.as_deref().unwrap_or_default()
    }

    pub(crate) fn pull_policy(&self) -> PullPolicy {
        PullPolicy::of(self.container.image_pull_policy.as_deref(), self.image())
    }
}

impl PodRuntime {
    /// Starts one container, or says why not. Given up between calls of the runtime, never within
    /// one, when the sync is cancelled: what is under way in the runtime comes to its end.
    pub(crate) async fn start_container(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), Stopped> {
        let prepared = cancel.run_until_cancelled(self.prepare(pod, what)).await;
        let config = prepared.ok_or(Stopped::Cancelled)??;
        if cancel.is_cancelled() {
            // It came together with the end of the preparations.
            return Err(Stopped::Cancelled);
        }
        let log_path = config.log_path.clone();
        let id = self.create_and_start(pod, what, config).await?;
        self.link_log(pod, what, &id, &log_path).await;
        let hook = cancel
            .run_until_cancelled(self.post_start(pod, what, &id))
            .await;
        Ok(hook.ok_or(Stopped::Cancelled)??)
    }

    /// Everything before the first call that changes something. The gate is left meanwhile for pulls and for what others
    /// have to tell; when this is done, it is entered.
    async fn prepare(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
    ) -> Result<v1::ContainerConfig, StartFailure> {
        self.check_back_off(pod, what)?;
        counters::container_started(&self.inner.deps.metrics, what.kind);
        let policy = what.pull_policy();
        let image = self.need_image(pod, what, what.image(), policy).await?;
        let image_volumes = self.image_volumes(pod, what).await?;
        let config = match self
            .instance_config(pod, what, &image, &image_volumes)
            .await
        {
            Ok(config) => config,
            Err(message) => {
                self.failed(pod, what, &format!("Error: {message}"));
                return Err(failure(start::CREATE_CONTAINER_CONFIG_ERROR, message));
            }
        };
        pod.gate.enter(StartClass::Cached).await;
        Ok(config)
    }

    fn failed(&self, pod: &PodStart<'_>, what: &Starting<'_>, message: &str) {
        let subject = what.subject(&pod.pod_ref);
        let recorder = &self.inner.deps.recorder;
        recorder.warning(subject, reason::FAILED, message);
    }

    fn check_back_off(&self, pod: &PodStart<'_>, what: &Starting<'_>) -> Result<(), StartFailure> {
        let name = &what.container.name;
        let mut instances = pod.observed.instances(name);
        let Some(exited) = instances.find(|c| c.state == ContainerState::Exited) else {
            return Ok(());
        };
        let uid = &pod.pod_ref.uid;
        match self.inner.check_restart(uid, what.container, exited) {
            Backoff::Start => Ok(()),
            Backoff::Wait { until, delay } => {
                let subject = what.subject(&pod.pod_ref);
                let recorder = &self.inner.deps.recorder;
                recorder.warning(subject, reason::BACK_OFF, restart_event(name, &pod.pod_ref));
                Err(StartFailure {
                    retry_at: Some(until),
                    ..failure(
                        start::CRASH_LOOP_BACK_OFF,
                        restart_message(delay, name, &pod.pod_ref),
                    )
                })
            }
        }
    }

    /// An image that the container needs. The gate is held over this only while nothing can take long.
    pub(crate) async fn ensure_image(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        image: &str,
        policy: PullPolicy,
    ) -> Result<ReadyImage, StartFailure> {
        let seen = pod.images.get(image).map(|found| &**found);
        let images = &self.inner.images;
        if seen.is_none() || policy == PullPolicy::Always || images.may_ask_around() {
            pod.gate.leave();
        }
        let request = ImageRequest {
            uid: &pod.pod_ref.uid,
            identity: &pod.identity,
            subject: what.subject(&pod.pod_ref),
            image,
            policy,
            seen,
            sandbox: &pod.sandbox,
        };
        let ready = match images.at_hand(&request).await {
            Ok(None) => {
                pod.gate.leave();
                images.bring(&request).await
            }
            Ok(Some(ready)) => Ok(ready),
            Err(failed) => Err(failed),
        };
        match ready {
            Ok(ready) => {
                if let Some(found) = &ready.image {
                    pod.images
                        .insert(image.to_string(), Arc::new(found.clone()));
                }
                Ok(ready)
            }
            Err(failed) => {
                self.failed(pod, what, &format!("Error: {}", failed.error.reason));
                Err(StartFailure {
                    error: failed.error,
                    retry_at: failed.retry_at,
                })
            }
        }
    }

    /// Everything an instance needs on the node, and its config. The error is what users read.
    async fn instance_config(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        image: &ReadyImage,
        image_volumes: &ImageVolumes,
    ) -> Result<v1::ContainerConfig, String> {
        let container = what.container;
        let restart_count = self.restart_count(pod, &container.name).await?;
        let target = self.target(pod, what)?;
        let found = match &image.image {
            Some(found) => Some(found.clone()),
            None => {
                let asked = self.inner.images.look(what.image()).await;
                asked.map_err(|e| e.message)?
            }
        };
        let config = &self.inner.config;
        let ips = family_ordered(&pod.ips, &config.node.host_ips.texts());
        let deps = &self.inner.deps;
        let sources = Sources {
            objects: &*deps.objects,
            services: &*deps.services,
            files: &*deps.files,
            volumes: pod.volumes,
        };
        let namespace = &pod.pod_ref.namespace;
        let gathered = gather(container, namespace, config.env_files, &sources);
        let gathered = pod.gate.aside(gathered).await;
        let envs = environment(&EnvInputs {
            pod: pod.pod,
            container,
            pod_ips: &ips,
            node: &config.node,
            env_files: config.env_files,
            gathered: &gathered,
        })?;
        let planned = mounts::plan(
            pod.pod,
            container,
            pod.volumes,
            &envs,
            self.mounts_recursively_read_only(pod.pod),
        )?;
        let devices = planned.devices;
        let mounts = self
            .prepare_mounts(pod, container, planned.mounts, image_volumes)
            .await?;
        let log_dir = self.container_log_dir(pod, &container.name);
        let files = &self.inner.deps.files;
        files
            .create_dir_all(&log_dir, LOG_DIR_MODE)
            .await
            .map_err(|e| {
                let name = &container.name;
                format!("create container log directory for container {name} failed: {e}")
            })?;
        let made = container_config(ContainerInputs {
            pod: pod.pod,
            container,
            restart_count,
            image_ref: &image.reference,
            user: ImageUser::of(found.as_ref()),
            envs,
            mounts,
            devices,
            volume_groups: pod.volumes.iter().filter_map(|v| v.group).collect(),
            target,
            config,
        })?;
        Ok(user_namespaces::entered(made, &pod.sandbox))
    }

    fn container_log_dir(&self, pod: &PodStart<'_>, container: &str) -> std::path::PathBuf {
        paths::pod_log_dir(&self.inner.config.paths.pod_logs, &pod.pod_ref).join(container)
    }

    /// A runtime that forgot all instances does not set the count back: the logs remember.
    async fn restart_count(&self, pod: &PodStart<'_>, container: &str) -> Result<u32, String> {
        if pod.observed.newest(container).is_some() {
            return Ok(next_restart_count(pod.observed, container, None));
        }
        let dir = self.container_log_dir(pod, container);
        let entries = match self.inner.deps.files.list(&dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Better late than with a count that falls.
            Err(e) => return Err(format!("read container log directory: {e}")),
        };
        let names = entries
            .iter()
            .filter_map(|entry| entry.path.file_name().and_then(|n| n.to_str()));
        let from_logs = Some(count_from_log_names(names));
        Ok(next_restart_count(pod.observed, container, from_logs))
    }

    fn target<'a>(
        &self,
        pod: &PodStart<'a>,
        what: &Starting<'_>,
    ) -> Result<Option<&'a ContainerId>, String> {
        let Some(name) = what.target.filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        let mut all = pod.observed.containers.iter();
        match all.find(|c| &*c.name == name) {
            Some(seen) => Ok(Some(&seen.id)),
            None => Err(format!("unable to find target container {name}")),
        }
    }

    async fn create_and_start(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        config: v1::ContainerConfig,
    ) -> Result<ContainerId, StartFailure> {
        let runtime = &self.inner.deps.runtime;
        let recorder = &self.inner.deps.recorder;
        let subject = what.subject(&pod.pod_ref);
        pod.acted = true;
        let sandbox = pod.sandbox_id.as_str();
        let images = counters::image_mounts(&config);
        let created = runtime.create_container(sandbox, config, pod.sandbox.clone());
        let created = created.await;
        let refused = created.as_ref().err().map(|e| e.message.as_str());
        let metrics = &self.inner.deps.metrics.image_volumes;
        counters::container_created(metrics, images, refused);
        let id: ContainerId = match created {
            Ok(id) => id.into(),
            Err(error) => {
                self.failed(pod, what, &format!("Error: {}", error.message));
                return Err(failure(start::CREATE_CONTAINER_ERROR, error.message));
            }
        };
        recorder.normal(subject.clone(), reason::CREATED, "Container created");
        let given = ActuatedContainer {
            id: Some(id.clone()),
            resources: resize::started_with(pod.pod, what.container),
        };
        pod.started.push((what.container.name.clone(), given));
        if let Err(error) = runtime.start_container(id.as_str()).await {
            // An id in the text would make every event a new one.
            let name = &what.container.name;
            let message = format!("Error: {}", error.message).replace(id.as_str(), name);
            self.failed(pod, what, &message);
            return Err(failure(start::RUN_CONTAINER_ERROR, error.message));
        }
        recorder.normal(subject, reason::STARTED, "Container started");
        Ok(id)
    }

    /// The link log collectors follow; none to a log that is not there.
    async fn link_log(
        &self,
        pod: &PodStart<'_>,
        what: &Starting<'_>,
        id: &ContainerId,
        log_path: &str,
    ) {
        let files = &self.inner.deps.files;
        let log = Path::new(&pod.sandbox.log_directory).join(log_path);
        match files.stat(&log).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            _ => {}
        }
        let dir = &self.inner.config.paths.container_logs;
        let link = paths::legacy_log_symlink(dir, &pod.pod_ref, &what.container.name, id);
        let mut linked = files.symlink(&log, &link).await;
        if linked
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            let made = files.create_dir_all(dir, LOG_DIR_MODE).await;
            linked = match made {
                Ok(()) => files.symlink(&log, &link).await,
                Err(error) => Err(error),
            };
        }
        if let Err(error) = linked {
            let (pod, name) = (&pod.pod_ref, what.container.name.as_str());
            tracing::error!(pod = %pod, podUID = %pod.uid, containerName = name, containerID = %id, path = %link.display(), %error, "Failed to create legacy symbolic link");
        }
    }

    async fn post_start(
        &self,
        pod: &mut PodStart<'_>,
        what: &Starting<'_>,
        id: &ContainerId,
    ) -> Result<(), StartFailure> {
        let container = what.container;
        let lifecycle = container.lifecycle.as_ref();
        let Some(handler) = lifecycle.and_then(|l| l.post_start.as_ref()) else {
            return Ok(());
        };
        pod.gate.leave();
        let host_ips = self.inner.config.node.host_ips.texts();
        let host_ip = host_ips.first().filter(|_| is_host_network(pod.pod));
        let ip = pod.ips.first().or(host_ip).cloned();
        let target = HookTarget {
            pod: &pod.pod_ref,
            container: &container.name,
            id,
            ports: container.ports.as_deref().unwrap_or_default(),
            ip: ip.as_deref(),
        };
        let Err(message) = self.inner.hooks.run(&target, handler).await else {
            return Ok(());
        };
        tracing::error!(pod = %pod.pod_ref, podUID = %pod.pod_ref.uid, containerName = container.name, error = message, "Failed to execute PostStartHook");
        let subject = what.subject(&pod.pod_ref);
        let recorder = &self.inner.deps.recorder;
        recorder.warning(
            subject,
            reason::FAILED_POST_START_HOOK,
            "PostStartHook failed",
        );
        let cause = KillCause {
            reason: KillReason::FailedPostStartHook,
            message: "FailedPostStartHook".into(),
            grace: None,
        };
        let job = KillJob::from_spec(pod.pod, what.kind, container, id.clone(), cause, ip);
        if let Err(error) = self.kill_container(job).await {
            tracing::error!(pod = %pod.pod_ref, podUID = %pod.pod_ref.uid, containerName = container.name, %error, "Failed to kill container");
        }
        Err(failure(start::POST_START_HOOK_ERROR, message))
    }
}
