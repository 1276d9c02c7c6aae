//! Questions to the API server whose answer is in the status of what was sent.

use std::time::Duration;

use krablet_kube::{Call, Kube, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::ReviewError;

/// Under way at a time; who comes then is told to come again.
const AT_ONCE: usize = 32;
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Reviews {
    kube: Kube,
    turns: Semaphore,
}

impl Reviews {
    pub(crate) fn new(kube: Kube) -> Self {
        Self {
            kube,
            turns: Semaphore::new(AT_ONCE),
        }
    }

    pub(crate) async fn ask<S: DeserializeOwned + Default>(
        &self,
        path: &str,
        review: &Value,
    ) -> Result<S, ReviewError> {
        let _turn = self.turns.try_acquire().map_err(|_| ReviewError::Busy)?;
        let call = Call::new(Verb::Create, path.to_owned())
            .body(review.to_string())
            .deadline(DEADLINE);
        let mut answer: Map<String, Value> = self.kube.object(call).await?;
        match answer.remove("status") {
            // An object and nothing else: a list would be read field by field as well.
            Some(status @ Value::Object(_)) => serde_json::from_value(status)
                .map_err(|e| ReviewError::Refused(format!("the answer cannot be read: {e}"))),
            _ => Ok(S::default()),
        }
    }
}
