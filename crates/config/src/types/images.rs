//! Pulling, keeping and removing images.

use serde_json::{Map, Value};

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Image pulls and image garbage collection.
    pub struct Images {
        /// Pulls started per second; 0 takes the limit off.
        registry_pull_qps: i32 = "registryPullQPS" absent(5);
        /// Pulls started in a burst.
        registry_burst: i32 = "registryBurst" empty(10);
        /// Pull one image at a time; off by default when maxParallelImagePulls is 2 or more.
        serialize_image_pulls: bool = "serializeImagePulls" absent(true);
        /// Most pulls at a time; needs serializeImagePulls off to be above 1.
        max_parallel_image_pulls: Option<i32> = "maxParallelImagePulls";
        /// Which present images need a credential check: NeverVerify, NeverVerifyPreloadedImages,
        /// NeverVerifyAllowlistedImages or AlwaysVerify.
        pull_credentials_verification_policy: String = "imagePullCredentialsVerificationPolicy";
        /// Images exempt from the check under NeverVerifyAllowlistedImages; a name may end in /*.
        preloaded_images_verification_allowlist: Vec<String> = "preloadedImagesVerificationAllowlist";
        /// Youngest age of an unused image that may be removed.
        minimum_gc_age: Duration = "imageMinimumGCAge" empty(Duration::from_mins(2));
        /// Age at which an unused image is removed whatever the disk says; 0s means never.
        maximum_gc_age: Duration = "imageMaximumGCAge";
        /// Disk usage in percent above which unused images are removed; 100 turns it off.
        gc_high_threshold_percent: i32 = "imageGCHighThresholdPercent" absent(85);
        /// Disk usage in percent down to which unused images are removed.
        gc_low_threshold_percent: i32 = "imageGCLowThresholdPercent" absent(80);
    }
}

impl Images {
    /// Asking for parallel pulls is enough to get them.
    pub(crate) fn settle(&mut self, written: &Map<String, Value>) {
        let silent = written
            .get("serializeImagePulls")
            .is_none_or(Value::is_null);
        if silent {
            self.serialize_image_pulls = self.max_parallel_image_pulls.unwrap_or(1) < 2;
        }
    }
}
