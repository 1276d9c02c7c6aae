//! What the agent counts, and how it is told: the table of all series ([`series`]), the values other
//! rooms are handed to count with ([`Metrics`]), and the text of a scrape ([`Page`]). Nothing here runs
//! by itself; gauges are made when somebody asks.

mod distribution;
mod docs;
pub mod exposition;
mod page;
mod process;
mod sections;
pub mod series;
mod values;

pub use distribution::Distribution;
pub use docs::render_metrics_md;
pub use page::Page;
pub use process::ProcessStats;
pub use sections::{
    CgroupMetrics, DoorMetrics, EarlierVolumes, HttpMetrics, ImageMetrics, ImageVolumeMetrics,
    Metrics, PodResourceMetrics, RequestCounts, RequestLabels, ResizeMetrics, RestMetrics,
    RuntimeMetrics, VolumeMetrics, WorkerMetrics, image_size_class,
};
pub use series::{Kind, Place, Series};
pub use values::{Counter, CounterVec, FirstDuration, GaugeVec, Histogram, HistogramVec};
