//! The text of one scrape, in the Prometheus exposition format 0.0.4: families in the order of their
//! names, samples in the order of their label values, each once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::distribution::Distribution;
use crate::series::{Kind, Series};
use crate::values::{
    Counter, CounterVec, FirstDuration, GaugeVec, Histogram, HistogramVec, LabelValues,
    label_values,
};

#[derive(Debug, Default)]
pub struct Page {
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
struct Family {
    series: &'static Series,
    samples: BTreeMap<LabelValues, Sample>,
}

#[derive(Debug)]
enum Sample {
    Number(f64),
    Distribution(Distribution),
}

impl Page {
    /// The values are those of the series' labels, in their order. A set told twice is told as the
    /// last one.
    pub fn number(&mut self, series: &'static Series, values: &[&str], number: f64) {
        self.put(series, label_values(values), Sample::Number(number));
    }

    pub fn count(&mut self, series: &'static Series, values: &[&str], count: u64) {
        self.number(series, values, count as f64);
    }

    pub fn distribution(&mut self, series: &'static Series, values: &[&str], seen: Distribution) {
        self.put(series, label_values(values), Sample::Distribution(seen));
    }

    pub fn counter(&mut self, counter: &Counter) {
        self.count(counter.series, &[], counter.get());
    }

    pub fn counters(&mut self, counters: &CounterVec) {
        for (values, count) in counters.get() {
            self.put(counters.series, values, Sample::Number(count as f64));
        }
    }

    pub fn gauges(&mut self, gauges: &GaugeVec) {
        for (values, number) in gauges.get() {
            self.put(gauges.series, values, Sample::Number(number as f64));
        }
    }

    pub fn first_duration(&mut self, first: &FirstDuration) {
        self.number(first.series, &[], first.get().as_secs_f64());
    }

    pub fn histogram(&mut self, histogram: &Histogram) {
        self.distribution(histogram.series, &[], histogram.get());
    }

    pub fn histograms(&mut self, histograms: &HistogramVec) {
        for (values, seen) in histograms.get() {
            self.put(histograms.series, values, Sample::Distribution(seen));
        }
    }

    fn put(&mut self, series: &'static Series, values: LabelValues, sample: Sample) {
        let family = self.families.entry(series.name).or_insert_with(|| Family {
            series,
            samples: BTreeMap::new(),
        });
        family.samples.insert(values, sample);
    }

    pub fn render(&self) -> String {
        let mut out = String::new();
        for family in self.families.values() {
            family.render(&mut out);
        }
        out
    }
}

impl Family {
    fn render(&self, out: &mut String) {
        let Series { name, labels, .. } = self.series;
        let kind = match self.series.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let _ = write!(out, "# HELP {name} ");
        escape(out, &self.series.help_line(), false);
        let _ = writeln!(out, "\n# TYPE {name} {kind}");
        for (values, sample) in &self.samples {
            match sample {
                Sample::Number(number) => line(out, name, "", labels, values, None, *number),
                Sample::Distribution(seen) => {
                    for (bound, count) in seen.cumulative() {
                        let count = count as f64;
                        line(out, name, "_bucket", labels, values, Some(bound), count);
                    }
                    line(out, name, "_sum", labels, values, None, seen.sum());
                    let count = seen.count() as f64;
                    line(out, name, "_count", labels, values, None, count);
                }
            }
        }
    }
}

fn line(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[&str],
    values: &[Box<str>],
    bound: Option<f64>,
    number: f64,
) {
    out.push_str(name);
    out.push_str(suffix);
    let mut opened = false;
    let mut label = |out: &mut String, name: &str, value: &str| {
        out.push(if opened { ',' } else { '{' });
        opened = true;
        let _ = write!(out, "{name}=\"");
        escape(out, value, true);
        out.push('"');
    };
    for (name, value) in labels.iter().zip(values) {
        label(out, name, value);
    }
    if let Some(bound) = bound {
        label(out, "le", &Number(bound).to_string());
    }
    if opened {
        out.push('}');
    }
    let _ = writeln!(out, " {}", Number(number));
}

fn escape(out: &mut String, text: &str, quoted: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

/// A number as the format spells it.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            n if n == f64::INFINITY => f.write_str("+Inf"),
            n if n == f64::NEG_INFINITY => f.write_str("-Inf"),
            n => write!(f, "{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::series;

    #[test]
    fn text() {
        let mut page = Page::default();
        page.count(&series::RUNNING_CONTAINERS, &["running"], 3);
        page.count(&series::RUNNING_CONTAINERS, &["exited"], 1);
        page.number(&series::NODE_NAME, &["a \"b\" \\ \n c"], 1.0);
        page.number(&series::PLEG_LAST_SEEN, &[], 1_700_000_000.25);
        let mut seen = Distribution::new(&series::CONTAINERS);
        for n in [1.0, 2.0, 3.0, 30.0] {
            seen.observe(n);
        }
        page.distribution(&series::CONTAINERS_PER_POD, &[], seen);
        expect![[r#"
            # HELP kubelet_containers_per_pod_count [ALPHA] Containers in the spec of each pod that was started
            # TYPE kubelet_containers_per_pod_count histogram
            kubelet_containers_per_pod_count_bucket{le="1"} 1
            kubelet_containers_per_pod_count_bucket{le="2"} 2
            kubelet_containers_per_pod_count_bucket{le="4"} 3
            kubelet_containers_per_pod_count_bucket{le="8"} 3
            kubelet_containers_per_pod_count_bucket{le="16"} 3
            kubelet_containers_per_pod_count_bucket{le="+Inf"} 4
            kubelet_containers_per_pod_count_sum 36
            kubelet_containers_per_pod_count_count 4
            # HELP kubelet_node_name [ALPHA] The name of this node as a label, always 1
            # TYPE kubelet_node_name gauge
            kubelet_node_name{node="a \"b\" \\ \n c"} 1
            # HELP kubelet_pleg_last_seen_seconds [ALPHA] Unix time at which the runtime was last observed with success
            # TYPE kubelet_pleg_last_seen_seconds gauge
            kubelet_pleg_last_seen_seconds 1700000000.25
            # HELP kubelet_running_containers [ALPHA] Containers the runtime holds, by their state
            # TYPE kubelet_running_containers gauge
            kubelet_running_containers{container_state="exited"} 1
            kubelet_running_containers{container_state="running"} 3
        "#]]
        .assert_eq(&page.render());
        crate::exposition::parse(&page.render()).unwrap();
    }

    #[test]
    fn a_sample_is_told_once() {
        let mut page = Page::default();
        page.count(&series::RUNNING_PODS, &[], 1);
        page.count(&series::RUNNING_PODS, &[], 2);
        assert!(page.render().ends_with("\nkubelet_running_pods 2\n"));
    }

    #[test]
    fn numbers() {
        let cases = [
            (0.0, "0"),
            (0.005, "0.005"),
            (298.0232238769531, "298.0232238769531"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (number, text) in cases {
            assert_eq!(Number(number).to_string(), text);
        }
    }
}
