//! The state of the simulated runtime, as values: sandboxes, containers, names that are taken.
//! What the calls do to it, and what happens of its own, is noted for whoever watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_cri::{Code, v1};
use krablet_pod::observed::ContainerState;
use krablet_pod::{PodRef, PodUid, labels};

/// The exit code of a process that was killed.
pub const KILLED: i32 = 137;
/// That of one whose end the runtime did not see.
const UNSEEN: i32 = 255;

/// What a container does once it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Ends by itself after so long with this code; never without.
    pub ends: Option<(Duration, i32)>,
    /// How it takes SIGTERM: ends after so long with this code; without, it does not care.
    pub on_term: Option<(Duration, i32)>,
}

#[derive(Clone, Debug)]
pub struct Sandbox {
    pub id: String,
    pub pod: PodRef,
    pub config: Arc<v1::PodSandboxConfig>,
    pub ready: bool,
    pub created_at: i64,
    pub ip: String,
}

impl Sandbox {
    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |m| m.attempt)
    }

    fn host_network(&self) -> bool {
        let linux = self.config.linux.as_ref();
        let context = linux.and_then(|l| l.security_context.as_ref());
        let options = context.and_then(|c| c.namespace_options.as_ref());
        options.is_some_and(|o| o.network == v1::NamespaceMode::Node as i32)
    }

    fn state(&self) -> i32 {
        match self.ready {
            true => v1::PodSandboxState::SandboxReady as i32,
            false => v1::PodSandboxState::SandboxNotready as i32,
        }
    }

    pub fn listed(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            ..Default::default()
        }
    }

    pub fn status(&self) -> v1::PodSandboxStatus {
        let host = self.host_network();
        let mode = match host {
            true => v1::NamespaceMode::Node,
            false => v1::NamespaceMode::Pod,
        };
        v1::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: if host { String::new() } else { self.ip.clone() },
                ..Default::default()
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace {
                    options: Some(v1::NamespaceOption {
                        network: mode.into(),
                        ..Default::default()
                    }),
                }),
            }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            ..Default::default()
        }
    }
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub id: String,
    pub sandbox_id: String,
    pub pod: PodRef,
    pub name: String,
    pub config: Arc<v1::ContainerConfig>,
    pub log_path: String,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub life: Life,
    /// The order of creation, whatever the clock said.
    pub number: u64,
    /// The number of the last update.
    pub updated: u64,
}

impl Instance {
    pub fn is_running(&self) -> bool {
        self.state == ContainerState::Running
    }

    /// It runs, or nobody knows that it does not.
    pub fn may_run(&self) -> bool {
        self.is_running() || self.state == ContainerState::Unknown
    }

    pub fn restart_count(&self) -> u32 {
        let text = self.config.annotations.get(labels::CONTAINER_RESTART_COUNT);
        text.and_then(|t| t.parse().ok()).unwrap_or(0)
    }

    fn ended(&mut self, code: i32, by_itself: bool, wall: i64) -> Occurrence {
        self.state = ContainerState::Exited;
        self.exit_code = code;
        self.finished_at = wall;
        Occurrence::Exited(self.clone(), by_itself)
    }

    /// The image as the spec named it.
    pub fn image(&self) -> &str {
        let image = self.config.image.as_ref();
        image.map_or("", |i| i.user_specified_image.as_str())
    }

    fn raw_state(&self) -> i32 {
        let state = match self.state {
            ContainerState::Created => v1::ContainerState::ContainerCreated,
            ContainerState::Running => v1::ContainerState::ContainerRunning,
            ContainerState::Exited => v1::ContainerState::ContainerExited,
            ContainerState::Unknown => v1::ContainerState::ContainerUnknown,
        };
        state.into()
    }

    fn image_spec(&self) -> v1::ImageSpec {
        v1::ImageSpec {
            image: self.image().to_owned(),
            ..Default::default()
        }
    }

    pub fn listed(&self) -> v1::Container {
        v1::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox_id.clone(),
            metadata: self.config.metadata.clone(),
            image: Some(self.image_spec()),
            image_ref: format!("sha256:{}", self.image()),
            state: self.raw_state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            ..Default::default()
        }
    }

    pub fn status(&self) -> v1::ContainerStatus {
        let reason = match (self.state, self.exit_code) {
            (ContainerState::Exited, 0) => "Completed",
            (ContainerState::Exited, UNSEEN) => "Unknown",
            (ContainerState::Exited, _) => "Error",
            _ => "",
        };
        v1::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.raw_state(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: Some(self.image_spec()),
            image_ref: format!("sha256:{}", self.image()),
            reason: reason.to_owned(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path.clone(),
            resources: self.resources().map(|linux| v1::ContainerResources {
                linux: Some(linux.clone()),
            }),
            ..Default::default()
        }
    }

    /// What it is held to.
    pub fn resources(&self) -> Option<&v1::LinuxContainerResources> {
        self.config.linux.as_ref()?.resources.as_ref()
    }
}

/// Something that happened in the runtime.
#[derive(Clone, Debug)]
pub enum Occurrence {
    SandboxMade(Sandbox),
    SandboxStopped(Sandbox),
    SandboxRemoved(Sandbox),
    Created(Instance),
    Started(Instance),
    /// The flag: by itself, not by a stop.
    Exited(Instance, bool),
    /// The runtime does not reach it any more.
    Lost(Instance),
    Removed(Instance),
    /// It was given other resources. What it was before, and what it is now.
    Updated(Box<Instance>, Box<Instance>),
}

type Answer<T> = Result<T, (Code, String)>;

#[derive(Debug, Default)]
pub struct Machine {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Instance>,
    pub(crate) images: BTreeSet<String>,
    names: BTreeSet<String>,
    counter: u64,
    occurred: Vec<Occurrence>,
}

/// The pod that labels name.
pub(crate) fn pod_of(of: &BTreeMap<String, String>) -> PodRef {
    let text = |key| of.get(key).map(String::as_str).unwrap_or_default();
    PodRef::new(
        text(labels::POD_UID),
        text(labels::POD_NAMESPACE),
        text(labels::POD_NAME),
    )
}

pub(crate) fn sandbox_name(config: &v1::PodSandboxConfig) -> String {
    let m = config.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)
}

pub(crate) fn container_name(
    config: &v1::ContainerConfig,
    sandbox: &v1::PodSandboxConfig,
) -> String {
    let m = config.metadata.clone().unwrap_or_default();
    let pod = sandbox.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}", m.name, pod.name, pod.uid, m.attempt)
}

fn not_found<T>(what: &str, id: &str) -> Answer<T> {
    Err((Code::NotFound, format!("{what} {id:?}: not found")))
}

impl Machine {
    /// What happened since the last time.
    pub(crate) fn take_occurred(&mut self) -> Vec<Occurrence> {
        std::mem::take(&mut self.occurred)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A name is taken from the moment its object is being made until the object is removed.
    pub(crate) fn reserve(&mut self, name: &str) -> Answer<()> {
        if !self.names.insert(name.to_owned()) {
            let text = format!("failed to reserve name {name:?}: name is reserved");
            return Err((Code::Unknown, text));
        }
        Ok(())
    }

    pub(crate) fn release(&mut self, name: &str) {
        self.names.remove(name);
    }

    pub(crate) fn run_sandbox(&mut self, config: v1::PodSandboxConfig, wall: i64) -> Sandbox {
        let number = self.number();
        let sandbox = Sandbox {
            id: format!("s{number:05}"),
            pod: pod_of(&config.labels),
            config: Arc::new(config),
            ready: true,
            created_at: wall,
            ip: format!(
                "10.{}.{}.{}",
                64 + (number >> 16),
                (number >> 8) & 255,
                number & 255
            ),
        };
        self.sandboxes.insert(sandbox.id.clone(), sandbox.clone());
        self.occurred.push(Occurrence::SandboxMade(sandbox.clone()));
        sandbox
    }

    pub(crate) fn stop_sandbox(&mut self, id: &str, wall: i64) -> Answer<()> {
        if !self.sandboxes.contains_key(id) {
            return not_found("sandbox", id);
        }
        for container in self.living_in(id) {
            self.kill(&container, wall);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id)
            && sandbox.ready
        {
            sandbox.ready = false;
            self.occurred
                .push(Occurrence::SandboxStopped(sandbox.clone()));
        }
        Ok(())
    }

    fn living_in(&self, sandbox: &str) -> Vec<String> {
        let all = self.containers.values();
        all.filter(|c| c.sandbox_id == sandbox && c.may_run())
            .map(|c| c.id.clone())
            .collect()
    }

    pub(crate) fn remove_sandbox(&mut self, id: &str, wall: i64) -> Answer<()> {
        self.stop_sandbox(id, wall)?;
        let inside: Vec<String> = self
            .containers
            .values()
            .filter(|c| c.sandbox_id == id)
            .map(|c| c.id.clone())
            .collect();
        for container in inside {
            self.remove_container(&container, wall)?;
        }
        if let Some(sandbox) = self.sandboxes.remove(id) {
            self.names.remove(&sandbox_name(&sandbox.config));
            self.occurred.push(Occurrence::SandboxRemoved(sandbox));
        }
        Ok(())
    }

    /// A runtime does the updates of a container one after the other: one that hung and comes late has been
    /// followed by those asked for after it.
    pub(crate) fn update_container(
        &mut self,
        id: &str,
        number: u64,
        resources: Option<v1::LinuxContainerResources>,
    ) -> Answer<()> {
        let Some(container) = self.containers.get_mut(id) else {
            return not_found("container", id);
        };
        if !container.is_running() {
            return Err((
                Code::Unknown,
                "container is in no state to be updated".into(),
            ));
        }
        if number > container.updated {
            let before = container.clone();
            container.updated = number;
            let config = Arc::make_mut(&mut container.config);
            let held = config.linux.get_or_insert_default();
            let held = held.resources.get_or_insert_default();
            let given = resources.unwrap_or_default();
            for (held, given) in [
                (&mut held.cpu_period, given.cpu_period),
                (&mut held.cpu_quota, given.cpu_quota),
                (&mut held.cpu_shares, given.cpu_shares),
                (&mut held.memory_limit_in_bytes, given.memory_limit_in_bytes),
            ] {
                // What is not set stays as it is.
                if given != 0 {
                    *held = given;
                }
            }
            let what = Occurrence::Updated(Box::new(before), Box::new(container.clone()));
            self.occurred.push(what);
        }
        Ok(())
    }

    pub(crate) fn create_container(
        &mut self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        wall: i64,
    ) -> Answer<Instance> {
        let number = self.number();
        let Some(sandbox) = self.sandboxes.get(sandbox_id) else {
            return not_found("sandbox", sandbox_id);
        };
        let metadata = config.metadata.clone().unwrap_or_default();
        let instance = Instance {
            id: format!("c{number:05}"),
            sandbox_id: sandbox_id.to_owned(),
            pod: sandbox.pod.clone(),
            name: metadata.name,
            log_path: format!("{}/{}", sandbox.config.log_directory, config.log_path),
            config: Arc::new(config),
            state: ContainerState::Created,
            created_at: wall,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            life: Life::default(),
            number,
            updated: number,
        };
        self.containers
            .insert(instance.id.clone(), instance.clone());
        self.occurred.push(Occurrence::Created(instance.clone()));
        Ok(instance)
    }

    pub(crate) fn start_container(&mut self, id: &str, life: Life, wall: i64) -> Answer<()> {
        let Some(instance) = self.containers.get_mut(id) else {
            return not_found("container", id);
        };
        let sandbox = self.sandboxes.get(&instance.sandbox_id);
        if !sandbox.is_some_and(|s| s.ready) {
            let text = format!("sandbox container {:?} is not running", instance.sandbox_id);
            return Err((Code::Unknown, text));
        }
        if instance.state != ContainerState::Created {
            let text = format!("container {id:?} is in {:?} state", instance.state);
            return Err((Code::Unknown, text));
        }
        instance.state = ContainerState::Running;
        instance.started_at = wall;
        instance.life = life;
        self.occurred.push(Occurrence::Started(instance.clone()));
        Ok(())
    }

    /// True if it ran until now.
    pub(crate) fn exit(&mut self, id: &str, code: i32, by_itself: bool, wall: i64) -> bool {
        let running = self.containers.get_mut(id).filter(|c| c.is_running());
        let ended = running.map(|c| c.ended(code, by_itself, wall));
        let ran = ended.is_some();
        self.occurred.extend(ended);
        ran
    }

    /// By force. How one ends that is not reached nobody sees.
    pub(crate) fn kill(&mut self, id: &str, wall: i64) {
        let living = self.containers.get_mut(id).filter(|c| c.may_run());
        let killed = living.map(|c| {
            let code = if c.is_running() { KILLED } else { UNSEEN };
            c.ended(code, false, wall)
        });
        self.occurred.extend(killed);
    }

    /// A runtime that was started again does not reach some of the containers that run.
    pub(crate) fn lose(&mut self, mut which: impl FnMut(&Instance) -> bool) {
        let running = self.containers.values_mut().filter(|c| c.is_running());
        for container in running {
            if which(container) {
                container.state = ContainerState::Unknown;
                self.occurred.push(Occurrence::Lost(container.clone()));
            }
        }
    }

    pub(crate) fn remove_container(&mut self, id: &str, wall: i64) -> Answer<()> {
        if !self.containers.contains_key(id) {
            return not_found("container", id);
        }
        self.kill(id, wall);
        if let Some(instance) = self.containers.remove(id) {
            let metadata = instance.config.metadata.clone().unwrap_or_default();
            let pod = &instance.pod;
            let attempt = metadata.attempt;
            self.names.remove(&format!(
                "{}_{}_{}_{attempt}",
                metadata.name, pod.name, pod.uid
            ));
            self.occurred.push(Occurrence::Removed(instance));
        }
        Ok(())
    }

    /// The machine under the runtime went down: nothing that ran runs any more.
    pub(crate) fn power_off(&mut self, wall: i64) {
        let ids: Vec<String> = self.sandboxes.keys().cloned().collect();
        for id in ids {
            for container in self.living_in(&id) {
                self.exit(&container, UNSEEN, true, wall);
            }
            // Cannot fail: the sandbox is there.
            let _ = self.stop_sandbox(&id, wall);
        }
    }

    pub fn of_pod<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a Instance> {
        self.containers.values().filter(move |c| c.pod.uid == *uid)
    }

    pub fn sandboxes_of<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a Sandbox> {
        self.sandboxes.values().filter(move |s| s.pod.uid == *uid)
    }

    /// A container of it may run, or a sandbox is ready.
    pub fn is_alive(&self, uid: &PodUid) -> bool {
        self.of_pod(uid).any(Instance::may_run) || self.sandboxes_of(uid).any(|s| s.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_is_not_reached_ends_when_it_is_stopped() {
        let mut machine = Machine::default();
        let sandbox = machine.run_sandbox(v1::PodSandboxConfig::default(), 1);
        let ids = [(); 2].map(|()| {
            let config = v1::ContainerConfig::default();
            machine.create_container(&sandbox.id, config, 1).unwrap().id
        });
        let [lost, idle] = &ids;
        machine.start_container(lost, Life::default(), 2).unwrap();
        machine.lose(|_| true);
        let states = |machine: &Machine| ids.each_ref().map(|id| machine.containers[id].state);
        assert_eq!(
            states(&machine),
            [ContainerState::Unknown, ContainerState::Created]
        );
        assert!(machine.containers[lost].may_run() && machine.is_alive(&sandbox.pod.uid));
        assert!(!machine.exit(lost, 0, true, 3));
        assert!(machine.start_container(lost, Life::default(), 3).is_err());
        machine.kill(lost, 4);
        machine.kill(idle, 4);
        assert_eq!(
            states(&machine),
            [ContainerState::Exited, ContainerState::Created]
        );
        let status = machine.containers[lost].status();
        let told = (status.exit_code, &*status.reason, status.finished_at);
        assert_eq!(told, (UNSEEN, "Unknown", 4));
        assert!(machine.remove_container(lost, 5).is_ok());
    }
}
