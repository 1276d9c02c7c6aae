//! How much there is, and how much of it pods may have.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_linux::Machine;
use krablet_pod::Quantity;
use krablet_pod::quantity::Format;

use crate::config::{NodeConfig, PodLimit};
use crate::error::NodeError;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const PODS: &str = "pods";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const HUGE_PAGES_PREFIX: &str = "hugepages-";

pub type Resources = BTreeMap<String, Quantity>;
pub(crate) type ApiResources = BTreeMap<String, ApiQuantity>;

/// What is kept from pods.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    kube: Resources,
    system: Resources,
    memory_available: Option<Threshold>,
    nodefs_available: Option<Threshold>,
}

/// How little may be left before pods are evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threshold {
    Amount(Quantity),
    /// Of the capacity; single precision, so that the numbers are those of a kubelet.
    Share(f32),
}

impl Reservations {
    /// Of `kubeReserved`, `systemReserved` and `evictionHard` as they are written.
    pub fn parse(
        kube: &BTreeMap<String, String>,
        system: &BTreeMap<String, String>,
        eviction_hard: &BTreeMap<String, String>,
    ) -> Result<Self, NodeError> {
        let threshold = |signal: &str| match eviction_hard.get(signal) {
            Some(text) => parse_threshold("evictionHard", signal, text),
            None => Ok(None),
        };
        Ok(Self {
            kube: parse_resources("kubeReserved", kube)?,
            system: parse_resources("systemReserved", system)?,
            memory_available: threshold("memory.available")?,
            nodefs_available: threshold("nodefs.available")?,
        })
    }

    /// What is wrong if more is kept than there is.
    pub fn overdrawn(&self, capacity: &Resources) -> Option<String> {
        let more = capacity.iter().filter_map(|(name, amount)| {
            let kept = self.of(name, *amount);
            (kept > *amount).then(|| {
                format!("Resource {name:?} has a reservation of {kept} but capacity of {amount}. Expected capacity >= reservation.")
            })
        });
        let more: Vec<String> = more.collect();
        let text = || format!("invalid Node Allocatable configuration. {}", more.join(" "));
        (!more.is_empty()).then(text)
    }

    /// Of one resource, of which there is so much.
    fn of(&self, name: &str, capacity: Quantity) -> Quantity {
        let threshold = match name {
            MEMORY => self.memory_available,
            EPHEMERAL_STORAGE => self.nodefs_available,
            _ => None,
        };
        let evicted = threshold.map(|threshold| threshold.of(capacity));
        let kept = [self.system.get(name), self.kube.get(name), evicted.as_ref()];
        kept.into_iter()
            .flatten()
            .fold(Quantity::ZERO, |sum, part| sum.saturating_add(*part))
    }
}

impl Threshold {
    pub(crate) fn of(self, capacity: Quantity) -> Quantity {
        match self {
            Threshold::Amount(amount) => amount,
            Threshold::Share(share) => {
                let bytes = capacity.value() as f64 * f64::from(share);
                Quantity::from_units(bytes as i64, Format::BinarySi)
            }
        }
    }
}

fn parse_resources(
    field: &'static str,
    texts: &BTreeMap<String, String>,
) -> Result<Resources, NodeError> {
    let parse = |(name, text): (&String, &String)| match text.parse() {
        Ok(amount) => Ok((name.clone(), amount)),
        Err(_) => Err(NodeError::amount(field, name, text)),
    };
    texts.iter().map(parse).collect()
}

/// 0 % and 100 % mean that there is no threshold.
pub(crate) fn parse_threshold(
    field: &'static str,
    signal: &str,
    text: &str,
) -> Result<Option<Threshold>, NodeError> {
    let wrong = || NodeError::amount(field, signal, text);
    let Some(percent) = text.strip_suffix('%') else {
        let amount = text.parse().map_err(|_| wrong())?;
        return Ok(Some(Threshold::Amount(amount)));
    };
    let share: f32 = percent.parse().map_err(|_| wrong())?;
    let share = share / 100.0;
    match share {
        _ if !(0.0..=1.0).contains(&share) => Err(wrong()),
        _ if text == "0%" || text == "100%" => Ok(None),
        _ => Ok(Some(Threshold::Share(share))),
    }
}

/// What the machine itself offers.
pub fn capacity(machine: &Machine, config: &NodeConfig) -> Resources {
    let bytes = |n: u64| {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        Quantity::from_units(n, Format::BinarySi)
    };
    let mut capacity = Resources::from([
        (
            CPU.to_owned(),
            Quantity::from_millis(i64::from(machine.cpus) * 1000),
        ),
        (MEMORY.to_owned(), bytes(machine.memory)),
        (PODS.to_owned(), pods(config.pod_limit, machine.cpus)),
    ]);
    for pages in &machine.huge_pages {
        let name = format!("{HUGE_PAGES_PREFIX}{}", bytes(pages.size));
        capacity.insert(name, bytes(pages.size.saturating_mul(pages.count)));
    }
    if let Some(disk) = machine.root_capacity.filter(|_| config.ephemeral_storage) {
        capacity.insert(EPHEMERAL_STORAGE.to_owned(), bytes(disk));
    }
    capacity
}

fn pods(limit: PodLimit, cpus: u32) -> Quantity {
    let most = match limit.pods_per_core {
        0 => limit.max_pods,
        per_core => per_core.saturating_mul(cpus).min(limit.max_pods),
    };
    Quantity::from_units(i64::from(most), Format::DecimalSi)
}

/// What of it pods may have. Huge pages are memory that is spoken for.
pub fn allocatable(capacity: &Resources, reservations: &Reservations) -> Resources {
    let mut allocatable: Resources = capacity
        .iter()
        .map(|(name, amount)| {
            let rest = without(name, *amount, reservations.of(name, *amount));
            (name.clone(), rest)
        })
        .collect();
    let huge = capacity.iter().filter(|(name, _)| is_huge_pages(name));
    if let Some(memory) = allocatable.get_mut(MEMORY) {
        for (_, amount) in huge {
            *memory = without(MEMORY, *memory, *amount);
        }
    }
    allocatable
}

/// The difference, not below zero, in the form in which amounts of this resource are written.
fn without(name: &str, amount: Quantity, part: Quantity) -> Quantity {
    if part.is_zero() {
        return amount;
    }
    let format = match name {
        MEMORY | EPHEMERAL_STORAGE => Format::BinarySi,
        _ if is_huge_pages(name) => Format::BinarySi,
        _ => {
            let millis = amount.milli_value().saturating_sub(part.milli_value());
            return Quantity::from_millis(millis.max(0));
        }
    };
    let units = amount.value().saturating_sub(part.value());
    Quantity::from_units(units.max(0), format)
}

pub(crate) fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES_PREFIX)
}

/// Resources that others than the node itself put on it: `example.com/device`.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

pub(crate) fn to_api(resources: &Resources) -> ApiResources {
    let written = |(name, amount): (&String, &Quantity)| (name.clone(), api_quantity(*amount));
    resources.iter().map(written).collect()
}

pub(crate) fn api_quantity(amount: Quantity) -> ApiQuantity {
    ApiQuantity(amount.to_string())
}

/// Whether two written amounts are the same one.
pub(crate) fn same_amount(a: Option<&ApiQuantity>, b: Option<&ApiQuantity>) -> bool {
    let amount = |q: Option<&ApiQuantity>| q.map(|q| q.0.parse::<Quantity>());
    a == b || amount(a) == amount(b)
}

/// Capacity and allocatable for a status that has `old` ones: what others put there stays.
pub(crate) fn merged(
    old: Option<&ApiResources>,
    old_allocatable: Option<&ApiResources>,
    own: &Resources,
    reservations: &Reservations,
) -> (ApiResources, ApiResources) {
    let mut capacity = old.cloned().unwrap_or_default();
    capacity.extend(to_api(own));
    let mut shared: ApiResources = old_allocatable.cloned().unwrap_or_default();
    shared.retain(|name, _| capacity.contains_key(name) || !is_extended(name));
    let others = capacity.iter().filter(|(name, _)| !own.contains_key(*name));
    shared.extend(others.map(|(name, amount)| (name.clone(), amount.clone())));
    // Sizes of huge pages left over from before still count against memory, as they do upstream.
    let mut all = own.clone();
    for (name, amount) in &capacity {
        if let Ok(amount) = amount.0.parse()
            && is_huge_pages(name)
        {
            all.entry(name.clone()).or_insert(amount);
        }
    }
    shared.extend(to_api(&allocatable(&all, reservations)));
    (capacity, shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::facts::{HugePages, Machine};

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    }

    fn machine() -> Machine {
        Machine {
            cpus: 2,
            memory: 8_148_548 << 10,
            huge_pages: vec![
                HugePages {
                    size: 2 << 20,
                    count: 16,
                },
                HugePages {
                    size: 1 << 30,
                    count: 0,
                },
            ],
            root_capacity: Some(100 << 30),
            ..Machine::default()
        }
    }

    fn shown(resources: &Resources) -> Vec<String> {
        resources.iter().map(|(n, q)| format!("{n}={q}")).collect()
    }

    #[test]
    fn capacity_of_a_machine() {
        let mut config = NodeConfig::new("n");
        let expected = [
            "cpu=2",
            "ephemeral-storage=100Gi",
            "hugepages-1Gi=0",
            "hugepages-2Mi=32Mi",
            "memory=8148548Ki",
            "pods=110",
        ];
        assert_eq!(shown(&capacity(&machine(), &config)), expected);
        config.pod_limit.pods_per_core = 10;
        config.ephemeral_storage = false;
        let limited = capacity(&machine(), &config);
        assert_eq!(limited[PODS].value(), 20);
        assert!(!limited.contains_key(EPHEMERAL_STORAGE));
    }

    #[test]
    fn allocatable_is_what_reservations_leave() {
        let capacity = capacity(&machine(), &NodeConfig::new("n"));
        let reservations = Reservations::parse(
            &texts(&[("cpu", "100m"), ("memory", "100Mi")]),
            &texts(&[("cpu", "0.1"), ("pid", "1000")]),
            &texts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]),
        );
        let left = allocatable(&capacity, &reservations.unwrap());
        let expected = [
            "cpu=1800m",
            // A tenth in single precision is a little more than a tenth.
            "ephemeral-storage=96636764000",
            "hugepages-1Gi=0",
            "hugepages-2Mi=32Mi",
            "memory=7910980Ki",
            "pods=110",
        ];
        assert_eq!(shown(&left), expected);
    }

    #[test]
    fn nothing_goes_below_zero_and_odd_words_are_refused() {
        let capacity = capacity(&machine(), &NodeConfig::new("n"));
        let none = BTreeMap::new();
        let all = Reservations::parse(&texts(&[("cpu", "3"), ("memory", "1Ti")]), &none, &none);
        let left = allocatable(&capacity, &all.unwrap());
        assert!(left[CPU].is_zero() && left[MEMORY].is_zero());
        let off = texts(&[("memory.available", "0%"), ("nodefs.available", "100%")]);
        let off = Reservations::parse(&none, &none, &off).unwrap();
        assert_eq!((off.memory_available, off.nodefs_available), (None, None));
        for (kube, hard) in [
            (texts(&[("cpu", "much")]), none.clone()),
            (none.clone(), texts(&[("memory.available", "101%")])),
            (none.clone(), texts(&[("nodefs.available", "-1%")])),
        ] {
            assert!(Reservations::parse(&kube, &none, &hard).is_err());
        }
    }

    #[test]
    fn more_kept_than_there_is() {
        let capacity = capacity(&machine(), &NodeConfig::new("n"));
        let parse = |cpu: &str, memory: &str| {
            let kube = texts(&[("cpu", cpu)]);
            Reservations::parse(&kube, &texts(&[]), &texts(&[("memory.available", memory)]))
                .unwrap()
        };
        assert_eq!(parse("2", "10%").overdrawn(&capacity), None);
        assert_eq!(
            parse("3", "9Gi").overdrawn(&capacity).unwrap(),
            "invalid Node Allocatable configuration. \
             Resource \"cpu\" has a reservation of 3 but capacity of 2. Expected capacity >= reservation. \
             Resource \"memory\" has a reservation of 9Gi but capacity of 8148548Ki. Expected capacity >= reservation."
        );
    }

    #[test]
    fn resources_of_others_stay_and_go_with_their_capacity() {
        let api = |pairs: &[(&str, &str)]| -> ApiResources {
            let own = |(k, v): &(&str, &str)| ((*k).to_owned(), ApiQuantity((*v).to_owned()));
            pairs.iter().map(own).collect()
        };
        let old = api(&[("example.com/gpu", "2"), ("cpu", "1")]);
        let old_allocatable = api(&[("example.com/gone", "1")]);
        let own = capacity(&machine(), &NodeConfig::new("n"));
        let none = Reservations::default();
        let (capacity, shared) = merged(Some(&old), Some(&old_allocatable), &own, &none);
        assert_eq!(capacity["example.com/gpu"].0, "2");
        assert_eq!(capacity["cpu"].0, "2");
        assert_eq!(shared["example.com/gpu"].0, "2");
        assert!(!shared.contains_key("example.com/gone"));
    }

    #[test]
    fn names_of_extended_resources() {
        assert!(is_extended("example.com/gpu"));
        for own in [
            "cpu",
            "hugepages-2Mi",
            "node.kubernetes.io/x",
            "requests.a/b",
        ] {
            assert!(!is_extended(own), "{own}");
        }
    }
}
