//! Pods, their logs, images and restarts.

use super::Checks;
use crate::duration::Duration;
use crate::gates::{FeatureGates, Gate};
use crate::quantity::Quantity;
use crate::types::KubeletConfiguration;

pub(super) fn check(config: &KubeletConfiguration, checks: &mut Checks) {
    let runtime = &config.runtime;
    checks.not_negative("maxPods", runtime.max_pods.into());
    checks.not_negative("podsPerCore", runtime.pods_per_core.into());
    checks.require(
        !runtime.container_runtime_endpoint.is_empty(),
        "containerRuntimeEndpoint",
        || "must not be empty".to_owned(),
    );
    check_logs(config, checks);
    check_pod_logs_dir(&config.sources.pod_logs_dir, checks);
    let network = &config.network;
    checks.one_of(
        "hairpinMode",
        &network.hairpin_mode,
        &["none", "hairpin-veth", "promiscuous-bridge"],
    );
    checks.between(
        "iptablesMasqueradeBit",
        network.iptables_masquerade_bit.into(),
        0,
        31,
    );
    checks.between("iptablesDropBit", network.iptables_drop_bit.into(), 0, 31);
}

fn check_logs(config: &KubeletConfiguration, checks: &mut Checks) {
    let runtime = &config.runtime;
    if let Err(reason) = Quantity::parse(&runtime.container_log_max_size) {
        checks.refuse("containerLogMaxSize", reason);
    }
    let files = runtime.container_log_max_files;
    checks.require(files > 1, "containerLogMaxFiles", || {
        format!("{files} must be greater than 1")
    });
    let workers = runtime.container_log_max_workers;
    checks.require(workers >= 1, "containerLogMaxWorkers", || {
        format!("{workers} must be at least 1")
    });
    let interval = runtime.container_log_monitor_interval;
    checks.require(
        interval >= Duration::from_secs(3),
        "containerLogMonitorInterval",
        || format!("{interval} must be at least 3s"),
    );
}

/// The directory is part of metric labels and log paths others parse.
fn check_pod_logs_dir(dir: &str, checks: &mut Checks) {
    const FIELD: &str = "podLogsDir";
    if dir.is_empty() {
        return checks.refuse(FIELD, "must not be empty");
    }
    checks.require(dir.starts_with('/'), FIELD, || {
        format!("{dir:?} must be an absolute path")
    });
    let odd = dir.len() > 1 && dir.ends_with('/')
        || dir.contains("//")
        || dir.split('/').any(|part| part == "." || part == "..");
    checks.require(!odd, FIELD, || format!("{dir:?} must be a normalised path"));
    checks.require(dir.is_ascii(), FIELD, || {
        format!("{dir:?} must hold ASCII characters only")
    });
}

pub(super) fn check_images(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    checks: &mut Checks,
) {
    let images = &config.images;
    checks.not_negative("registryBurst", images.registry_burst.into());
    checks.not_negative("registryPullQPS", images.registry_pull_qps.into());
    if let Some(most) = images.max_parallel_image_pulls {
        checks.require(most >= 1, "maxParallelImagePulls", || {
            format!("{most} must be at least 1")
        });
        checks.require(
            most <= 1 || !images.serialize_image_pulls,
            "maxParallelImagePulls",
            || format!("{most} needs serializeImagePulls to be false"),
        );
    }
    let (high, low) = (
        images.gc_high_threshold_percent,
        images.gc_low_threshold_percent,
    );
    checks.between("imageGCHighThresholdPercent", high.into(), 0, 100);
    checks.between("imageGCLowThresholdPercent", low.into(), 0, 100);
    checks.require(low < high, "imageGCLowThresholdPercent", || {
        format!("{low} must be less than imageGCHighThresholdPercent, which is {high}")
    });
    let (min, max) = (images.minimum_gc_age, images.maximum_gc_age);
    checks.not_negative_duration("imageMinimumGCAge", min);
    checks.not_negative_duration("imageMaximumGCAge", max);
    checks.require(
        max.is_zero() || gates.enabled(Gate::ImageMaximumGCAge),
        "imageMaximumGCAge",
        || "needs the feature gate ImageMaximumGCAge".to_owned(),
    );
    checks.require(
        max <= Duration::ZERO || max > min,
        "imageMaximumGCAge",
        || format!("{max} must be greater than imageMinimumGCAge, which is {min}"),
    );
    check_verification(config, gates, checks);
}

impl Checks {
    fn not_negative_duration(&mut self, field: &str, value: Duration) {
        self.require(value >= Duration::ZERO, field, || {
            format!("{value} must not be negative")
        });
    }
}

fn check_verification(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const LIST: &str = "preloadedImagesVerificationAllowlist";
    let policy = &config.images.pull_credentials_verification_policy;
    let list = &config.images.preloaded_images_verification_allowlist;
    if !gates.enabled(Gate::KubeletEnsureSecretPulledImages) {
        let gate = || "needs the feature gate KubeletEnsureSecretPulledImages".to_owned();
        checks.require(policy.is_empty(), POLICY, gate);
        checks.require(list.is_empty(), LIST, gate);
        return;
    }
    checks.one_of(
        POLICY,
        policy,
        &[
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ],
    );
    if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
        return checks.refuse(LIST, format!("needs {POLICY} NeverVerifyAllowlistedImages"));
    }
    for (index, pattern) in list.iter().enumerate() {
        if let Some(fault) = image_pattern_fault(pattern) {
            checks.refuse(format!("{LIST}[{index}]"), format!("{pattern:?}: {fault}"));
        }
    }
}

fn image_pattern_fault(pattern: &str) -> Option<&'static str> {
    let name = pattern.strip_suffix("/*").unwrap_or(pattern);
    let last = name.rsplit('/').next().unwrap_or(name);
    let tagged = name.contains('@') || last.contains(':');
    match () {
        () if pattern.trim() != pattern => Some("spaces around the name are not allowed"),
        () if name.is_empty() => Some("at least a registry is needed"),
        () if name.contains('*') => Some("a * is only allowed as a final /*"),
        () if pattern == name && tagged => Some("neither tag nor digest is allowed"),
        () => None,
    }
}

pub(super) fn check_restarts(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    checks: &mut Checks,
) {
    const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let period = config
        .runtime
        .crash_loop_back_off
        .max_container_restart_period;
    if !gates.enabled(Gate::KubeletCrashLoopBackOffMax) {
        return checks.require(period.is_none(), FIELD, || {
            "needs the feature gate KubeletCrashLoopBackOffMax".to_owned()
        });
    }
    match period {
        Some(period) => {
            let allowed = Duration::from_secs(1)..=Duration::from_secs(300);
            checks.require(allowed.contains(&period), FIELD, || {
                format!("{period} must be between 1s and 300s")
            });
        }
        None => checks.refuse(
            FIELD,
            "must be set while the feature gate KubeletCrashLoopBackOffMax is on",
        ),
    }
}
