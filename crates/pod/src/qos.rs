//! Quality-of-service class of a pod, from its containers' cpu and memory.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::Quantity;
use crate::api::{PodSpec, ResourceRequirements};
use crate::containers;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// A positive amount of a resource, or none: zero counts as not asked for.
fn positive(list: Option<&BTreeMap<String, ApiQuantity>>, resource: &str) -> Option<Quantity> {
    list?
        .get(resource)?
        .0
        .parse::<Quantity>()
        .ok()
        .filter(|q| !q.is_zero() && !q.is_negative())
}

/// Guaranteed: every container has cpu and memory limits equal to its requests. BestEffort: none
/// asks for anything. Pod-level resources, when set, decide alone.
pub fn qos_class(spec: &PodSpec) -> QosClass {
    let empty = ResourceRequirements::default();
    let all: Vec<&ResourceRequirements> = match &spec.resources {
        Some(pod_level) => vec![pod_level],
        None => containers::all(spec)
            .map(|c| c.container.resources.as_ref().unwrap_or(&empty))
            .collect(),
    };
    let asked = |r: &ResourceRequirements, resource| {
        positive(r.requests.as_ref(), resource).or(positive(r.limits.as_ref(), resource))
    };
    let guaranteed = |r: &ResourceRequirements| {
        COMPUTE.iter().all(|resource| {
            let limit = positive(r.limits.as_ref(), resource);
            limit.is_some() && asked(r, resource) == limit
        })
    };
    if all
        .iter()
        .all(|r| COMPUTE.iter().all(|resource| asked(r, resource).is_none()))
    {
        QosClass::BestEffort
    } else if all.iter().all(|r| guaranteed(r)) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Container;

    fn list(pairs: &[(&str, &str)]) -> Option<BTreeMap<String, ApiQuantity>> {
        (!pairs.is_empty()).then(|| {
            pairs
                .iter()
                .map(|(k, v)| (k.to_string(), ApiQuantity(v.to_string())))
                .collect()
        })
    }

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn classes() {
        let full: Pairs = &[("cpu", "1"), ("memory", "1Gi")];
        let cases: [(&[(Pairs, Pairs)], QosClass); 6] = [
            (&[(&[], &[])], QosClass::BestEffort),
            (&[(&[("cpu", "0")], &[])], QosClass::BestEffort),
            (&[(full, full)], QosClass::Guaranteed),
            (&[(&[], full)], QosClass::Guaranteed),
            (&[(full, full), (&[], &[])], QosClass::Burstable),
            (&[(&[("cpu", "1")], &[])], QosClass::Burstable),
        ];
        for (containers, class) in cases {
            let spec = PodSpec {
                containers: containers
                    .iter()
                    .map(|(requests, limits)| Container {
                        resources: Some(ResourceRequirements {
                            requests: list(requests),
                            limits: list(limits),
                            ..Default::default()
                        }),
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            };
            assert_eq!(qos_class(&spec), class, "{containers:?}");
        }
    }
}
