//! Which images go: those unused for too long, and when disk space is short those unused the longest.
//! Pinned images and images of containers stay.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Mono;

/// How often images are looked at.
const PERIOD: Duration = Duration::from_secs(300);
/// A short maximum age asks for more frequent looks, but not for more than this.
const SHORTEST_PERIOD: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// Images are removed from this usage of the disk on; 100 for never.
    pub high_percent: u8,
    /// Down to this usage.
    pub low_percent: u8,
    /// Younger images are not removed for space: whoever had them pulled is about to use them.
    pub min_age: Duration,
    /// Images unused for so long go whatever the disk says; none for never.
    pub max_age: Option<Duration>,
}

impl Default for ImageGcPolicy {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            min_age: Duration::from_secs(120),
            max_age: None,
        }
    }
}

impl ImageGcPolicy {
    /// Nothing would ever be removed.
    pub fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.max_age.is_none()
    }

    /// When to look again. An age can be told no better than the looks are close.
    pub fn period(&self) -> Duration {
        match self.max_age {
            Some(age) => (age / 2).clamp(SHORTEST_PERIOD, PERIOD),
            None => PERIOD,
        }
    }

    /// How many bytes are to be freed, and how full the disk is.
    pub fn shortage(&self, capacity: u64, available: u64) -> Option<Shortage> {
        let available = available.min(capacity);
        let percent = |part: u64| u128::from(part) * 100 / u128::from(capacity.max(1));
        let used_percent = 100 - u8::try_from(percent(available)).unwrap_or(100);
        if used_percent < self.high_percent || self.high_percent >= 100 {
            return None;
        }
        let free_at_low = u128::from(capacity) * u128::from(100 - self.low_percent.min(100)) / 100;
        let free_at_low = u64::try_from(free_at_low).unwrap_or(u64::MAX);
        Some(Shortage {
            used_percent,
            to_free: free_at_low.saturating_sub(available),
            capacity,
        })
    }
}

/// The disk is fuller than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub used_percent: u8,
    pub to_free: u64,
    pub capacity: u64,
}

impl Shortage {
    /// What users read when removing images did not help.
    pub fn not_enough(&self, freed: u64) -> String {
        format!(
            "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
            self.used_percent,
            size_text(self.capacity),
        )
    }
}

fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// An image as a look found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenImage {
    pub id: String,
    pub size: u64,
    pub pinned: bool,
    pub in_use: bool,
}

/// An image that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    pub id: String,
    pub size: u64,
}

#[derive(Clone, Debug)]
struct Record {
    first_seen: Mono,
    last_used: Option<Mono>,
    size: u64,
    pinned: bool,
    in_use: bool,
}

impl Record {
    /// One that was never used counts from its first sight.
    fn unused_since(&self) -> Mono {
        self.last_used
            .map_or(self.first_seen, |used| used.max(self.first_seen))
    }
}

/// What is remembered of images from look to look.
#[derive(Clone, Debug, Default)]
pub struct ImageBook {
    records: BTreeMap<String, Record>,
}

impl ImageBook {
    /// Takes in a look; images it did not find are forgotten.
    pub fn look(&mut self, images: impl IntoIterator<Item = SeenImage>, now: Mono) {
        let mut before = std::mem::take(&mut self.records);
        for image in images {
            let old = before.remove(&image.id);
            let (first_seen, last_used) = match &old {
                Some(old) => (old.first_seen, old.last_used),
                None => (now, None),
            };
            let record = Record {
                first_seen,
                last_used: if image.in_use { Some(now) } else { last_used },
                size: image.size,
                pinned: image.pinned,
                in_use: image.in_use,
            };
            self.records.insert(image.id, record);
        }
    }

    /// Images that may go at all; those used longest ago come first.
    fn unused(&self) -> Vec<(&String, &Record)> {
        let free = |(_, record): &(&String, &Record)| !record.in_use && !record.pinned;
        let mut unused: Vec<_> = self.records.iter().filter(free).collect();
        unused.sort_by_key(|(_, record)| (record.last_used, record.first_seen));
        unused
    }

    /// Images that nobody has used for longer than the policy allows.
    pub fn too_old(&self, policy: &ImageGcPolicy, now: Mono) -> Vec<Unused> {
        let Some(age) = policy.max_age else {
            return Vec::new();
        };
        let old = |(_, r): &(&String, &Record)| now - r.unused_since() > age;
        chosen(self.unused().into_iter().filter(old))
    }

    /// Images that may go to make room, in the order they should.
    pub fn for_space(&self, policy: &ImageGcPolicy, now: Mono) -> Vec<Unused> {
        let old_enough = |(_, r): &(&String, &Record)| now - r.first_seen >= policy.min_age;
        chosen(self.unused().into_iter().filter(old_enough))
    }

    /// The image was removed.
    pub fn forget(&mut self, id: &str) {
        self.records.remove(id);
    }

    pub fn ids(&self) -> Vec<String> {
        self.records.keys().cloned().collect()
    }
}

fn chosen<'a>(images: impl Iterator<Item = (&'a String, &'a Record)>) -> Vec<Unused> {
    let unused = |(id, record): (&String, &Record)| Unused {
        id: id.clone(),
        size: record.size,
    };
    images.map(unused).collect()
}

#[cfg(test)]
mod tests;
