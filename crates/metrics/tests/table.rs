//! The table of series against upstream's facts, and the checked-in documentation against the table.
//! `KRABLET_UPDATE_DOCS=1` rewrites the documentation.

use std::collections::BTreeMap;
use std::path::Path;

use krablet_metrics::{Kind, Series, series};

/// A series as a line of `upstream.tsv`.
fn line(series: &Series) -> String {
    let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
    let (kind, bounds) = match series.kind {
        Kind::Counter => ("counter", String::new()),
        Kind::Gauge => ("gauge", String::new()),
        Kind::Histogram(bounds) => {
            let bounds: Vec<String> = bounds.iter().map(f64::to_string).collect();
            ("histogram", bounds.join(","))
        }
    };
    [
        series.name.to_owned(),
        kind.to_owned(),
        or_dash(series.stability.to_owned()),
        or_dash(series.labels.join(",")),
        or_dash(bounds),
    ]
    .join("\t")
}

#[test]
fn series_are_upstream_s() {
    let facts = include_str!("upstream.tsv").lines();
    let facts: BTreeMap<&str, &str> = facts
        .filter(|l| !l.starts_with('#'))
        .map(|l| (l.split('\t').next().unwrap_or_default(), l))
        .collect();
    let own = |s: &&&Series| s.name.starts_with("krablet_");
    for series in series::ALL.iter().filter(|s| !own(s)) {
        let fact = facts.get(series.name).copied().unwrap_or("not upstream's");
        assert_eq!(line(series), fact);
    }
    assert_eq!(
        series::ALL.len() - series::ALL.iter().filter(own).count(),
        facts.len()
    );
}

#[test]
fn documentation_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = krablet_metrics::render_metrics_md();
    if std::env::var_os("KRABLET_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "docs/metrics.md is out of date; run KRABLET_UPDATE_DOCS=1 cargo test -p krablet-metrics"
    );
}
