//! What is known of a name because a pull of it was announced, and which pulls are under way.
//!
//! A pull that is given up is given up in the runtime, too, but word of that may come too late: the image may be there
//! afterwards, pulled with credentials that nobody wrote down. So an announcement outlives a pull without an end, on the
//! disk, where it was before the pull began: giving up writes nothing, and a kill loses nothing.
//!
//! An image that was there before the pull, from elsewhere, is not what it brought. It is told by its id, which stands for
//! its content: as long as the name leads to that id it is as free as it was, and the same content pulled once more
//! gives nobody what he could not have had before. New content under the same name has another id. No record speaks of that,
//! but the announcement does: it came from us, and its registry is to be asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which images are ours, of those that a name with announced pulls may lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// Whichever is there.
    Any,
    /// Whichever is there but the one with this id, which was there before, from elsewhere.
    AllBut(String),
}

impl Announced {
    pub(super) fn is_ours(&self, id: &str) -> bool {
        match self {
            Self::Any => true,
            Self::AllBut(foreign) => foreign != id,
        }
    }

    /// From now on, when another pull begins. `there` is the image that is there, and whether it has a record.
    pub(super) fn next(before: Option<&Self>, there: Option<(&str, bool)>) -> Self {
        match (before, there) {
            (None, Some((id, false))) => Self::AllBut(id.to_owned()),
            (Some(Self::AllBut(foreign)), Some((id, _))) if foreign == id => {
                Self::AllBut(id.to_owned())
            }
            // One that is gone, and comes again, has come from us.
            _ => Self::Any,
        }
    }
}

struct Pulls {
    count: u32,
    /// One of them has ended and may yet bring the image.
    given_up: bool,
    announced: Announced,
}

/// Pulls under way, by image.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<BTreeMap<String, Pulls>>>);

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pulls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announced(&self, image: &str) -> Option<Announced> {
        self.lock().get(image).map(|pulls| pulls.announced.clone())
    }

    pub(super) fn contains(&self, image: &str) -> bool {
        self.lock().contains_key(image)
    }

    /// One more pull, which was announced so on the disk.
    pub(super) fn begin(&self, image: &str, announced: Announced) -> PullIntent {
        let mut all = self.lock();
        let pulls = all.entry(image.to_owned()).or_insert_with(|| Pulls {
            count: 0,
            given_up: false,
            announced: announced.clone(),
        });
        pulls.count += 1;
        pulls.announced = announced;
        PullIntent {
            image: image.to_owned(),
            under_way: self.clone(),
            has_ended: false,
        }
    }

    /// Whatever `end` does to the pulls of an image. What was announced of them, if that was the last one and nothing may
    /// come of any.
    fn end_one(&self, image: &str, end: impl FnOnce(&mut Pulls)) -> Option<Announced> {
        let mut all = self.lock();
        let pulls = all.get_mut(image)?;
        end(pulls);
        pulls.count = pulls.count.saturating_sub(1);
        if pulls.count > 0 {
            return None;
        }
        let pulls = all.remove(image)?;
        (!pulls.given_up).then_some(pulls.announced)
    }
}

/// A pull that was announced. Dropped without an end, it was given up: what was announced stays so.
pub struct PullIntent {
    image: String,
    under_way: UnderWay,
    has_ended: bool,
}

impl PullIntent {
    pub(super) fn image(&self) -> &str {
        &self.image
    }

    /// What has to be taken back, if anything.
    pub(super) fn failed(mut self) -> Option<Announced> {
        self.has_ended = true;
        self.under_way.end_one(&self.image, |_| {})
    }

    /// The same for one that has a record, which says all there is to say.
    pub(super) fn succeeded(mut self) -> Option<Announced> {
        self.has_ended = true;
        self.under_way
            .end_one(&self.image, |pulls| pulls.given_up = false)
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        if !self.has_ended {
            self.under_way
                .end_one(&self.image, |pulls| pulls.given_up = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_pull_announces() {
        let all_but = |id: &str| Announced::AllBut(id.into());
        let any = Announced::Any;
        // (announced before, there with or without a record, announced then)
        let cases = [
            (None, None, any.clone()),
            (None, Some(("a", true)), any.clone()),
            (None, Some(("a", false)), all_but("a")),
            // What has come since is not foreign.
            (Some(any.clone()), None, any.clone()),
            (Some(any.clone()), Some(("a", false)), any.clone()),
            (Some(all_but("a")), Some(("a", false)), all_but("a")),
            (Some(all_but("a")), Some(("a", true)), all_but("a")),
            (Some(all_but("a")), Some(("b", false)), any.clone()),
            (Some(all_but("a")), None, any.clone()),
        ];
        for (before, there, expected) in cases {
            let got = Announced::next(before.as_ref(), there);
            assert_eq!(got, expected, "{before:?} {there:?}");
        }
    }

    #[test]
    fn ours() {
        assert!(Announced::Any.is_ours("a"));
        assert!(Announced::AllBut("a".into()).is_ours("b"));
        assert!(!Announced::AllBut("a".into()).is_ours("a"));
    }

    #[test]
    fn the_last_to_end_takes_back_what_was_announced() {
        #[derive(Clone, Copy, Debug)]
        enum End {
            Failed,
            Succeeded,
            GivenUp,
        }
        use End::{Failed, GivenUp, Succeeded};
        // (ends in their order, whether it is taken back)
        let cases: [(&[End], bool); 8] = [
            (&[Failed], true),
            (&[Succeeded], true),
            (&[GivenUp], false),
            (&[Failed, Failed], true),
            (&[Failed, GivenUp], false),
            (&[GivenUp, Failed], false),
            (&[GivenUp, Succeeded], true),
            (&[Succeeded, Failed], true),
        ];
        for (ends, taken_back) in cases {
            let under_way = UnderWay::default();
            let begin = |end: &End| (*end, under_way.begin("i", Announced::Any));
            let pulls: Vec<_> = ends.iter().map(begin).collect();
            let mut last = None;
            for (end, pull) in pulls {
                assert!(last.is_none() && under_way.contains("i"), "{ends:?}");
                last = match end {
                    Failed => pull.failed(),
                    Succeeded => pull.succeeded(),
                    GivenUp => None,
                };
            }
            assert_eq!(last.is_some(), taken_back, "{ends:?}");
            assert!(!under_way.contains("i"), "{ends:?}");
        }
    }
}
