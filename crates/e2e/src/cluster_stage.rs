//! A node of a real control plane, and the questions scenarios ask of the two.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, NodeCondition, Pod};
use krablet_cri::{RuntimeService, v1};
use krablet_pod::labels;
use krablet_testbed::{
    Bed, BedOptions, ControlPlane, ControlPlaneOptions, KrabletOptions, eventually_or, leftovers,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::harness::Common;
use crate::stage::{LONG, Stage, container_name, options};
use crate::{manifest, status};

/// Further nodes at once on the shared control plane.
const BESIDE: usize = 1;

/// An agent on a bed that has joined a control plane.
pub struct Member {
    pub plane: Rc<ControlPlane>,
    /// The bed and the agent. Its questions about static pods do not fit here.
    pub stage: Stage,
    pub name: String,
    places: Arc<Semaphore>,
    /// Its place among the further nodes.
    _place: Option<OwnedSemaphorePermit>,
}

/// How the agent of a node is to be started.
#[derive(Default)]
pub struct Joining {
    /// Settings laid over those scenarios have in common.
    pub config: Value,
    /// The kubeconfig to begin with instead of a token for joining.
    pub kubeconfig: Option<PathBuf>,
    pub args: Vec<String>,
}

impl Common for Member {
    async fn shared() -> Self {
        Self::founding(ControlPlaneOptions::default(), "main").await
    }

    async fn down(self) {
        Self::down(self).await;
    }
}

impl Member {
    /// The first node of a control plane of its own, ready.
    pub async fn founding(options: ControlPlaneOptions, name: &str) -> Self {
        let plane = Rc::new(ControlPlane::up(options).await.unwrap());
        let places = Arc::new(Semaphore::new(BESIDE));
        let mut member = Self::prepare(plane, places, None, name, Joining::default()).await;
        member.start().await;
        member
    }

    /// Another node of the same control plane, ready. There are never many of them at once.
    pub async fn beside(&self, name: &str) -> Self {
        let mut other = self.prepared_beside(name, Joining::default()).await;
        other.start().await;
        other
    }

    /// The same with its agent not started yet.
    pub async fn prepared_beside(&self, name: &str, joining: Joining) -> Self {
        let place = self.places.clone().acquire_owned().await.unwrap();
        let (plane, places) = (self.plane.clone(), self.places.clone());
        Self::prepare(plane, places, Some(place), name, joining).await
    }

    async fn prepare(
        plane: Rc<ControlPlane>,
        places: Arc<Semaphore>,
        place: Option<OwnedSemaphorePermit>,
        name: &str,
        joining: Joining,
    ) -> Self {
        let bed = Bed::up(BedOptions::default()).await.unwrap();
        let stage = Stage::on(
            bed.into_inner_name(name),
            options(Value::Null),
        );
        let _ = joining;
        Self {
            plane,
            stage,
            name: name.to_owned(),
            places,
            _place: place,
        }
    }
}
