//! Pulls without an end: what may be taken as ours afterwards, and what may not.

use super::*;

const IMAGE: &str = "r.io/a:1";
/// What the image's name leads to after a pull has changed it.
const NEW: &str = "sha256:5678";

impl World {
    /// Another agent over the same files.
    fn next(self) -> World {
        let next = over(self.dir, Verification::default());
        drop(self.records);
        next
    }

    async fn intend(&self, there: Option<&str>) -> PullIntent {
        self.records.intend(IMAGE, there).await.unwrap()
    }

    /// Whether a pod without any credential gets what is there.
    async fn is_free(&self, id: &str) -> bool {
        self.records.standing(IMAGE, id).await == Standing::Free
    }

    async fn settle(&self, id: &str) {
        let images = [(id.to_owned(), vec![IMAGE.to_owned()])];
        self.records.settle_intents(&images).await;
    }

    /// Intents, names with an image from elsewhere, records.
    fn left(&self) -> [usize; 3] {
        ["pulling", "foreign", "pulled"].map(|sub| self.files(sub).len())
    }
}

#[tokio::test]
async fn an_image_from_elsewhere_stays_free() {
    let world = world(Verification::default());
    let pull = world.intend(Some(ID)).await;
    assert!(world.is_free(ID).await, "while it is pulled");
    assert_eq!((world.left(), world.on_disk()), ([0, 1, 0], [1, 0]));
    drop(pull);
    assert!(world.is_free(ID).await, "after it was given up");
    let next = world.next();
    assert!(next.is_free(ID).await, "for the next agent");
    next.settle(ID).await;
    assert!(next.is_free(ID).await, "and when that has looked");
    // A pull that comes to its end leaves nothing behind.
    let pull = next.intend(Some(ID)).await;
    next.records.failed(pull).await;
    assert!(next.is_free(ID).await);
    assert_eq!((next.left(), next.on_disk()), ([0, 0, 0], [0, 0]));
}

#[tokio::test]
async fn what_comes_late_is_for_those_who_may_pull_it() {
    for there in [None, Some(ID)] {
        let world = world(Verification::default());
        drop(world.intend(there).await);
        assert!(!world.is_free(NEW).await, "{there:?}");
        let next = world.next();
        assert!(!next.is_free(NEW).await, "{there:?}");
        next.settle(NEW).await;
        assert_eq!(next.left(), [0, 0, 1], "{there:?}");
        assert!(!next.is_free(NEW).await, "{there:?}");
    }
}

#[tokio::test]
async fn a_failure_of_somebody_else_does_not_free_what_came_late() {
    for there in [None, Some(ID)] {
        // The other begins before the image has come, or after.
        for other in [there, Some(NEW)] {
            let world = world(Verification::default());
            let first = world.intend(there).await;
            let second = match other == there {
                true => {
                    let second = world.intend(other).await;
                    drop(first);
                    second
                }
                false => {
                    drop(first);
                    world.intend(other).await
                }
            };
            world.records.failed(second).await;
            assert!(!world.is_free(NEW).await, "{there:?} {other:?}");
        }
    }
}

#[tokio::test]
async fn a_pull_with_a_record_says_who_may_have_it() {
    let world = world(Verification::default());
    drop(world.intend(Some(ID)).await);
    let pull = world.intend(Some(ID)).await;
    let owner = secret("s", "p");
    world.records.pulled(pull, ID, Some(&owner)).await;
    assert_eq!(world.left(), [0, 0, 1]);
    assert!(!world.is_free(ID).await);
    assert!(world.may(IMAGE, &[owner]).await);
    // One that an agent pulled is not from elsewhere.
    let pull = world.intend(Some(ID)).await;
    assert_eq!(world.left(), [1, 0, 1]);
    drop(pull);
}

#[tokio::test]
async fn an_image_that_goes_and_comes_again_has_come_from_us() {
    let world = world(Verification::default());
    drop(world.intend(Some(ID)).await);
    drop(world.intend(None).await);
    assert_eq!(world.left(), [1, 0, 0]);
    assert!(!world.is_free(ID).await);
}

#[tokio::test]
async fn who_must_always_prove_a_right_must_do_so_here() {
    let world = world(Verification::AlwaysVerify);
    drop(world.intend(Some(ID)).await);
    assert!(!world.is_free(ID).await);
}

#[tokio::test]
async fn an_announcement_that_cannot_be_read_frees_nothing() {
    let world = world(Verification::default());
    drop(world.intend(Some(ID)).await);
    let path = world.dir.path().join("image_manager/foreign");
    std::fs::write(path.join(file_name(IMAGE)), "{").unwrap();
    assert!(!world.is_free(ID).await);
    // Nor is it in the way for ever.
    let pull = world.intend(Some(ID)).await;
    world.records.pulled(pull, ID, None).await;
    assert_eq!(world.left(), [0, 0, 1]);
    assert!(world.is_free(ID).await);
}

#[tokio::test]
async fn pulls_of_this_life_are_not_settled() {
    for there in [None, Some(NEW)] {
        let world = world(Verification::default());
        let pull = world.intend(there).await;
        assert!(!world.records.has_intents().await, "{there:?}");
        world.settle(ID).await;
        let [intents, foreign, records] = world.left();
        assert_eq!((intents + foreign, records), (1, 0), "{there:?}");
        drop(pull);
        assert!(world.records.has_intents().await, "{there:?}");
        world.settle(ID).await;
        assert_eq!(world.left(), [0, 0, 1], "{there:?}");
    }
}
