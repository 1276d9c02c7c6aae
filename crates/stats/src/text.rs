//! The Prometheus text of a scrape whose samples say when they were read. A page of a full node has megabytes, most of
//! them the same labels again and again: samples are kept small, and the text is made family by family while it is sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

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
pub struct Labels {
    common: Arc<str>,
    more: Option<Arc<str>>,
}

impl Labels {
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self {
            common: written(String::new(), pairs).into(),
            more: None,
        }
    }

    pub fn with(&self, pairs: &[(&str, &str)]) -> Self {
        let before = self.more.as_deref().unwrap_or_default().to_owned();
        Self {
            common: self.common.clone(),
            more: Some(written(before, pairs).into()),
        }
    }
}

fn written(mut text: String, pairs: &[(&str, &str)]) -> String {
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "{name}=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

#[derive(Debug)]
struct Sample {
    labels: Labels,
    value: f64,
    /// In milliseconds since the epoch.
    at: Option<i64>,
}

impl Sample {
    fn write(&self, name: &str, out: &mut String) {
        out.push_str(name);
        let Labels { common, more } = &self.labels;
        let more = more.as_deref().unwrap_or_default();
        let between = match common.is_empty() || more.is_empty() {
            true => "",
            false => ",",
        };
        if !common.is_empty() || !more.is_empty() {
            let _ = write!(out, "{{{common}{between}{more}}}");
        }
        let _ = write!(out, " {}", self.value);
        if let Some(at) = self.at {
            let _ = write!(out, " {at}");
        }
        out.push('\n');
    }
}

#[derive(Debug, Default)]
pub struct Text {
    families: BTreeMap<&'static str, (&'static Metric, Vec<Sample>)>,
}

impl Text {
    /// `at` in milliseconds since the epoch.
    pub fn put(&mut self, metric: &'static Metric, labels: &Labels, value: f64, at: Option<i64>) {
        let (_, samples) = self
            .families
            .entry(metric.name)
            .or_insert_with(|| (metric, Vec::new()));
        let labels = labels.clone();
        samples.push(Sample { labels, value, at });
    }

    /// The page in pieces, each made when it is asked for.
    pub fn pieces(self) -> impl Iterator<Item = String> + Send {
        self.families.into_values().map(family)
    }
}

fn family((metric, samples): (&'static Metric, Vec<Sample>)) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let Metric { name, help, .. } = metric;
    let longest = samples.first().map_or(0, |s| s.labels.common.len()) + name.len() + 64;
    let mut out = String::with_capacity(samples.len() * longest + help.len() + 160);
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for sample in &samples {
        sample.write(name, &mut out);
    }
    out
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
            text.pieces().collect::<String>(),
            "# HELP a First.\n# TYPE a gauge\na 1000000000000000\n\
             # HELP b Second.\n# TYPE b counter\nb{x=\"1\\\"\\\\\\n\",y=\"\"} 2.5 1700\n"
        );
    }
}
