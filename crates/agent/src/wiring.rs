//! The agent's parts, each built from what it is configured with and what it reaches of the world.

use std::sync::Arc;

use krablet_core::gc::GcPolicy;
use krablet_images::PullRecords;
use krablet_metrics::Metrics;
use krablet_observer::{Observer, ObserverConfig, ObserverDeps, ObserverHandle};
use krablet_probes::{Probes, ProbesConfig, ProbesDeps, ProbesHandle};
use krablet_runtime::gc::{ContainerGc, GcSettings};
use krablet_runtime::images::gc::{ImageGc, ImageGcDeps};
use krablet_runtime::rotation::{Bells, LogRotation, RotationConfig, RotationDeps};
use krablet_runtime::{ClassTeller, Paths, PodRuntime, RuntimeClasses, RuntimeConfig, RuntimeDeps};
use krablet_volumes::{Volumes, VolumesConfig, VolumesDeps};
use tokio::sync::Notify;

use crate::AgentDeps;
use crate::cluster::Cluster;
use crate::counted_cgroups::CountedCgroups;
use crate::mono::MonoClock;
use crate::pod_set::DesiredPods;
use crate::projections::{ProjectionTasks, Projections};
use crate::steps::cgroups::PodCgroups;

pub(crate) fn observer(
    config: ObserverConfig,
    deps: &AgentDeps,
    seed: u64,
) -> (Observer, ObserverHandle) {
    let deps = ObserverDeps {
        runtime: deps.runtime.clone(),
        files: deps.files.clone(),
        clock: deps.clock.clone(),
        seed,
    };
    krablet_observer::build(config, deps)
}

pub(crate) fn probes(deps: &AgentDeps, seed: u64) -> (Probes, ProbesHandle) {
    let clock = deps.clock.clone();
    let deps = ProbesDeps {
        runtime: deps.runtime.clone(),
        net: deps.net.clone(),
        recorder: deps.recorder.clone(),
        clock: Arc::new(move || clock.now()),
        seed,
    };
    krablet_probes::build(ProbesConfig::default(), deps)
}

pub(crate) fn volumes(
    config: VolumesConfig,
    deps: &AgentDeps,
    metrics: &Metrics,
    seed: u64,
) -> (Arc<Volumes>, ProjectionTasks) {
    let cluster = deps.cluster.as_ref();
    let projections = cluster.map(|c| Projections::of(c, &deps.clock, seed));
    let Projections {
        certificates,
        trust_bundles,
        tasks,
    } = projections.unwrap_or_default();
    let deps = VolumesDeps {
        files: deps.files.clone(),
        trees: deps.trees.clone(),
        mounts: deps.mounts.clone(),
        tools: deps.tools.clone(),
        clock: deps.clock.clone(),
        objects: deps.referents.objects.clone(),
        cluster: cluster.map(Cluster::volume_objects),
        tokens: cluster.map(|c| c.tokens(&deps.clock, seed)),
        certificates,
        trust_bundles,
        node: deps.door.node.clone(),
        metrics: metrics.volumes.clone(),
    };
    (Arc::new(Volumes::new(config, deps)), tasks)
}

pub(crate) fn container_gc(policy: GcPolicy, paths: &Paths, deps: &AgentDeps) -> ContainerGc {
    let settings = GcSettings {
        policy,
        pod_logs: paths.pod_logs.clone(),
        container_logs: paths.container_logs.clone(),
    };
    let (runtime, files) = (deps.runtime.clone(), deps.files.clone());
    ContainerGc::new(settings, runtime, files, deps.clock.clone())
}

/// `started` is rung when containers were started.
pub(crate) fn rotation(
    config: RotationConfig,
    deps: &AgentDeps,
    views: ObserverHandle,
    started: Arc<Notify>,
) -> LogRotation {
    let bells = Bells {
        writes: deps.files.first_writes(),
        pods: started,
    };
    let deps = RotationDeps {
        runtime: deps.runtime.clone(),
        files: deps.files.clone(),
        clock: deps.clock.clone(),
        pods: Arc::new(move || views.all()),
    };
    LogRotation::new(config, deps, bells)
}

/// Who may have which image, if that is to be known.
pub(crate) fn pull_records(
    config: &RuntimeConfig,
    deps: &AgentDeps,
    metrics: &Metrics,
) -> Option<Arc<PullRecords>> {
    let policy = config.images.verification.clone()?;
    let (files, clock) = (deps.files.clone(), deps.clock.clone());
    let root = config.paths.root.path();
    let records = PullRecords::new(policy, root, files, clock);
    Some(Arc::new(records.counting(metrics.images.clone())))
}

pub(crate) fn image_gc(
    config: &RuntimeConfig,
    deps: &AgentDeps,
    metrics: &Metrics,
    records: Option<Arc<PullRecords>>,
    desired: DesiredPods,
) -> ImageGc {
    let deps = ImageGcDeps {
        runtime: deps.runtime.clone(),
        images: deps.images.clone(),
        space: deps.image_deps.space.clone(),
        recorder: deps.recorder.clone(),
        clock: deps.clock.clone(),
        metrics: metrics.images.clone(),
        records,
        mounted: Arc::new(move || desired.image_volumes()),
    };
    ImageGc::new(config.images.gc, deps)
}

pub(crate) fn pod_cgroups(
    config: &RuntimeConfig,
    deps: &AgentDeps,
    metrics: &Metrics,
) -> PodCgroups {
    let counted = CountedCgroups::over(deps.cgroups.clone(), metrics.cgroups.clone());
    let resources = &config.resources;
    PodCgroups::new(
        Arc::new(counted),
        resources.pod_rules(),
        resources.class_rules(),
    )
}

pub(crate) fn runtime(
    config: RuntimeConfig,
    deps: &AgentDeps,
    metrics: &Metrics,
    pull_records: Option<Arc<PullRecords>>,
    classes: &ClassTeller,
    mono: MonoClock,
) -> PodRuntime {
    let deps = RuntimeDeps {
        runtime: deps.runtime.clone(),
        images: deps.images.clone(),
        files: deps.files.clone(),
        mounts: deps.mounts.clone(),
        net: deps.net.clone(),
        recorder: deps.recorder.clone(),
        clock: deps.clock.clone(),
        objects: deps.referents.objects.clone(),
        services: deps.referents.services.clone(),
        keychain: deps.image_deps.keychain.clone(),
        pull_records,
        classes: match deps.cluster {
            Some(_) => classes.listener(),
            None => RuntimeClasses::Ignored,
        },
        metrics: metrics.runtime.clone(),
        epoch: mono.epoch(),
    };
    PodRuntime::build(config, deps)
}
