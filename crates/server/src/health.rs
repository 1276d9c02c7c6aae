//! What `/healthz` tells, and what it has told so far: `/metrics/slis`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What came of the checks that were asked for.
#[derive(Debug)]
pub(crate) struct Report {
    names: &'static [&'static str],
    /// Those that were not asked for are not counted either.
    pub(crate) made: Vec<&'static str>,
    pub(crate) failed: Vec<(&'static str, String)>,
    /// What was to be left out and is not there.
    unknown: BTreeSet<String>,
}

impl Report {
    /// `exclude` in the query, any number of times, leaves a check out.
    pub(crate) fn of(
        names: &'static [&'static str],
        failing: Vec<(&'static str, String)>,
        query: &[(String, String)],
    ) -> Self {
        let excluded = query.iter().filter(|(key, _)| key == "exclude");
        let excluded: BTreeSet<&str> = excluded.map(|(_, name)| name.as_str()).collect();
        let counts = |name: &str| !excluded.contains(name);
        let unknown = excluded.iter().filter(|name| !names.contains(name));
        Self {
            names,
            made: names.iter().copied().filter(|name| counts(name)).collect(),
            failed: failing
                .into_iter()
                .filter(|(name, _)| counts(name))
                .collect(),
            unknown: unknown.map(|name| (*name).to_owned()).collect(),
        }
    }

    /// In the kubelet's words: why something failed is not for everybody.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for name in self.names {
            let _ = match () {
                () if !self.made.contains(name) => writeln!(text, "[+]{name} excluded: ok"),
                () if self.failed.iter().any(|(failed, _)| failed == name) => {
                    writeln!(text, "[-]{name} failed: reason withheld")
                }
                () => writeln!(text, "[+]{name} ok"),
            };
        }
        if !self.unknown.is_empty() {
            let names: Vec<String> = self
                .unknown
                .iter()
                .map(|name| format!("{name:?}"))
                .collect();
            let names = names.join(",");
            let why = "warn: some health checks cannot be excluded: no matches for";
            let _ = writeln!(text, "{why} {names}");
        }
        text.push_str(match self.failed.is_empty() {
            true => "healthz check passed\n",
            false => "healthz check failed\n",
        });
        text
    }
}

/// Shared by the doors that tell the node's health. Clones are one record.
#[derive(Clone, Debug, Default)]
pub struct HealthRecord {
    checks: Arc<Mutex<BTreeMap<&'static str, Told>>>,
}

/// What was told of one check.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    is_well: bool,
    well: u64,
    ill: u64,
}

impl HealthRecord {
    pub(crate) fn tell(&self, names: &[&'static str], failing: &[(&'static str, String)]) {
        let mut checks = self.checks();
        for name in names {
            let told = checks.entry(name).or_default();
            told.is_well = !failing.iter().any(|(failed, _)| failed == name);
            match told.is_well {
                true => told.well += 1,
                false => told.ill += 1,
            }
        }
    }

    pub(crate) fn metrics(&self) -> String {
        let checks = self.checks();
        let mut text = String::new();
        if checks.is_empty() {
            return text;
        }
        text.push_str(
            "# HELP kubernetes_healthcheck [STABLE] Whether a health check passed when it was last made.\n\
             # TYPE kubernetes_healthcheck gauge\n",
        );
        for (name, told) in checks.iter() {
            let value = u8::from(told.is_well);
            let labels = format!("name=\"{name}\",type=\"healthz\"");
            let _ = writeln!(text, "kubernetes_healthcheck{{{labels}}} {value}");
        }
        text.push_str(
            "# HELP kubernetes_healthchecks_total [STABLE] Health checks by what came of them.\n\
             # TYPE kubernetes_healthchecks_total counter\n",
        );
        for (name, told) in checks.iter() {
            for (status, count) in [("error", told.ill), ("success", told.well)] {
                if count > 0 {
                    let labels = format!("name=\"{name}\",status=\"{status}\",type=\"healthz\"");
                    let _ = writeln!(text, "kubernetes_healthchecks_total{{{labels}}} {count}");
                }
            }
        }
        text
    }

    fn checks(&self) -> MutexGuard<'_, BTreeMap<&'static str, Told>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_counted() {
        let record = HealthRecord::default();
        assert_eq!(record.metrics(), "");
        record.tell(&["ping", "syncloop"], &[]);
        record
            .clone()
            .tell(&["ping", "syncloop"], &[("syncloop", "stuck".into())]);
        let lines = record.metrics();
        let lines: Vec<&str> = lines.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#,
                r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 0"#,
                r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2"#,
                r#"kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1"#,
                r#"kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 1"#,
            ]
        );
    }

    #[test]
    fn what_is_told_of_the_checks() {
        const NAMES: &[&str] = &["ping", "syncloop"];
        let cases = [
            ("", "", "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"),
            (
                "syncloop",
                "",
                "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
            ),
            (
                "syncloop",
                "syncloop",
                "[+]ping ok\n[+]syncloop excluded: ok\nhealthz check passed\n",
            ),
            (
                "syncloop",
                "ping",
                "[+]ping excluded: ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
            ),
            (
                "",
                "pong,,ping",
                "[+]ping excluded: ok\n[+]syncloop ok\n\
                 warn: some health checks cannot be excluded: no matches for \"\",\"pong\"\nhealthz check passed\n",
            ),
        ];
        for (failing, excluded, expected) in cases {
            let failing = NAMES.iter().filter(|name| **name == failing);
            let failing = failing.map(|name| (*name, "a secret".to_owned())).collect();
            let words = excluded.split(',').filter(|_| !excluded.is_empty());
            let query: Vec<_> = words
                .map(|name| ("exclude".to_owned(), name.to_owned()))
                .collect();
            let report = Report::of(NAMES, failing, &query);
            assert_eq!(report.text(), expected);
        }
    }

    #[test]
    fn what_is_left_out_is_not_counted() {
        let query = [("exclude".to_owned(), "syncloop".to_owned())];
        let failing = vec![("syncloop", "stuck".to_owned())];
        let report = Report::of(&["ping", "syncloop"], failing, &query);
        assert_eq!(report.made, ["ping"]);
        assert!(report.failed.is_empty());
    }
}
