use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key(image: &str) -> BackoffKey {
    let container = Container {
        name: "c".into(),
        image: Some(image.into()),
        ..Container::default()
    };
    BackoffKey::new(&"u".into(), &container)
}

/// Crashes a container again and again, `run` after each start, and tells the waits.
fn waits(limits: BackoffLimits, run: Duration, crashes: usize) -> Vec<u64> {
    let mut table = CrashLoop::new(limits);
    let mut now = Mono(s(1000));
    let mut waits = Vec::new();
    for n in 0..crashes {
        now = now + run;
        let id = ContainerId::from(format!("c{n}"));
        let exit = now;
        // Seen two seconds after it happened.
        now = now + s(2);
        loop {
            match table.check(&key("i"), &id, now - exit, now) {
                Backoff::Start => break,
                Backoff::Wait { until, delay } => {
                    assert_eq!(until, exit + delay);
                    now = until;
                }
            }
        }
        waits.push((now - exit).as_secs());
    }
    waits
}

#[test]
fn restarts_wait_longer_and_longer() {
    let default = BackoffLimits::of_restarts(None, false);
    assert_eq!(
        waits(default, s(1), 9),
        [2, 10, 20, 40, 80, 160, 300, 300, 300]
    );
    // 2 s is the time to first sight: the first restart is immediate.
    let short = BackoffLimits::of_restarts(Some(s(3)), false);
    assert_eq!(waits(short, s(1), 4), [2, 3, 3, 3]);
    let reduced = BackoffLimits::of_restarts(None, true);
    assert_eq!(waits(reduced, s(1), 9), [2, 2, 2, 4, 8, 16, 32, 60, 60]);
    let both = BackoffLimits::of_restarts(Some(s(300)), true);
    assert_eq!(
        (both.start, both.cap),
        (s(1), s(300)),
        "the operator's cap wins"
    );
}

#[test]
fn a_stable_run_resets() {
    let limits = BackoffLimits::of_restarts(None, false);
    assert_eq!(waits(limits, s(590), 4), [2, 10, 20, 40]);
    assert_eq!(waits(limits, s(601), 4), [2, 2, 2, 2]);
    let capped = BackoffLimits::of_restarts(Some(s(5)), false);
    assert_eq!(
        waits(capped, s(590), 3),
        [2, 5, 5],
        "ten minutes whatever the cap"
    );
}

#[test]
fn an_exit_keeps_the_time_it_was_first_seen_at() {
    let mut table = CrashLoop::new(BackoffLimits::of_restarts(None, false));
    let id = |n: &str| ContainerId::from(n);
    let at = |t| Mono(s(t));
    assert_eq!(
        table.check(&key("i"), &id("a"), s(0), at(100)),
        Backoff::Start
    );
    let wait = Backoff::Wait {
        until: at(114),
        delay: s(10),
    };
    assert_eq!(table.check(&key("i"), &id("b"), s(1), at(105)), wait);
    // The wall clock jumps a day ahead, then a day back.
    assert_eq!(table.check(&key("i"), &id("b"), s(86400), at(106)), wait);
    assert_eq!(table.check(&key("i"), &id("b"), s(0), at(113)), wait);
    assert_eq!(
        table.check(&key("i"), &id("b"), s(0), at(114)),
        Backoff::Start
    );
    // A jump before the first sight: at worst the run counts towards the wait.
    let wait = Backoff::Wait {
        until: at(134),
        delay: s(20),
    };
    assert_eq!(table.check(&key("i"), &id("c"), s(86400), at(120)), wait);
}

#[test]
fn a_start_that_fails_counts_like_a_crash() {
    let mut table = CrashLoop::new(BackoffLimits::of_restarts(None, false));
    let id = ContainerId::from("a");
    let at = |t| Mono(s(t));
    assert_eq!(table.check(&key("i"), &id, s(0), at(100)), Backoff::Start);
    assert!(matches!(
        table.check(&key("i"), &id, s(0), at(105)),
        Backoff::Wait { .. }
    ));
    assert_eq!(table.check(&key("i"), &id, s(0), at(110)), Backoff::Start);
    assert_eq!(
        table.check(&key("i"), &id, s(0), at(111)),
        Backoff::Wait {
            until: at(120),
            delay: s(20)
        }
    );
}

#[test]
fn another_image_starts_afresh_and_the_gone_are_forgotten() {
    let mut table = CrashLoop::new(BackoffLimits::of_restarts(None, false));
    let now = Mono(s(1));
    let _ = table.check(&key("i"), &"a".into(), s(0), now);
    assert_eq!(
        table.check(&key("j"), &"a".into(), s(0), now),
        Backoff::Start
    );
    assert_eq!(table.len(), 2);
    table.gc(now + s(600));
    assert_eq!(table.len(), 2);
    table.gc(now + s(601));
    assert!(table.is_empty());
    let _ = table.check(&key("i"), &"a".into(), s(0), now);
    table.retain(|uid| uid.as_str() != "u");
    assert!(table.is_empty());
}

#[test]
fn pulls_back_off_from_the_last_failure() {
    let mut table = PullBackoff::default();
    let pod = PodUid::from("u");
    let mut now = Mono(s(10));
    let mut delays = Vec::new();
    for _ in 0..7 {
        assert_eq!(table.check(&pod, "i", "key", now), Backoff::Start);
        table.failed(&pod, "i", "key", "ErrImagePull: no such host", now);
        let Backoff::Wait { until, delay } = table.check(&pod, "i", "key", now) else {
            panic!("must wait")
        };
        delays.push(delay.as_secs());
        now = until;
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(
        table.check(&"other".into(), "i", "key", now),
        Backoff::Start,
        "per pod"
    );
    assert_eq!(
        table.waiting_message(&pod, "i"),
        "Back-off pulling image \"i\": ErrImagePull: no such host"
    );
    assert_eq!(
        table.check(&pod, "i", "another key", now),
        Backoff::Start,
        "with other credentials nobody waits"
    );
    table.failed(&pod, "i", "another key", "x", now);
    let first = Backoff::Wait {
        until: now + s(10),
        delay: s(10),
    };
    assert_eq!(table.check(&pod, "i", "another key", now), first);
    let later = now + s(601);
    table.failed(&pod, "i", "another key", "x", later);
    assert_eq!(
        table.check(&pod, "i", "another key", later),
        Backoff::Wait {
            until: later + s(10),
            delay: s(10)
        }
    );
    table.gc(later + s(601));
    assert!(table.is_empty());
}

#[test]
fn texts_are_upstreams() {
    let pod = PodRef::new("uid", "ns", "p");
    assert_eq!(
        restart_message(s(10), "c", &pod),
        "back-off 10s restarting failed container=c pod=p_ns(uid)"
    );
    assert_eq!(
        restart_event("c", &pod),
        "Back-off restarting failed container c in pod p_ns(uid)"
    );
    let ms = Duration::from_millis;
    for (d, text) in [
        (s(0), "0s"),
        (s(80), "1m20s"),
        (s(300), "5m0s"),
        (s(3600), "1h0m0s"),
        (ms(1500), "1.5s"),
        (ms(250), "250ms"),
        (ms(61_050), "1m1.05s"),
        (Duration::from_micros(1500), "1.5ms"),
        (Duration::from_nanos(1001), "1.001µs"),
        (Duration::from_nanos(7), "7ns"),
    ] {
        assert_eq!(go_duration(d), text);
    }
}
