//! Feature gates: which there are, and which are on.
//!
//! [`FeatureGates`] is a value made once at the start and handed to whoever asks; there is no global.

mod table;

use std::collections::BTreeMap;

pub use table::Gate;
use table::SPECS;

/// Maturity of the feature behind a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Early, off by default.
    Alpha,
    /// Well tested.
    Beta,
    /// Finished; the gate will go away.
    Ga,
    /// Kept only to turn an old behaviour back on or off; the gate will go away.
    Deprecated,
}

impl Stage {
    /// The stage as the documentation writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alpha => "alpha",
            Self::Beta => "beta",
            Self::Ga => "GA",
            Self::Deprecated => "deprecated",
        }
    }
}

/// What is known about a gate.
#[derive(Debug)]
pub struct Spec {
    /// The gate.
    pub gate: Gate,
    /// Its name in files and flags.
    pub name: &'static str,
    /// Maturity.
    pub stage: Stage,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// Whether it can only be set to its default.
    pub locked: bool,
    /// Whether krablet lacks the feature, so that the gate has no effect.
    pub absent: bool,
    /// Gates that must be on while this one is.
    pub needs: &'static [Gate],
}

impl Gate {
    /// Every gate with what is known about it, sorted by name.
    #[must_use]
    pub fn all() -> &'static [Spec] {
        SPECS
    }

    /// The gate of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::spec_of(name).map(|spec| spec.gate)
    }

    /// The name in files and flags.
    #[must_use]
    pub fn name(self) -> &'static str {
        SPECS[self as usize].name
    }

    fn spec_of(name: &str) -> Option<&'static Spec> {
        SPECS
            .binary_search_by(|spec| spec.name.cmp(name))
            .ok()
            .and_then(|index| SPECS.get(index))
    }
}

/// Which gates are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// Gates whose value was set, by name or through AllAlpha and AllBeta.
    set: BTreeMap<Gate, bool>,
}

/// What setting gates leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GateReport {
    /// Reasons not to start: the gate's name as written, and what is wrong.
    pub errors: Vec<(String, String)>,
    /// Gates that will go away.
    pub warnings: Vec<String>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self::defaults()
    }
}

impl FeatureGates {
    /// All gates at their defaults.
    #[must_use]
    pub const fn defaults() -> Self {
        Self {
            set: BTreeMap::new(),
        }
    }

    /// Whether the gate is on.
    #[must_use]
    pub fn enabled(&self, gate: Gate) -> bool {
        self.set
            .get(&gate)
            .copied()
            .unwrap_or(SPECS[gate as usize].default)
    }

    /// Whether there is a feature behind the gate, and the gate is on.
    #[must_use]
    pub fn in_effect(&self, gate: Gate) -> bool {
        self.enabled(gate) && !SPECS[gate as usize].absent
    }

    /// The gates named in `wanted` on top of the defaults, with everything there is to say about them.
    #[must_use]
    pub fn from_settings(wanted: &BTreeMap<String, bool>) -> (Self, GateReport) {
        let mut report = GateReport::default();
        let mut gates = Self::defaults();
        for (name, value) in wanted {
            match judge(name, *value) {
                Ok(spec) => {
                    gates.set.insert(spec.gate, *value);
                    report.warnings.extend(retirement_notice(spec, *value));
                }
                Err(reason) => report.errors.push((name.clone(), reason)),
            }
        }
        gates.spread(Gate::AllAlpha, Stage::Alpha);
        gates.spread(Gate::AllBeta, Stage::Beta);
        // With unknown or locked gates left out, what follows from the rest would only confuse.
        if report.errors.is_empty() {
            report.errors = gates.unmet_needs();
        }
        (gates, report)
    }

    /// These gates with the valid ones of `wanted` on top; complaints come from [`Self::from_settings`].
    pub(crate) fn overlaid(&self, wanted: &BTreeMap<String, bool>) -> Self {
        let (mut overlay, _) = Self::from_settings(wanted);
        for (gate, value) in &self.set {
            overlay.set.entry(*gate).or_insert(*value);
        }
        overlay
    }

    /// Sets every gate of a stage that was not set by name, if the gate for the whole stage was.
    fn spread(&mut self, all: Gate, stage: Stage) {
        let Some(value) = self.set.get(&all).copied() else {
            return;
        };
        for spec in SPECS {
            let special = matches!(spec.gate, Gate::AllAlpha | Gate::AllBeta);
            if spec.stage == stage && !special {
                self.set.entry(spec.gate).or_insert(value);
            }
        }
    }

    /// Gates that are on while one they need is off.
    fn unmet_needs(&self) -> Vec<(String, String)> {
        SPECS
            .iter()
            .filter(|spec| self.enabled(spec.gate))
            .filter_map(|spec| {
                let off: Vec<_> = spec
                    .needs
                    .iter()
                    .filter(|need| !self.enabled(**need))
                    .map(|need| need.name())
                    .collect();
                (!off.is_empty()).then(|| {
                    let reason = format!("is on but needs {}, which is off", off.join(", "));
                    (spec.name.to_owned(), reason)
                })
            })
            .collect()
    }
}

fn judge(name: &str, value: bool) -> Result<&'static Spec, String> {
    let spec = Gate::spec_of(name).ok_or_else(|| {
        let known = SPECS.iter().map(|spec| spec.name);
        format!(
            "unknown feature gate{}",
            crate::hint::did_you_mean(name, known, "")
        )
    })?;
    if spec.locked && spec.default != value {
        return Err(format!(
            "cannot be set to {value}: the gate is locked to {}",
            spec.default
        ));
    }
    Ok(spec)
}

fn retirement_notice(spec: &Spec, value: bool) -> Option<String> {
    let why = match spec.stage {
        Stage::Ga => "is generally available",
        Stage::Deprecated => "is deprecated",
        Stage::Alpha | Stage::Beta => return None,
    };
    Some(format!(
        "feature gate {}={value}: the gate {why} and will be removed in a future release",
        spec.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn table_is_sorted_and_indexed_by_gate() {
        assert!(SPECS.is_sorted_by(|a, b| a.name < b.name));
        for (index, spec) in SPECS.iter().enumerate() {
            assert_eq!(spec.gate as usize, index);
            assert_eq!(Gate::from_name(spec.name), Some(spec.gate));
        }
        assert_eq!(SPECS.len(), 242);
    }

    #[test]
    fn defaults_meet_their_own_needs() {
        assert_eq!(FeatureGates::defaults().unmet_needs(), []);
    }

    #[test]
    fn stage_and_default_of_gates_that_matter() {
        // (gate, on by default, stage, locked)
        let cases = [
            (Gate::EventedPLEG, false, Stage::Alpha, false),
            (Gate::PLEGOnDemandRelist, true, Stage::Beta, false),
            (Gate::KubeletCrashLoopBackOffMax, true, Stage::Beta, false),
            (Gate::ImageVolume, true, Stage::Ga, true),
            (Gate::CustomCPUCFSQuotaPeriod, true, Stage::Ga, false),
            (Gate::GitRepoVolumeDriver, false, Stage::Deprecated, true),
            (Gate::SELinuxMount, false, Stage::Beta, false),
            (Gate::ContextualLogging, true, Stage::Beta, false),
            (Gate::LoggingAlphaOptions, false, Stage::Alpha, false),
            (Gate::KubeletInUserNamespace, false, Stage::Alpha, false),
            (
                Gate::DisableCPUQuotaWithExclusiveCPUs,
                true,
                Stage::Deprecated,
                false,
            ),
            (Gate::AllAlpha, false, Stage::Alpha, false),
            (Gate::AllBeta, false, Stage::Beta, false),
        ];
        for (gate, default, stage, locked) in cases {
            let spec = &SPECS[gate as usize];
            assert_eq!(
                (spec.default, spec.stage, spec.locked),
                (default, stage, locked),
                "{gate:?}"
            );
            assert_eq!(FeatureGates::defaults().enabled(gate), default, "{gate:?}");
        }
    }

    #[test]
    fn settings_and_what_they_say() {
        // (settings, errors, warnings)
        type Case<'a> = (
            &'a [(&'a str, bool)],
            &'a [(&'a str, &'a str)],
            &'a [&'a str],
        );
        let cases: &[Case<'_>] = &[
            (&[("EventedPLEG", true)], &[], &[]),
            (
                &[("EventedPleg", true)],
                &[(
                    "EventedPleg",
                    "unknown feature gate (did you mean EventedPLEG?)",
                )],
                &[],
            ),
            (
                &[("Nonsense", true)],
                &[("Nonsense", "unknown feature gate")],
                &[],
            ),
            (
                &[("ImageVolume", false)],
                &[(
                    "ImageVolume",
                    "cannot be set to false: the gate is locked to true",
                )],
                &[],
            ),
            (
                &[("ImageVolume", true)],
                &[],
                &[
                    "feature gate ImageVolume=true: the gate is generally available and will be removed in a future release",
                ],
            ),
            (
                &[("DisableCPUQuotaWithExclusiveCPUs", false)],
                &[],
                &[
                    "feature gate DisableCPUQuotaWithExclusiveCPUs=false: the gate is deprecated and will be removed in a future release",
                ],
            ),
            (
                &[("GracefulNodeShutdown", false)],
                &[
                    (
                        "GracefulNodeShutdownBasedOnPodPriority",
                        "is on but needs GracefulNodeShutdown, which is off",
                    ),
                    (
                        "WindowsGracefulNodeShutdown",
                        "is on but needs GracefulNodeShutdown, which is off",
                    ),
                ],
                &[],
            ),
            // An unknown gate hides what would follow from the others.
            (
                &[("GracefulNodeShutdown", false), ("X", true)],
                &[("X", "unknown feature gate")],
                &[],
            ),
        ];
        for (wanted, errors, warnings) in cases {
            let (_, report) = FeatureGates::from_settings(&settings(wanted));
            let got: Vec<_> = report
                .errors
                .iter()
                .map(|(gate, reason)| (gate.as_str(), reason.as_str()))
                .collect();
            assert_eq!(got, *errors, "{wanted:?}");
            assert_eq!(report.warnings, *warnings, "{wanted:?}");
        }
    }

    #[test]
    fn a_gate_without_a_feature_is_never_in_effect() {
        // (gate, set to, enabled, in effect)
        let cases = [
            (Gate::ExtendWebSocketsToKubelet, None, true, false),
            (Gate::ExtendWebSocketsToKubelet, Some(true), true, false),
            (Gate::ExtendWebSocketsToKubelet, Some(false), false, false),
            (Gate::DynamicResourceAllocation, None, true, false),
            (Gate::ContainerCheckpoint, None, true, true),
            (Gate::ContainerCheckpoint, Some(false), false, false),
            // Of another component: it is told as it is set.
            (Gate::APIServerIdentity, None, true, true),
        ];
        for (gate, value, enabled, in_effect) in cases {
            let wanted = value.map(|value| (gate.name(), value));
            let wanted = wanted.as_slice();
            let (gates, _) = FeatureGates::from_settings(&settings(wanted));
            assert_eq!(gates.enabled(gate), enabled, "{gate:?} {value:?}");
            assert_eq!(gates.in_effect(gate), in_effect, "{gate:?} {value:?}");
        }
    }

    #[test]
    fn whole_stages_yield_to_gates_set_by_name() {
        let (gates, _) =
            FeatureGates::from_settings(&settings(&[("AllAlpha", true), ("EventedPLEG", false)]));
        assert!(!gates.enabled(Gate::EventedPLEG));
        assert!(gates.enabled(Gate::MemoryQoS));
        assert!(gates.enabled(Gate::PLEGOnDemandRelist));

        let (gates, _) = FeatureGates::from_settings(&settings(&[
            ("AllBeta", false),
            ("ContainerCheckpoint", true),
        ]));
        assert!(gates.enabled(Gate::ContainerCheckpoint));
        assert!(!gates.enabled(Gate::PLEGOnDemandRelist));
        assert!(gates.enabled(Gate::ImageVolume));
    }
}
