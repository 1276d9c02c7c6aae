//! What of the node is kept from pods, as the user said it in several places.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use krablet_config::Loaded;
use krablet_node::{NodeError, Reservations};

const CPU: &str = "cpu";

/// Amounts as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    pub kube: BTreeMap<String, String>,
    pub system: BTreeMap<String, String>,
    /// The thresholds that count as kept.
    pub eviction_hard: BTreeMap<String, String>,
}

impl Withheld {
    pub fn of(loaded: &Loaded) -> Result<Self> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        Self::with_cpus(loaded, &online.unwrap_or_default())
    }

    /// CPUs that are reserved by their numbers take the place of amounts of them.
    fn with_cpus(loaded: &Loaded, online: &str) -> Result<Self> {
        let allocatable = &loaded.config.allocatable;
        let mut kept = Self {
            kube: allocatable.kube_reserved.clone(),
            system: allocatable.system_reserved.clone(),
            eviction_hard: loaded.config.eviction.hard.clone(),
        };
        if loaded
            .flags
            .runtime
            .experimental_allocatable_ignore_eviction
        {
            kept.eviction_hard.clear();
        }
        let cpus = allocatable.reserved_system_cpus.trim();
        if cpus.is_empty() {
            return Ok(kept);
        }
        let reserved = numbers(cpus).context("unable to parse reserved-cpus list")?;
        // A machine that does not tell its processors is believed to have them.
        let known = numbers(online.trim()).filter(|all| !all.is_empty());
        if known.is_some_and(|all| !reserved.is_subset(&all)) {
            let online = online.trim();
            bail!("reserved-cpus: {cpus} is not a subset of online-cpus: {online}");
        }
        kept.kube.remove(CPU);
        let count = reserved.len().to_string();
        kept.system.insert(CPU.to_owned(), count);
        Ok(kept)
    }

    pub fn parse(&self) -> Result<Reservations, NodeError> {
        Reservations::parse(&self.kube, &self.system, &self.eviction_hard)
    }
}

/// Of a kernel list such as `0-3,8`.
fn numbers(list: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in list.split(',').filter(|part| !part.trim().is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        // No kernel has more; a slip of the pen must not fill the memory.
        if to < from || to > 1 << 16 {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn kept(args: &[&str]) -> Result<Withheld> {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        let loaded = krablet_config::load(&args, &krablet_config::StdFiles).unwrap();
        Withheld::with_cpus(&loaded, "0-3\n")
    }

    fn shown(kept: &Withheld) -> String {
        let one = |map: &BTreeMap<String, String>| {
            let pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
            pairs.join(",")
        };
        format!(
            "kube {} system {} eviction {}",
            one(&kept.kube),
            one(&kept.system),
            one(&kept.eviction_hard)
        )
    }

    #[test]
    fn amounts_numbers_and_thresholds() {
        let given = [
            "--kube-reserved=cpu=100m,memory=1Gi",
            "--system-reserved=cpu=200m",
            "--eviction-hard=memory.available<100Mi",
        ];
        let cases: [(&[&str], &str); 4] = [
            (
                &[],
                "kube cpu=100m,memory=1Gi system cpu=200m eviction memory.available=100Mi",
            ),
            (
                &["--reserved-cpus=0-1,3"],
                "kube memory=1Gi system cpu=3 eviction memory.available=100Mi",
            ),
            (
                &["--experimental-allocatable-ignore-eviction=true"],
                "kube cpu=100m,memory=1Gi system cpu=200m eviction ",
            ),
            (
                &["--reserved-cpus=2"],
                "kube memory=1Gi system cpu=1 eviction memory.available=100Mi",
            ),
        ];
        for (more, expected) in cases {
            let args: Vec<&str> = given.iter().chain(more).copied().collect();
            assert_eq!(shown(&kept(&args).unwrap()), expected, "{more:?}");
        }
        let refused = kept(&["--reserved-cpus=3-4"]).unwrap_err().to_string();
        assert_eq!(
            refused,
            "reserved-cpus: 3-4 is not a subset of online-cpus: 0-3"
        );
    }
}
