//! Images: that a container's image is on the node before the container is made.

mod policy;
mod pull;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use krablet_core::Mono;
use krablet_core::backoff::{Backoff, PullBackoff, go_duration, pull_event};
use krablet_core::start::{self, StartError};
use krablet_cri::{Error as CriError, ImageService, v1};
use krablet_events::{Recorder, Subject, reason};
use krablet_metrics::{RuntimeMetrics, image_size_class};
use krablet_pod::PodUid;
use tokio::time::Instant;

pub(crate) use policy::{PullPolicy, with_default_tag};
use pull::PullLimits;

use crate::config::{ImageSettings, RuntimeDeps};

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
    pub pod: &'a PodUid,
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
    limits: PullLimits,
    back_off: Mutex<PullBackoff>,
    metrics: RuntimeMetrics,
}

impl Images {
    pub(crate) fn new(settings: &ImageSettings, deps: &RuntimeDeps) -> Self {
        Self {
            service: deps.images.clone(),
            recorder: deps.recorder.clone(),
            epoch: deps.epoch,
            limits: PullLimits::new(settings),
            back_off: Mutex::default(),
            metrics: deps.metrics.clone(),
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

    /// Makes sure the image is there, pulling it if the policy says so.
    pub(crate) async fn ensure(
        &self,
        request: ImageRequest<'_>,
    ) -> Result<ReadyImage, ImageFailure> {
        let name = with_default_tag(request.image).map_err(|why| {
            let message = format!(
                "Failed to apply default image tag {:?}: {why}",
                request.image
            );
            self.warn(&request, reason::INSPECT_FAILED, &message);
            ImageFailure::new(start::INVALID_IMAGE_NAME, message)
        })?;
        if request.policy != PullPolicy::Always
            && let Some(image) = self.present(&request, &name).await?
        {
            let message = format!(
                "Container image {:?} already present on machine and can be accessed by the pod",
                request.image
            );
            self.recorder
                .normal(request.subject.clone(), reason::PULLED, message);
            return Ok(ReadyImage {
                reference: image.id.clone(),
                image: Some(image),
            });
        }
        if request.policy == PullPolicy::Never {
            let message = format!(
                "Container image {:?} is not present with pull policy of Never",
                request.image
            );
            self.warn(&request, reason::ERR_IMAGE_NEVER_PULL, &message);
            return Err(ImageFailure::new(start::ERR_IMAGE_NEVER_PULL, message));
        }
        self.check_back_off(&request)?;
        self.pull(&request, &name).await
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

    fn check_back_off(&self, request: &ImageRequest<'_>) -> Result<(), ImageFailure> {
        let now = self.now();
        let (decision, message) = self.back_off(|table| {
            (
                table.check(request.pod, request.image, now),
                table.waiting_message(request.pod, request.image),
            )
        });
        let Backoff::Wait { until, .. } = decision else {
            return Ok(());
        };
        self.recorder.normal(
            request.subject.clone(),
            reason::BACK_OFF,
            pull_event(request.image),
        );
        let mut failure = ImageFailure::new(start::IMAGE_PULL_BACK_OFF, message);
        failure.retry_at = Some(until);
        Err(failure)
    }

    async fn pull(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
    ) -> Result<ReadyImage, ImageFailure> {
        let image = request.image;
        self.recorder.normal(
            request.subject.clone(),
            reason::PULLING,
            format!("Pulling image {image:?}"),
        );
        let asked = Instant::now();
        let turn = self.limits.turn().await;
        let begun = Instant::now();
        let pulled = if self.limits.may_begin() {
            let spec = v1::ImageSpec {
                image: name.to_string(),
                annotations: request.sandbox.annotations.clone(),
                ..v1::ImageSpec::default()
            };
            let sandbox = Some(request.sandbox.clone());
            let pulled = self.service.pull_image(spec, None, sandbox).await;
            pulled.map_err(|e| (e.to_string(), e.message))
        } else {
            let text = "pull QPS exceeded".to_string();
            Err((text.clone(), text))
        };
        let reference = match pulled {
            Ok(reference) => reference,
            Err((text, bare)) => return Err(self.pull_failed(request, &text, &bare)),
        };
        // The size is for the event alone; whoever needs the image's user asks again.
        let found = self.look(name).await.ok().flatten();
        let took = begun.elapsed();
        drop(turn);
        let size = found.as_ref().map_or(0, |i| i.size);
        self.metrics
            .image_pull_duration
            .observe_duration(&[image_size_class(size)], asked.elapsed());
        let message = format!(
            "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {size} bytes.",
            in_millis(took),
            in_millis(asked.elapsed()),
        );
        self.recorder
            .normal(request.subject.clone(), reason::PULLED, message);
        Ok(ReadyImage {
            reference,
            image: found,
        })
    }

    fn pull_failed(&self, request: &ImageRequest<'_>, text: &str, bare: &str) -> ImageFailure {
        let image = request.image;
        self.warn(
            request,
            reason::FAILED,
            &format!("Failed to pull image {image:?}: {text}"),
        );
        let (reason, message) = classify(image, text, bare);
        let now = self.now();
        self.back_off(|table| {
            table.failed(request.pod, image, &format!("{reason}: {message}"), now)
        });
        ImageFailure::new(reason, message)
    }
}

/// Runtimes name two kinds of failure at the start of their message.
fn classify(image: &str, text: &str, bare: &str) -> (&'static str, String) {
    let known = [
        (start::REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (
            start::SIGNATURE_VALIDATION_FAILED,
            "the signature validation failed",
        ),
    ];
    for (reason, because) in known {
        let detail = text.strip_prefix(reason).or(bare.strip_prefix(reason));
        if let Some(detail) = detail {
            let message = format!("image pull failed for {image} because {because}{detail}");
            return (reason, message);
        }
    }
    (start::ERR_IMAGE_PULL, text.to_string())
}

fn in_millis(d: Duration) -> String {
    go_duration(Duration::from_millis(
        u64::try_from(d.as_millis()).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart_by_their_first_word() {
        let cases = [
            ("rpc error: x", "x", start::ERR_IMAGE_PULL, "rpc error: x"),
            (
                "rpc error: code = Unknown desc = RegistryUnavailable: 503",
                "RegistryUnavailable: 503",
                start::REGISTRY_UNAVAILABLE,
                "image pull failed for i because the registry is unavailable: 503",
            ),
            (
                "SignatureValidationFailed: bad",
                "SignatureValidationFailed: bad",
                start::SIGNATURE_VALIDATION_FAILED,
                "image pull failed for i because the signature validation failed: bad",
            ),
        ];
        for (text, bare, reason, message) in cases {
            assert_eq!(classify("i", text, bare), (reason, message.to_string()));
        }
    }
}
