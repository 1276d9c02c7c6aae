//! The resources of containers: what was asked for, one wish after the other, and how far each container has come.

use std::collections::BTreeMap;

use krablet_core::cgroups::{cpu_quota, cpu_shares};
use krablet_core::resize::Size;
use krablet_pod::api::{Container, Pod};
use krablet_pod::{PodRef, PodUid};

use super::{Held, Law, Laws, broken};
use crate::runtime::Instance;

/// Weight and quota of the CPU, and bytes of memory.
pub(super) type Numbers = ((i64, i64), i64);

pub(super) fn wanted(container: &Container) -> Option<Numbers> {
    let wanted = Size::of(container.resources.as_ref()?);
    let cpu = (
        cpu_shares(wanted.cpu_request),
        cpu_quota(wanted.cpu_limit, 100_000),
    );
    Some((cpu, wanted.memory_limit))
}

pub(super) fn held(seen: &Instance) -> Option<Numbers> {
    let held = seen.resources()?;
    Some((
        (held.cpu_shares, held.cpu_quota),
        held.memory_limit_in_bytes,
    ))
}

#[derive(Debug, Default)]
struct Book {
    /// Oldest first.
    wishes: Vec<Numbers>,
    /// The wish the container must at least have been given, of CPU and of memory.
    cpu: usize,
    memory: usize,
}

#[derive(Debug, Default)]
pub(super) struct Sizes {
    of: BTreeMap<(PodUid, String), Book>,
}

impl Sizes {
    /// `anew`: what was asked for under that UID before does not count.
    pub(super) fn wish(&mut self, pod: &Pod, anew: bool) {
        let uid = PodRef::of(pod).uid;
        if anew {
            self.of.retain(|(of, _), _| *of != uid);
        }
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            let key = (uid.clone(), container.name.clone());
            let book = self.of.entry(key).or_default();
            if let Some(wanted) = wanted(container).filter(|w| book.wishes.last() != Some(w)) {
                book.wishes.push(wanted);
            }
        }
    }
}

impl Laws {
    pub(super) fn given(&mut self, c: &Instance) -> Held {
        let key = (c.pod.uid.clone(), c.name.clone());
        let Some((book, (cpu, memory))) = self.sizes.of.get_mut(&key).zip(held(c)) else {
            return Ok(());
        };
        let of_cpu: Vec<bool> = book.wishes.iter().map(|w| w.0 == cpu).collect();
        let of_memory: Vec<bool> = book.wishes.iter().map(|w| w.1 == memory).collect();
        for (what, same, before) in [
            ("cpu", of_cpu, &mut book.cpu),
            ("memory", of_memory, &mut book.memory),
        ] {
            // Two wishes may be for the same: it has come as far as it must have, and no further.
            let next = same.iter().skip(*before).position(|same| *same);
            match (next, same.iter().rposition(|same| *same)) {
                (Some(next), _) => *before += next,
                (None, Some(found)) => {
                    let how = format!(
                        "{} of {} has the {what} of wish {found} after that of wish {before}",
                        c.name, c.pod.uid
                    );
                    return broken(Law::SizesForward, how);
                }
                (None, None) => {}
            }
        }
        Ok(())
    }
}
