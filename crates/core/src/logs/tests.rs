use super::*;
use jiff::civil::date;

const POLICY: RotationPolicy = RotationPolicy {
    max_size: 100,
    max_files: 5,
};

fn show(plan: &LogPlan) -> String {
    let mut lines: Vec<String> = plan.delete.iter().map(|n| format!("delete {n}")).collect();
    lines.extend(plan.compress.iter().map(|(a, b)| format!("gzip {a} {b}")));
    lines.extend(plan.rotate.iter().map(|(a, b)| format!("rotate {a} {b}")));
    if plan.reopen {
        lines.push("reopen".into());
    }
    lines.join("\n")
}

fn check(current: &str, kept: &[&str], files: &[(&str, u64)], expected: &str) {
    let files: Vec<LogFile> = files
        .iter()
        .map(|(name, size)| LogFile {
            name: name.to_string(),
            size: *size,
        })
        .collect();
    let kept = kept.iter().map(|k| k.to_string()).collect();
    let now = date(2026, 1, 2).at(3, 4, 5, 999);
    let plan = plan(current, &kept, &files, POLICY, now);
    assert_eq!(show(&plan), expected, "{files:?}");
}

#[test]
fn rotates_at_the_limit_and_not_before() {
    check("0.log", &[], &[("0.log", 99)], "");
    check(
        "0.log",
        &[],
        &[("0.log", 100)],
        "rotate 0.log 0.log.20260102-030405",
    );
}

#[test]
fn compresses_what_was_rotated_before_and_deletes_the_oldest() {
    check(
        "2.log",
        &[],
        &[
            ("2.log", 500),
            ("2.log.20260101-000001.gz", 1),
            ("2.log.20260101-000002.gz", 1),
            ("2.log.20260101-000003.gz", 1),
            ("2.log.20260101-000004", 100),
        ],
        "delete 2.log.20260101-000001.gz\n\
         gzip 2.log.20260101-000004 2.log.20260101-000004.gz\n\
         rotate 2.log 2.log.20260102-030405",
    );
}

#[test]
fn leftovers_of_a_cut_rotation_go() {
    check(
        "0.log",
        &[],
        &[
            ("0.log", 5),
            ("0.log.20260101-000001", 9),
            ("0.log.20260101-000001.gz", 3),
            ("0.log.20260101-000002.tmp", 3),
            ("0.log.20260101-000002.gz.tmp", 3),
        ],
        "delete 0.log.20260101-000001\n\
         delete 0.log.20260101-000002.gz.tmp\n\
         delete 0.log.20260101-000002.tmp",
    );
    // Renamed, then cut off before the runtime was told.
    check("0.log", &[], &[("0.log.20260101-000001", 100)], "reopen");
}

#[test]
fn logs_of_former_instances_count() {
    check(
        "7.log",
        &["6.log"],
        &[
            ("3.log", 1),
            ("5.log.20260101-000000.gz", 1),
            ("5.log", 1),
            ("6.log", 1),
            ("6.log.20260101-000001.gz", 1),
            ("7.log", 1),
            ("7.log.20260101-000002.gz", 1),
        ],
        "delete 3.log\ndelete 5.log.20260101-000000.gz",
    );
}

#[test]
fn what_is_in_use_is_never_deleted() {
    let two = RotationPolicy {
        max_files: 2,
        ..POLICY
    };
    let files: Vec<LogFile> = ["0.log", "1.log", "2.log"]
        .map(|name| LogFile {
            name: name.into(),
            size: 200,
        })
        .into();
    let kept = ["0.log".to_string(), "1.log".to_string()].into();
    let plan = plan("2.log", &kept, &files, two, date(2026, 1, 2).at(0, 0, 0, 0));
    assert_eq!(show(&plan), "rotate 2.log 2.log.20260102-000000");
}

#[test]
fn stamps_never_collide_nor_go_back() {
    check(
        "0.log",
        &[],
        &[("0.log", 100), ("0.log.20260102-030405", 100)],
        "gzip 0.log.20260102-030405 0.log.20260102-030405.gz\n\
         rotate 0.log 0.log.20260102-030406",
    );
    check(
        "0.log",
        &[],
        &[("0.log", 100), ("0.log.20270101-235959.gz", 100)],
        "rotate 0.log 0.log.20270102-000000",
    );
}

#[test]
fn files_of_others_are_left_alone() {
    check(
        "0.log",
        &[],
        &[
            ("0.log", 1),
            ("notes.txt", 1),
            ("x.log", 1),
            ("core.tmp", 1),
            ("a.log.", 1),
        ],
        "",
    );
}

#[test]
fn a_fast_log_is_looked_at_sooner() {
    let policy = RotationPolicy {
        max_size: 10_000,
        max_files: 5,
    };
    let s = Duration::from_secs;
    let ms = Duration::from_millis;
    for (before, size, next) in [
        (0, 0, s(10)),
        (0, 100, s(10)),
        (0, 5_000, s(5)),
        (5_000, 9_900, FASTEST_CHECK),
        (0, 20_000, FASTEST_CHECK),
        (20_000, 0, s(10)),
    ] {
        let got = policy.next_check(before, size, s(10), s(10));
        assert_eq!(got, next, "{before} {size}");
    }
    assert_eq!(policy.next_check(0, 20_000, ms(100), ms(100)), ms(100));
}
