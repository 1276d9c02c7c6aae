//! What the bench is asked to do.

use std::path::PathBuf;

use anyhow::{Result, bail};

/// The measures, in the order they are taken.
pub const MEASURES: [&str; 11] = [
    "binary", "starts", "lone", "idle", "memory", "probes", "scale", CLUSTER, CONTENT, SERVER,
    CROWD,
];

/// krablet and the upstream kubelet as nodes of a cluster.
pub const CLUSTER: &str = "cluster";
/// ConfigMaps and secrets.
pub const CONTENT: &str = "content";
/// The HTTPS port.
pub const SERVER: &str = "server";
/// Many pods of an API server.
pub const CROWD: &str = "crowd";
/// Taken only when asked for: they need a control plane.
const ON_DEMAND: [&str; 4] = [CLUSTER, CONTENT, SERVER, CROWD];

pub const USAGE: &str = "\
usage: krablet-bench [--quick] [--only MEASURE]... [--pods N] [--rounds N]
       krablet-bench --order FILE

Measures krablet against the raw CRI floor, on a container runtime of its own.
  --quick         fewer pods, fewer rounds, shorter idle times: for a first look
  --only MEASURE  binary, starts, lone, idle, memory, probes or scale; or one of those that are not
                  taken otherwise: cluster (krablet and the upstream kubelet as nodes of a
                  cluster), content (what configMaps and secrets cost, and how fast they follow),
                  server (the HTTPS port, beside the upstream kubelet's), crowd (the memory of 500
                  real pods of an API server)
  --pods N        pods instead of 110 (of a crowd, instead of 500)
  --rounds N      how often floor and krablet are run in turn, instead of 3
  --order FILE    measures nothing, and writes the functions that a quiet node uses to a file, in the
                  order in which the linker is to put them; the binary has to have its symbols
KRABLET_BIN names the binary to measure; target/release/krablet if it is not set.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub pods: usize,
    pub rounds: usize,
    pub lone_rounds: usize,
    /// Lone pods of a node of a cluster, all rounds together.
    pub lone_pods: usize,
    /// How long the node is watched doing nothing, in seconds.
    pub idle_seconds: u64,
    /// Pods in the simulated world.
    pub simulated: usize,
    /// Pods of a node that has many.
    pub crowd: usize,
    /// Where the order of functions is to be written.
    pub order: Option<PathBuf>,
    only: Vec<String>,
}

impl Options {
    pub fn wants(&self, measure: &str) -> bool {
        match self.only.is_empty() {
            true => !ON_DEMAND.contains(&measure),
            false => self.only.iter().any(|only| only == measure),
        }
    }

    /// `None`: show how it is used.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Option<Self>> {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let mut options = match arguments.iter().any(|a| a == "--quick") {
            false => Self {
                pods: 110,
                rounds: 3,
                lone_rounds: 9,
                lone_pods: 12,
                idle_seconds: 90,
                simulated: 500,
                crowd: 500,
                order: None,
                only: Vec::new(),
            },
            true => Self {
                pods: 20,
                rounds: 1,
                lone_rounds: 3,
                lone_pods: 3,
                idle_seconds: 20,
                simulated: 500,
                crowd: 500,
                order: None,
                only: Vec::new(),
            },
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || match arguments.next() {
                Some(value) => Ok(value),
                None => bail!("{argument} needs a value\n{USAGE}"),
            };
            match argument.as_str() {
                "--quick" => {}
                "--help" | "-h" => return Ok(None),
                "--only" => options.only.push(value()?),
                "--pods" => {
                    options.pods = value()?.parse()?;
                    options.crowd = options.pods;
                }
                "--order" => options.order = Some(value()?.into()),
                "--rounds" => options.rounds = value()?.parse()?,
                _ => bail!("unknown argument {argument}\n{USAGE}"),
            }
        }
        if let Some(unknown) = options
            .only
            .iter()
            .find(|o| !MEASURES.contains(&o.as_str()))
        {
            bail!("unknown measure {unknown}\n{USAGE}");
        }
        Ok(Some(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments() {
        let all = parse("").unwrap().unwrap();
        assert_eq!((all.pods, all.rounds), (110, 3));
        let wanted = MEASURES.iter().filter(|measure| all.wants(measure));
        assert_eq!(wanted.count(), MEASURES.len() - ON_DEMAND.len());
        assert!(
            !all.wants(CLUSTER) && !all.wants(CONTENT) && !all.wants(SERVER) && !all.wants(CROWD)
        );
        let some = parse("--only idle --quick --pods 7 --only lone")
            .unwrap()
            .unwrap();
        assert_eq!((some.pods, some.rounds), (7, 1));
        assert!(parse("--only cluster").unwrap().unwrap().wants(CLUSTER));
        assert!(some.wants("idle") && some.wants("lone") && !some.wants("starts"));
        assert_eq!(some.order, None);
        let order = parse("--order a/b").unwrap().unwrap().order;
        assert_eq!(order, Some("a/b".into()));
        assert_eq!(parse("--help").unwrap(), None);
        assert!(parse("--only nothing").is_err());
        assert!(parse("--pods").is_err());
        assert!(parse("fast").is_err());
    }
}
