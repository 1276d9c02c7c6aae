//! What is counted of the node itself and of its ways to others: its door, its cgroups, its volumes, the services it
//! offers, its calls to the API server.

use crate::page::Page;
use crate::series;
use crate::values::{Counter, CounterVec, GaugeVec, HistogramVec};

/// What is counted at the door: of those who are not let in, and of those who are sent out.
#[derive(Clone, Debug)]
pub struct DoorMetrics {
    /// By `reason`.
    pub rejections: CounterVec,
    /// By `preemption_signal`.
    pub preemptions: CounterVec,
    /// By `eviction_signal`.
    pub evictions: CounterVec,
}

impl Default for DoorMetrics {
    fn default() -> Self {
        Self {
            rejections: CounterVec::new(&series::ADMISSION_REJECTIONS),
            preemptions: CounterVec::new(&series::PREEMPTIONS),
            evictions: CounterVec::new(&series::EVICTIONS),
        }
    }
}

impl DoorMetrics {
    pub(super) fn put_on(&self, page: &mut Page) {
        page.counters(&self.rejections);
        page.counters(&self.preemptions);
        page.counters(&self.evictions);
    }
}

/// What is counted of cgroups.
#[derive(Clone, Debug)]
pub struct CgroupMetrics {
    /// By `operation_type`: `create`, `update`, `destroy`.
    pub duration: HistogramVec,
}

impl Default for CgroupMetrics {
    fn default() -> Self {
        Self {
            duration: HistogramVec::new(&series::CGROUP_MANAGER_DURATION),
        }
    }
}

impl CgroupMetrics {
    pub(super) fn put_on(&self, page: &mut Page) {
        page.histograms(&self.duration);
    }
}

/// What is counted of volumes and of pods' directories.
#[derive(Clone, Debug)]
pub struct VolumeMetrics {
    /// By `migrated`, `operation_name`, `status`, `volume_plugin`.
    pub operations: HistogramVec,
    /// By `operation_name`, `plugin_name`.
    pub totals: HistogramVec,
    /// By `metric_source`: `du`, `statfs`.
    pub measured: HistogramVec,
    pub earlier: EarlierVolumes,
    /// Of the last sweep.
    pub orphans: GaugeVec,
    /// Of the last sweep.
    pub orphan_errors: GaugeVec,
}

impl Default for VolumeMetrics {
    fn default() -> Self {
        let metrics = Self {
            operations: HistogramVec::new(&series::STORAGE_OPERATIONS),
            totals: HistogramVec::new(&series::VOLUME_OPERATION_TOTAL),
            measured: HistogramVec::new(&series::VOLUME_COLLECTION_DURATION),
            earlier: EarlierVolumes::default(),
            orphans: GaugeVec::new(&series::ORPHAN_VOLUMES_CLEANED),
            orphan_errors: GaugeVec::new(&series::ORPHAN_VOLUMES_ERRORS),
        };
        metrics.swept(0, 0);
        metrics
    }
}

impl VolumeMetrics {
    /// A sweep found so many directories of pods that are gone, and could not remove so many of them.
    pub fn swept(&self, found: u64, failed: u64) {
        self.orphans.set([(Vec::new(), found)]);
        self.orphan_errors.set([(Vec::new(), failed)]);
    }

    pub(super) fn put_on(&self, page: &mut Page) {
        page.histograms(&self.operations);
        page.histograms(&self.totals);
        page.histograms(&self.measured);
        self.earlier.put_on(page);
        page.gauges(&self.orphans);
        page.gauges(&self.orphan_errors);
    }
}

/// What is counted of volumes that an earlier life of the agent, or a kubelet, has left.
#[derive(Clone, Debug)]
pub struct EarlierVolumes {
    pub found: Counter,
    /// Of those, the ones that no record tells of.
    pub unknown: Counter,
    /// Of those, the ones that were taken away, or were to be.
    pub cleaned: Counter,
    pub clean_errors: Counter,
}

impl Default for EarlierVolumes {
    fn default() -> Self {
        Self {
            found: Counter::new(&series::VOLUMES_RECONSTRUCTED),
            unknown: Counter::new(&series::VOLUMES_RECONSTRUCTED_ERRORS),
            cleaned: Counter::new(&series::VOLUMES_FORCE_CLEANED),
            clean_errors: Counter::new(&series::VOLUMES_FORCE_CLEANED_ERRORS),
        }
    }
}

impl EarlierVolumes {
    fn put_on(&self, page: &mut Page) {
        page.counter(&self.found);
        page.counter(&self.unknown);
        page.counter(&self.cleaned);
        page.counter(&self.clean_errors);
    }
}

/// What the pod resources service counts, each by `server_api_version`.
#[derive(Clone, Debug)]
pub struct PodResourceMetrics {
    pub requests: CounterVec,
    pub list: CounterVec,
    pub get: CounterVec,
    pub get_errors: CounterVec,
    pub allocatable: CounterVec,
}

impl Default for PodResourceMetrics {
    fn default() -> Self {
        Self {
            requests: CounterVec::new(&series::POD_RESOURCES_REQUESTS),
            list: CounterVec::new(&series::POD_RESOURCES_LIST),
            get: CounterVec::new(&series::POD_RESOURCES_GET),
            get_errors: CounterVec::new(&series::POD_RESOURCES_GET_ERRORS),
            allocatable: CounterVec::new(&series::POD_RESOURCES_ALLOCATABLE),
        }
    }
}

impl PodResourceMetrics {
    pub(super) fn put_on(&self, page: &mut Page) {
        page.counters(&self.requests);
        page.counters(&self.list);
        page.counters(&self.get);
        page.counters(&self.get_errors);
        page.counters(&self.allocatable);
    }
}

/// What is counted of images that containers see as volumes.
#[derive(Clone, Debug)]
pub struct ImageVolumeMetrics {
    pub requested: Counter,
    pub mounted: Counter,
    pub errors: Counter,
}

impl Default for ImageVolumeMetrics {
    fn default() -> Self {
        Self {
            requested: Counter::new(&series::IMAGE_VOLUME_REQUESTED),
            mounted: Counter::new(&series::IMAGE_VOLUME_MOUNTED),
            errors: Counter::new(&series::IMAGE_VOLUME_ERRORS),
        }
    }
}

impl ImageVolumeMetrics {
    pub(super) fn put_on(&self, page: &mut Page) {
        page.counter(&self.requested);
        page.counter(&self.mounted);
        page.counter(&self.errors);
    }
}

/// What is counted of calls to the API server. Made before the agent, and so no section of [`super::Metrics`].
#[derive(Clone, Debug)]
pub struct RestMetrics {
    /// By `code`, `host`, `method`.
    pub requests: CounterVec,
    /// By `code`, `host`, `verb`.
    pub retries: CounterVec,
    /// By `host`, `verb`.
    pub duration: HistogramVec,
    /// By `host`, `verb`.
    pub turn: HistogramVec,
    /// By `host`, `verb`.
    pub request_size: HistogramVec,
    /// By `host`, `verb`.
    pub response_size: HistogramVec,
}

impl Default for RestMetrics {
    fn default() -> Self {
        Self {
            requests: CounterVec::new(&series::REST_REQUESTS),
            retries: CounterVec::new(&series::REST_RETRIES),
            duration: HistogramVec::new(&series::REST_DURATION),
            turn: HistogramVec::new(&series::REST_TURN_DURATION),
            request_size: HistogramVec::new(&series::REST_REQUEST_SIZE),
            response_size: HistogramVec::new(&series::REST_RESPONSE_SIZE),
        }
    }
}

impl RestMetrics {
    pub fn put_on(&self, page: &mut Page) {
        page.counters(&self.requests);
        page.counters(&self.retries);
        page.histograms(&self.duration);
        page.histograms(&self.turn);
        page.histograms(&self.request_size);
        page.histograms(&self.response_size);
    }
}
