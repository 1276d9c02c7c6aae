//! What to do next, given what happened: list, watch, how long to wait before. Pure.
//!
//! The first list may be of any age (`resourceVersion=0`, from the API server's memory) unless whoever asks must not
//! be shown what was before what he knows from an earlier life. From then on a watch that
//! ends is resumed where it stood. When the server was away in between, a list not older than what we know comes
//! first: a store that was replaced by an older one would leave such a watch silent for ever, and a list says so at
//! once. So it is, too, when the one try after a lost connection waited until the server was there. When the server does not know our version any more, or not yet, everything is listed anew.

use std::time::Duration;

use crate::{ApiError, Backoff};

/// The first tries are quick, so that a server that is back is noticed soon.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    factor: 2.0,
    cap: Duration::from_secs(30),
    jitter: 0.5,
};
/// Nobody is there to be spared; not longer than the heartbeat's own tries are apart.
const UNREACHED: Backoff = Backoff {
    cap: Duration::from_secs(5),
    ..BACKOFF
};
/// However long a server asks us to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);
/// No server is back sooner with another store.
const AWAY: Duration = Duration::from_secs(1);
/// A watch that ends sooner, having told nothing, did not work.
const SHORT: Duration = Duration::from_secs(1);

/// Objects per page, as informers ask for.
pub(super) const PAGE: u32 = 500;

/// How old a list may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Any,
    NotOlderThan(String),
    /// As the store has it now.
    Newest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    List {
        age: Age,
        /// Pages, or all in one answer.
        paged: bool,
    },
    /// From this resource version on.
    Watch(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// A list is complete.
    Listed { version: String },
    /// The watch told something, and stands at this version.
    Heard { version: Option<String> },
    /// The server ended the watch.
    Ended { heard: bool, lasted: Duration },
    /// Not even a bookmark came, for longer than can be.
    Silent,
    /// The watch opened too late to be relied on.
    Late,
    /// A list, or opening a watch, or a watch failed.
    Failed(ApiError),
}

/// Where we stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Course {
    /// What we know is the state as of this version.
    version: Option<String>,
    next: Step,
    failures: u32,
    /// The last thing that happened was a failure.
    lost: bool,
}

impl Course {
    pub(super) fn new() -> Self {
        Self {
            version: None,
            next: list(Age::Any),
            failures: 0,
            lost: false,
        }
    }

    /// The first list is of now.
    pub(super) fn from_now() -> Self {
        Self {
            next: list(Age::Newest),
            ..Self::new()
        }
    }

    pub(super) fn next(&self) -> &Step {
        &self.next
    }

    /// How long to wait before [`next`](Self::next). `chance` is from 0 to 1.
    pub(super) fn after(&mut self, happened: Happened, chance: f64) -> Duration {
        self.lost = matches!(happened, Happened::Failed(_));
        match happened {
            Happened::Listed { version } => {
                // That a watch from here works has yet to be seen: failures still count.
                self.next = Step::Watch(version.clone());
                self.version = Some(version);
                Duration::ZERO
            }
            Happened::Heard { version } => {
                self.failures = 0;
                if let Some(version) = version {
                    self.next = Step::Watch(version.clone());
                    self.version = Some(version);
                }
                Duration::ZERO
            }
            Happened::Ended { heard, lasted } if heard || lasted >= SHORT => {
                self.failures = 0;
                Duration::ZERO
            }
            Happened::Ended { .. } => self.failed(&BACKOFF, chance),
            Happened::Silent => {
                self.next = self.recheck();
                self.failed(&BACKOFF, chance)
            }
            Happened::Late => {
                self.next = self.recheck();
                Duration::ZERO
            }
            Happened::Failed(error) => self.after_failure(&error, chance),
        }
    }

    /// Whether a watch that took so long to open may be relied on: a server that had to come back first may have come
    /// back with another store.
    pub(super) fn trusts(&self, took: Duration) -> bool {
        !self.lost || took < AWAY
    }

    fn after_failure(&mut self, error: &ApiError, chance: f64) -> Duration {
        let first = self.failures == 0;
        let from_the_future = is_from_the_future(error);
        let next = match &self.next {
            // The rest of the pages is lost: ask for all at once.
            Step::List { .. } if error.is_expired() => Step::List {
                age: Age::Newest,
                paged: false,
            },
            _ if error.is_expired() || from_the_future => list(Age::Newest),
            Step::Watch(_) if !first => self.recheck(),
            next => next.clone(),
        };
        let is_new = next != self.next;
        self.next = next;
        let backoff = match error {
            ApiError::Connection(_) | ApiError::Deadline(_) => &UNREACHED,
            _ => &BACKOFF,
        };
        let delay = self.failed(backoff, chance);
        let asked = error.retry_after().unwrap_or_default();
        // A server that is there and only wants another question needs no rest, unless that happens again and again.
        match is_new && (from_the_future || first && error.is_expired()) {
            true => Duration::ZERO,
            false => delay.max(asked.min(MAX_RETRY_AFTER)),
        }
    }

    /// A list that shows whether the server still knows what we know.
    fn recheck(&self) -> Step {
        match &self.version {
            Some(version) => list(Age::NotOlderThan(version.clone())),
            None => list(Age::Any),
        }
    }

    fn failed(&mut self, backoff: &Backoff, chance: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        backoff.delay(self.failures, chance)
    }
}

fn list(age: Age) -> Step {
    Step::List { age, paged: true }
}

/// The server has not come as far as the version we name: it lags far behind, or its store was replaced.
fn is_from_the_future(error: &ApiError) -> bool {
    match error {
        ApiError::Status { code, message, .. } => {
            *code == 504 && message.contains("Too large resource version")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> ApiError {
        ApiError::Status {
            code,
            reason: String::new(),
            message: message.into(),
            retry_after: None,
        }
    }

    fn gone() -> ApiError {
        status(410, "too old resource version")
    }

    fn away() -> ApiError {
        ApiError::Connection("refused".into())
    }

    fn listed(version: &str) -> Happened {
        Happened::Listed {
            version: version.into(),
        }
    }

    fn heard(version: &str) -> Happened {
        Happened::Heard {
            version: Some(version.into()),
        }
    }

    fn ended(heard: bool, seconds: u64) -> Happened {
        let lasted = Duration::from_secs(seconds);
        Happened::Ended { heard, lasted }
    }

    fn shown(step: &Step) -> String {
        match step {
            Step::Watch(version) => format!("watch {version}"),
            Step::List { age, paged } => {
                let pages = if *paged { "" } else { " whole" };
                match age {
                    Age::Any => format!("list any{pages}"),
                    Age::NotOlderThan(version) => format!("list {version}+{pages}"),
                    Age::Newest => format!("list newest{pages}"),
                }
            }
        }
    }

    /// Each happening with the delay in milliseconds and the step that follow.
    fn check(story: Vec<(Happened, u64, &str)>) {
        let mut course = Course::new();
        assert_eq!(shown(course.next()), "list any");
        for (at, (happened, delay, next)) in story.into_iter().enumerate() {
            let told = format!("{at}: {happened:?}");
            let waited = course.after(happened, 0.0);
            assert_eq!(waited, Duration::from_millis(delay), "{told}");
            assert_eq!(shown(course.next()), next, "{told}");
        }
    }

    #[test]
    fn who_lived_before_is_not_shown_older_things() {
        let course = Course::from_now();
        assert_eq!(shown(course.next()), "list newest");
    }

    #[test]
    fn a_quiet_life() {
        check(vec![
            (listed("5"), 0, "watch 5"),
            (heard("7"), 0, "watch 7"),
            (Happened::Heard { version: None }, 0, "watch 7"),
            (ended(true, 400), 0, "watch 7"),
            (ended(false, 400), 0, "watch 7"),
        ]);
    }

    #[test]
    fn a_connection_that_breaks_is_resumed() {
        check(vec![
            (listed("5"), 0, "watch 5"),
            (heard("6"), 0, "watch 6"),
            (Happened::Failed(away()), 100, "watch 6"),
            (heard("7"), 0, "watch 7"),
            (Happened::Failed(away()), 100, "watch 7"),
        ]);
    }

    #[test]
    fn a_server_that_was_away_is_asked_whether_it_remembers() {
        check(vec![
            (Happened::Failed(away()), 100, "list any"),
            (listed("5"), 0, "watch 5"),
            (heard("6"), 0, "watch 6"),
            (Happened::Failed(away()), 100, "watch 6"),
            (Happened::Failed(away()), 200, "list 6+"),
            (Happened::Failed(away()), 400, "list 6+"),
            (Happened::Failed(away()), 800, "list 6+"),
            (Happened::Failed(away()), 1600, "list 6+"),
            (Happened::Failed(away()), 3200, "list 6+"),
            (Happened::Failed(away()), 5000, "list 6+"),
            (
                Happened::Failed(status(504, "Too large resource version: 6, current: 2")),
                0,
                "list newest",
            ),
            (listed("2"), 0, "watch 2"),
            (heard("3"), 0, "watch 3"),
        ]);
    }

    #[test]
    fn a_watch_that_waited_for_the_server_is_not_trusted() {
        let (short, long) = (AWAY / 2, AWAY * 2);
        let mut course = Course::new();
        course.after(listed("5"), 0.0);
        // A server that is slow and was never away is only slow.
        assert!(course.trusts(long));
        course.after(Happened::Failed(away()), 0.0);
        assert!(course.trusts(short) && !course.trusts(long));
        let wait = course.after(Happened::Late, 0.0);
        assert_eq!((wait, &*shown(course.next())), (Duration::ZERO, "list 5+"));
        course.after(listed("6"), 0.0);
        assert!(course.trusts(long), "the list has told");
    }

    #[test]
    fn what_expired_is_listed_anew() {
        check(vec![
            (listed("5"), 0, "watch 5"),
            (Happened::Failed(gone()), 0, "list newest"),
            (listed("9"), 0, "watch 9"),
            // Again, without a word in between: not in a tight loop.
            (Happened::Failed(gone()), 200, "list newest"),
            (listed("9"), 0, "watch 9"),
            (heard("10"), 0, "watch 10"),
            (Happened::Failed(gone()), 0, "list newest"),
            // A page that expired.
            (Happened::Failed(gone()), 200, "list newest whole"),
            (listed("12"), 0, "watch 12"),
        ]);
    }

    #[test]
    fn watches_that_do_not_work() {
        check(vec![
            (listed("5"), 0, "watch 5"),
            (ended(false, 0), 100, "watch 5"),
            (ended(false, 0), 200, "watch 5"),
            (ended(true, 0), 0, "watch 5"),
            (Happened::Silent, 100, "list 5+"),
        ]);
    }

    #[test]
    fn a_busy_server_is_heeded() {
        let busy = |seconds| ApiError::Status {
            code: 429,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(seconds)),
        };
        check(vec![
            (Happened::Failed(busy(3)), 3000, "list any"),
            (Happened::Failed(busy(9999)), 120_000, "list any"),
            (Happened::Failed(busy(0)), 400, "list any"),
        ]);
        let mut course = Course::new();
        for _ in 0..20 {
            course.after(Happened::Failed(busy(0)), 0.0);
        }
        let longest = course.after(Happened::Failed(status(403, "no")), 0.0);
        assert_eq!(longest, Duration::from_secs(30));
    }
}
