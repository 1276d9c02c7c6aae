//! The world around the agent: one place where faults are drawn, the trace is kept and the laws
//! look on. Everything that crosses a boundary comes by here.

mod api;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use krablet_cri::{Code, Error, v1};
use krablet_linux::fake::{Fault, MemoryCgroups};
use krablet_pod::observed::ContainerState;
use krablet_pod::{PodUid, labels};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::Notify;

use crate::laws::{Broken, Held, Law, Laws, broken};
use crate::mutation::Mutation;
use crate::node::{PODS_DIR, pod_of_path};
use crate::pods;
use crate::runtime::{CallInfo, Fate, Instance, Life, Machine, Occurrence, Plan, Weather};
use crate::story::Severity;
use crate::trace::Trace;

pub(crate) use api::{ApiFate, ApiPlan, WatchWeather};

/// What the agent was seen to do while it should have done nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuietBook {
    pub(crate) lists: u32,
    /// A stranded pod asks whether the network is ready whenever it is looked at.
    pub(crate) stranded: bool,
}

pub(crate) struct Inner {
    pub(crate) trace: Trace,
    pub(crate) laws: Laws,
    dice: StdRng,
    severity: Severity,
    deadline: Duration,
    calm: bool,
    up: bool,
    /// The agent dies at the n-th call from now.
    kill_in: Option<u64>,
    /// Set once nothing more should happen.
    pub(crate) quiet: Option<QuietBook>,
    broken: Option<Broken>,
    mutation: Option<Mutation>,
    calls: u64,
}

pub(crate) struct World {
    inner: Mutex<Inner>,
    /// Made with sandboxes, by the runtime.
    pub(crate) cgroups: MemoryCgroups,
    /// Rung when a law is broken.
    pub(crate) alarm: Notify,
    /// Rung when the agent is to die.
    pub(crate) kill: Notify,
}

impl World {
    pub(crate) fn new(
        trace: Trace,
        laws: Laws,
        dice: StdRng,
        severity: Severity,
        deadline: Duration,
        mutation: Option<Mutation>,
    ) -> Self {
        Self {
            inner: Mutex::new(Inner {
                trace,
                laws,
                dice,
                severity,
                deadline,
                calm: false,
                up: true,
                kill_in: None,
                quiet: None,
                broken: None,
                mutation,
                calls: 0,
            }),
            cgroups: MemoryCgroups::default(),
            alarm: Notify::new(),
            kill: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.lock().trace.note(what);
    }

    /// The first law broken is the one to look into.
    pub(crate) fn check(&self, held: Held) {
        if let Err(how) = held {
            let mut inner = self.lock();
            inner.trace.note(format_args!("BROKEN {how}"));
            inner.broken.get_or_insert(how);
            self.alarm.notify_one();
        }
    }

    pub(crate) fn broken(&self) -> Option<Broken> {
        self.lock().broken.clone()
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.lock().up = up;
    }

    pub(crate) fn kill_at_call(&self, n: u64) {
        let mut inner = self.lock();
        inner.kill_in = Some(n).filter(|_| inner.laws.has_agent());
    }

    /// The agent is dead: no call of its is awaited any more.
    pub(crate) fn agent_is_dead(&self) {
        let mut inner = self.lock();
        inner.kill_in = None;
        inner.laws.agent_dies();
    }

    /// From now on all goes well.
    pub(crate) fn calm_down(&self) {
        let mut inner = self.lock();
        inner.calm = true;
        inner.up = true;
        inner.kill_in = None;
    }

    pub(crate) fn mutation(&self) -> Option<Mutation> {
        self.lock().mutation
    }

    pub(crate) fn look_at_statuses(&self) {
        let held = self.lock().look_at_statuses();
        self.check(held);
    }

    /// What goes wrong with a file operation.
    pub(crate) fn file_fault(&self, machine: &Machine, call: &str, path: &Path) -> Option<Fault> {
        let (fault, held) = self.lock().file_fault(machine, call, path);
        self.check(held);
        if matches!(fault, Some(Fault::Hang)) {
            self.kill.notify_one();
        }
        fault
    }

    /// Whether a probe or hook over the network gets its answer.
    pub(crate) fn net_answers(&self, machine: &Machine, ip: &str) -> bool {
        let up = machine.sandboxes.values().any(|s| s.ip == ip && s.ready);
        let mut inner = self.lock();
        let refuses = inner.severity.answers;
        let answers = up && (inner.calm || !inner.dice.random_bool(refuses));
        inner.trace.note(format_args!("net {ip} {answers}"));
        answers
    }
}

impl Inner {
    fn look_at_statuses(&mut self) -> Held {
        let stale = self.mutation == Some(Mutation::StaleStatus);
        self.laws.look_at_statuses(stale)
    }

    /// Whether the agent dies at this very moment.
    fn dies_here(&mut self) -> bool {
        let Some(left) = &mut self.kill_in else {
            return false;
        };
        *left = left.saturating_sub(1);
        *left == 0
    }

    fn plan(&mut self, info: &CallInfo) -> Plan {
        let goes_on = self.dice.random_bool(0.5);
        if self.dies_here() {
            let fate = Fate::NoAnswer(self.dice.random_bool(0.5));
            return Plan { fate, goes_on };
        }
        let short = Duration::from_millis(self.dice.random_range(1..20));
        let fate = match self.up {
            false => Fate::FailBefore(Duration::from_millis(1), Code::Unavailable),
            true if self.calm => Fate::Serve(short),
            true if !self.dice.random_bool(self.severity.calls) => Fate::Serve(short),
            true => self.fault(info),
        };
        Plan { fate, goes_on }
    }

    fn fault(&mut self, info: &CallInfo) -> Fate {
        let pause = Duration::from_millis(self.dice.random_range(1..3000));
        let codes = [Code::Unknown, Code::Unavailable, Code::Internal];
        let code = codes[self.dice.random_range(0..codes.len())];
        let deadline = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        let fate = match self.dice.random_range(0..6) {
            0 => Fate::FailBefore(pause, code),
            1 => Fate::FailAfter(pause, code),
            2 => Fate::Serve(pause),
            3 => Fate::Hang(None),
            4 => Fate::Hang(Some(Duration::from_millis(
                self.dice.random_range(0..deadline),
            ))),
            _ => Fate::Hang(Some(Duration::from_millis(
                deadline + self.dice.random_range(1..10_000),
            ))),
        };
        self.trace.note(format_args!(
            "fault {} {}: {fate:?}",
            info.call, info.object
        ));
        fate
    }

    fn quiet_call(&mut self, info: &CallInfo) -> Held {
        let Some(book) = &mut self.quiet else {
            return Ok(());
        };
        match info.call {
            "ListPodSandbox" | "ListContainers" if info.pod.is_none() => {
                book.lists += 1;
                Ok(())
            }
            // Probes go on, and so does the look at images every few minutes.
            "ExecSync" | "ListImages" | "ImageFsInfo" => Ok(()),
            "Status" if book.stranded => Ok(()),
            _ => {
                let pod = info.pod.as_ref().map(PodUid::as_str).unwrap_or_default();
                let how = format!("{} {} {pod}", info.call, info.object);
                broken(Law::Quiet, how)
            }
        }
    }

    fn call_begins(&mut self, info: &CallInfo) -> Held {
        self.calls += 1;
        let pod = info.pod.as_ref().map(PodUid::as_str).unwrap_or_default();
        let container = info.container.as_deref().unwrap_or_default();
        self.trace.note(format_args!(
            "#{} {} {} {pod}/{container}",
            info.caller, info.call, info.object
        ));
        self.look_at_statuses()?;
        self.laws.call_begins(info)?;
        if self.mutation == Some(Mutation::LateStart) && info.call == "StopPodSandbox" {
            let start = CallInfo {
                call: "CreateContainer",
                ..info.clone()
            };
            self.laws.call_begins(&start)?;
        }
        self.quiet_call(info)
    }

    fn file_fault(&mut self, machine: &Machine, call: &str, path: &Path) -> (Option<Fault>, Held) {
        if !self.laws.has_agent() {
            // The world itself is at work.
            return (None, Ok(()));
        }
        let held = underfoot(machine, call, path);
        if self.dies_here() {
            self.trace
                .note(format_args!("dies in {call} {}", path.display()));
            return (Some(Fault::Hang), held);
        }
        if self.calm || !self.dice.random_bool(self.severity.files) {
            return (None, held);
        }
        let after = self.dice.random_bool(0.5);
        self.trace.note(format_args!(
            "fault {call} {} after={after}",
            path.display()
        ));
        let error = io::Error::other("the disk has a bad day");
        let fault = match after {
            true => Fault::After(error),
            false => Fault::Before(error),
        };
        (Some(fault), held)
    }

    fn life(&mut self, of: &Instance) -> Life {
        let dice = &mut self.dice;
        let on_term = match dice.random_range(0..4) {
            0 => None,
            1 => Some((Duration::from_millis(dice.random_range(0..4000)), 143)),
            _ => Some((Duration::from_millis(dice.random_range(0..50)), 0)),
        };
        let job = of.image().starts_with(pods::JOB);
        let short = Duration::from_millis(dice.random_range(0..8000));
        let crashes = !self.calm && dice.random_bool(self.severity.crashes);
        let code = [0, 1, 2, 42, 137][dice.random_range(0..5)];
        let ends = match (job, crashes) {
            (true, true) => Some((short, code)),
            (true, false) => Some((short, 0)),
            (false, true) => Some((5 * short, code)),
            (false, false) => None,
        };
        Life { ends, on_term }
    }

    fn deliveries(&mut self) -> Vec<Duration> {
        let dice = &mut self.dice;
        if self.calm || !dice.random_bool(self.severity.events) {
            return vec![Duration::ZERO];
        }
        let late = Duration::from_millis(dice.random_range(1..20_000));
        match dice.random_range(0..4) {
            0 | 1 => vec![],
            2 => vec![late],
            _ => vec![Duration::ZERO, late],
        }
    }
}

/// Volumes are not taken away under a running container.
fn underfoot(machine: &Machine, call: &str, path: &Path) -> Held {
    if !matches!(call, "remove_tree" | "remove_dir" | "unmount") {
        return Ok(());
    }
    let Some(uid) = pod_of_path(path) else {
        return Ok(());
    };
    // What a volume showed before it was switched to something newer.
    let name = path.file_name().and_then(|name| name.to_str());
    if name.is_some_and(|name| name.starts_with("..20")) {
        return Ok(());
    }
    match machine.of_pod(&uid).find(|c| c.may_run()) {
        Some(c) => {
            let how = format!("{call} {} while {} runs", path.display(), c.id);
            broken(Law::NotUnderfoot, how)
        }
        None => Ok(()),
    }
}

impl Weather for World {
    fn call(&self, info: &CallInfo) -> Plan {
        let (plan, held) = {
            let mut inner = self.lock();
            let held = inner.call_begins(info);
            (inner.plan(info), held)
        };
        self.check(held);
        if matches!(plan.fate, Fate::NoAnswer(_)) {
            self.kill.notify_one();
        }
        plan
    }

    fn answered(&self, call: &CallInfo, result: Result<(), &Error>) {
        match result {
            Ok(()) if !call.changes => {}
            Ok(()) => self.note(format_args!("   {} {} done", call.call, call.object)),
            Err(e) => {
                let code = e.code;
                self.note(format_args!("   {} {} {code:?}", call.call, call.object));
            }
        }
    }

    fn is_up(&self) -> bool {
        self.lock().up
    }

    fn happened(&self, machine: &Machine, what: &Occurrence) {
        let held = {
            let mut inner = self.lock();
            inner.trace.note(format_args!("   {}", shown(what)));
            if let Occurrence::SandboxMade(sandbox) = what {
                let uid = sandbox.pod.uid.clone();
                let qos = inner.laws.qos(&uid);
                self.cgroups.put(uid, qos);
            }
            let held = inner.laws.happened(machine, what);
            match (what, inner.mutation) {
                (Occurrence::Updated(before, after), Some(Mutation::UndoResize)) => {
                    let undone = Occurrence::Updated(after.clone(), before.clone());
                    held.and_then(|()| inner.laws.happened(machine, &undone))
                }
                (Occurrence::Started(c), Some(Mutation::EarlyUnmount)) => {
                    let volumes = Path::new(PODS_DIR).join(c.pod.uid.as_str()).join("volumes");
                    held.and(inner.file_fault(machine, "unmount", &volumes).1)
                }
                _ => held,
            }
        };
        self.check(held);
    }

    fn deliveries(&self) -> Vec<Duration> {
        self.lock().deliveries()
    }

    fn life(&self, of: &Instance) -> Life {
        self.lock().life(of)
    }

    fn exec(&self, _container: &Instance, _command: &[String]) -> i32 {
        let mut inner = self.lock();
        let fails = inner.severity.answers;
        i32::from(!inner.calm && inner.dice.random_bool(fails))
    }

    fn pretends(&self, call: &str) -> bool {
        match self.lock().mutation {
            Some(Mutation::SkipKill) => call != "UpdateContainerResources",
            Some(Mutation::SkipResize) => call == "UpdateContainerResources",
            _ => false,
        }
    }

    fn keeps(&self, container: &Instance) -> bool {
        let inner = self.lock();
        inner.mutation == Some(Mutation::SkipRemoval)
            && container.name == "web"
            && container.state == ContainerState::Exited
            && !inner.laws.has_called(&container.id)
    }

    fn show_list(&self, _machine: &Machine, listed: &mut Vec<v1::Container>) {
        let mut inner = self.lock();
        match inner.mutation {
            Some(Mutation::DoubleStart) => {
                let running = v1::ContainerState::ContainerRunning as i32;
                let at = listed.iter().position(|c| c.state == running);
                if let Some(at) = at.filter(|_| inner.dice.random_bool(0.2)) {
                    listed.remove(at);
                }
            }
            Some(Mutation::ForgetEphemeral) => {
                let exited = v1::ContainerState::ContainerExited as i32;
                let name = |c: &v1::Container| c.metadata.clone().unwrap_or_default().name;
                listed.retain(|c| c.state != exited || !name(c).starts_with(pods::EPHEMERAL));
            }
            Some(Mutation::ForgetEnded) => {
                let exited = v1::ContainerState::ContainerExited as i32;
                listed.retain(|c| c.state != exited || !inner.laws.is_over(c));
            }
            Some(Mutation::IgnoreInitOrder) => {
                for c in listed.iter_mut() {
                    let init = c
                        .metadata
                        .as_ref()
                        .is_some_and(|m| m.name.starts_with("init"));
                    if init && c.state == v1::ContainerState::ContainerRunning as i32 {
                        c.state = v1::ContainerState::ContainerExited as i32;
                    }
                }
            }
            _ => {}
        }
    }

    fn show_status(&self, status: &mut v1::ContainerStatus) {
        let name = status.metadata.clone().unwrap_or_default().name;
        let running = status.state == v1::ContainerState::ContainerRunning as i32;
        match self.lock().mutation {
            Some(Mutation::ForgetExit) => status.exit_code = 7,
            Some(Mutation::IgnoreInitOrder) if name.starts_with("init") && running => {
                status.state = v1::ContainerState::ContainerExited as i32;
                status.finished_at = status.started_at;
            }
            Some(Mutation::CountReset) => {
                status
                    .annotations
                    .insert(labels::CONTAINER_RESTART_COUNT.to_owned(), "0".to_owned());
                status.annotations.remove(labels::CONTAINER_HASH);
            }
            _ => {}
        }
    }
}

fn shown(what: &Occurrence) -> String {
    let of = |verb: &str, c: &Instance| {
        let count = c.restart_count();
        format!("{} {verb}: {}#{count} of {}", c.id, c.name, c.pod.uid)
    };
    match what {
        Occurrence::SandboxMade(s) => {
            format!("{} made: sandbox {} of {}", s.id, s.attempt(), s.pod.uid)
        }
        Occurrence::SandboxStopped(s) => format!("{} stopped", s.id),
        Occurrence::SandboxRemoved(s) => format!("{} removed", s.id),
        Occurrence::Created(c) => of("created", c),
        Occurrence::Started(c) => of("runs", c),
        Occurrence::Exited(c, itself) => {
            let how = if *itself { "ends with" } else { "stopped with" };
            of(&format!("{how} {}", c.exit_code), c)
        }
        Occurrence::Lost(c) => of("is not reached", c),
        Occurrence::Removed(c) => {
            let state = match c.state {
                ContainerState::Exited => "dead",
                _ => "not started",
            };
            of(&format!("removed ({state})"), c)
        }
        Occurrence::Updated(_, c) => of("has other resources", c),
    }
}
