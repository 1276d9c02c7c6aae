//! From a command line to a configuration: flags, files, flags again, gates, validation.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::files::ConfigFiles;
use crate::flags::{self, Given, KubeletFlags, Settings, VersionFlag};
use crate::gates::FeatureGates;
use crate::inert;
use crate::problem::{ConfigError, Origin, Problem, Warning};
use crate::read::{Origins, read_files};
use crate::types::KubeletConfiguration;
use crate::validate::{notes, validate, validate_flags};

/// A command line understood.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Settings that exist only as flags.
    pub flags: KubeletFlags,
    /// The configuration, complete and valid. For an outcome other than a run, only what the flags say.
    pub config: KubeletConfiguration,
    /// Which feature gates are on.
    pub gates: FeatureGates,
    /// What to tell the user before anything else.
    pub warnings: Vec<Warning>,
    /// What was asked for.
    pub outcome: Outcome,
}

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Run the agent.
    Run,
    /// Print the version and exit.
    PrintVersion(VersionForm),
    /// Print the flags and exit.
    PrintHelp,
}

/// How much of the version to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionForm {
    /// `Kubernetes v1.36.4`.
    Short,
    /// Everything known about the build.
    Raw,
}

/// Takes the command line, without the program's name, and gives back the whole configuration.
///
/// # Errors
/// The first thing on the command line that cannot be understood, or every problem with the configuration at once.
pub fn load(args: &[OsString], files: &dyn ConfigFiles) -> Result<Loaded, ConfigError> {
    let given = flags::parse(args)?;
    let mut settings = Settings::default();
    flags::apply(&given, &mut settings)?;
    let Settings { flags, config } = settings;
    let (gates, _) = FeatureGates::from_settings(&config.process.feature_gates);
    let outcome = outcome(&flags);
    if outcome != Outcome::Run {
        return Ok(Loaded {
            flags,
            config,
            gates,
            warnings: Vec::new(),
            outcome,
        });
    }
    let (config, gates, warnings) = settle(&given, &flags, &gates, files)?;
    Ok(Loaded {
        flags,
        config,
        gates,
        warnings,
        outcome,
    })
}

fn outcome(flags: &KubeletFlags) -> Outcome {
    match flags.meta.version {
        _ if flags.meta.help => Outcome::PrintHelp,
        VersionFlag::Short => Outcome::PrintVersion(VersionForm::Short),
        VersionFlag::Raw => Outcome::PrintVersion(VersionForm::Raw),
        VersionFlag::No | VersionFlag::ReportAs(_) => Outcome::Run,
    }
}

type Settled = (KubeletConfiguration, FeatureGates, Vec<Warning>);

/// Puts files and flags together and looks at the whole.
fn settle(
    given: &[Given],
    flags: &KubeletFlags,
    flag_gates: &FeatureGates,
    files: &dyn ConfigFiles,
) -> Result<Settled, ConfigError> {
    let read = read_files(files, &flags.config, &flags.config_dir, flag_gates);
    let config = flags::apply_config(given, read.config)?;
    let origins = Origins::new(&read.documents, given);

    let mut problems = read.problems;
    let mut found = validate_flags(flags);
    // A file that could not be used says nothing about the fields it holds.
    let files_usable = problems.is_empty();
    problems.append(&mut found);

    let (gates, report) = FeatureGates::from_settings(&config.process.feature_gates);
    let gate_problems = report
        .errors
        .into_iter()
        .map(|(gate, reason)| Problem::new(format!("featureGates.{gate}"), reason));
    let mut unplaced: Vec<Problem> = gate_problems.collect();
    if files_usable {
        unplaced.extend(validate(&config, &gates));
    }
    problems.extend(
        unplaced
            .into_iter()
            .map(|problem| match origins.of(&problem.field) {
                Some(origin) => problem.at(origin),
                None => problem,
            }),
    );
    if !problems.is_empty() {
        return Err(ConfigError::Problems(problems));
    }

    let mut warnings = deprecated_flags(given);
    warnings.extend(read.warnings);
    warnings.extend(report.warnings.into_iter().map(Warning::Note));
    warnings.extend(notes(&config).into_iter().map(Warning::Note));
    warnings.extend(inert::note(flags, &config, &gates).map(Warning::Note));
    Ok((config, gates, warnings))
}

fn deprecated_flags(given: &[Given]) -> Vec<Warning> {
    let mut seen = BTreeSet::new();
    given
        .iter()
        .filter(|given| seen.insert(given.flag.name))
        .filter_map(|given| {
            Some(Warning::DeprecatedFlag {
                flag: given.flag.name,
                instead: given.flag.deprecation()?,
            })
        })
        .collect()
}

/// A problem of a flag, named by it.
pub(crate) fn flag_problem(flag: &str, reason: impl Into<String>) -> Problem {
    Problem::new("", reason).at(Origin::Flag(flag.to_owned()))
}
