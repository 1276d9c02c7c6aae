//! One image's way onto the node: back-off, credentials, a turn, the pull, and the record of it.

use std::collections::BTreeSet;
use std::time::Duration;

use krablet_core::backoff::{Backoff, go_duration, pull_event};
use krablet_core::start;
use krablet_cri::v1;
use krablet_events::reason;
use krablet_images::{Credential, PullIntent, fingerprint, reference};
use krablet_metrics::image_size_class;
use tokio::time::Instant;

use super::queue::Turn;
use super::{ImageFailure, ImageRequest, Images, PullPolicy, ReadyImage};

/// Why a pull failed: the whole text, and that without the frame of gRPC.
struct PullError {
    text: String,
    bare: String,
}

/// A pull that is about to begin.
struct Pull<'a> {
    request: &'a ImageRequest<'a>,
    /// With its tag.
    name: &'a str,
    credentials: Vec<Credential>,
    /// What tells the credentials at hand from others.
    fingerprint: String,
}

impl Images {
    pub(super) async fn pull(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
    ) -> Result<ReadyImage, ImageFailure> {
        let repository = self.repository(request, name)?;
        let at_hand = self
            .keychain
            .at_hand(&repository, &request.identity.secrets)
            .await;
        let mut credentials = at_hand.map_err(|e| self.bad_secret(request, &e))?;
        let fingerprint = fingerprint(&credentials);
        self.check_back_off(request, &fingerprint)?;
        credentials.extend(
            self.keychain
                .from_providers(&repository, &request.identity.pod)
                .await,
        );
        let text = format!("Pulling image {:?}", request.image);
        self.recorder
            .normal(request.subject.clone(), reason::PULLING, text);
        let registry = repository.split('/').next().unwrap_or_default();
        let pull = Pull {
            request,
            name,
            credentials,
            fingerprint,
        };
        self.queued_pull(pull, registry).await
    }

    async fn queued_pull(
        &self,
        pull: Pull<'_>,
        registry: &str,
    ) -> Result<ReadyImage, ImageFailure> {
        let asked = Instant::now();
        let place = self.queue.enter(registry, pull.name);
        while place.turn().await == Turn::Arrived {
            if let Some(ready) = self.arrived_meanwhile(&pull).await {
                return Ok(ready);
            }
        }
        let intent = self.intend(&pull).await?;
        let begun = Instant::now();
        let pulled = self.try_credentials(&pull).await;
        let (reference, used) = match pulled {
            Ok(pulled) => pulled,
            Err(error) => {
                self.not_pulled(intent).await;
                return Err(self.pull_failed(&pull, &error));
            }
        };
        // The size is for the event alone; whoever needs the image's user asks again.
        let found = self.look(pull.name).await.ok().flatten();
        if let (Some(records), Some(intent)) = (&self.records, intent) {
            records.pulled(intent, &reference, used).await;
        }
        self.queue.arrived(pull.name);
        let took = begun.elapsed();
        drop(place);
        let size = found.as_ref().map_or(0, |i| i.size);
        self.metrics
            .image_pull_duration
            .observe_duration(&[image_size_class(size)], asked.elapsed());
        let message = format!(
            "Successfully pulled image {:?} in {} ({} including waiting). Image size: {size} bytes.",
            pull.request.image,
            in_millis(took),
            in_millis(asked.elapsed()),
        );
        let subject = pull.request.subject.clone();
        self.recorder.normal(subject, reason::PULLED, message);
        Ok(ReadyImage {
            reference,
            image: found,
        })
    }

    /// Somebody else's pull may do, if this pod may have what came of it.
    async fn arrived_meanwhile(&self, pull: &Pull<'_>) -> Option<ReadyImage> {
        if pull.request.policy != PullPolicy::IfNotPresent {
            return None;
        }
        let image = self.look(pull.name).await.ok().flatten()?;
        let ready = self.if_accessible(pull.request, pull.name, image).await;
        ready.ok().flatten()
    }

    /// One credential after the other, until the registry is content; without any, as nobody.
    async fn try_credentials<'p>(
        &self,
        pull: &'p Pull<'_>,
    ) -> Result<(String, Option<&'p Credential>), PullError> {
        if !self.rate.may_begin() {
            let text = "pull QPS exceeded".to_string();
            return Err(PullError {
                bare: text.clone(),
                text,
            });
        }
        let nobody = [None];
        let known: Vec<Option<&Credential>> = pull.credentials.iter().map(Some).collect();
        let tries = match known.is_empty() {
            true => &nobody[..],
            false => &known,
        };
        let mut errors = Vec::new();
        for credential in tries {
            let spec = v1::ImageSpec {
                image: pull.name.to_string(),
                annotations: pull.request.sandbox.annotations.clone(),
                ..v1::ImageSpec::default()
            };
            let auth = credential.map(auth_config);
            let sandbox = Some(pull.request.sandbox.clone());
            match self.service.pull_image(spec, auth, sandbox).await {
                Ok(reference) => return Ok((reference, *credential)),
                Err(error) => errors.push(error),
            }
        }
        Err(PullError {
            text: aggregate(errors.iter().map(ToString::to_string)),
            bare: aggregate(errors.into_iter().map(|e| e.message)),
        })
    }

    fn repository(&self, request: &ImageRequest<'_>, name: &str) -> Result<String, ImageFailure> {
        reference::repository(name).map_err(|why| {
            self.warn(request, reason::INSPECT_FAILED, &why);
            ImageFailure::new(start::INVALID_IMAGE_NAME, why)
        })
    }

    /// Every credential the pod may show for the image.
    pub(super) async fn credentials(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
    ) -> Result<Vec<Credential>, ImageFailure> {
        let repository = self.repository(request, name)?;
        let at_hand = self
            .keychain
            .at_hand(&repository, &request.identity.secrets)
            .await;
        let mut credentials = at_hand.map_err(|e| self.bad_secret(request, &e))?;
        credentials.extend(
            self.keychain
                .from_providers(&repository, &request.identity.pod)
                .await,
        );
        Ok(credentials)
    }

    fn bad_secret(
        &self,
        request: &ImageRequest<'_>,
        error: &krablet_images::BadSecret,
    ) -> ImageFailure {
        let text = format!("Failed to pull image {:?}: {error}", request.image);
        self.warn(request, reason::FAILED, &text);
        ImageFailure::new(start::ERR_IMAGE_PULL, error.to_string())
    }

    /// Announces a pull that has its turn: one that is given up while it waits was never asked of the runtime, and leaves
    /// nothing to beware of.
    async fn intend(&self, pull: &Pull<'_>) -> Result<Option<PullIntent>, ImageFailure> {
        let Some(records) = &self.records else {
            return Ok(None);
        };
        let image = pull.request.image;
        // An earlier look may be as old as the wait was long. If nothing can be learnt, nothing counts as there before.
        let there = self.look(pull.name).await.ok().flatten();
        let there = there.map(|found| found.id).filter(|id| !id.is_empty());
        let intent = records.intend(image, there.as_deref()).await;
        let intent = intent.map_err(|error| {
            let text = format!(
                "Failed to record image pull intent for container image {image:?}: {error}"
            );
            ImageFailure::new(start::ERR_IMAGE_PULL, text)
        });
        intent.map(Some)
    }

    async fn not_pulled(&self, intent: Option<PullIntent>) {
        if let (Some(records), Some(intent)) = (&self.records, intent) {
            records.failed(intent).await;
        }
    }

    fn check_back_off(
        &self,
        request: &ImageRequest<'_>,
        fingerprint: &str,
    ) -> Result<(), ImageFailure> {
        let now = self.now();
        let (decision, message) = self.back_off(|table| {
            (
                table.check(request.uid, request.image, fingerprint, now),
                table.waiting_message(request.uid, request.image),
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

    fn pull_failed(&self, pull: &Pull<'_>, error: &PullError) -> ImageFailure {
        let (request, image) = (pull.request, pull.request.image);
        let text = format!("Failed to pull image {image:?}: {}", error.text);
        self.warn(request, reason::FAILED, &text);
        let (reason, message) = classify(image, &error.text, &error.bare);
        let now = self.now();
        self.back_off(|table| {
            let told = format!("{reason}: {message}");
            table.failed(request.uid, image, &pull.fingerprint, &told, now);
        });
        ImageFailure::new(reason, message)
    }
}

fn auth_config(credential: &Credential) -> v1::AuthConfig {
    v1::AuthConfig {
        username: credential.username.expose().to_owned(),
        password: credential.password.expose().to_owned(),
        ..v1::AuthConfig::default()
    }
}

/// Several errors in one text, each told once.
fn aggregate(errors: impl Iterator<Item = String>) -> String {
    let mut seen = BTreeSet::new();
    let told: Vec<String> = errors.filter(|e| seen.insert(e.clone())).collect();
    match told.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
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

    #[test]
    fn errors_are_told_once() {
        let text = |errors: &[&str]| aggregate(errors.iter().map(|e| e.to_string()));
        assert_eq!(text(&["a"]), "a");
        assert_eq!(text(&["a", "a"]), "a");
        assert_eq!(text(&["a", "b", "a"]), "[a, b]");
    }
}
