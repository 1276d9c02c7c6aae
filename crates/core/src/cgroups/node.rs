//! What all pods together, and the daemons beside them, are held to.

use krablet_pod::Quantity;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::resources::Amounts;

use super::{huge_pages, shares};

/// What the user said of one side of the reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// `system` or `kube`.
    pub side: &'static str,
    pub amounts: Amounts,
    /// The cgroup as the user names it.
    pub cgroup: String,
}

/// Limits to be put on a cgroup that the daemons of the node live in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// `System Reserved`, `Kube Reserved Compressible`, … as events call it.
    pub what: String,
    /// `system reserved` or `kube reserved`.
    pub side: String,
    pub cgroup: String,
    pub limits: CgroupLimits,
}

/// The limits of all pods together, then those of the sides of the reservation that are enforced.
/// `capacity` counts process ids as `pid`.
pub fn enforcement(
    capacity: &Amounts,
    sides: &[Reserved],
    enforce: &[String],
    protect_memory: bool,
) -> (CgroupLimits, Vec<Enforcement>) {
    let enforced = |key: &str| enforce.iter().any(|e| e == key);
    let pods = match enforced("pods") {
        true => left(capacity, sides),
        false => capacity.clone(),
    };
    let mut found = Vec::new();
    // The whole of both sides first, then what can be pressed together.
    for (suffix, word, compressible) in [("", "", false), ("-compressible", " Compressible", true)]
    {
        for side in sides {
            if !enforced(&format!("{}-reserved{suffix}", side.side)) {
                continue;
            }
            let mut limits = limits(&side.amounts, compressible);
            limits.memory_min = limits.memory.filter(|_| protect_memory);
            found.push(Enforcement {
                what: format!("{} Reserved{word}", capital(side.side)),
                side: format!("{} reserved", side.side),
                cgroup: side.cgroup.clone(),
                limits,
            });
        }
    }
    (limits(&pods, false), found)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// What reservations leave. What pods are evicted for is within it: they may reach the threshold.
fn left(capacity: &Amounts, sides: &[Reserved]) -> Amounts {
    let rest = |(name, amount): (&String, &Quantity)| {
        let kept = sides.iter().filter_map(|side| side.amounts.get(name));
        let rest = kept.fold(*amount, |rest, kept| rest.saturating_sub(*kept));
        let rest = match rest.is_negative() {
            true => Quantity::ZERO,
            false => rest,
        };
        (name.clone(), rest)
    };
    capacity.iter().map(rest).collect()
}

fn limits(amounts: &Amounts, compressible: bool) -> CgroupLimits {
    let cpu_shares = amounts.get("cpu").map(|q| shares(q.milli_value()));
    if compressible {
        return CgroupLimits {
            cpu_shares,
            ..CgroupLimits::default()
        };
    }
    CgroupLimits {
        cpu_shares,
        memory: amounts.get("memory").map(|q| q.value()),
        pids: amounts.get("pid").map(|q| q.value()),
        huge_pages: huge_pages(amounts),
        ..CgroupLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::cgroups::HugePageLimits;

    fn amounts(pairs: &[(&str, &str)]) -> Amounts {
        let parsed = |(k, v): &(&str, &str)| ((*k).to_owned(), v.parse().unwrap());
        pairs.iter().map(parsed).collect()
    }

    fn capacity() -> Amounts {
        amounts(&[
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("pid", "1000"),
            ("hugepages-2Mi", "32Mi"),
        ])
    }

    fn sides() -> [Reserved; 2] {
        [
            Reserved {
                side: "system",
                amounts: amounts(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")]),
                cgroup: "/system".into(),
            },
            Reserved {
                side: "kube",
                amounts: amounts(&[("cpu", "500m"), ("memory", "1Gi")]),
                cgroup: "/kube".into(),
            },
        ]
    }

    fn run(enforce: &[&str], protect: bool) -> (CgroupLimits, Vec<Enforcement>) {
        let enforce: Vec<String> = enforce.iter().map(|e| (*e).to_owned()).collect();
        enforcement(&capacity(), &sides(), &enforce, protect)
    }

    #[test]
    fn pods_have_what_reservations_leave() {
        let (pods, others) = run(&["pods"], false);
        assert_eq!(pods.cpu_shares, Some(3072));
        assert_eq!(pods.memory, Some(6 << 30));
        assert_eq!(pods.pids, Some(900));
        assert_eq!(
            pods.huge_pages,
            HugePageLimits::Only([(2 << 20, 32 << 20)].into())
        );
        assert_eq!(others, []);
        let (all, _) = run(&["none"], false);
        assert_eq!(
            (all.cpu_shares, all.memory, all.pids),
            (Some(4096), Some(8 << 30), Some(1000))
        );
    }

    #[test]
    fn more_reserved_than_there_is_leaves_nothing() {
        let mut sides = sides();
        sides[0].amounts = amounts(&[("memory", "9Gi")]);
        let (pods, _) = enforcement(&capacity(), &sides, &["pods".to_owned()], false);
        assert_eq!(pods.memory, Some(0));
    }

    #[test]
    fn reserved_cgroups_are_limited_too() {
        let (_, found) = run(&["pods", "kube-reserved", "system-reserved"], true);
        let [system, kube] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (system.what.as_str(), system.side.as_str()),
            ("System Reserved", "system reserved")
        );
        assert_eq!(system.limits.pids, Some(100));
        assert_eq!(system.limits.memory_min, Some(1 << 30));
        assert_eq!(
            (kube.what.as_str(), kube.cgroup.as_str()),
            ("Kube Reserved", "/kube")
        );
        assert_eq!(kube.limits.cpu_shares, Some(512));
        let (_, found) = run(&["system-reserved-compressible"], true);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "System Reserved Compressible");
        let expected = CgroupLimits {
            cpu_shares: Some(512),
            ..CgroupLimits::default()
        };
        assert_eq!(found[0].limits, expected);
    }
}
