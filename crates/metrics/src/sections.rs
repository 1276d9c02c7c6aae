//! What other rooms count, a section for each. A room is handed its section and knows no other.

mod http;
mod node;

use crate::page::Page;
use crate::series;
use crate::values::{Counter, CounterVec, FirstDuration, GaugeVec, Histogram, HistogramVec};

pub use http::{HttpMetrics, RequestCounts, RequestLabels};
pub use node::{
    CgroupMetrics, DoorMetrics, EarlierVolumes, ImageVolumeMetrics, PodResourceMetrics,
    RestMetrics, VolumeMetrics,
};

/// All sections. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub workers: WorkerMetrics,
    pub runtime: RuntimeMetrics,
    pub images: ImageMetrics,
    pub cgroups: CgroupMetrics,
    pub volumes: VolumeMetrics,
    pub pod_resources: PodResourceMetrics,
    pub http: HttpMetrics,
}

impl Metrics {
    pub fn put_on(&self, page: &mut Page) {
        self.workers.put_on(page);
        self.runtime.put_on(page);
        self.images.put_on(page);
        self.cgroups.put_on(page);
        self.volumes.put_on(page);
        self.pod_resources.put_on(page);
        self.http.put_on(page);
    }
}

/// What pod workers and their loop count.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    pub containers_per_pod: Histogram,
    /// By `operation_type`.
    pub duration: HistogramVec,
    pub start_duration: Histogram,
    pub pod_start_duration: Histogram,
    pub pod_start_total_duration: Histogram,
    pub pod_start_sli_duration: Histogram,
    /// Of the first pod with a network of its own.
    pub first_network_pod_start: FirstDuration,
    /// By `container_type`, `exit_code`, `reason`.
    pub terminated_containers: CounterVec,
    /// By `static`.
    pub restarted_pods: CounterVec,
    pub orphaned_runtime_pods: Counter,
    pub door: DoorMetrics,
    pub resizes: ResizeMetrics,
}

/// What is counted of resizes.
#[derive(Clone, Debug)]
pub struct ResizeMetrics {
    /// By `operation`, `requirement`, `resource`.
    pub requested: CounterVec,
    /// By `reason_detail`.
    pub infeasible: CounterVec,
    /// By `retry_trigger`.
    pub deferred_accepted: CounterVec,
    /// By `reason`.
    pub pending: GaugeVec,
    pub in_progress: GaugeVec,
}

impl Default for ResizeMetrics {
    fn default() -> Self {
        let metrics = Self {
            requested: CounterVec::new(&series::CONTAINER_REQUESTED_RESIZES),
            infeasible: CounterVec::new(&series::POD_INFEASIBLE_RESIZES),
            deferred_accepted: CounterVec::new(&series::POD_DEFERRED_ACCEPTED_RESIZES),
            pending: GaugeVec::new(&series::POD_PENDING_RESIZES),
            in_progress: GaugeVec::new(&series::POD_IN_PROGRESS_RESIZES),
        };
        metrics.in_progress.set([(Vec::new(), 0)]);
        metrics
    }
}

impl ResizeMetrics {
    fn put_on(&self, page: &mut Page) {
        page.counters(&self.requested);
        page.counters(&self.infeasible);
        page.counters(&self.deferred_accepted);
        page.gauges(&self.pending);
        page.gauges(&self.in_progress);
    }
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        let metrics = Self {
            containers_per_pod: Histogram::new(&series::CONTAINERS_PER_POD),
            duration: HistogramVec::new(&series::POD_WORKER_DURATION),
            start_duration: Histogram::new(&series::POD_WORKER_START_DURATION),
            pod_start_duration: Histogram::new(&series::POD_START_DURATION),
            pod_start_total_duration: Histogram::new(&series::POD_START_TOTAL_DURATION),
            pod_start_sli_duration: Histogram::new(&series::POD_START_SLI_DURATION),
            first_network_pod_start: FirstDuration::new(&series::FIRST_NETWORK_POD_START),
            terminated_containers: CounterVec::new(&series::TERMINATED_CONTAINERS),
            restarted_pods: CounterVec::new(&series::RESTARTED_PODS),
            orphaned_runtime_pods: Counter::new(&series::ORPHANED_RUNTIME_PODS),
            door: DoorMetrics::default(),
            resizes: ResizeMetrics::default(),
        };
        // Both are told from the start, so that a rate can be taken of the first one.
        for is_static in ["", "true"] {
            metrics.restarted_pods.add(&[is_static], 0);
        }
        metrics
    }
}

impl WorkerMetrics {
    fn put_on(&self, page: &mut Page) {
        page.histogram(&self.containers_per_pod);
        page.histograms(&self.duration);
        page.histogram(&self.start_duration);
        page.histogram(&self.pod_start_duration);
        page.histogram(&self.pod_start_total_duration);
        page.histogram(&self.pod_start_sli_duration);
        page.first_duration(&self.first_network_pod_start);
        page.counters(&self.terminated_containers);
        page.counters(&self.restarted_pods);
        page.counter(&self.orphaned_runtime_pods);
        self.door.put_on(page);
        self.resizes.put_on(page);
    }
}

/// What the runtime room counts.
#[derive(Clone, Debug)]
pub struct RuntimeMetrics {
    /// Sandboxes asked for.
    pub started_pods: Counter,
    pub started_pods_errors: Counter,
    /// Those in a user namespace of their own.
    pub started_userns_pods: Counter,
    pub started_userns_pods_errors: Counter,
    /// By `container_type`.
    pub started_containers: CounterVec,
    /// By `code`, `container_type`.
    pub started_containers_errors: CounterVec,
    /// By `runtime_handler`.
    pub run_sandbox_duration: HistogramVec,
    /// By `runtime_handler`.
    pub run_sandbox_errors: CounterVec,
    /// By [`image_size_class`].
    pub image_pull_duration: HistogramVec,
    /// By `success`; in milliseconds.
    pub resize_duration: HistogramVec,
    /// By `present_locally`, `pull_policy`, `pull_required`.
    pub ensured_images: CounterVec,
    pub http_fallbacks: Counter,
    pub sleeps_cut_short: Counter,
    pub image_volumes: ImageVolumeMetrics,
}

impl Default for RuntimeMetrics {
    fn default() -> Self {
        Self {
            started_pods: Counter::new(&series::STARTED_PODS),
            started_pods_errors: Counter::new(&series::STARTED_PODS_ERRORS),
            started_userns_pods: Counter::new(&series::STARTED_USERNS_PODS),
            started_userns_pods_errors: Counter::new(&series::STARTED_USERNS_PODS_ERRORS),
            started_containers: CounterVec::new(&series::STARTED_CONTAINERS),
            started_containers_errors: CounterVec::new(&series::STARTED_CONTAINERS_ERRORS),
            run_sandbox_duration: HistogramVec::new(&series::RUN_PODSANDBOX_DURATION),
            run_sandbox_errors: CounterVec::new(&series::RUN_PODSANDBOX_ERRORS),
            image_pull_duration: HistogramVec::new(&series::IMAGE_PULL_DURATION),
            resize_duration: HistogramVec::new(&series::POD_RESIZE_DURATION),
            ensured_images: CounterVec::new(&series::ENSURE_IMAGE_REQUESTS),
            http_fallbacks: Counter::new(&series::LIFECYCLE_HTTP_FALLBACKS),
            sleeps_cut_short: Counter::new(&series::SLEEP_TERMINATED_EARLY),
            image_volumes: ImageVolumeMetrics::default(),
        }
    }
}

impl RuntimeMetrics {
    fn put_on(&self, page: &mut Page) {
        page.counter(&self.started_pods);
        page.counter(&self.started_pods_errors);
        page.counter(&self.started_userns_pods);
        page.counter(&self.started_userns_pods_errors);
        page.counters(&self.started_containers);
        page.counters(&self.started_containers_errors);
        page.histograms(&self.run_sandbox_duration);
        page.counters(&self.run_sandbox_errors);
        page.histograms(&self.image_pull_duration);
        page.histograms(&self.resize_duration);
        page.counters(&self.ensured_images);
        page.counter(&self.http_fallbacks);
        page.counter(&self.sleeps_cut_short);
        self.image_volumes.put_on(page);
    }
}

/// What is counted of images and of those who know credentials for them.
#[derive(Clone, Debug)]
pub struct ImageMetrics {
    /// By `reason`: `age`, `space`.
    pub garbage_collected: CounterVec,
    /// By `plugin_name`.
    pub plugin_errors: CounterVec,
    /// By `plugin_name`.
    pub plugin_duration: HistogramVec,
    /// By `hash`; one at most.
    pub provider_config: GaugeVec,
    /// By `result`.
    pub must_pull_checks: CounterVec,
    pub intents_on_disk: GaugeVec,
    pub records_on_disk: GaugeVec,
}

impl Default for ImageMetrics {
    fn default() -> Self {
        let metrics = Self {
            garbage_collected: CounterVec::new(&series::IMAGE_GARBAGE_COLLECTED),
            plugin_errors: CounterVec::new(&series::CREDENTIAL_PLUGIN_ERRORS),
            plugin_duration: HistogramVec::new(&series::CREDENTIAL_PLUGIN_DURATION),
            provider_config: GaugeVec::new(&series::CREDENTIAL_CONFIG_INFO),
            must_pull_checks: CounterVec::new(&series::MUST_PULL_CHECKS),
            intents_on_disk: GaugeVec::new(&series::PULL_INTENTS_ON_DISK),
            records_on_disk: GaugeVec::new(&series::PULLED_RECORDS_ON_DISK),
        };
        metrics.intents_on_disk.set([(Vec::new(), 0)]);
        metrics.records_on_disk.set([(Vec::new(), 0)]);
        metrics
    }
}

impl ImageMetrics {
    fn put_on(&self, page: &mut Page) {
        page.counters(&self.garbage_collected);
        page.counters(&self.plugin_errors);
        page.histograms(&self.plugin_duration);
        page.gauges(&self.provider_config);
        page.counters(&self.must_pull_checks);
        page.gauges(&self.intents_on_disk);
        page.gauges(&self.records_on_disk);
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The size an image of a class is greater than, as upstream draws the lines.
const IMAGE_SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// The `image_size_in_bytes` of an image. The runtime may not know the size, and then says 0.
pub fn image_size_class(bytes: u64) -> &'static str {
    let class = IMAGE_SIZES.iter().rev().find(|(above, _)| bytes > *above);
    class.map_or("N/A", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_sizes() {
        let cases = [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MIB, "0-10MB"),
            (10 * MIB + 1, "10MB-100MB"),
            (2 * GIB, "1GB-5GB"),
            (u64::MAX, "GT100GB"),
        ];
        for (bytes, class) in cases {
            assert_eq!(image_size_class(bytes), class);
        }
    }
}
