//! Random lives of pods under a server that fails before and after the deed, a watch that is behind,
//! and others that write to the same objects and keep them. Whatever happens: nothing is written to another
//! pod, no object goes before its pod has ended, and in the end the server has every last status.

use std::collections::BTreeSet;

use krablet_core::status::{MergeInputs, can_be_deleted, merge_for_api, needs_update};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const KEEPERS: [&str; 2] = ["example.com/one", "example.com/two"];
/// Longer than from one audit to the next.
const AUDIT: Duration = Duration::from_secs(100);

struct World {
    bench: Bench,
    random: StdRng,
    /// The pods the node knows, by name: the newest of each.
    pods: BTreeMap<&'static str, Pod>,
    /// How far the watch has come with each object.
    seen: BTreeMap<&'static str, usize>,
    finished: BTreeSet<String>,
    born: u32,
}

fn uid_of(pod: &Pod) -> PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            bench: Bench::new(),
            random: StdRng::seed_from_u64(seed),
            pods: BTreeMap::new(),
            seen: BTreeMap::new(),
            finished: BTreeSet::new(),
            born: 0,
        };
        for name in NAMES {
            world.create(name);
            world.catch_up(name);
        }
        world
    }

    /// Another pod of that name.
    fn create(&mut self, name: &'static str) {
        self.born += 1;
        let pod = pod(&format!("u{}", self.born), name);
        self.bench.server.remove(name);
        self.bench.server.put(serde_json::to_value(pod).unwrap());
    }

    /// The watch catches up with an object, or comes nearer to it.
    fn watch(&mut self, name: &'static str) {
        let newest = self.bench.server.history(name).len() - 1;
        let next = (self.seen[name] + 1).min(newest);
        let shown = self.random.random_range(next..=newest);
        self.show(name, shown);
    }

    fn catch_up(&mut self, name: &'static str) {
        let newest = self.bench.server.history(name).len() - 1;
        self.show(name, newest);
    }

    /// The watch tells what an object was then.
    fn show(&mut self, name: &'static str, version: usize) {
        self.seen.insert(name, version);
        let object = self.bench.server.history(name).swap_remove(version);
        let object: Option<Pod> = object.map(|o| serde_json::from_value(o).unwrap());
        let uid = object.as_ref().map(uid_of);
        self.bench.know(|known| {
            known
                .pods
                .retain(|_, p| p.metadata.name.as_deref() != Some(name));
            if let Some(object) = object.clone() {
                known.pods.insert(uid_of(&object), Arc::new(object));
            }
        });
        if let Some((uid, object)) = uid.zip(object) {
            self.bench.handle.reconcile(&uid);
            self.pods.insert(name, object);
        }
    }

    fn fail(&mut self) {
        let error = match self.random.random_range(0..6) {
            0 => ApiError::Connection("reset".into()),
            1 => ApiError::Deadline(Duration::from_secs(30)),
            2 => ApiError::from_answer(500, b"{}", None),
            3 => ApiError::from_answer(429, b"{}", Some(Duration::from_secs(1))),
            // Something stands before the server, and knows of no object.
            4 => ApiError::from_answer(404, b"default backend - 404", None),
            _ => ApiError::from_answer(409, b"{}", None),
        };
        let busy = error.code() == Some(429);
        match self.random.random_bool(0.5) && !busy {
            true => self.bench.server.lose_next(error),
            false => self.bench.server.fail_next(error),
        }
    }

    fn meddle(&mut self, name: &str) {
        let word = ["True", "False"][self.random.random_range(0..2)];
        let type_ = ["Ready", "Gate"][self.random.random_range(0..2)];
        let deleted = self.random.random_bool(0.3);
        let keeper = KEEPERS[self.random.random_range(0..KEEPERS.len())];
        let kept = self.random.random_bool(0.3);
        let server = &self.bench.server;
        if server.object(name).is_none() {
            return;
        }
        server.change(name, |object| {
            let metadata = &mut object["metadata"];
            if deleted && metadata["deletionTimestamp"].is_null() {
                metadata["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
                metadata["deletionGracePeriodSeconds"] = json!(30);
            }
            let list = object["status"]["conditions"].as_array_mut();
            let Some(list) = list else { return };
            list.retain(|c| c["type"] != type_);
            list.push(json!({"type": type_, "status": word}));
        });
        match kept {
            true => server.keep(name, keeper),
            false => server.let_go(name, keeper),
        }
    }

    async fn step(&mut self) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        let pod = self.pods[name].clone();
        let uid = uid_of(&pod).to_string();
        let over = self.finished.contains(&uid);
        match self.random.random_range(0..10) {
            0..3 if !over => {
                let phase = ["Pending", "Running", "Running", "Failed"];
                let phase = phase[self.random.random_range(0..phase.len())];
                let ready = self.random.random_bool(0.5);
                let could_run = self.random.random_bool(0.5);
                self.bench.could_run(&uid, could_run);
                self.bench.say(&pod, phase, ready);
            }
            3 => self.fail(),
            4 | 5 => self.watch(name),
            6 => self.meddle(name),
            7 if self.random.random_bool(0.3) => {
                self.bench.could_run(&uid, false);
                self.finished.insert(uid);
                self.bench.store.terminate(&pod, Timestamp::UNIX_EPOCH);
            }
            8 if self.random.random_bool(0.3) => self.create(name),
            _ => {
                let ms = self.random.random_range(0..3000);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
        }
    }

    async fn end(&mut self) {
        self.bench.server.heal();
        // Deletion makes objects disappear, and the watch tells of that too.
        for _ in 0..2 {
            for name in NAMES {
                self.catch_up(name);
            }
            self.bench.handle.reached();
            self.bench.all_told().await;
            // An object that was deleted and is there after all is looked at then.
            tokio::time::sleep(AUDIT).await;
            self.bench.all_told().await;
        }
    }

    fn check(&self) {
        for uid in self.bench.server.deleted() {
            assert!(self.finished.contains(&uid), "{uid} was deleted too early");
        }
        for name in NAMES {
            let Some(object) = self.bench.server.object(name) else {
                continue;
            };
            let object: Pod = serde_json::from_value(object).unwrap();
            let uid = uid_of(&object);
            let said = object.status.clone().unwrap_or_default();
            let Some(standing) = self.bench.store.get(&uid) else {
                assert_eq!(said.phase, None, "{uid} has another pod's status");
                continue;
            };
            let merged = merge_for_api(&MergeInputs {
                api_pod: &object,
                ours: &standing.status,
                could_have_running_containers: self.bench.pods.could_have_running_containers(&uid),
                now: Timestamp::UNIX_EPOCH,
            });
            assert!(
                !needs_update(&said, &merged),
                "{said:?} instead of {merged:?}"
            );
            let metadata = &object.metadata;
            let kept =
                metadata.finalizers.is_some() && metadata.deletion_grace_period_seconds == Some(0);
            let left = can_be_deleted(&object, standing.finished) && !kept;
            assert!(!left, "{uid} is left");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_last_status_arrives() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step().await;
        }
        world.end().await;
        world.check();
    }
}
