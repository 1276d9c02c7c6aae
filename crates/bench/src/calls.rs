//! How many calls the runtime was asked, as it counts them itself: a number without noise.

use std::collections::BTreeMap;

use anyhow::Result;
use krablet_testbed::get;

/// Where the bed's runtime tells its numbers.
#[derive(Clone, Debug)]
pub struct Counter {
    address: String,
}

impl Counter {
    pub fn at(port: u16) -> Self {
        Self {
            address: format!("127.0.0.1:{port}"),
        }
    }

    /// What containerd needs in its configuration for this.
    pub fn containerd_config(&self) -> String {
        format!("[metrics]\n  address = \"{}\"\n", self.address)
    }

    /// Calls begun so far.
    pub async fn read(&self) -> Result<Calls> {
        Ok(parse(&get(&self.address, "/v1/metrics").await?.body))
    }
}

/// Calls by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(BTreeMap<String, u64>);

impl Calls {
    pub fn since(&self, before: &Calls) -> Calls {
        let new = self.0.iter().map(|(name, count)| {
            let old = before.0.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(old))
        });
        Calls(new.filter(|(_, count)| *count > 0).collect())
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// `RunPodSandbox 1.0, StartContainer 1.0`, each divided by the number of pods.
    pub fn per_pod(&self, pods: usize) -> String {
        let mut counts: Vec<(&String, &u64)> = self.0.iter().collect();
        counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
        let each = counts
            .into_iter()
            .map(|(name, count)| format!("{name} {:.1}", *count as f64 / pods as f64));
        each.collect::<Vec<_>>().join(", ")
    }
}

impl FromIterator<String> for Calls {
    /// One call of each name.
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        let mut calls = Calls::default();
        for name in names {
            *calls.0.entry(name).or_default() += 1;
        }
        calls
    }
}

fn parse(text: &str) -> Calls {
    let mut calls = Calls::default();
    for line in text.lines() {
        let Some(series) = line.strip_prefix("grpc_server_started_total{") else {
            continue;
        };
        let Some((labels, value)) = series.split_once("} ") else {
            continue;
        };
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let of_cri = label("grpc_service").is_some_and(|s| s.starts_with("runtime.v1."));
        if let (true, Some(method), Ok(value)) =
            (of_cri, label("grpc_method"), value.trim().parse::<f64>())
        {
            *calls.0.entry(method.to_owned()).or_default() += value as u64;
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_the_cri_are_read_and_compared() {
        let series = |service: &str, method: &str, value: &str| {
            format!(
                "grpc_server_started_total{{grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"unary\"}} {value}\n"
            )
        };
        let before = parse(&series("runtime.v1.RuntimeService", "StartContainer", "2"));
        let text = [
            "# HELP grpc_server_started_total Total number\n".to_owned(),
            series("runtime.v1.RuntimeService", "StartContainer", "6"),
            series("runtime.v1.ImageService", "ImageStatus", "8"),
            series("containerd.services.events.v1.Events", "Subscribe", "9"),
            series("runtime.v1.RuntimeService", "Version", "0"),
        ];
        let calls = parse(&text.concat()).since(&before);
        assert_eq!(calls.total(), 12);
        assert_eq!(calls.per_pod(4), "ImageStatus 2.0, StartContainer 1.0");
    }
}
