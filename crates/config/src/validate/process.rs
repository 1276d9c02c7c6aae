//! The agent's limits, log and traces, and the shutdown of the node.

use super::Checks;
use crate::duration::Duration;
use crate::gates::{FeatureGates, Gate};
use crate::types::KubeletConfiguration;
use crate::types::process::{Logging, OutputRouting, Tracing};

/// Log levels are signed 32-bit numbers inside upstream's log library.
const MAX_LEVEL: u32 = i32::MAX as u32;

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    checks.not_negative("maxOpenFiles", config.process.max_open_files);
    check_logging(&config.process.logging, gates, checks);
    if let Some(tracing) = &config.process.tracing {
        check_tracing(tracing, checks);
    }
}

fn check_logging(logging: &Logging, gates: &FeatureGates, checks: &mut Checks) {
    let interval = logging.flush_frequency.interval;
    checks.require(interval > Duration::ZERO, "logging.flushFrequency", || {
        format!("{interval} must be greater than zero")
    });
    checks.one_of("logging.format", &logging.format, &["text", "json"]);
    let level = |checks: &mut Checks, field: &str, level: u32| {
        checks.require(level <= MAX_LEVEL, field, || {
            format!("{level} must be at most {MAX_LEVEL}")
        });
    };
    level(checks, "logging.verbosity", logging.verbosity);
    checks.require(
        logging.vmodule.is_empty() || logging.format != "json",
        "logging.vmodule",
        || "is only supported with the text format".to_owned(),
    );
    for (index, module) in logging.vmodule.iter().enumerate() {
        let field = format!("logging.vmodule[{index}]");
        let pattern = &module.file_pattern;
        checks.require(!pattern.is_empty(), &field, || {
            "the file pattern must not be empty".to_owned()
        });
        checks.require(!pattern.contains(['=', ',']), &field, || {
            format!("the file pattern {pattern:?} must not hold an equals sign or a comma")
        });
        level(checks, &field, module.verbosity);
    }
    let alpha = gates.enabled(Gate::LoggingAlphaOptions);
    let mut routing = |name: &str, options: &OutputRouting| {
        let gate = || "needs the feature gate LoggingAlphaOptions".to_owned();
        let field = format!("logging.options.{name}.splitStream");
        checks.require(alpha || !options.split_stream, &field, gate);
        let field = format!("logging.options.{name}.infoBufferSize");
        let unset = options.info_buffer_size.sign().is_eq();
        checks.require(alpha || unset, &field, gate);
    };
    routing("text", &logging.options.text);
    routing("json", &logging.options.json);
}

fn check_tracing(tracing: &Tracing, checks: &mut Checks) {
    if let Some(rate) = tracing.sampling_rate_per_million {
        checks.between("tracing.samplingRatePerMillion", rate.into(), 0, 1_000_000);
    }
    if let Some((scheme, _)) = tracing.endpoint.as_deref().and_then(|e| e.split_once("//")) {
        let scheme = scheme.trim_end_matches(':');
        checks.require(
            matches!(scheme, "dns" | "unix" | "unix-abstract"),
            "tracing.endpoint",
            || format!("unsupported scheme {scheme:?}, want none, dns, unix or unix-abstract"),
        );
    }
}

pub(super) fn check_shutdown(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    checks: &mut Checks,
) {
    let shutdown = &config.shutdown;
    let (all, critical) = (shutdown.grace_period, shutdown.grace_period_critical_pods);
    let used = all > Duration::ZERO || critical > Duration::ZERO;
    if gates.enabled(Gate::GracefulNodeShutdown) {
        checks.require(critical <= all, "shutdownGracePeriodCriticalPods", || {
            format!("{critical} must be at most shutdownGracePeriod, which is {all}")
        });
        for (field, period) in [
            ("shutdownGracePeriod", all),
            ("shutdownGracePeriodCriticalPods", critical),
        ] {
            checks.require(
                period.is_zero() || period >= Duration::from_secs(1),
                field,
                || format!("{period} must be zero or at least 1s"),
            );
        }
    } else {
        checks.require(!used, "shutdownGracePeriod", || {
            "needs the feature gate GracefulNodeShutdown".to_owned()
        });
    }
    let by_priority = !shutdown.grace_period_by_pod_priority.is_empty();
    if gates.enabled(Gate::GracefulNodeShutdownBasedOnPodPriority) {
        checks.require(
            !(by_priority && used),
            "shutdownGracePeriodByPodPriority",
            || "cannot be set together with shutdownGracePeriod".to_owned(),
        );
    } else {
        checks.require(!by_priority, "shutdownGracePeriodByPodPriority", || {
            "needs the feature gate GracefulNodeShutdownBasedOnPodPriority".to_owned()
        });
    }
}
