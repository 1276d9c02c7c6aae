//! One sync of a pod: what the core decided, in its fixed order of work.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use krablet_core::Mono;
use krablet_core::actions::{ActionInputs, PodActions, compute_pod_actions};
use krablet_core::probe::Verdicts;
use krablet_core::start::{CRASH_LOOP_BACK_OFF, IMAGE_PULL_BACK_OFF, StartErrors};
use krablet_cri::v1;
use krablet_events::{Subject, reason};
use krablet_pod::api::{Container, Pod, PodSpec};
use krablet_pod::containers::{self, ContainerKind};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, SandboxId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::container_config::format_pod;
use crate::counters;
use crate::dns::{self, DnsWarning, ResolvConf};
use crate::error::RuntimeError;
use crate::gate::{GateHold, StartClass};
use crate::handlers::class_of;
use crate::image_volumes::ImageWait;
use crate::images::{PullPolicy, with_default_tag};
use crate::mounts::VolumeSource;
use crate::pod_runtime::PodRuntime;
use crate::resize::{Resized, Sizes};
use crate::sandbox_config::{SandboxInputs, sandbox_config};
use crate::security::is_host_network;
use crate::start::{LOG_DIR_MODE, PodStart, StartFailure, Starting, Stopped};

const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";
const DNS_CONFIG_FORMING: &str = "DNSConfigForming";

/// One pod as it should be, and as it was seen to be.
#[derive(Clone, Copy)]
pub struct SyncInputs<'a> {
    pub pod: &'a Arc<Pod>,
    pub observed: &'a ObservedPod,
    pub verdicts: &'a Verdicts,
    /// Every volume of the pod, ready.
    pub volumes: &'a [VolumeSource],
    /// The pod's cgroup, in the form the runtime's driver wants.
    pub cgroup_parent: &'a str,
    pub sizes: Sizes<'a>,
    /// Called once a new sandbox is there, with the pod's addresses: containers may follow much
    /// later, if their images have to be pulled.
    pub on_sandbox_ready: &'a (dyn Fn(&[String]) + Send + Sync),
    /// Called after containers were killed and before others take their place: how they ended can
    /// be told now, and maybe not later. Answers with what it saw.
    pub on_killed: &'a (dyn Fn() -> BoxFuture<'a, Result<Arc<ObservedPod>, String>> + Send + Sync),
    /// Ends the sync before its next call that changes something.
    pub cancel: &'a CancellationToken,
}

#[derive(Debug, Default)]
pub struct SyncOutcome {
    /// The runtime was asked to change something: an observation from before is out of date.
    pub acted: bool,
    /// Containers that should run and do not.
    pub start_errors: StartErrors,
    /// The earliest end of a back-off.
    pub retry_at: Option<Mono>,
    /// The first thing that went wrong; a back-off is not.
    pub error: Option<RuntimeError>,
    /// The pod has a sandbox that containers can run in.
    pub sandbox_ready: bool,
    /// All containers were taken down to start over: sync again at once.
    pub restart_all: bool,
    /// Given up on request; what it did not come to is left undone.
    pub cancelled: bool,
    pub resized: Resized,
    /// In the order they were.
    pub image_waits: Vec<ImageWait>,
}

impl SyncOutcome {
    pub(crate) fn fail(&mut self, error: RuntimeError) {
        self.error.get_or_insert(error);
    }

    fn not_started(&mut self, container: &str, failure: StartFailure) {
        let StartFailure { error, retry_at } = failure;
        self.retry_at = match (self.retry_at, retry_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if !matches!(error.reason, CRASH_LOOP_BACK_OFF | IMAGE_PULL_BACK_OFF) {
            self.fail(RuntimeError::StartContainer {
                container: container.to_string(),
                reason: error.reason,
                message: error.message.clone(),
            });
        }
        self.start_errors.insert(container.to_string(), error);
    }
}

/// A sandbox to start containers in.
struct ReadySandbox {
    id: SandboxId,
    config: v1::PodSandboxConfig,
    ips: Vec<String>,
}

impl PodRuntime {
    /// Brings a pod one step nearer to what it should be. May be dropped at any await: the next
    /// observation shows how far it came.
    pub async fn sync_pod(&self, inputs: SyncInputs<'_>) -> SyncOutcome {
        let mut outcome = SyncOutcome::default();
        if let Err(error) = self.sync(inputs, &mut outcome).await {
            outcome.fail(error);
        }
        outcome
    }

    async fn sync(
        &self,
        inputs: SyncInputs<'_>,
        out: &mut SyncOutcome,
    ) -> Result<(), RuntimeError> {
        let default = PodSpec::default();
        let spec = inputs.pod.spec.as_ref().unwrap_or(&default);
        let actions = compute_pod_actions(&ActionInputs {
            pod: inputs.pod,
            observed: inputs.observed,
            verdicts: inputs.verdicts,
            rules_enabled: self.inner.config.restart_rules,
            restart_all_enabled: self.inner.config.restart_all,
            actuated: inputs.sizes.actuated,
        });
        let newest_ready = inputs.observed.sandboxes.first().is_some_and(|s| s.ready);
        out.sandbox_ready = newest_ready && !actions.kill_pod;
        self.take_down(&inputs, &actions, out).await?;
        if !actions.resizes.is_empty() {
            if inputs.cancel.is_cancelled() {
                out.cancelled = true;
                return Ok(());
            }
            self.resize(&inputs, &actions, out).await;
        }
        if !actions.create_sandbox && !actions.starts_anything() {
            return Ok(());
        }
        self.see_ends(&inputs, &actions).await?;
        let mut gate = GateHold::new(self.inner.gate.clone());
        let work = starts(spec, &actions);
        let images = self.look_for_images(&work).await;
        let sandbox = self
            .ready_sandbox(&inputs, &actions, &work, &images, &mut gate, out)
            .await?;
        let Some(sandbox) = sandbox else {
            return Ok(());
        };
        let identity = gate.aside(self.pull_identity(inputs.pod)).await;
        let mut pod = PodStart {
            pod: inputs.pod,
            pod_ref: PodRef::of(inputs.pod),
            observed: inputs.observed,
            volumes: inputs.volumes,
            sandbox_id: sandbox.id,
            sandbox: sandbox.config,
            ips: sandbox.ips,
            images,
            identity,
            gate,
            acted: out.acted,
            started: Vec::new(),
            image_waits: Vec::new(),
        };
        self.start_all(&mut pod, &work, inputs.cancel, out).await;
        out.acted = pod.acted;
        out.resized.containers.extend(pod.started);
        out.image_waits = pod.image_waits;
        Ok(())
    }

    /// Images of the starts that are on the node, so that those that are come first. What cannot
    /// be told now is asked again when its turn comes.
    async fn look_for_images(&self, work: &[Start<'_>]) -> BTreeMap<String, Arc<v1::Image>> {
        let mut found = BTreeMap::new();
        for start in work {
            let name = start.container.image.as_deref().unwrap_or_default();
            let never_pulled = start.starting().pull_policy() != PullPolicy::Always;
            let Ok(full) = with_default_tag(name) else {
                continue;
            };
            if never_pulled
                && !found.contains_key(name)
                && let Ok(Some(image)) = self.inner.images.look(&full).await
            {
                found.insert(name.to_string(), Arc::new(image));
            }
        }
        found
    }

    async fn ready_sandbox(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        work: &[Start<'_>],
        images: &BTreeMap<String, Arc<v1::Image>>,
        gate: &mut GateHold,
        out: &mut SyncOutcome,
    ) -> Result<Option<ReadySandbox>, RuntimeError> {
        let pod_ref = PodRef::of(inputs.pod);
        // Hundreds may wait here: what the runtime is to be told is made when the wait is over.
        if actions.create_sandbox && !enter(gate, work, images, inputs.cancel).await {
            out.cancelled = true;
            return Ok(None);
        }
        let (config, warnings) = match self.sandbox_config(inputs, actions.attempt).await {
            Ok(config) => config,
            Err(message) => {
                if actions.create_sandbox {
                    let metrics = &self.inner.deps.metrics;
                    counters::sandbox_begun(metrics, inputs.pod);
                    counters::sandbox_failed(metrics, inputs.pod);
                    self.sandbox_failed(&pod_ref, &message);
                }
                let pod = format_pod(&pod_ref);
                return Err(RuntimeError::SandboxConfig { pod, message });
            }
        };
        if !actions.create_sandbox {
            let Some(id) = actions.sandbox_id.clone() else {
                let message = "there is no sandbox to start containers in".into();
                let pod = format_pod(&pod_ref);
                return Err(RuntimeError::SandboxConfig { pod, message });
            };
            return Ok(Some(ReadySandbox {
                id,
                config,
                ips: inputs.observed.ips().to_vec(),
            }));
        }
        self.tell_dns_warnings(&pod_ref, warnings);
        self.make_log_dir(&pod_ref, &config).await?;
        if inputs.cancel.is_cancelled() {
            out.cancelled = true;
            return Ok(None);
        }
        out.acted = true;
        let metrics = &self.inner.deps.metrics;
        counters::sandbox_begun(metrics, inputs.pod);
        let created = self.create_sandbox(inputs.pod, &pod_ref, &config).await;
        let (id, ips) = created.inspect_err(|_| counters::sandbox_failed(metrics, inputs.pod))?;
        out.sandbox_ready = true;
        (inputs.on_sandbox_ready)(&ips);
        Ok(Some(ReadySandbox { id, config, ips }))
    }

    async fn sandbox_config(
        &self,
        inputs: &SyncInputs<'_>,
        attempt: u32,
    ) -> Result<(v1::PodSandboxConfig, Vec<DnsWarning>), String> {
        let config = &self.inner.config;
        let host = match &config.dns.resolv_conf {
            Some(path) => {
                let files = &self.inner.deps.files;
                let bytes = files.read(path, dns::RESOLV_CONF_LIMIT).await;
                let bytes = bytes.map_err(|e| format!("open {}: {e}", path.display()))?;
                dns::parse_resolv_conf(&String::from_utf8_lossy(&bytes)).map_err(|e| {
                    format!("Encountered error while parsing resolv conf file. Error: {e}")
                })?
            }
            None => ResolvConf::default(),
        };
        let host_ips = config.node.host_ips.texts();
        let (dns, warnings) = dns::pod_dns(inputs.pod, &config.dns, &host_ips, &host);
        let sandbox = sandbox_config(SandboxInputs {
            pod: inputs.pod,
            attempt,
            cgroup_parent: inputs.cgroup_parent,
            dns,
            users: self.user_namespace(inputs.pod).await?,
            volume_groups: inputs.volumes.iter().filter_map(|v| v.group).collect(),
            config,
        })?;
        Ok((sandbox, warnings))
    }

    fn tell_dns_warnings(&self, pod: &PodRef, warnings: Vec<DnsWarning>) {
        let recorder = &self.inner.deps.recorder;
        let subject = Subject::Pod(pod.clone());
        for warning in warnings {
            match warning {
                DnsWarning::MissingClusterDns => {
                    let text = dns::MISSING_CLUSTER_DNS;
                    recorder.warning(Subject::Node, MISSING_CLUSTER_DNS, text);
                    let text = format!("pod: {:?}. {text}", format_pod(pod));
                    recorder.warning(subject.clone(), MISSING_CLUSTER_DNS, text);
                }
                DnsWarning::Forming(text) => {
                    recorder.warning(subject.clone(), DNS_CONFIG_FORMING, text);
                }
            }
        }
    }

    fn sandbox_failed(&self, pod: &PodRef, why: &str) {
        let text = format!("Failed to create pod sandbox: {why}");
        let recorder = &self.inner.deps.recorder;
        recorder.warning(
            Subject::Pod(pod.clone()),
            reason::FAILED_CREATE_POD_SANDBOX,
            text,
        );
    }

    async fn make_log_dir(
        &self,
        pod: &PodRef,
        config: &v1::PodSandboxConfig,
    ) -> Result<(), RuntimeError> {
        let path = std::path::PathBuf::from(&config.log_directory);
        let made = self
            .inner
            .deps
            .files
            .create_dir_all(&path, LOG_DIR_MODE)
            .await;
        made.map_err(|source| {
            self.sandbox_failed(pod, &source.to_string());
            RuntimeError::File { path, source }
        })
    }

    async fn create_sandbox(
        &self,
        pod: &Pod,
        pod_ref: &PodRef,
        config: &v1::PodSandboxConfig,
    ) -> Result<(SandboxId, Vec<String>), RuntimeError> {
        let deps = &self.inner.deps;
        let handler = deps.classes.handler(class_of(pod)).await;
        let handler = handler.map_err(|message| {
            self.sandbox_failed(pod_ref, &message);
            let pod = format_pod(pod_ref);
            RuntimeError::RuntimeClass { pod, message }
        })?;
        let handler = handler.as_str();
        let begun = Instant::now();
        let ran = deps.runtime.run_pod_sandbox(config.clone(), handler).await;
        let took = begun.elapsed();
        let metrics = &deps.metrics;
        metrics
            .run_sandbox_duration
            .observe_duration(&[handler], took);
        let id = match ran {
            Ok(id) => id,
            Err(source) => {
                metrics.run_sandbox_errors.add(&[handler], 1);
                self.sandbox_failed(pod_ref, &source.to_string());
                return Err(RuntimeError::CreateSandbox {
                    pod: format_pod(pod_ref),
                    source,
                });
            }
        };
        let status = match deps.runtime.pod_sandbox_status(&id).await {
            Ok(status) => status,
            Err(error) => {
                let text = format!("Unable to get pod sandbox status: {error}");
                let subject = Subject::Pod(pod_ref.clone());
                deps.recorder
                    .warning(subject, reason::FAILED_POD_SANDBOX_STATUS, text);
                return Err(RuntimeError::SandboxStatus(error));
            }
        };
        let ips = match is_host_network(pod) {
            true => Vec::new(),
            false => sandbox_ips(&status),
        };
        Ok((id.into(), ips))
    }

    /// Ephemeral, init, regular; a failed init container that is no sidecar ends it.
    async fn start_all(
        &self,
        pod: &mut PodStart<'_>,
        work: &[Start<'_>],
        cancel: &CancellationToken,
        out: &mut SyncOutcome,
    ) {
        for start in work {
            let failed = match self.start_container(pod, &start.starting(), cancel).await {
                Ok(()) => continue,
                Err(Stopped::Failed(failed)) => failed,
                Err(Stopped::Cancelled) => {
                    out.cancelled = true;
                    return;
                }
            };
            let name = &start.container.name;
            let why = &failed.error;
            if why.reason != CRASH_LOOP_BACK_OFF {
                counters::container_failed(&self.inner.deps.metrics, start.kind, why.reason);
            }
            tracing::info!(pod = %pod.pod_ref, podUID = %pod.pod_ref.uid, containerName = name, reason = why.reason, containerMessage = why.message, "Container start failed in pod");
            out.not_started(name, failed);
            if start.kind == ContainerKind::Init && !containers::is_sidecar(&start.container) {
                return;
            }
        }
    }
}

/// Waits for its turn at the gate. False if that was given up.
async fn enter(
    gate: &mut GateHold,
    work: &[Start<'_>],
    images: &BTreeMap<String, Arc<v1::Image>>,
    cancel: &CancellationToken,
) -> bool {
    let cached = work.iter().all(|start| {
        let name = start.container.image.as_deref().unwrap_or_default();
        images.contains_key(name)
    });
    let class = match cached {
        true => StartClass::Cached,
        false => StartClass::Uncached,
    };
    let entered = cancel.run_until_cancelled(gate.enter(class)).await;
    entered.is_some() && !cancel.is_cancelled()
}

/// A container to start.
struct Start<'a> {
    kind: ContainerKind,
    container: std::borrow::Cow<'a, Container>,
    target: Option<&'a str>,
}

impl Start<'_> {
    fn starting(&self) -> Starting<'_> {
        Starting {
            kind: self.kind,
            container: &self.container,
            target: self.target,
        }
    }
}

/// All starts of a sync, in their order.
fn starts<'a>(spec: &'a PodSpec, actions: &PodActions) -> Vec<Start<'a>> {
    use std::borrow::Cow;
    let ephemeral = containers::ephemeral_containers(spec);
    let ephemeral = actions.ephemeral_to_start.iter().filter_map(|i| {
        let e = ephemeral.get(*i)?;
        Some(Start {
            kind: ContainerKind::Ephemeral,
            container: Cow::Owned(containers::ephemeral_as_container(e)),
            target: e.target_container_name.as_deref(),
        })
    });
    let borrowed = |kind, container: &'a Container| Start {
        kind,
        container: Cow::Borrowed(container),
        target: None,
    };
    let init = containers::init_containers(spec);
    let init = actions.init_to_start.iter().filter_map(|i| init.get(*i));
    let regular = actions.regular_to_start.iter();
    let regular = regular.filter_map(|i| spec.containers.get(*i));
    ephemeral
        .chain(init.map(|c| borrowed(ContainerKind::Init, c)))
        .chain(regular.map(|c| borrowed(ContainerKind::Regular, c)))
        .collect()
}

/// Primary address first; none at all if one of them is no address.
fn sandbox_ips(status: &v1::PodSandboxStatus) -> Vec<String> {
    let Some(network) = &status.network else {
        return Vec::new();
    };
    let primary = Some(&network.ip).filter(|ip| !ip.is_empty());
    let more = network.additional_ips.iter().map(|ip| &ip.ip);
    let all: Vec<String> = primary.into_iter().chain(more).cloned().collect();
    let valid = all.iter().all(|ip| ip.parse::<IpAddr>().is_ok());
    if valid { all } else { Vec::new() }
}
