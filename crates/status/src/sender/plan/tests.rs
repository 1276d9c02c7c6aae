use super::*;

/// A plan and a clock that stands until it is moved.
struct Bench {
    plan: Plan,
    now: Instant,
}

fn uid(name: &str) -> PodUid {
    name.into()
}

impl Bench {
    fn new(limit: usize) -> Self {
        Self {
            plan: Plan::new(limit),
            now: Instant::now(),
        }
    }

    fn tell(&mut self, name: &str, urgent: bool) {
        let urgency = if urgent {
            Urgency::Urgent
        } else {
            Urgency::Normal
        };
        self.tell_as(name, urgency);
    }

    fn tell_as(&mut self, name: &str, urgency: Urgency) {
        self.plan
            .tell(&uid(name), &Arc::default(), urgency, self.now);
        // Whoever is told of later comes later.
        self.now += Duration::from_nanos(1);
    }

    /// All that may go now.
    fn go(&mut self) -> String {
        let mut names = Vec::new();
        while let Some(uid) = self.plan.next(self.now) {
            names.push(uid.to_string());
        }
        names.join(" ")
    }

    fn settle(&mut self, name: &str) {
        let settled = Settled {
            api_uid: uid(name),
            status: Arc::default(),
            resource_version: "1".into(),
            gone: false,
            held_back: false,
        };
        self.plan.settle(&uid(name), settled, None);
    }

    fn fail(&mut self, name: &str, trouble: Trouble) {
        self.plan.fail(&uid(name), trouble, true, 1.0, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

const REFUSED: Trouble = Trouble::Refused { retry_after: None };
const MS: Duration = Duration::from_millis(1);

#[test]
fn urgent_ones_go_first_and_find_a_place() {
    let mut bench = Bench::new(4);
    for (name, urgent) in [("a", false), ("b", false), ("c", true), ("d", false)] {
        bench.tell(name, urgent);
    }
    assert_eq!(bench.go(), "c a b d");
    bench.tell("e", false);
    bench.settle("c");
    // Three slow ones leave the last place to an urgent one.
    assert_eq!(bench.go(), "");
    assert_eq!(bench.plan.next_due(), None);
    bench.tell("f", true);
    assert_eq!(bench.go(), "f");
}

#[test]
fn a_pod_is_never_on_its_way_twice() {
    let mut bench = Bench::new(4);
    bench.tell("a", false);
    assert_eq!(bench.go(), "a");
    bench.tell("a", true);
    assert_eq!(bench.go(), "");
    bench.settle("a");
    assert_eq!(bench.go(), "a");
    bench.settle("a");
    assert_eq!((bench.go().as_str(), bench.plan.undelivered()), ("", 0));
}

#[test]
fn a_refused_pod_waits_by_itself_and_longer_each_time() {
    let mut bench = Bench::new(4);
    bench.tell("a", false);
    for wait in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        assert_eq!(bench.go(), "a");
        bench.fail("a", REFUSED);
        assert_eq!(bench.plan.next_due(), Some(bench.now + MS * wait));
        bench.tell("b", false);
        assert_eq!(bench.go(), "b");
        bench.settle("b");
        bench.pass(MS * (wait - 1));
        assert_eq!(bench.go(), "");
        bench.pass(MS);
    }
    assert_eq!(bench.go(), "a");
    bench.settle("a");
    bench.tell("a", false);
    assert_eq!(bench.go(), "a", "what went well is forgotten");
}

#[test]
fn a_wait_the_server_asks_for_is_kept() {
    let mut bench = Bench::new(4);
    bench.tell("a", true);
    bench.go();
    let retry_after = Some(Duration::from_secs(3));
    bench.fail("a", Trouble::Refused { retry_after });
    bench.pass(MS * 2999);
    assert_eq!(bench.go(), "");
    bench.pass(MS);
    assert_eq!(bench.go(), "a");
}

#[test]
fn while_the_server_is_away_one_asks_and_then_all_go() {
    let mut bench = Bench::new(4);
    for name in ["a", "b", "c"] {
        bench.tell(name, false);
    }
    assert_eq!(bench.go(), "a b c");
    for name in ["a", "b", "c"] {
        bench.fail(name, Trouble::Away);
    }
    // Three that failed at once are one failure.
    assert_eq!(bench.plan.next_due(), Some(bench.now + MS * 100));
    bench.pass(MS * 100);
    assert_eq!(bench.go(), "a");
    assert_eq!(bench.plan.next_due(), None);
    bench.fail("a", Trouble::Away);
    bench.pass(MS * 199);
    assert_eq!(bench.go(), "");
    bench.pass(MS);
    assert_eq!(bench.go(), "a");
    bench.settle("a");
    assert_eq!(bench.go(), "b c");
    assert!(bench.plan.is_unsure(&uid("b")));
    assert!(!bench.plan.is_unsure(&uid("a")));
}

#[test]
fn when_the_server_is_known_to_be_back_nobody_waits() {
    let mut bench = Bench::new(4);
    bench.tell("a", false);
    bench.tell("b", false);
    bench.go();
    bench.fail("a", Trouble::Silent);
    bench.fail("b", Trouble::Away);
    assert_eq!(bench.go(), "");
    bench.plan.reached();
    assert_eq!(bench.go(), "a b");
}

#[test]
fn what_nobody_can_be_told_waits_for_a_listener() {
    let mut bench = Bench::new(4);
    bench.tell("a", false);
    bench.go();
    bench.plan.park(&uid("a"));
    assert_eq!((bench.go().as_str(), bench.plan.undelivered()), ("", 0));
    bench.plan.unpark();
    assert_eq!(bench.go(), "a");
}

#[test]
fn pods_that_are_no_more_are_forgotten_when_they_are_back() {
    let mut bench = Bench::new(4);
    bench.tell("a", false);
    bench.tell("b", false);
    bench.plan.next(bench.now);
    bench.plan.retain(|_| false);
    assert_eq!(bench.go(), "");
    bench.fail("a", REFUSED);
    bench.plan.retain(|_| false);
    assert_eq!((bench.plan.undelivered(), bench.plan.next_due()), (0, None));
}

#[test]
fn a_pod_that_only_begins_waits_for_more_to_tell() {
    let mut bench = Bench::new(4);
    bench.tell_as("a", Urgency::Beginning);
    bench.tell_as("b", Urgency::Beginning);
    assert_eq!(bench.go(), "");
    bench.tell_as("b", Urgency::Urgent);
    assert_eq!(bench.go(), "b");
    // More of a beginning does not make it wait any longer.
    bench.pass(BEGINNING / 2);
    bench.tell_as("a", Urgency::Beginning);
    assert_eq!(bench.go(), "");
    let due = bench.plan.next_due().unwrap();
    bench.pass(due - bench.now);
    assert_eq!(bench.go(), "a");
}

#[test]
fn a_pod_that_is_to_go_waits_for_its_end() {
    let mut bench = Bench::new(4);
    for pod in ["a", "b", "c"] {
        bench.tell_as(pod, Urgency::Leaving);
    }
    bench.pass(LEAVING - ENDING / 2);
    assert_eq!(bench.go(), "");
    // Its end gets the time of one.
    bench.tell_as("a", Urgency::Ending);
    bench.tell_as("b", Urgency::Urgent);
    assert_eq!(bench.go(), "b");
    bench.pass(ENDING / 2);
    assert_eq!(bench.go(), "c");
    bench.pass(ENDING / 2);
    assert_eq!(bench.go(), "a");
}

#[test]
fn a_pod_whose_turn_has_not_come_waits_longer() {
    let mut bench = Bench::new(4);
    bench.tell_as("a", Urgency::Queued);
    bench.tell_as("b", Urgency::Queued);
    bench.pass(QUEUED / 2);
    assert_eq!(bench.go(), "");
    // Its turn has come, and it gets the time of one that begins.
    bench.tell_as("b", Urgency::Beginning);
    assert_eq!(bench.go(), "");
    bench.pass(BEGINNING);
    assert_eq!(bench.go(), "b");
    bench.pass(QUEUED / 2);
    assert_eq!(bench.go(), "a");
}
