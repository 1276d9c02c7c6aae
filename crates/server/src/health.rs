//! What `/healthz` has told so far: `/metrics/slis`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
}
