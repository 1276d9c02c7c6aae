//! Garbage collection of images. What goes is chosen by the pure core; here it is done.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::Mono;
use krablet_core::backoff::go_duration;
use krablet_core::image_gc::{ImageBook, ImageGcPolicy, SeenImage, Unused};
use krablet_cri::{ImageService, RuntimeService, v1};
use krablet_events::{Recorder, Subject, reason};
use krablet_images::PullRecords;
use krablet_images::reference::listed_name;
use krablet_linux::{DiskSpace, WallClock};
use krablet_metrics::ImageMetrics;
use tokio::time::Instant;

/// Between tries to learn which images are there at the start.
const PAUSE: Duration = Duration::from_secs(10);

pub struct ImageGcDeps {
    pub runtime: Arc<dyn RuntimeService>,
    pub images: Arc<dyn ImageService>,
    pub space: Arc<dyn DiskSpace>,
    pub recorder: Recorder,
    pub clock: Arc<dyn WallClock>,
    pub metrics: ImageMetrics,
    pub records: Option<Arc<PullRecords>>,
    /// Images that pods mount as volumes, as their specs name them.
    pub mounted: Arc<dyn Fn() -> BTreeSet<String> + Send + Sync>,
}

pub struct ImageGc {
    policy: ImageGcPolicy,
    deps: ImageGcDeps,
    begun: Instant,
    book: ImageBook,
    failed_before: bool,
}

impl ImageGc {
    pub fn new(policy: ImageGcPolicy, deps: ImageGcDeps) -> Self {
        Self {
            policy,
            deps,
            begun: Instant::now(),
            book: ImageBook::default(),
            failed_before: false,
        }
    }

    /// Collects for ever.
    pub async fn run(mut self) {
        self.settle_records().await;
        if self.policy.is_off() {
            std::future::pending::<()>().await;
        }
        loop {
            self.round().await;
            tokio::time::sleep(self.policy.period()).await;
        }
    }

    /// Pulls that an earlier agent did not see the end of.
    async fn settle_records(&self) {
        let Some(records) = &self.deps.records else {
            return;
        };
        while records.has_intents().await {
            match self.deps.images.list_images().await {
                Ok(images) => return records.settle_intents(&named(images)).await,
                Err(error) => tracing::error!(%error, "Failed to list images"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One collection; what fails twice in a row is told to the cluster.
    pub async fn round(&mut self) {
        match self.collect().await {
            Ok(()) => self.failed_before = false,
            Err(error) if self.failed_before => {
                tracing::error!(
                    error,
                    "Image garbage collection failed multiple times in a row"
                );
                let recorder = &self.deps.recorder;
                recorder.warning(Subject::Node, reason::IMAGE_GC_FAILED, error);
            }
            Err(error) => {
                tracing::error!(error, "Image garbage collection failed once");
                self.failed_before = true;
            }
        }
    }

    async fn collect(&mut self) -> Result<(), String> {
        let began = self.deps.clock.now();
        self.look().await?;
        let now = Mono(self.begun.elapsed());
        let old = self.book.too_old(&self.policy, now);
        let (_, errors) = self.remove(old, u64::MAX, "age").await;
        if !errors.is_empty() {
            let age = go_duration(self.policy.max_age.unwrap_or_default());
            return Err(format!(
                "wanted to free images older than {age}, encountered errors in image deletion: {}",
                errors.join(", ")
            ));
        }
        let outcome = self.make_room(now).await;
        if let Some(records) = &self.deps.records {
            records.prune(&self.book.ids(), began).await;
        }
        outcome
    }

    async fn look(&mut self) -> Result<(), String> {
        let images = self.deps.images.list_images().await;
        let images = images.map_err(|e| e.to_string())?;
        let containers = self.deps.runtime.list_containers(None).await;
        let containers = containers.map_err(|e| e.to_string())?;
        let mut used: BTreeSet<String> = containers.into_iter().flat_map(names_of).collect();
        let mounted = (self.deps.mounted)();
        used.extend(mounted.iter().filter_map(|name| listed_name(name)));
        used.remove("");
        let seen = images.into_iter().map(|image| {
            let names = image.repo_tags.iter().chain(&image.repo_digests);
            let in_use = used.contains(&image.id) || names.into_iter().any(|n| used.contains(n));
            SeenImage {
                id: image.id,
                size: image.size,
                pinned: image.pinned,
                in_use,
            }
        });
        self.book.look(seen, Mono(self.begun.elapsed()));
        Ok(())
    }

    async fn make_room(&mut self, now: Mono) -> Result<(), String> {
        if self.policy.high_percent >= 100 {
            return Ok(());
        }
        let info = self.deps.images.image_fs_info().await;
        let info = info.map_err(|e| e.to_string())?;
        let place = info.image_filesystems.into_iter().next();
        let place = place.and_then(|fs| fs.fs_id).map(|id| id.mountpoint);
        let place = place.ok_or("imageFs information is unavailable")?;
        let space = self.deps.space.space(Path::new(&place)).await;
        let space = space.map_err(|e| e.to_string())?;
        let recorder = &self.deps.recorder;
        if space.capacity == 0 {
            let text = "invalid capacity 0 on image filesystem";
            recorder.warning(Subject::Node, reason::INVALID_DISK_CAPACITY, text);
            return Err(text.to_owned());
        }
        let Some(shortage) = self.policy.shortage(space.capacity, space.available) else {
            return Ok(());
        };
        tracing::info!(
            usage = shortage.used_percent,
            highThreshold = self.policy.high_percent,
            amountToFree = shortage.to_free,
            lowThreshold = self.policy.low_percent,
            "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
        );
        let candidates = self.book.for_space(&self.policy, now);
        let (freed, errors) = self.remove(candidates, shortage.to_free, "space").await;
        if !errors.is_empty() {
            return Err(format!(
                "wanted to free {} bytes, but freed {freed} bytes space with errors in image deletion: {}",
                shortage.to_free,
                errors.join(", ")
            ));
        }
        if freed < shortage.to_free {
            let text = shortage.not_enough(freed);
            let recorder = &self.deps.recorder;
            recorder.warning(Subject::Node, reason::FREE_DISK_SPACE_FAILED, text.clone());
            return Err(text);
        }
        Ok(())
    }

    /// Removes images until so many bytes are free; one that cannot be removed stops nothing.
    async fn remove(&mut self, images: Vec<Unused>, enough: u64, why: &str) -> (u64, Vec<String>) {
        let (mut freed, mut errors) = (0_u64, Vec::new());
        for image in images {
            if freed >= enough {
                break;
            }
            tracing::info!(
                imageID = image.id,
                size = image.size,
                "Removing image to free bytes"
            );
            let spec = v1::ImageSpec {
                image: image.id.clone(),
                ..v1::ImageSpec::default()
            };
            match self.deps.images.remove_image(spec).await {
                Ok(()) => {
                    self.book.forget(&image.id);
                    self.deps.metrics.garbage_collected.add(&[why], 1);
                    freed = freed.saturating_add(image.size);
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        (freed, errors)
    }
}

/// Everything by which a container's image may be known.
fn names_of(container: v1::Container) -> [String; 3] {
    let spec = container.image.unwrap_or_default().image;
    [container.image_id, container.image_ref, spec]
}

fn named(images: Vec<v1::Image>) -> Vec<(String, Vec<String>)> {
    let names = |image: v1::Image| {
        let names = image.repo_tags.into_iter().chain(image.repo_digests);
        (image.id, names.collect())
    };
    images.into_iter().map(names).collect()
}
