//! What people and controllers do to the pods of an API server.

use std::sync::Arc;

use krablet_pod::PodRef;
use krablet_pod::api::{Pod, PodCondition};
use krablet_pod::marks::PodSource;
use rand::RngExt;

use super::{Schedule, bound_name, manifest_name};
use crate::api::ApiServer;
use crate::pods::{self, NAMESPACE};

impl Schedule {
    fn want_object(&mut self, pod: &Arc<Pod>) {
        self.world.lock().laws.want(pod);
    }

    /// A pod is bound to the node, or gets another image.
    pub(super) fn bind_object(&mut self, server: &ApiServer, n: usize) {
        let name = bound_name(n);
        match server.get(NAMESPACE, &name) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::with_new_image(&mut self.dice, &pod);
                self.change_object(server, &name, changed);
            }
            None => {
                let mut pod = (*self.draw_pod(&name, PodSource::Api)).clone();
                pod.metadata.annotations = None;
                pod.metadata.finalizers = pods::finalizers(&mut self.dice);
                self.want_object(&Arc::new(pod.clone()));
                server.create(pod);
            }
        }
    }

    /// A pod is to have other resources; if there is none, there is one now.
    pub(super) fn resize_object(&mut self, server: &ApiServer, n: usize) {
        let name = bound_name(n);
        match server.get(NAMESPACE, &name) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::resized(&mut self.dice, &pod);
                self.change_object(server, &name, changed);
            }
            None => self.bind_object(server, n),
        }
    }

    /// A pod gets one more ephemeral container; if there is none, there is one now.
    pub(super) fn debug_object(&mut self, server: &ApiServer, n: usize) {
        let name = bound_name(n);
        match server.get(NAMESPACE, &name) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::debugged(&mut self.dice, &pod);
                self.change_object(server, &name, changed);
            }
            None => self.bind_object(server, n),
        }
    }

    fn change_object(&mut self, server: &ApiServer, name: &str, changed: Pod) {
        let generation = changed.metadata.generation.map(|g| g + 1);
        server.edit(NAMESPACE, name, |pod| {
            pod.spec = changed.spec;
            pod.metadata.generation = generation;
        });
        if let Some(pod) = server.get(NAMESPACE, name) {
            self.want_object(&pod);
        }
    }

    pub(super) fn delete_object(&mut self, server: &ApiServer, n: usize, grace: i64) {
        let name = bound_name(n);
        let Some(pod) = server.get(NAMESPACE, &name) else {
            return;
        };
        match server.delete(NAMESPACE, &name, grace) {
            Some(left) => self.want_object(&left),
            None => {
                let uid = PodRef::of(&pod).uid;
                self.world.lock().laws.unwant_object(&uid);
            }
        }
    }

    /// Somebody who keeps the object lets go of it; with the last of them it may be gone.
    pub(super) fn release_object(&mut self, server: &ApiServer, name: &str) {
        let kept = server.get(NAMESPACE, name);
        let Some(pod) = kept.filter(|pod| pod.metadata.finalizers.is_some()) else {
            return;
        };
        if server.release(NAMESPACE, name) {
            let uid = PodRef::of(&pod).uid;
            self.world.note(format_args!("   {uid} is released"));
            self.world.lock().laws.unwant_object(&uid);
        }
    }

    /// Nobody keeps anything any longer.
    pub(super) fn release_all(&mut self) {
        let Some(server) = self.server.clone() else {
            return;
        };
        for pod in server.pods() {
            let name = PodRef::of(&pod).name;
            for _ in pod.metadata.finalizers.iter().flatten() {
                self.release_object(&server, &name);
            }
        }
    }

    pub(super) fn delete_mirror(&mut self, server: &ApiServer, n: usize) {
        let grace = [0, 30][self.dice.random_range(0..2)];
        let name = manifest_name(n);
        if server.get(NAMESPACE, &name).is_some() {
            server.delete(NAMESPACE, &name, grace);
        }
    }

    /// Somebody else writes into a status.
    pub(super) fn meddle(&mut self, server: &ApiServer, n: usize) {
        let name = match self.dice.random_bool(0.5) {
            true => bound_name(n),
            false => manifest_name(n),
        };
        let wipes = self.dice.random_bool(0.3);
        if server.get(NAMESPACE, &name).is_none() {
            return;
        }
        server.edit(NAMESPACE, &name, |pod| {
            let status = pod.status.get_or_insert_default();
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|c| c.type_ != "sim/meddled");
            conditions.push(PodCondition {
                type_: "sim/meddled".to_owned(),
                status: if wipes { "True" } else { "False" }.to_owned(),
                ..PodCondition::default()
            });
            if wipes {
                status.container_statuses = None;
            }
        });
    }
}
