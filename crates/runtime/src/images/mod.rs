//! Images: that a container's image is on the node before the container is made, that the pod may have it, and that
//! images nobody uses go.

pub mod gc;
mod identity;
mod policy;
mod pull;
mod queue;
mod rate;

use std::sync::{Arc, Mutex, PoisonError};

use krablet_core::Mono;
use krablet_core::backoff::PullBackoff;
use krablet_core::start::{self, StartError};
use krablet_cri::{Error as CriError, ImageService, v1};
use krablet_events::{Recorder, Subject, reason};
use krablet_images::{Keychain, PullRecords, Standing};
use krablet_metrics::RuntimeMetrics;
use krablet_pod::PodUid;
use tokio::time::Instant;

pub(crate) use identity::PullIdentity;
pub(crate) use krablet_images::reference::with_default_tag;
pub(crate) use policy::PullPolicy;
use queue::PullQueue;
use rate::PullRate;

use crate::config::{ImageSettings, RuntimeDeps};
use crate::counters::{Ensured, image_ensured};

/// An image that is there.
#[derive(Clone, Debug)]
pub(crate) struct ReadyImage {
    pub reference: String,
    /// What the runtime says of it, where it was asked.
    pub image: Option<v1::Image>,
}

/// Why an image is not there.
#[derive(Debug)]
pub(crate) struct ImageFailure {
    pub error: StartError,
    /// When the next try is allowed, in back-off.
    pub retry_at: Option<Mono>,
}

impl ImageFailure {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            error: StartError {
                reason,
                message: message.into(),
            },
            retry_at: None,
        }
    }
}

/// Whose image, and what for.
pub(crate) struct ImageRequest<'a> {
    pub uid: &'a PodUid,
    pub identity: &'a PullIdentity,
    pub subject: Subject,
    /// As the spec names it.
    pub image: &'a str,
    pub policy: PullPolicy,
    /// What an earlier look in this sync found.
    pub seen: Option<&'a v1::Image>,
    pub sandbox: &'a v1::PodSandboxConfig,
}

pub(crate) struct Images {
    service: Arc<dyn ImageService>,
    recorder: Recorder,
    epoch: Instant,
    queue: PullQueue,
    rate: PullRate,
    back_off: Mutex<PullBackoff>,
    metrics: RuntimeMetrics,
    keychain: Arc<Keychain>,
    /// None: whoever runs on the node may have what is on it.
    records: Option<Arc<PullRecords>>,
}

impl Images {
    pub(crate) fn new(settings: &ImageSettings, deps: &RuntimeDeps) -> Self {
        Self {
            service: deps.images.clone(),
            recorder: deps.recorder.clone(),
            epoch: deps.epoch,
            queue: PullQueue::new(settings),
            rate: PullRate::new(settings),
            back_off: Mutex::default(),
            metrics: deps.metrics.clone(),
            keychain: deps.keychain.clone(),
            records: deps.pull_records.clone(),
        }
    }

    fn now(&self) -> Mono {
        Mono(self.epoch.elapsed())
    }

    fn back_off<T>(&self, work: impl FnOnce(&mut PullBackoff) -> T) -> T {
        work(&mut self.back_off.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets pods that are gone and failures that no longer count.
    pub(crate) fn forget(&self, keep: impl FnMut(&PodUid) -> bool) {
        let now = self.now();
        self.back_off(|table| {
            table.retain(keep);
            table.gc(now);
        });
    }

    /// What the runtime knows of an image, `None` if it has it not.
    pub(crate) async fn look(&self, image: &str) -> Result<Option<v1::Image>, CriError> {
        let spec = v1::ImageSpec {
            image: image.to_string(),
            ..v1::ImageSpec::default()
        };
        self.service.image_status(spec).await
    }

    /// Whether more than the runtime and the disk may be asked about an image that is there.
    pub(crate) fn may_ask_around(&self) -> bool {
        self.records.is_some() && self.keychain.has_providers()
    }

    /// The image, if it is on the node, the policy allows that, and so the pod may have it. Asked once for each image
    /// a container needs.
    pub(crate) async fn at_hand(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<Option<ReadyImage>, ImageFailure> {
        let mut ensured = Ensured::default();
        let ready = self.find(request, &mut ensured).await;
        image_ensured(&self.metrics, request.policy.label(), ensured);
        ready
    }

    async fn find(
        &self,
        request: &ImageRequest<'_>,
        ensured: &mut Ensured,
    ) -> Result<Option<ReadyImage>, ImageFailure> {
        let name = self.full_name(request)?;
        if request.policy == PullPolicy::Always {
            ensured.pull_required = Some(true);
            return Ok(None);
        }
        let present = self.present(request, &name).await?;
        ensured.present = Some(present.is_some());
        let Some(image) = present else {
            // One that is never pulled is refused before it is asked whether it would have to be.
            ensured.pull_required = (request.policy != PullPolicy::Never).then_some(true);
            return Ok(None);
        };
        let ready = self.if_accessible(request, &name, image).await?;
        ensured.pull_required = Some(ready.is_none());
        Ok(ready)
    }

    /// Pulls an image that is not at hand, if the policy says so. Takes as long as the registry does.
    pub(crate) async fn bring(
        &self,
        request: &ImageRequest<'_>,
    ) -> Result<ReadyImage, ImageFailure> {
        let name = self.full_name(request)?;
        if request.policy == PullPolicy::Never {
            // One that is there and is not for this pod is not there, as far as the pod can tell.
            let message = format!(
                "Container image {:?} is not present with pull policy of Never",
                request.image
            );
            self.warn(request, reason::ERR_IMAGE_NEVER_PULL, &message);
            return Err(ImageFailure::new(start::ERR_IMAGE_NEVER_PULL, message));
        }
        self.pull(request, &name).await
    }

    fn full_name(&self, request: &ImageRequest<'_>) -> Result<String, ImageFailure> {
        with_default_tag(request.image).map_err(|why| {
            let message = format!(
                "Failed to apply default image tag {:?}: {why}",
                request.image
            );
            self.warn(request, reason::INSPECT_FAILED, &message);
            ImageFailure::new(start::INVALID_IMAGE_NAME, message)
        })
    }

    fn warn(&self, request: &ImageRequest<'_>, reason: &'static str, message: &str) {
        self.recorder
            .warning(request.subject.clone(), reason, message);
    }

    async fn present(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
    ) -> Result<Option<v1::Image>, ImageFailure> {
        if let Some(image) = request.seen {
            return Ok(Some(image.clone()));
        }
        self.look(name).await.map_err(|error| {
            let message = format!("Failed to inspect image {:?}: {error}", request.image);
            self.warn(request, reason::INSPECT_FAILED, &message);
            ImageFailure::new(start::IMAGE_INSPECT_ERROR, message)
        })
    }

    /// An image that is there, if the pod may have it without asking its registry.
    async fn if_accessible(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
        image: v1::Image,
    ) -> Result<Option<ReadyImage>, ImageFailure> {
        let (accessible, and) = match &self.records {
            Some(records) => {
                let accessible = match records.standing(request.image, &image.id).await {
                    Standing::Free => true,
                    Standing::Unknown => false,
                    Standing::Known(known) => {
                        let held = self.credentials(request, name).await;
                        let held = held.inspect_err(|_| records.check_failed())?;
                        records
                            .allows(request.image, &image.id, &known, &held)
                            .await
                    }
                };
                (accessible, " and can be accessed by the pod")
            }
            None => (true, ""),
        };
        if !accessible {
            return Ok(None);
        }
        let message = format!(
            "Container image {:?} already present on machine{and}",
            request.image
        );
        self.recorder
            .normal(request.subject.clone(), reason::PULLED, message);
        Ok(Some(ReadyImage {
            reference: image.id.clone(),
            image: Some(image),
        }))
    }
}
