use super::*;

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// `*` in front: in use; `!`: pinned.
fn seen(names: &[&str]) -> Vec<SeenImage> {
    let image = |name: &&str| SeenImage {
        id: name.trim_start_matches(['*', '!']).to_owned(),
        size: 10,
        pinned: name.starts_with('!'),
        in_use: name.starts_with('*'),
    };
    names.iter().map(image).collect()
}

fn ids(images: Vec<Unused>) -> Vec<String> {
    images.into_iter().map(|i| i.id).collect()
}

#[test]
fn least_recently_used_first() {
    let policy = ImageGcPolicy::default();
    let mut book = ImageBook::default();
    book.look(seen(&["late", "*a", "*b", "!pinned"]), at(0));
    book.look(seen(&["late", "a", "*b", "!pinned", "never"]), at(100));
    book.look(
        seen(&["late", "a", "b", "!pinned", "never", "*used", "fresh"]),
        at(220),
    );
    let order = ids(book.for_space(&policy, at(220)));
    assert_eq!(
        order,
        ["late", "never", "a", "b"],
        "used ones, pinned ones and young ones stay"
    );
    book.forget("late");
    book.look(seen(&["a", "late"]), at(300));
    assert_eq!(
        ids(book.for_space(&policy, at(300))),
        ["a"],
        "forgotten is new"
    );
}

#[test]
fn by_age() {
    let policy = ImageGcPolicy {
        max_age: Some(seconds(60)),
        ..ImageGcPolicy::default()
    };
    // (looks, when, which are too old)
    type Looks<'a> = &'a [(u64, &'a [&'a str])];
    let cases: [(Looks<'_>, u64, &[&str]); 7] = [
        (&[(0, &["a"])], 60, &[]),
        (&[(0, &["a"])], 61, &["a"]),
        (&[(0, &["a"]), (50, &["*a"]), (55, &["a"])], 110, &[]),
        (&[(0, &["a"]), (50, &["*a"]), (55, &["a"])], 111, &["a"]),
        (&[(0, &["*a"])], 1000, &[]),
        (&[(0, &["!a"])], 1000, &[]),
        (&[(0, &["a"]), (10, &[]), (20, &["a"])], 70, &[]),
    ];
    for (looks, when, expected) in cases {
        let mut book = ImageBook::default();
        for (moment, images) in looks {
            book.look(seen(images), at(*moment));
        }
        assert_eq!(
            ids(book.too_old(&policy, at(when))),
            expected,
            "{looks:?} {when}"
        );
    }
    let off = ImageGcPolicy::default();
    let mut book = ImageBook::default();
    book.look(seen(&["a"]), at(0));
    assert!(book.too_old(&off, at(1 << 30)).is_empty());
}

#[test]
fn how_much_to_free() {
    let policy = ImageGcPolicy::default();
    // (capacity, available, percent used and bytes to free)
    let cases = [
        (1000, 200, None),
        (1000, 160, None),
        (1000, 151, Some((85, 49))),
        (1000, 150, Some((85, 50))),
        (1000, 0, Some((100, 200))),
        (1000, 5000, None),
        (
            u64::MAX,
            u64::MAX / 100,
            Some((100, u64::MAX / 5 - u64::MAX / 100)),
        ),
    ];
    for (capacity, available, expected) in cases {
        let found = policy.shortage(capacity, available);
        assert_eq!(
            found.map(|s| (s.used_percent, s.to_free)),
            expected,
            "{capacity} {available}"
        );
    }
    let never = ImageGcPolicy {
        high_percent: 100,
        ..policy
    };
    assert_eq!(never.shortage(1000, 1), None);
    assert!(never.is_off() && !policy.is_off());
}

#[test]
fn what_is_told_when_it_is_not_enough() {
    let shortage = Shortage {
        used_percent: 91,
        to_free: 100,
        capacity: 3 << 29,
    };
    assert_eq!(
        shortage.not_enough(7),
        "Insufficient free disk space on the node's image filesystem (91% of 1.5 GiB used). Failed to free sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
    );
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 40, "5.0 TiB"),
    ] {
        assert_eq!(size_text(bytes), text);
    }
}

#[test]
fn looks_are_as_close_as_ages_need() {
    let period = |age| {
        let policy = ImageGcPolicy {
            max_age: age,
            ..ImageGcPolicy::default()
        };
        policy.period().as_secs()
    };
    assert_eq!(period(None), 300);
    assert_eq!(period(Some(seconds(3600))), 300);
    assert_eq!(period(Some(seconds(60))), 30);
    assert_eq!(period(Some(seconds(1))), 5);
}
