use super::*;
use crate::convert::by_pod;
use crate::fake::{pod_labels, seen};
use krablet_cri::v1;

const LIMITS: Limits = Limits {
    at_once: 2,
    slow_after: Duration::from_secs(1),
    hold: Duration::from_secs(1),
};
const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    table: Table,
    now: Instant,
    tickets: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            table: Table::new(LIMITS),
            now: Instant::now(),
            tickets: 0,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn hint(&mut self, uid: &str) {
        self.table.hint(&uid.into(), self.now, Ticket(self.tickets));
    }

    /// Starts what is due and says what that was.
    fn start(&mut self) -> Vec<(String, u64)> {
        self.start_beside(None)
    }

    /// The same while a full list is under way.
    fn start_beside(&mut self, list: Option<Ticket>) -> Vec<(String, u64)> {
        let tickets = &mut self.tickets;
        let starts = self.table.start_due(self.now, list, || {
            *tickets += 1;
            Ticket(*tickets)
        });
        let starts = starts.into_iter();
        starts
            .map(|s| (s.pod.uid.to_string(), s.ticket.0))
            .collect()
    }

    fn ask(&mut self, uid: &str, than: Ticket) -> Option<u64> {
        let view = self.table.ask(&PodRef::new(uid, "ns", uid), than, self.now);
        view.map(|v| v.ticket.0)
    }

    fn refreshed(&mut self, uid: &str, ticket: u64, short: &str) -> Applied {
        let mut view = seen(short);
        view.pod = PodRef::new(uid, "ns", uid);
        view.ticket = Ticket(ticket);
        let applied = self.table.refreshed(view);
        self.table.tidy(&uid.into());
        applied
    }

    fn failed(&mut self, uid: &str) {
        self.table
            .failed(&uid.into(), self.now, Ticket(self.tickets));
    }

    /// A full list that shows these pods with one ready sandbox each.
    fn audit(&mut self, ticket: Ticket, uids: &[&str]) -> Audited {
        let sandboxes = uids.iter().map(|uid| v1::PodSandbox {
            id: "s1".to_owned(),
            labels: pod_labels(uid),
            ..Default::default()
        });
        let listed = by_pod(sandboxes.collect(), Vec::new());
        self.table.audited(ticket, &listed, self.now)
    }
}

fn started(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs
        .iter()
        .map(|(uid, t)| ((*uid).to_owned(), *t))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn one_refresh_under_way_and_one_to_follow() {
    let mut b = Bench::new();
    b.hint("a");
    b.hint("a");
    assert_eq!(b.start(), started(&[("a", 1)]));
    assert_eq!(b.start(), []);
    // Any number of hints during it force one more.
    b.hint("a");
    b.hint("a");
    assert_eq!(b.start(), []);
    b.refreshed("a", 1, "s1+");
    assert_eq!(b.start(), started(&[("a", 2)]));
    b.refreshed("a", 2, "s1+");
    assert_eq!(b.start(), []);
    assert_eq!(b.table.wake_at(b.now), None);
}

#[tokio::test(start_paused = true)]
async fn an_observation_begun_before_an_action_is_no_proof_of_it() {
    let mut b = Bench::new();
    let first = b.ticket();
    assert_eq!(b.ask("a", first), None);
    assert_eq!(b.start(), started(&[("a", 2)]));
    // Acted while the refresh runs: it may or may not have seen it.
    let acted = b.ticket();
    assert_eq!(b.ask("a", acted), None);
    b.refreshed("a", 2, "s1+");
    assert_eq!(b.ask("a", first), Some(2));
    assert_eq!(b.ask("a", acted), None);
    assert_eq!(b.start(), started(&[("a", 4)]));
    // A ticket of before the refresh under way is served by it.
    assert_eq!(b.ask("a", acted), None);
    b.refreshed("a", 4, "s1+");
    assert_eq!(b.start(), []);
    assert_eq!(b.ask("a", acted), Some(4));
}

#[tokio::test(start_paused = true)]
async fn an_equal_list_proves_a_view_anew() {
    let mut b = Bench::new();
    b.hint("a");
    b.start();
    b.refreshed("a", 1, "s1+");
    let acted = b.ticket();
    assert_eq!(b.ask("a", acted), None);
    let list = b.ticket();
    let audited = b.audit(list, &["a"]);
    assert_eq!((audited.surprises, audited.absent.len()), (0, 0));
    assert_eq!(b.ask("a", acted), Some(list.0));
    assert_eq!(b.start(), [], "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn a_list_older_than_a_view_says_nothing() {
    let mut b = Bench::new();
    let list = b.ticket();
    b.hint("a");
    b.start();
    b.refreshed("a", 2, "s1+");
    let audited = b.audit(list, &[]);
    assert_eq!((audited.surprises, audited.absent.len()), (0, 0));
    assert_eq!(b.ask("a", list), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_hint_during_a_list_outlives_it() {
    let mut b = Bench::new();
    b.hint("a");
    b.start();
    b.refreshed("a", 1, "s1+");
    b.hint("a");
    let list = b.ticket();
    b.audit(list, &["a"]);
    assert_eq!(b.start(), [], "a hint of before the list is answered by it");
    let list = b.ticket();
    b.hint("a");
    b.audit(list, &["a"]);
    assert_eq!(b.start(), started(&[("a", 4)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_differs_marks_the_pod_and_counts_if_unexpected() {
    let mut b = Bench::new();
    for uid in ["a", "b"] {
        b.hint(uid);
        let ticket = b.start()[0].1;
        b.refreshed(uid, ticket, "s1+ c1r");
    }
    b.hint("b");
    let list = b.ticket();
    let audited = b.audit(list, &["a", "b", "c"]);
    assert_eq!(audited.surprises, 2, "b was known to be dirty");
    let mut pods: Vec<_> = b.start().into_iter().map(|(uid, _)| uid).collect();
    pods.sort();
    assert_eq!(pods, ["a", "b"]);
    b.refreshed("a", list.0 + 1, "s1+");
    assert_eq!(b.start(), started(&[("c", list.0 + 3)]));
}

#[tokio::test(start_paused = true)]
async fn a_list_proves_absence() {
    let mut b = Bench::new();
    b.hint("a");
    b.start();
    b.refreshed("a", 1, "s1+ c1r");
    let acted = b.ticket();
    assert_eq!(b.ask("new", acted), None);
    let list = b.ticket();
    let audited = b.audit(list, &[]);
    let mut gone: Vec<_> = audited
        .absent
        .iter()
        .map(|a| (a.view.pod.uid.to_string(), a.change.is_some()))
        .collect();
    gone.sort();
    assert_eq!(gone, [("a".to_owned(), true), ("new".to_owned(), false)]);
    assert_eq!(b.ask("new", acted), Some(list.0));
    for uid in ["a", "new"] {
        b.table.tidy(&uid.into());
    }
    assert_eq!(b.table.len(), 0, "what is gone is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_list_says_nothing_of_a_pod_whose_refresh_runs() {
    let mut b = Bench::new();
    b.hint("a");
    b.start();
    b.refreshed("a", 1, "s1+");
    b.hint("a");
    assert_eq!(b.start(), started(&[("a", 2)]));
    let list = b.ticket();
    // The refresh may have listed before or after this list, so neither can overrule the other.
    let audited = b.audit(list, &[]);
    assert_eq!((audited.surprises, audited.absent.len()), (0, 0));
    b.refreshed("a", 2, "s1+");
    assert_eq!(b.ask("a", list), None);
    assert_eq!(
        b.start(),
        started(&[("a", 4)]),
        "so it is looked at once more"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_at_growing_distances() {
    let mut b = Bench::new();
    b.hint("a");
    let mut waits = Vec::new();
    for _ in 0..7 {
        assert_eq!(b.start().len(), 1);
        b.failed("a");
        assert_eq!(b.start(), []);
        let at = b.table.wake_at(b.now).unwrap();
        waits.push((at - b.now).as_secs());
        b.now = at;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    // Whoever asks does not wait for that.
    let than = b.ticket();
    assert_eq!(b.start().len(), 1);
    b.failed("a");
    assert_eq!(b.ask("a", than), None);
    let ticket = b.start()[0].1;
    b.refreshed("a", ticket, "s1+");
    assert_eq!(b.table.failures(&"a".into()), 0);
    assert_eq!(b.table.wake_at(b.now), None);
}

#[tokio::test(start_paused = true)]
async fn holds_defer_hints_but_no_asks() {
    let mut b = Bench::new();
    b.table.set_held(&"a".into(), true);
    b.hint("a");
    assert_eq!(b.start(), []);
    assert_eq!(b.table.wake_at(b.now), Some(b.now + SECOND));
    b.now += SECOND / 2;
    b.hint("a");
    b.now += SECOND / 2;
    assert_eq!(b.start().len(), 1, "a second is the longest");
    b.refreshed("a", 1, "s1+");
    b.hint("a");
    assert_eq!(b.start(), []);
    b.table.set_held(&"a".into(), false);
    assert_eq!(b.start().len(), 1, "one look at the end");
    b.refreshed("a", 2, "s1+");
    b.table.set_held(&"a".into(), true);
    let than = b.ticket();
    b.ask("a", than);
    assert_eq!(b.start().len(), 1);
    b.refreshed("a", 4, "");
    assert_eq!(b.table.len(), 1, "held");
    b.table.set_held(&"a".into(), false);
    assert_eq!(b.table.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn places_are_bounded_and_slow_looks_give_theirs_up() {
    let mut b = Bench::new();
    for uid in ["d", "c", "b"] {
        b.hint(uid);
        b.now += Duration::from_millis(1);
    }
    assert_eq!(
        b.start(),
        started(&[("d", 1), ("c", 2)]),
        "those that wait longest"
    );
    assert_eq!(b.start(), []);
    let slow = b.now + SECOND;
    assert_eq!(b.table.wake_at(b.now), Some(slow));
    b.now = slow;
    assert_eq!(b.start(), started(&[("b", 3)]));
    b.refreshed("d", 1, "s1+");
    b.hint("a");
    assert_eq!(b.start(), started(&[("a", 4)]));
}

#[tokio::test(start_paused = true)]
async fn news_are_told_once() {
    let mut b = Bench::new();
    b.hint("a");
    b.start();
    assert!(b.refreshed("a", 1, "s1+ c1r").change.is_some());
    b.hint("a");
    b.start();
    assert!(b.refreshed("a", 2, "s1+ c1r").change.is_none());
    b.hint("a");
    b.start();
    let change = b.refreshed("a", 3, "s1+ c1x").change.unwrap();
    assert_eq!(change.died, ["c1".into()]);
    assert_eq!(b.table.owner_of("c1"), Some("a".into()));
    assert_eq!(b.table.owner_of("s1"), Some("a".into()));
    assert_eq!(b.table.owner_of("c2"), None);
}

#[test]
fn a_crowd_of_new_pods_waits_for_one_list_of_all() {
    let mut bench = Bench::new();
    let than = bench.ticket();
    for uid in ["a", "b", "c"] {
        assert_eq!(bench.ask(uid, than), None);
    }
    assert!(!bench.table.has_crowd());
    bench.ask("d", than);
    assert!(bench.table.has_crowd());
    let list = bench.ticket();
    assert_eq!(bench.start_beside(Some(list)), []);
    // Who comes while the list is under way may have begun after it; a pod that was hinted at is looked at.
    let later = bench.ticket();
    bench.ask("e", later);
    bench.hint("d");
    let started = bench.start_beside(Some(list));
    assert_eq!(started, [("d".to_owned(), 4), ("e".to_owned(), 5)]);
    let audited = bench.audit(list, &["c"]);
    let absent: Vec<_> = audited
        .absent
        .iter()
        .map(|a| a.view.pod.uid.to_string())
        .collect();
    assert_eq!(absent, ["a", "b"]);
    assert_eq!(bench.ask("a", than), Some(2));
    // What the list shows is looked at.
    bench.refreshed("d", 4, "s1+");
    assert_eq!(bench.start(), [("c".to_owned(), 6)]);
}
