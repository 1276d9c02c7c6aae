//! Names, types and helps of `/metrics/cadvisor`, which scrapers know from cAdvisor.

use crate::text::{Metric, counter, gauge};

pub static CPU_USER: Metric = counter(
    "container_cpu_user_seconds_total",
    "Cumulative user cpu time consumed in seconds.",
);
pub static CPU_SYSTEM: Metric = counter(
    "container_cpu_system_seconds_total",
    "Cumulative system cpu time consumed in seconds.",
);
pub static CPU_USAGE: Metric = counter(
    "container_cpu_usage_seconds_total",
    "Cumulative cpu time consumed in seconds.",
);
pub static CFS_PERIODS: Metric = counter(
    "container_cpu_cfs_periods_total",
    "Number of elapsed enforcement period intervals.",
);
pub static CFS_THROTTLED_PERIODS: Metric = counter(
    "container_cpu_cfs_throttled_periods_total",
    "Number of throttled period intervals.",
);
pub static CFS_THROTTLED_SECONDS: Metric = counter(
    "container_cpu_cfs_throttled_seconds_total",
    "Total time duration the container has been throttled.",
);
pub static MEMORY_CACHE: Metric = gauge(
    "container_memory_cache",
    "Number of bytes of page cache memory.",
);
pub static MEMORY_RSS: Metric = gauge("container_memory_rss", "Size of RSS in bytes.");
pub static MEMORY_KERNEL: Metric = gauge(
    "container_memory_kernel_usage",
    "Size of kernel memory allocated in bytes.",
);
pub static MEMORY_MAPPED_FILE: Metric = gauge(
    "container_memory_mapped_file",
    "Size of memory mapped files in bytes.",
);
pub static MEMORY_SWAP: Metric = gauge("container_memory_swap", "Container swap usage in bytes.");
pub static MEMORY_FAILCNT: Metric = counter(
    "container_memory_failcnt",
    "Number of memory usage hits limits",
);
pub static MEMORY_USAGE: Metric = gauge(
    "container_memory_usage_bytes",
    "Current memory usage in bytes, including all memory regardless of when it was accessed",
);
pub static MEMORY_MAX_USAGE: Metric = gauge(
    "container_memory_max_usage_bytes",
    "Maximum memory usage recorded in bytes",
);
pub static MEMORY_WORKING_SET: Metric = gauge(
    "container_memory_working_set_bytes",
    "Current working set in bytes.",
);
pub static MEMORY_ACTIVE_FILE: Metric = gauge(
    "container_memory_total_active_file_bytes",
    "Current total active file in bytes.",
);
pub static MEMORY_INACTIVE_FILE: Metric = gauge(
    "container_memory_total_inactive_file_bytes",
    "Current total inactive file in bytes.",
);
pub static MEMORY_FAILURES: Metric = counter(
    "container_memory_failures_total",
    "Cumulative count of memory allocation failures.",
);
pub static OOM_EVENTS: Metric = counter(
    "container_oom_events_total",
    "Count of out of memory events observed for the container",
);
pub static FS_INODES_FREE: Metric = gauge("container_fs_inodes_free", "Number of available Inodes");
pub static FS_INODES_TOTAL: Metric = gauge("container_fs_inodes_total", "Number of Inodes");
pub static FS_LIMIT: Metric = gauge(
    "container_fs_limit_bytes",
    "Number of bytes that can be consumed by the container on this filesystem.",
);
pub static FS_USAGE: Metric = gauge(
    "container_fs_usage_bytes",
    "Number of bytes that are consumed by the container on this filesystem.",
);
pub static FS_READS_BYTES: Metric = counter(
    "container_fs_reads_bytes_total",
    "Cumulative count of bytes read",
);
pub static FS_READS: Metric = counter(
    "container_fs_reads_total",
    "Cumulative count of reads completed",
);
pub static FS_WRITES_BYTES: Metric = counter(
    "container_fs_writes_bytes_total",
    "Cumulative count of bytes written",
);
pub static FS_WRITES: Metric = counter(
    "container_fs_writes_total",
    "Cumulative count of writes completed",
);
pub static FS_IO_COST_USAGE: Metric = counter(
    "container_fs_io_cost_usage_seconds_total",
    "Cumulative IOCost usage in seconds",
);
pub static FS_IO_COST_WAIT: Metric = counter(
    "container_fs_io_cost_wait_seconds_total",
    "Cumulative IOCost wait in seconds",
);
pub static FS_IO_COST_IN_DEBT: Metric = counter(
    "container_fs_io_cost_indebt_seconds_total",
    "Cumulative IOCost debt in seconds",
);
pub static FS_IO_COST_IN_DELAY: Metric = counter(
    "container_fs_io_cost_indelay_seconds_total",
    "Cumulative IOCost delay in seconds",
);
pub static BLKIO: Metric = counter(
    "container_blkio_device_usage_total",
    "Blkio Device bytes usage",
);
pub static RX_BYTES: Metric = counter(
    "container_network_receive_bytes_total",
    "Cumulative count of bytes received",
);
pub static RX_PACKETS: Metric = counter(
    "container_network_receive_packets_total",
    "Cumulative count of packets received",
);
pub static RX_DROPPED: Metric = counter(
    "container_network_receive_packets_dropped_total",
    "Cumulative count of packets dropped while receiving",
);
pub static RX_ERRORS: Metric = counter(
    "container_network_receive_errors_total",
    "Cumulative count of errors encountered while receiving",
);
pub static TX_BYTES: Metric = counter(
    "container_network_transmit_bytes_total",
    "Cumulative count of bytes transmitted",
);
pub static TX_PACKETS: Metric = counter(
    "container_network_transmit_packets_total",
    "Cumulative count of packets transmitted",
);
pub static TX_DROPPED: Metric = counter(
    "container_network_transmit_packets_dropped_total",
    "Cumulative count of packets dropped while transmitting",
);
pub static TX_ERRORS: Metric = counter(
    "container_network_transmit_errors_total",
    "Cumulative count of errors encountered while transmitting",
);
pub static PROCESSES: Metric = gauge(
    "container_processes",
    "Number of processes running inside the container.",
);
pub static FILE_DESCRIPTORS: Metric = gauge(
    "container_file_descriptors",
    "Number of open file descriptors for the container.",
);
pub static SOCKETS: Metric = gauge(
    "container_sockets",
    "Number of open sockets for the container.",
);
pub static THREADS_MAX: Metric = gauge(
    "container_threads_max",
    "Maximum number of threads allowed inside the container, infinity if value is zero",
);
pub static THREADS: Metric = gauge(
    "container_threads",
    "Number of threads running inside the container",
);
pub static ULIMITS: Metric = gauge(
    "container_ulimits_soft",
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
);
pub static LAST_SEEN: Metric = gauge(
    "container_last_seen",
    "Last time a container was seen by the exporter",
);
pub static START_TIME: Metric = gauge(
    "container_start_time_seconds",
    "Start time of the container since unix epoch in seconds.",
);
pub static SPEC_CPU_PERIOD: Metric =
    gauge("container_spec_cpu_period", "CPU period of the container.");
pub static SPEC_CPU_QUOTA: Metric =
    gauge("container_spec_cpu_quota", "CPU quota of the container.");
pub static SPEC_CPU_SHARES: Metric =
    gauge("container_spec_cpu_shares", "CPU share of the container.");
pub static SPEC_MEMORY_LIMIT: Metric = gauge(
    "container_spec_memory_limit_bytes",
    "Memory limit for the container.",
);
pub static SPEC_MEMORY_SWAP_LIMIT: Metric = gauge(
    "container_spec_memory_swap_limit_bytes",
    "Memory swap limit for the container.",
);
pub static SPEC_MEMORY_RESERVATION: Metric = gauge(
    "container_spec_memory_reservation_limit_bytes",
    "Memory reservation limit for the container.",
);
pub static PRESSURE_CPU_STALLED: Metric = counter(
    "container_pressure_cpu_stalled_seconds_total",
    "Total time duration no tasks in the container could make progress due to CPU congestion.",
);
pub static PRESSURE_CPU_WAITING: Metric = counter(
    "container_pressure_cpu_waiting_seconds_total",
    "Total time duration tasks in the container have waited due to CPU congestion.",
);
pub static PRESSURE_MEMORY_STALLED: Metric = counter(
    "container_pressure_memory_stalled_seconds_total",
    "Total time duration no tasks in the container could make progress due to memory congestion.",
);
pub static PRESSURE_MEMORY_WAITING: Metric = counter(
    "container_pressure_memory_waiting_seconds_total",
    "Total time duration tasks in the container have waited due to memory congestion.",
);
pub static PRESSURE_IO_STALLED: Metric = counter(
    "container_pressure_io_stalled_seconds_total",
    "Total time duration no tasks in the container could make progress due to IO congestion.",
);
pub static PRESSURE_IO_WAITING: Metric = counter(
    "container_pressure_io_waiting_seconds_total",
    "Total time duration tasks in the container have waited due to IO congestion.",
);
pub static SCRAPE_ERROR: Metric = gauge(
    "container_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);
pub static MACHINE_SCRAPE_ERROR: Metric = gauge(
    "machine_scrape_error",
    "1 if there was an error while getting machine metrics, 0 otherwise.",
);
pub static MACHINE_CORES: Metric = gauge("machine_cpu_cores", "Number of logical CPU cores.");
pub static MACHINE_PHYSICAL_CORES: Metric = gauge(
    "machine_cpu_physical_cores",
    "Number of physical CPU cores.",
);
pub static MACHINE_SOCKETS: Metric = gauge("machine_cpu_sockets", "Number of CPU sockets.");
pub static MACHINE_MEMORY: Metric = gauge(
    "machine_memory_bytes",
    "Amount of memory installed on the machine.",
);
pub static MACHINE_SWAP: Metric = gauge(
    "machine_swap_bytes",
    "Amount of swap memory available on the machine.",
);
pub static VERSION_INFO: Metric = gauge(
    "cadvisor_version_info",
    "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
);
