//! What of a container can be resized, as numbers, and what follows when they differ.

use krablet_pod::api::{Container, Pod, ResourceRequirements};
use krablet_pod::containers::{self, ContainerKind, is_sidecar};
use krablet_pod::observed::{ObservedContainer, ObservedPod};
use krablet_pod::resources::{ApiList, parse, with_pod_limits};
use krablet_pod::{ActuatedContainer, Actuation, ContainerId, Quantity};

use crate::restart::current_instance;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Cpu,
    Memory,
}

impl Resource {
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
        }
    }
}

/// Requests and limits; 0 for none. Cpu in thousandths, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub cpu_request: i64,
    pub cpu_limit: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

impl Size {
    pub fn of(resources: &ResourceRequirements) -> Self {
        let (requests, limits) = (
            parse(resources.requests.as_ref()),
            parse(resources.limits.as_ref()),
        );
        let milli = |q: Option<&Quantity>| q.map_or(0, |q| q.milli_value());
        let bytes = |q: Option<&Quantity>| q.map_or(0, |q| q.value());
        Self {
            cpu_request: milli(requests.get("cpu")),
            cpu_limit: milli(limits.get("cpu")),
            memory_request: bytes(requests.get("memory")),
            memory_limit: bytes(limits.get("memory")),
        }
    }

    fn limit(&self, resource: Resource) -> i64 {
        match resource {
            Resource::Cpu => self.cpu_limit,
            Resource::Memory => self.memory_limit,
        }
    }

    fn request(&self, resource: Resource) -> i64 {
        match resource {
            Resource::Cpu => self.cpu_request,
            Resource::Memory => self.memory_request,
        }
    }

    fn differs(&self, other: &Self, resource: Resource) -> bool {
        self.limit(resource) != other.limit(resource)
            || self.request(resource) != other.request(resource)
    }
}

/// What an instance that is started now is given: requests and limits of cpu and memory.
pub fn started_with(pod: &Pod, container: &Container) -> ResourceRequirements {
    let none = ResourceRequirements::default();
    let own = container.resources.as_ref().unwrap_or(&none);
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let all = with_pod_limits(own, of_pod);
    let only = |list: Option<ApiList>| {
        let mut list = list?;
        list.retain(|name, _| name == "cpu" || name == "memory");
        (!list.is_empty()).then_some(list)
    };
    ResourceRequirements {
        requests: only(all.requests),
        limits: only(all.limits),
        claims: None,
    }
}

/// `resources` with those of one kind taken from `wanted`: what a container has after the first of
/// two updates.
pub fn given(
    resources: &ResourceRequirements,
    wanted: &ResourceRequirements,
    resource: Resource,
) -> ResourceRequirements {
    let name = resource.as_str();
    let put = |list: &mut Option<ApiList>, from: Option<&ApiList>| {
        let amount = from.and_then(|from| from.get(name)).cloned();
        match (amount, list) {
            (Some(amount), list) => {
                list.get_or_insert_default().insert(name.to_owned(), amount);
            }
            (None, Some(list)) => {
                list.remove(name);
            }
            (None, None) => {}
        }
    };
    let mut now = resources.clone();
    put(&mut now.requests, wanted.requests.as_ref());
    put(&mut now.limits, wanted.limits.as_ref());
    now
}

/// What a container was last given, as far as anybody remembers; if nobody does, nothing has changed
/// since it was promised.
///
/// The record knows of instances that were resized while they ran, the instance itself of what it was
/// started with. An older record speaks for instances that do not know.
pub fn actuated(
    name: &str,
    instance: Option<&ObservedContainer>,
    record: Option<&Actuation>,
) -> Option<ResourceRequirements> {
    let recorded = record.and_then(|r| r.containers.get(name));
    let of_this =
        |r: &&ActuatedContainer| r.id.is_some() && r.id.as_ref() == instance.map(|i| &i.id);
    if let Some(recorded) = recorded.filter(of_this) {
        return Some(recorded.resources.clone());
    }
    let remembered = instance.and_then(|i| i.memory.resources.as_deref());
    let remembered = remembered.and_then(|json| serde_json::from_slice(json.as_bytes()).ok());
    remembered.or_else(|| recorded.map(|r| r.resources.clone()))
}

/// What becomes of a running container that is to have other resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerResize {
    Keep,
    Update { cpu: bool, memory: bool },
    Restart,
}

pub fn container_resize(container: &Container, current: &Size, wanted: &Size) -> ContainerResize {
    let differs = |resource| current.differs(wanted, resource);
    let restarts = |resource: Resource| {
        let policies = container.resize_policy.iter().flatten();
        let mut of_it = policies.filter(|p| p.resource_name == resource.as_str());
        of_it
            .next()
            .is_some_and(|p| p.restart_policy == "RestartContainer")
    };
    let (cpu, memory) = (differs(Resource::Cpu), differs(Resource::Memory));
    match (cpu, memory) {
        (false, false) => ContainerResize::Keep,
        _ if cpu && restarts(Resource::Cpu) || memory && restarts(Resource::Memory) => {
            ContainerResize::Restart
        }
        _ => ContainerResize::Update { cpu, memory },
    }
}

/// A running container that gets other resources.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerToUpdate {
    pub id: ContainerId,
    pub name: String,
    pub current: ResourceRequirements,
    pub wanted: ResourceRequirements,
}

impl ContainerToUpdate {
    /// It is to have less of it than it has.
    fn shrinks(&self, resource: Resource) -> bool {
        let (now, then) = (Size::of(&self.current), Size::of(&self.wanted));
        match now.limit(resource) == then.limit(resource) {
            true => then.request(resource) < now.request(resource),
            false => then.limit(resource) < now.limit(resource),
        }
    }

    /// The limit of memory it is to have, if that is less than now.
    pub(super) fn smaller_memory_limit(&self) -> Option<i64> {
        let (now, then) = (Size::of(&self.current), Size::of(&self.wanted));
        let added = now.memory_limit == 0;
        let wanted = Some(then.memory_limit).filter(|l| *l != 0);
        wanted.filter(|l| added || *l < now.memory_limit)
    }
}

/// All of a pod that is resized in one sync.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResizes {
    pub memory: Vec<ContainerToUpdate>,
    pub cpu: Vec<ContainerToUpdate>,
    /// The pod's cgroup has to follow although no running container changes: one starts with other
    /// resources, or those of the pod have changed.
    pub pod: bool,
}

impl PodResizes {
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.pod
    }

    pub fn of(&self, resource: Resource) -> &[ContainerToUpdate] {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }

    /// Those that give something back come first.
    pub fn add(&mut self, update: ContainerToUpdate, resource: Resource) {
        let first = update.shrinks(resource);
        let list = match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
        };
        match first {
            true => list.insert(0, update),
            false => list.push(update),
        }
    }
}

/// Whether the pod as a whole was last given something else than it is promised.
pub fn is_whole_pod_resized(pod: &Pod, record: Option<&Actuation>) -> bool {
    let Some(record) = record else {
        return false;
    };
    let size = |r: Option<&ResourceRequirements>| r.map(Size::of).unwrap_or_default();
    let promised = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    size(promised) != size(record.pod.as_ref())
}

/// Whether something that runs has not yet what it is promised. Init containers that come to an end by
/// themselves are not waited for.
pub fn in_progress(pod: &Pod, observed: &ObservedPod, record: Option<&Actuation>) -> bool {
    let Some(spec) = pod.spec.as_ref() else {
        return false;
    };
    let lasting = containers::all(spec)
        .filter(|c| c.kind == ContainerKind::Regular || is_sidecar(c.container))
        .map(|c| c.container);
    let differs = |container: &Container| {
        let Some(seen) = current_instance(observed, &container.name).filter(|s| s.is_running())
        else {
            return false;
        };
        let promised = Size::of(&started_with(pod, container));
        actuated(&container.name, Some(seen), record).is_some_and(|a| Size::of(&a) != promised)
    };
    let whole = spec.resources.is_some() && is_whole_pod_resized(pod, record);
    whole || lasting.into_iter().any(differs)
}
