//! What is kept, each in a file of its own.

use std::sync::Arc;

use krablet_pod::AdmittedPods;
use krablet_pod::api::Pod;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::envelope::State;

/// The API server's pods of this node as last known, so that they can run while it is away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DesiredPods {
    #[serde(default, serialize_with = "write_pods", deserialize_with = "read_pods")]
    pub pods: Vec<Arc<Pod>>,
}

fn write_pods<S: Serializer>(pods: &[Arc<Pod>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(pods.iter().map(AsRef::as_ref))
}

fn read_pods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<Pod>>, D::Error> {
    let pods = Vec::<Pod>::deserialize(deserializer)?;
    Ok(pods.into_iter().map(Arc::new).collect())
}

impl State for DesiredPods {
    const KIND: &'static str = "DesiredPods";
}

impl State for AdmittedPods {
    const KIND: &'static str = "AdmittedPods";
}
