//! One schedule from its seed: the story is told, the agent lives through it, dies and is started
//! again; then all is well, and the node has to get to what is wanted and stay there.

mod people;
mod wishes;

use std::sync::{Arc, Weak};
use std::time::Duration;

use krablet_agent::{Agent, AgentHandle};
use krablet_cri::RuntimeService;
use krablet_linux::WallClock;
use krablet_pod::marks::PodSource;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::api::ApiServer;
use crate::clock::SimClock;
use crate::cluster::{self, Joining};
use crate::laws::{Broken, Law, Laws, broken};
use crate::mutation::Mutation;
use crate::node::{self, Node};
use crate::pods;
use crate::sources::{Wanted, feed};
use crate::story::{Action, Story};
use crate::trace::Trace;
use crate::world::{QuietBook, World};

/// In good weather the node is where it should be within so long: the longest chain of back-offs
/// and retries the agent knows.
const SETTLES_WITHIN: Duration = Duration::from_secs(900);
/// Nothing more changes for so long: every period of the agent fits in.
const QUIET: Duration = Duration::from_secs(200);
/// Full lists of each kind in that time: one per audit, one per look of housekeeping.
const QUIET_LISTS: u32 = 2 * 14;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mutation: Option<Mutation>,
    /// Whether the node belongs to a cluster; the seed decides if nobody says.
    pub cluster: Option<bool>,
    /// Print the trace as it grows.
    pub print: bool,
}

/// How a schedule went.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// Of the trace.
    pub hash: u64,
    pub broken: Option<Broken>,
    /// The end of the trace.
    pub tail: Vec<String>,
}

/// An agent that lives.
struct Alive {
    task: JoinHandle<()>,
    handle: AgentHandle,
    /// Whatever of the agent is left holds this.
    runtime: Weak<dyn RuntimeService>,
    bell: watch::Receiver<u64>,
    /// Its sources.
    feeders: JoinSet<()>,
}

pub(crate) struct Schedule {
    world: Arc<World>,
    node: Node,
    dice: StdRng,
    seed: u64,
    begun: Instant,
    wanted: Wanted,
    /// Variants drawn so far.
    variants: u32,
    agents: u64,
    agent: Option<Alive>,
    starts_at: Option<Instant>,
    up_at: Option<Instant>,
    /// Of schedules in which the node belongs to a cluster.
    server: Option<ApiServer>,
    server_up_at: Option<Instant>,
    /// By then every call from the bad weather has had its answer.
    hung_until: Instant,
    /// Agents that should be dead.
    zombies: Vec<Alive>,
}

pub(crate) async fn run(seed: u64, options: Options) -> Report {
    let mut dice = StdRng::seed_from_u64(seed);
    let in_cluster = options.cluster.unwrap_or(seed % 2 == 1);
    let story = Story::draw(&mut dice, in_cluster);
    let clock = SimClock::start();
    let world = Arc::new(World::new(
        Trace::new(options.print),
        Laws::new(node::sources(), clock.clone()),
        StdRng::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15),
        story.severity,
        story.deadline,
        options.mutation,
    ));
    world.note(format_args!("{:?} {:?}", story.severity, story.deadline));
    let node = Node::new(&world, clock, story.deadline);
    let server = in_cluster.then(|| ApiServer::new(&world, &node.runtime, &node.clock));
    let mut schedule = Schedule {
        world: world.clone(),
        node,
        dice,
        seed,
        begun: Instant::now(),
        wanted: Wanted::default(),
        variants: 0,
        agents: 0,
        agent: None,
        starts_at: None,
        up_at: None,
        server,
        server_up_at: None,
        hung_until: Instant::now() + story.calm_at + 2 * story.deadline + Duration::from_secs(60),
        zombies: Vec::new(),
    };
    let told = schedule.tell(story).await;
    schedule.end().await;
    let inner = world.lock();
    Report {
        seed,
        hash: inner.trace.hash(),
        broken: told.err(),
        tail: inner.trace.tail(),
    }
}

impl Schedule {
    async fn tell(&mut self, story: Story) -> Result<(), Broken> {
        if let Err(e) = node::prepare(&self.node.files) {
            return broken(Law::LivesOn, format!("the node cannot be set up: {e}"));
        }
        for name in [pods::SERVE, pods::JOB] {
            self.node.runtime.load_image(&format!("{name}:1"));
        }
        self.start_agent().await;
        for (at, action) in story.actions {
            self.wait_until(self.begun + at).await?;
            self.world.note(format_args!("{action:?}"));
            self.act(action).await?;
        }
        self.wait_until(self.begun + story.calm_at).await?;
        self.calm_down();
        self.settle().await?;
        self.stay_quiet().await
    }

    /// Lets time pass, and what happens meanwhile happen.
    async fn wait_until(&mut self, at: Instant) -> Result<(), Broken> {
        loop {
            if let Some(how) = self.world.broken() {
                return Err(how);
            }
            let next = [self.starts_at, self.up_at, self.server_up_at];
            let next = next.into_iter().flatten();
            let next = next.min().map_or(at, |next| next.min(at));
            tokio::select! {
                biased;
                () = self.world.alarm.notified() => {}
                () = self.world.kill.notified() => self.kill_agent().await?,
                news = news(&mut self.agent) => match news {
                    News::Statuses => self.statuses_changed(),
                    News::Ended(how) => return broken(Law::LivesOn, how),
                },
                () = sleep_until(next) => {
                    self.due().await;
                    if Instant::now() >= at {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn due(&mut self) {
        let now = Instant::now();
        if self.starts_at.is_some_and(|at| at <= now) {
            self.starts_at = None;
            self.start_agent().await;
        }
        if self.up_at.is_some_and(|at| at <= now) {
            self.up_at = None;
            self.world.note(format_args!("runtime up"));
            self.lose_containers();
            self.world.set_up(true);
        }
        if self.server_up_at.is_some_and(|at| at <= now) {
            self.server_is_up();
        }
    }

    /// A runtime that comes back may not reach all the containers that run. Those of the policy `Never` are spared: as
    /// with the kubelet, they are said to have ended and started again, and then no status is taken any more.
    fn lose_containers(&mut self) {
        if self.dice.random_bool(0.3) {
            return;
        }
        let (world, dice) = (&self.world, &mut self.dice);
        self.node
            .runtime
            .lose(|c| dice.random_bool(0.4) && world.lock().laws.may_be_lost(c));
    }

    fn server_is_up(&mut self) {
        self.server_up_at = None;
        if let Some(server) = &self.server {
            self.world.note(format_args!("API server up"));
            server.set_up(true);
        }
    }

    async fn act(&mut self, action: Action) -> Result<(), Broken> {
        if let Some(server) = self.server.clone()
            && self.act_on_server(&server, action)
        {
            return Ok(());
        }
        match action {
            Action::WriteManifest(n) => self.write_manifest(n),
            Action::RemoveManifest(n) => self.remove(PodSource::File, &manifest_name(n)),
            Action::Rewrite(n) => {
                let name = manifest_name(n);
                if let Some(pod) = self.wanted.get(PodSource::File, &name) {
                    self.remove(PodSource::File, &name);
                    let pause = Duration::from_millis(self.dice.random_range(0..4000));
                    self.wait_until(Instant::now() + pause).await?;
                    self.want(PodSource::File, pod);
                }
            }
            Action::Bind(n) => self.bind(n),
            Action::Resize(n) => self.resize(n),
            Action::Debug(n) => self.debug(n),
            Action::Delete(n) => self.delete(n),
            Action::ForceDelete(n) => self.remove(PodSource::Api, &bound_name(n)),
            Action::KillAgent => self.kill_agent().await?,
            Action::KillAgentAtCall(n) => self.world.kill_at_call(n),
            Action::RuntimeDown(duration) => {
                self.world.set_up(false);
                self.node.runtime.cut_streams();
                self.up_at = Some(Instant::now() + duration);
            }
            Action::RuntimeRestarts => {
                self.node.runtime.cut_streams();
                self.lose_containers();
            }
            Action::RuntimeLosesPods => self.node.runtime.power_off(),
            Action::Reboot => {
                self.kill_agent().await?;
                self.node.runtime.power_off();
                self.node.lose_memory().await;
            }
            Action::CutEvents => self.node.runtime.cut_streams(),
            Action::StepClock(by) => {
                // What was said by now was said by the old time.
                self.world.look_at_statuses();
                self.node.clock.step(by);
            }
            Action::Replace(_)
            | Action::DeleteMirror(_)
            | Action::Release(_)
            | Action::Meddle(_)
            | Action::ServerDown(_)
            | Action::CutWatches
            | Action::ForgetHistory => {}
        }
        Ok(())
    }

    /// False if the action is none of the API server's.
    fn act_on_server(&mut self, server: &ApiServer, action: Action) -> bool {
        match action {
            Action::Bind(n) => self.bind_object(server, n),
            Action::Resize(n) => self.resize_object(server, n),
            Action::Debug(n) => self.debug_object(server, n),
            Action::Delete(n) => {
                let grace = [0, 1, 5, 30][self.dice.random_range(0..4)];
                self.delete_object(server, n, grace);
            }
            Action::ForceDelete(n) => self.delete_object(server, n, 0),
            Action::Replace(n) => {
                self.delete_object(server, n, 0);
                self.bind_object(server, n);
            }
            Action::DeleteMirror(n) => self.delete_mirror(server, n),
            Action::Release(n) => self.release_object(server, &bound_name(n)),
            Action::Meddle(n) => self.meddle(server, n),
            Action::ServerDown(duration) => {
                server.set_up(false);
                self.server_up_at = Some(Instant::now() + duration);
            }
            Action::CutWatches => server.cut_watches(),
            Action::ForgetHistory => {
                server.forget_history();
                server.cut_watches();
            }
            _ => return false,
        }
        true
    }
}

/// The agent's lives.
impl Schedule {
    async fn start_agent(&mut self) {
        self.agents += 1;
        let caller = self.agents;
        self.world.note(format_args!("agent {caller} starts"));
        let mut deps = self.node.deps(caller);
        let seed = self.seed.wrapping_add(caller);
        let mut feeders = JoinSet::new();
        if let Some(server) = &self.server {
            let joining = Joining {
                server,
                caller,
                seed,
                late: Duration::from_millis(self.dice.random_range(0..2000)),
            };
            let recorder = deps.recorder.clone();
            let (cluster, door) = cluster::join(&self.node, joining, recorder, &mut feeders).await;
            deps.cluster = Some(cluster);
            deps.door = door;
        }
        let runtime = Arc::downgrade(&deps.runtime);
        let config = node::agent_config(seed);
        let (agent, handle) = Agent::build(config, deps);
        let mut inner = self.world.lock();
        inner.laws.agent_starts(caller, handle.clone());
        drop(inner);
        let in_cluster = self.server.is_some();
        for source in node::sources() {
            if in_cluster && source == PodSource::Api {
                continue;
            }
            let late = Duration::from_millis(self.dice.random_range(0..2000));
            let set = self.wanted.watch(source);
            feeders.spawn(feed(set, handle.clone(), late, !in_cluster));
        }
        self.agent = Some(Alive {
            task: tokio::spawn(agent.run()),
            bell: handle.status.changes(),
            handle,
            runtime,
            feeders,
        });
    }

    /// At any moment, all of it. It comes back after a while.
    async fn kill_agent(&mut self) -> Result<(), Broken> {
        let Some(alive) = self.agent.take() else {
            return Ok(());
        };
        self.world.look_at_statuses();
        let pause = Duration::from_millis(self.dice.random_range(0..15_000));
        self.starts_at = Some(Instant::now() + pause);
        if self.world.mutation() == Some(Mutation::Zombie) {
            self.world.agent_is_dead();
            self.zombies.push(alive);
            return Ok(());
        }
        let left = bury(alive).await;
        self.world.note(format_args!("agent dead"));
        self.world.agent_is_dead();
        match left {
            true => broken(Law::DeadIsDead, "parts of a killed agent live on"),
            false => Ok(()),
        }
    }

    async fn end(&mut self) {
        for alive in self.agent.take().into_iter().chain(self.zombies.drain(..)) {
            bury(alive).await;
        }
        // The laws hold what the agent has left, and that holds the world.
        self.world.agent_is_dead();
        // The hook holds what holds the files.
        self.node.files.clear_faults();
    }
}

/// Kills an agent; true if something of it is left.
async fn bury(alive: Alive) -> bool {
    let Alive {
        task,
        handle,
        runtime,
        feeders,
        ..
    } = alive;
    drop(feeders);
    task.abort();
    // An aborted task ends with an error; that is what we want.
    let _ = task.await;
    drop(handle);
    // Tasks within tasks, a few deep, each dropped in its own turn.
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
    runtime.upgrade().is_some()
}

/// What a living agent may do by itself.
enum News {
    Statuses,
    Ended(String),
}

async fn news(agent: &mut Option<Alive>) -> News {
    let Some(alive) = agent else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        ended = &mut alive.task => News::Ended(match ended {
            Ok(()) => "the agent ended by itself".to_owned(),
            Err(e) => format!("the agent failed: {e}"),
        }),
        Ok(()) = alive.bell.changed() => News::Statuses,
    }
}

/// The end of the story.
impl Schedule {
    fn calm_down(&mut self) {
        self.world.note(format_args!("all is well from now on"));
        self.world.calm_down();
        self.up_at = None;
        self.server_is_up();
        self.release_all();
        if self.agent.is_none() && self.starts_at.is_none() {
            self.starts_at = Some(Instant::now());
        }
    }

    async fn unsettled(&self) -> Option<String> {
        self.world.look_at_statuses();
        let left = self.node.leftovers().await;
        let world = &self.world;
        let look = |machine: &_| world.lock().laws.unsettled(machine, &left);
        let unsettled = self.node.runtime.with_machine(look);
        let server = self.server.as_ref();
        let told = || server.and_then(|server| self.not_told(server));
        unsettled.or_else(told)
    }

    fn not_told(&self, server: &ApiServer) -> Option<String> {
        let now = self.node.clock.now();
        self.world.lock().laws.api_unsettled(&server.pods(), now)
    }

    async fn settle(&mut self) -> Result<(), Broken> {
        let mut until = Instant::now() + SETTLES_WITHIN;
        // Not content with a moment: what is settled must be so twice in a row.
        let mut settled = 0;
        loop {
            self.wait_until(Instant::now() + Duration::from_secs(5))
                .await?;
            if let Some(left) = self.world.lock().laws.last_deadline() {
                until = until.max(Instant::now() + left + SETTLES_WITHIN);
            }
            match self.unsettled().await {
                None => settled += 1,
                Some(why) if Instant::now() >= until => return broken(Law::Converges, why),
                Some(_) => settled = 0,
            }
            if settled >= 2 {
                return Ok(());
            }
        }
    }

    async fn stay_quiet(&mut self) -> Result<(), Broken> {
        // What was begun before the node settled comes to its end first; so do calls that hang.
        // A watch that tells nothing is noticed after some time; an event is written again for some time.
        let rest = if self.server.is_some() { 250 } else { 100 };
        let settled = Instant::now() + Duration::from_secs(rest);
        self.world.lock().laws.has_settled();
        self.wait_until(settled.max(self.hung_until)).await?;
        self.world.note(format_args!("nothing more should happen"));
        let world = self.world.clone();
        let stranded = |machine: &_| world.lock().laws.any_stranded(machine);
        let stranded = self.node.runtime.with_machine(stranded);
        self.world.lock().quiet = Some(QuietBook { lists: 0, stranded });
        let until = Instant::now() + QUIET;
        while Instant::now() < until {
            if self.world.mutation() == Some(Mutation::NoisyEvents) {
                self.node.runtime.repeat_events();
            }
            self.wait_until(Instant::now() + QUIET / 8).await?;
        }
        let lists = self.world.lock().quiet.map_or(0, |q| q.lists);
        if lists > QUIET_LISTS {
            return broken(Law::Quiet, format!("{lists} lists in {QUIET:?}"));
        }
        match self.unsettled().await {
            Some(why) => broken(Law::Converges, format!("settled, and then: {why}")),
            None => Ok(()),
        }
    }
}

fn manifest_name(n: usize) -> String {
    format!("static{n}")
}

fn bound_name(n: usize) -> String {
    format!("bound{n}")
}
