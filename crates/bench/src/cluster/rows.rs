//! The results as rows: krablet's with its promise, the kubelet's below it, and how the two compare.

use super::course::{Quiet, Results};
use super::{FloorRuns, MEASURE};
use crate::options::Options;
use crate::report::Row;
use crate::stats::{Samples, paired_ratio};

/// krablet's and the kubelet's.
type Both<'a, T> = [(&'static str, &'a T); 2];

pub fn rows(
    options: &Options,
    floor: &FloorRuns,
    krablet: &Results,
    kubelet: &Results,
) -> Vec<Row> {
    let pods = options.pods;
    let both: Both<'_, Results> = [("krablet", krablet), ("kubelet", kubelet)];
    let mut rows = seconds("start of the agent to node Ready", 0.3, both, |r| &r.start);
    let lone = seconds("a lone pod bound to Ready", 0.3, both, |r| &r.lone);
    let beside = format!("; floor {}", said(&floor.lone));
    rows.extend(lone.into_iter().map(|row| {
        let remark = row.remark.clone() + &beside;
        row.remark(remark)
    }));
    let name = |what: &str| format!("{pods} pods{what}");
    rows.extend(of_floor(
        &name(" bound to Ready"),
        both,
        |r| &r.burst,
        &floor.start,
    ));
    let probed = name(" with a probe bound to Ready");
    rows.extend(of_floor(&probed, both, |r| &r.probed, &floor.probed));
    rows.extend(last(
        &name(", the last container runs to the last Ready"),
        both,
    ));
    let gone = name(" deleted to gone");
    rows.extend(of_floor(&gone, both, |r| &r.deletion, &floor.stop));
    let cpu = format!("processor time of the agent for {pods} pods");
    rows.extend(seconds(&cpu, 1.0, both, |r| &r.cpu));
    rows.extend(traffic(pods, both));
    if let (Some(ours), Some(theirs)) = (&krablet.quiet, &kubelet.quiet) {
        rows.extend(quiet(pods, [("krablet", ours), ("kubelet", theirs)]));
    }
    rows
}

/// Only krablet promises anything.
fn promised(row: Row, agent: &str, promise: f64) -> Row {
    match agent {
        "krablet" => row.at_most(promise),
        _ => row,
    }
}

fn said(samples: &Samples) -> String {
    format!(
        "{:.2} s ±{:.0} %",
        samples.median(),
        100.0 * samples.spread()
    )
}

fn seconds(
    name: &str,
    promise: f64,
    both: Both<'_, Results>,
    of: impl Fn(&Results) -> &Samples,
) -> Vec<Row> {
    let row = |(agent, results): (&'static str, &Results)| {
        let samples = of(results);
        let row = Row::new(MEASURE, format!("{agent}: {name}"), samples.median(), "s");
        let spread = format!("±{:.0} %", 100.0 * samples.spread());
        promised(row, agent, promise).remark(spread)
    };
    both.map(row).into()
}

fn of_floor(
    name: &str,
    both: Both<'_, Results>,
    of: impl Fn(&Results) -> &Samples,
    floor: &Samples,
) -> Vec<Row> {
    let row = |(agent, results): (&'static str, &Results)| {
        let samples = of(results);
        let ratio = paired_ratio(samples, floor);
        let row = Row::new(MEASURE, format!("{agent}: {name}"), ratio, "× floor");
        let remark = format!("{}, floor {}", said(samples), said(floor));
        promised(row, agent, 1.2).remark(remark)
    };
    both.map(row).into()
}

fn last(name: &str, both: Both<'_, Results>) -> Vec<Row> {
    let row = |(agent, results): (&'static str, &Results)| {
        let value = results.last.median();
        let row = Row::new(MEASURE, format!("{agent}: {name}"), value, "s");
        let remark = format!(
            "of all pods: half within {:.2} s, the slowest {:.2} s",
            results.delay.median(),
            results.delay.greatest(),
        );
        promised(row, agent, 0.5).remark(remark)
    };
    both.map(row).into()
}

/// The values of both, and krablet's as a part of the kubelet's.
struct Compared {
    name: String,
    unit: &'static str,
    values: [f64; 2],
    remarks: [String; 2],
    promise: f64,
}

impl Compared {
    fn rows(self) -> Vec<Row> {
        let [ours, theirs] = self.values;
        let [our_remark, their_remark] = self.remarks;
        let row = |agent: &str, value: f64, remark: String| {
            let name = format!("{agent}: {}", self.name);
            Row::new(MEASURE, name, value, self.unit).remark(remark)
        };
        let mut rows = vec![
            row("krablet", ours, our_remark),
            row("kubelet", theirs, their_remark),
        ];
        // Beside nothing at all there is no part to speak of.
        if theirs > 0.0 {
            let name = format!("krablet beside the kubelet: {}", self.name);
            let part = Row::new(MEASURE, name, ours / theirs, "× kubelet");
            rows.push(part.at_most(self.promise));
        }
        rows
    }
}

fn traffic(pods: usize, both: Both<'_, Results>) -> Vec<Row> {
    let [ours, theirs] = both.map(|(_, results)| results);
    let requests = Compared {
        name: format!("requests to the API server for {pods} pods"),
        unit: "",
        values: [ours, theirs].map(|r| r.requests.median()),
        remarks: [ours, theirs].map(|r| format!("per pod: {}", r.kinds)),
        promise: 1.0,
    };
    let bytes = Compared {
        name: format!("bytes from and to the API server for {pods} pods"),
        unit: "kB",
        values: [ours, theirs].map(|r| r.bytes.median() / 1e3),
        remarks: [ours, theirs].map(|r| r.ways.clone()),
        promise: 1.0,
    };
    [requests.rows(), bytes.rows()].concat()
}

fn quiet(pods: usize, both: Both<'_, Quiet>) -> Vec<Row> {
    let [ours, theirs] = both.map(|(_, quiet)| quiet);
    let of = |what: fn(&Quiet) -> f64| [what(ours), what(theirs)];
    let compared = |name: &str, unit, values, promise| Compared {
        name: format!("{name}, {pods} quiet pods"),
        unit,
        values,
        remarks: Default::default(),
        promise,
    };
    let remarks = |what: fn(&Quiet) -> String| [what(ours), what(theirs)];
    let cpu = Compared {
        remarks: remarks(|q| format!("containerd meanwhile {:.1} %", 100.0 * q.containerd)),
        ..compared("processor time", "% of a core", of(|q| 100.0 * q.cpu), 0.1)
    };
    let requests = Compared {
        remarks: remarks(|q| format!("in all {}", q.kinds)),
        ..compared("requests a minute", "", of(|q| q.requests), 1.0)
    };
    let bytes = Compared {
        remarks: remarks(|q| format!("in all {}", q.ways)),
        ..compared("bytes a minute", "kB", of(|q| q.bytes / 1e3), 1.0)
    };
    [
        compared("resident memory", "MB", of(|q| q.rss / 1e6), 0.2).rows(),
        cpu.rows(),
        requests.rows(),
        bytes.rows(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(seconds: f64, quiet: Quiet) -> Results {
        let mut samples = Samples::default();
        samples.add(seconds);
        Results {
            burst: samples.clone(),
            deletion: samples.clone(),
            start: samples,
            quiet: Some(quiet),
            ..Results::default()
        }
    }

    fn quiet(rss: f64) -> Quiet {
        Quiet {
            cpu: 0.01,
            requests: 9.0,
            bytes: 5000.0,
            kinds: "patch leases 6.0".to_owned(),
            ways: String::new(),
            containerd: 0.1,
            rss,
        }
    }

    #[test]
    fn krablet_promises_and_the_kubelet_is_shown_beside_it() {
        let mut floor = FloorRuns::default();
        floor.start.add(10.0);
        floor.probed.add(10.0);
        floor.stop.add(10.0);
        let options = Options::parse([]).unwrap().unwrap();
        let (ours, theirs) = (results(11.0, quiet(15e6)), results(30.0, quiet(100e6)));
        let rows = rows(&options, &floor, &ours, &theirs);
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let ready = row("krablet: 110 pods bound to Ready");
        assert_eq!((ready.value, ready.promise), (1.1, Some(1.2)));
        let upstream = row("kubelet: 110 pods bound to Ready");
        assert_eq!((upstream.value, upstream.promise), (3.0, None));
        assert!(row("krablet: start of the agent to node Ready").is_missed());
        let memory = row("krablet beside the kubelet: resident memory, 110 quiet pods");
        assert_eq!((memory.value, memory.promise), (0.15, Some(0.2)));
        let cpu = row("krablet beside the kubelet: processor time, 110 quiet pods");
        assert!(cpu.is_missed());
    }
}
