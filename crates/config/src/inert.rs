//! Settings that are read and checked, so that a configuration can be kept, and not acted on. One table: the
//! documentation marks them by it, and the start tells of those that are set.

use serde_json::Value;

use crate::flags::KubeletFlags;
use crate::gates::FeatureGates;
use crate::types::KubeletConfiguration;

/// A field, with all that is inside it.
struct Inert {
    /// Path in the configuration file.
    field: &'static str,
    extent: Extent,
    /// What is done instead, for the documentation.
    instead: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// A value that is not the default asks in vain.
    Nothing,
    /// A part of it is there, or only the default asks in vain: what it is set to is no reason for a word.
    Part,
}

const fn missing(field: &'static str, instead: &'static str) -> Inert {
    Inert {
        field,
        extent: Extent::Nothing,
        instead,
    }
}

const fn partly(field: &'static str, instead: &'static str) -> Inert {
    Inert {
        field,
        extent: Extent::Part,
        instead,
    }
}

impl Inert {
    fn covers(&self, path: &str) -> bool {
        let inside = path.strip_prefix(self.field);
        inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    fn mark(&self) -> String {
        match self.extent {
            Extent::Nothing => not_acted_on(self.instead),
            Extent::Part => format!("**Acted on in part**: {}.", self.instead),
        }
    }
}

fn not_acted_on(instead: &str) -> String {
    format!("**Not acted on**: {instead}.")
}

const NO_SHUTDOWN: &str = "a shutdown of the machine is not held up";
const NO_CPUS: &str = "no container gets CPUs of its own";
const NO_TOPOLOGY: &str = "nothing is aligned to NUMA nodes";
const NO_EVICTION: &str = "no pod is ended because the node runs short";
const NO_IPTABLES: &str = "no iptables chains are made";

const TABLE: &[Inert] = &[
    missing("enableContentionProfiling", "there are no such profiles"),
    missing("showHiddenMetricsForVersion", "no metric is hidden"),
    missing("contentType", "requests are JSON"),
    missing("hairpinMode", "this is a setting of the CNI plugin"),
    missing(
        "podCIDR",
        "the addresses of pods are a setting of the CNI plugin",
    ),
    partly("makeIPTablesUtilChains", NO_IPTABLES),
    missing("iptablesMasqueradeBit", NO_IPTABLES),
    missing("iptablesDropBit", NO_IPTABLES),
    partly(
        "kubeletCgroups",
        "no process is moved; the figures of this cgroup are told as the agent's",
    ),
    partly(
        "systemCgroups",
        "no process is moved; the figures of this cgroup are told as the system's",
    ),
    missing(
        "cpuManagerPolicy",
        "no container gets CPUs of its own; static only makes resizes of the CPU of guaranteed pods infeasible",
    ),
    missing("cpuManagerPolicyOptions", NO_CPUS),
    missing("cpuManagerReconcilePeriod", NO_CPUS),
    missing(
        "memoryManagerPolicy",
        "no memory is taken from chosen NUMA nodes; Static only makes resizes of the memory of guaranteed pods infeasible",
    ),
    missing("reservedMemory", NO_TOPOLOGY),
    missing("topologyManagerPolicy", NO_TOPOLOGY),
    missing("topologyManagerScope", NO_TOPOLOGY),
    missing("topologyManagerPolicyOptions", NO_TOPOLOGY),
    partly(
        "evictionHard",
        "it counts for the node's conditions, for its allocatable and for which pods are let in; no pod is ended because the node runs short",
    ),
    partly(
        "evictionSoft",
        "it counts for the node's conditions and for which pods are let in; no pod is ended because the node runs short",
    ),
    partly(
        "evictionMinimumReclaim",
        "it counts for the node's conditions; nothing is freed",
    ),
    missing("evictionSoftGracePeriod", NO_EVICTION),
    missing("evictionMaxPodGracePeriod", NO_EVICTION),
    missing("kernelMemcgNotification", "memory is looked at every 10 s"),
    missing(
        "volumeStatsAggPeriod",
        "volumes are measured when their figures are asked for",
    ),
    missing("volumePluginDir", "there are no FlexVolumes"),
    missing("shutdownGracePeriod", NO_SHUTDOWN),
    missing("shutdownGracePeriodCriticalPods", NO_SHUTDOWN),
    missing("shutdownGracePeriodByPodPriority", NO_SHUTDOWN),
    missing("logging.options", "all lines go to standard error at once"),
    missing("tracing", "no traces are made"),
];

/// The same for settings that exist only as flags: the name, whether it is set, and what is done instead.
type InertFlag = (&'static str, fn(&KubeletFlags) -> bool, &'static str);

const FLAGS: &[InertFlag] = &[
    (
        "experimental-mounter-path",
        |flags| !flags.runtime.experimental_mounter_path.is_empty(),
        "mount is used",
    ),
    (
        "housekeeping-interval",
        |flags| {
            let default = KubeletFlags::default().runtime.housekeeping_interval;
            flags.runtime.housekeeping_interval != default
        },
        "figures are read when they are asked for",
    ),
];

/// What the documentation says beside a field that is not acted on. Those inside it stand below it, and need no word.
pub(crate) fn mark_of_field(path: &str) -> Option<String> {
    let inert = TABLE.iter().find(|inert| inert.field == path);
    inert.map(Inert::mark)
}

/// The same for a flag, by its name or by the field it sets.
pub(crate) fn mark_of_flag(name: &str, field: Option<&str>) -> Option<String> {
    let own = FLAGS.iter().find(|(flag, _, _)| *flag == name);
    let own = own.map(|(_, _, instead)| not_acted_on(instead));
    own.or_else(|| {
        let field = field?;
        let inert = TABLE.iter().find(|inert| inert.covers(field));
        inert.map(Inert::mark)
    })
}

/// One line about everything that is set and not acted on, if there is any.
pub(crate) fn note(
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Option<String> {
    let (set, default) = (
        config.to_json(),
        KubeletConfiguration::file_defaults(gates).to_json(),
    );
    let differs = |inert: &&Inert| at(&set, inert.field) != at(&default, inert.field);
    let asked = TABLE.iter().filter(|i| i.extent == Extent::Nothing);
    let fields = asked.filter(differs);
    let given = FLAGS.iter().filter(|(_, is_set, _)| is_set(flags));
    let names: Vec<String> = fields
        .map(|inert| inert.field.to_owned())
        .chain(given.map(|(name, _, _)| format!("--{name}")))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "set, but without effect in krablet so far: {} (docs/configuration.md says what is done instead)",
            names.join(", ")
        )
    })
}

fn at<'a>(config: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(config, |value, key| value.get(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_names_fields_and_flags_that_exist_once_each() {
        let docs = KubeletConfiguration::docs();
        let known: BTreeSet<&str> = docs
            .iter()
            .flat_map(|(_, fields)| fields.iter().map(|field| field.name.as_str()))
            .collect();
        let mut seen = BTreeSet::new();
        for inert in TABLE {
            assert!(known.contains(inert.field), "{}", inert.field);
            assert!(seen.insert(inert.field), "{} twice", inert.field);
        }
        for (name, is_set, _) in FLAGS {
            assert!(crate::flags::find(name).is_some(), "--{name}");
            assert!(!is_set(&KubeletFlags::default()), "--{name}");
        }
    }

    #[test]
    fn a_field_covers_what_is_inside_it_and_no_longer_name() {
        for (field, inert) in [
            ("tracing", true),
            ("tracing.endpoint", true),
            ("logging.options.text.splitStream", true),
            ("reservedMemory.numaNode", true),
            ("logging", false),
            ("logging.format", false),
            ("podCIDRs", false),
            ("syncFrequency", false),
        ] {
            let mark = mark_of_flag("any", Some(field));
            assert_eq!(mark.is_some(), inert, "{field}");
        }
        assert!(mark_of_flag("housekeeping-interval", None).is_some());
        assert!(mark_of_flag("root-dir", None).is_none());
        assert!(mark_of_field("tracing").is_some());
        assert!(mark_of_field("tracing.endpoint").is_none());
    }
}
