//! The Prometheus text of a scrape whose samples say when they were read. Written family by family as samples come,
//! without keeping them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// Name, type and help of a family.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

pub const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Counter,
        help,
    }
}

pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        help,
    }
}

/// Labels that many samples have in common, written once.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        let mut labels = Self::default();
        for (name, value) in pairs {
            labels.push(name, value);
        }
        labels
    }

    pub fn with(&self, pairs: &[(&str, &str)]) -> Self {
        let mut labels = self.clone();
        for (name, value) in pairs {
            labels.push(name, value);
        }
        labels
    }

    fn push(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        let _ = write!(self.0, "{name}=\"");
        for c in value.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }
}

#[derive(Debug, Default)]
pub struct Text {
    families: BTreeMap<&'static str, (&'static Metric, String)>,
}

impl Text {
    /// `at` in milliseconds since the epoch.
    pub fn put(&mut self, metric: &'static Metric, labels: &Labels, value: f64, at: Option<i64>) {
        let (_, samples) = self
            .families
            .entry(metric.name)
            .or_insert_with(|| (metric, String::new()));
        samples.push_str(metric.name);
        if !labels.0.is_empty() {
            let _ = write!(samples, "{{{}}}", labels.0);
        }
        let _ = write!(samples, " {value}");
        if let Some(at) = at {
            let _ = write!(samples, " {at}");
        }
        samples.push('\n');
    }

    pub fn render(self) -> String {
        let sizes = self.families.values().map(|(_, samples)| samples.len());
        let mut out = String::with_capacity(sizes.sum::<usize>() + self.families.len() * 160);
        for (metric, samples) in self.families.values() {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            let Metric { name, help, .. } = metric;
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            out.push_str(samples);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static A: Metric = gauge("a", "First.");
    static B: Metric = counter("b", "Second.");

    #[test]
    fn families_in_order_and_values_escaped() {
        let mut text = Text::default();
        let base = Labels::of(&[("x", "1\"\\\n")]);
        text.put(&B, &base.with(&[("y", "")]), 2.5, Some(1700));
        text.put(&A, &Labels::default(), 1e15, None);
        assert_eq!(
            text.render(),
            "# HELP a First.\n# TYPE a gauge\na 1000000000000000\n\
             # HELP b Second.\n# TYPE b counter\nb{x=\"1\\\"\\\\\\n\",y=\"\"} 2.5 1700\n"
        );
    }
}
