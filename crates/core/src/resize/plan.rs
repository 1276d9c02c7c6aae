//! The order of a resize: the pod's cgroup grows before its containers do, and shrinks after them.

use std::collections::BTreeMap;

use krablet_pod::cgroups::{CgroupLimits, CpuQuota};

use super::size::{ContainerToUpdate, PodResizes, Resource};

/// Done one after another; the first that fails ends it, and the next sync begins where it stands.
#[derive(Clone, Debug, PartialEq)]
pub enum ResizeStep {
    /// What is set, and nothing else, is given to the pod's cgroup.
    Pod(CgroupLimits),
    Container(Resource, ContainerToUpdate),
}

/// `now` is what the pod's cgroup is held to, if pods have cgroups; a limit that is `wanted` no more is
/// left as it is.
pub fn plan(
    now: Option<&CgroupLimits>,
    wanted: &CgroupLimits,
    resizes: &PodResizes,
) -> Vec<ResizeStep> {
    let mut steps = Vec::new();
    for resource in [Resource::Memory, Resource::Cpu] {
        let updates = resizes.of(resource);
        if updates.is_empty() && !resizes.pod {
            continue;
        }
        let (before, after) = match (now, resource) {
            (None, _) => (Vec::new(), Vec::new()),
            (Some(now), Resource::Memory) => memory(now, wanted),
            (Some(now), Resource::Cpu) => cpu(now, wanted),
        };
        let update = |u: &ContainerToUpdate| ResizeStep::Container(resource, u.clone());
        steps.extend(before.into_iter().map(ResizeStep::Pod));
        steps.extend(updates.iter().map(update));
        steps.extend(after.into_iter().map(ResizeStep::Pod));
    }
    steps
}

type BeforeAndAfter = (Vec<CgroupLimits>, Vec<CgroupLimits>);

fn memory(now: &CgroupLimits, wanted: &CgroupLimits) -> BeforeAndAfter {
    let Some(bytes) = wanted.memory else {
        return BeforeAndAfter::default();
    };
    let set = || {
        let memory = Some(bytes);
        vec![CgroupLimits {
            memory,
            ..CgroupLimits::default()
        }]
    };
    match now.memory {
        Some(held) if held == bytes => BeforeAndAfter::default(),
        Some(held) if held < bytes => (set(), Vec::new()),
        _ => (Vec::new(), set()),
    }
}

/// Weights never exceed what they weigh: growing, the limit goes first; shrinking, last.
fn cpu(now: &CgroupLimits, wanted: &CgroupLimits) -> BeforeAndAfter {
    let (mut before, mut after) = BeforeAndAfter::default();
    let micros = |q: Option<CpuQuota>| q.and_then(|q| q.micros).unwrap_or(i64::MAX);
    let quota = || CgroupLimits {
        cpu_quota: wanted.cpu_quota,
        ..CgroupLimits::default()
    };
    let shares = || CgroupLimits {
        cpu_shares: wanted.cpu_shares,
        ..CgroupLimits::default()
    };
    let grows = micros(wanted.cpu_quota) > micros(now.cpu_quota);
    let shrinks = micros(wanted.cpu_quota) < micros(now.cpu_quota);
    let (grows, shrinks) = match wanted.cpu_quota {
        Some(_) => (grows, shrinks),
        None => (false, false),
    };
    if grows {
        before.push(quota());
    }
    if wanted.cpu_shares > now.cpu_shares {
        before.push(shares());
    }
    if wanted.cpu_shares.is_some() && wanted.cpu_shares < now.cpu_shares {
        after.push(shares());
    }
    if shrinks {
        after.push(quota());
    }
    (before, after)
}

/// Bytes used now; none where it could not be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub pod: Option<u64>,
    /// By name.
    pub containers: BTreeMap<String, u64>,
}

fn smaller_pod_limit(now: Option<&CgroupLimits>, wanted: &CgroupLimits) -> Option<i64> {
    let held = now?.memory;
    wanted
        .memory
        .filter(|limit| held.is_none_or(|held| *limit < held))
}

/// Whether a limit of memory becomes smaller, so that it matters what is used.
pub fn needs_memory_check(
    now: Option<&CgroupLimits>,
    wanted: &CgroupLimits,
    resizes: &PodResizes,
) -> bool {
    let touched = !resizes.memory.is_empty() || resizes.pod;
    let mut updates = resizes.memory.iter();
    touched
        && (smaller_pod_limit(now, wanted).is_some()
            || updates.any(|u| u.smaller_memory_limit().is_some()))
}

/// A limit below what is used would only get something killed.
pub fn check_memory(
    now: Option<&CgroupLimits>,
    wanted: &CgroupLimits,
    resizes: &PodResizes,
    used: &MemoryUse,
) -> Result<(), String> {
    let mut wrong = Vec::new();
    let fits = |used: u64, limit: i64| i64::try_from(used).is_ok_and(|used| used < limit);
    if let Some(limit) = smaller_pod_limit(now, wanted) {
        match used.pod {
            None => wrong.push("missing pod memory usage".to_owned()),
            Some(used) if !fits(used, limit) => wrong.push(format!(
                "attempting to set pod memory limit ({limit}) below current usage ({used})"
            )),
            Some(_) => {}
        }
    }
    for update in &resizes.memory {
        let limit = update.smaller_memory_limit();
        if let Some((limit, used)) = limit.zip(used.containers.get(&update.name))
            && !fits(*used, limit)
        {
            wrong.push(format!(
                "attempting to set container {:?} memory limit ({limit}) below current usage ({used})",
                update.name
            ));
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        many => Err(format!(
            "cannot decrease memory limits: [{}]",
            many.join(", ")
        )),
    }
}
