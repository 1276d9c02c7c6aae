use super::*;
use crate::request::{Condition, Metadata, Status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const MINUTE: i64 = 60;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn request(name: &str, kind: &str) -> Arc<Request> {
    let condition = Condition {
        kind: kind.to_owned(),
        reason: "Why".to_owned(),
        message: "so".to_owned(),
    };
    Arc::new(Request {
        metadata: Metadata {
            name: name.to_owned(),
            namespace: "ns".to_owned(),
        },
        status: Status {
            conditions: Vec::from_iter(Some(condition).filter(|_| !kind.is_empty())),
            certificate_chain: krablet_kube::pem::encoded("CERTIFICATE", name.as_bytes()),
            begin_refresh_at: Some(Time(at(30 * MINUTE))),
            not_after: Some(Time(at(60 * MINUTE))),
        },
    })
}

fn asked(name: &str) -> Asked {
    Asked::new(name.to_owned(), format!("key of {name}").into(), at(0), 0.0)
}

fn issued(name: &str) -> Held {
    Held {
        key: format!("key of {name}").into(),
        chain: krablet_kube::pem::encoded("CERTIFICATE", name.as_bytes()).into(),
        renew_at: at(30 * MINUTE),
        expires: at(60 * MINUTE),
        told: [false; 2],
    }
}

fn told(news: &[News]) -> Vec<&str> {
    news.iter().map(|n| n.reason).collect()
}

#[test]
fn verdicts_move_what_waits_for_them_and_nothing_else() {
    let refusal = |how| {
        Course::Refused(Refusal {
            how,
            reason: "Why".to_owned(),
            message: "so".to_owned(),
        })
    };
    let renewing = || Course::Renewing(issued("old"), asked("r"));
    for (course, known, minute, expected) in [
        (
            Course::New,
            Some(vec![request("r", "Issued")]),
            1,
            Course::New,
        ),
        (
            Course::Asked(asked("r")),
            None,
            100,
            Course::Asked(asked("r")),
        ),
        (
            Course::Asked(asked("r")),
            Some(vec![request("r", "")]),
            100,
            Course::Asked(asked("r")),
        ),
        (
            Course::Asked(asked("r")),
            Some(vec![request("other", "Issued"), request("r", "Issued")]),
            1,
            Course::Issued(issued("r")),
        ),
        (
            Course::Asked(asked("r")),
            Some(vec![request("r", "Denied")]),
            1,
            refusal(How::Denied),
        ),
        // Not to be seen: not yet, or not any more.
        (
            Course::Asked(asked("r")),
            Some(vec![]),
            10,
            Course::Asked(asked("r")),
        ),
        (Course::Asked(asked("r")), Some(vec![]), 11, Course::New),
        (renewing(), Some(vec![]), 11, Course::Issued(issued("old"))),
        (
            renewing(),
            Some(vec![request("r", "Issued")]),
            31,
            Course::Issued(issued("r")),
        ),
        (
            renewing(),
            Some(vec![request("r", "Failed")]),
            31,
            refusal(How::Failed),
        ),
        (
            refusal(How::Denied),
            Some(vec![request("r", "Issued")]),
            31,
            refusal(How::Denied),
        ),
    ] {
        let what = format!("{course:?} {known:?}");
        let (found, _) = course.look("ns", known.as_deref(), at(minute * MINUTE), 0.0);
        assert_eq!(found, expected, "{what} {minute}");
    }
    let other_namespace =
        Course::Asked(asked("r")).look("else", Some(&[request("r", "Issued")]), at(1), 0.0);
    assert_eq!(other_namespace.0, Course::Asked(asked("r")));
}

#[test]
fn who_is_refused_is_told_so_once() {
    let known = [request("r", "Denied")];
    let (course, news) = Course::Asked(asked("r")).look("ns", Some(&known), at(1), 0.0);
    let message = "PodCertificateRequest ns/r was denied, reason=\"Why\", message=\"so\"";
    assert_eq!(
        news,
        [News {
            reason: "Denied",
            message: message.to_owned()
        }]
    );
    let error = course.bundle(at(1)).err().unwrap().to_string();
    assert_eq!(
        error,
        "PodCertificateRequest was permanently denied: reason=\"Why\" message=\"so\""
    );
    assert_eq!(course.look("ns", Some(&known), at(2), 0.0).1, []);
}

#[test]
fn a_certificate_is_renewed_and_kept_until_there_is_another() {
    let mut course = Course::Issued(issued("old"));
    assert!(!course.asks(at(30 * MINUTE - 1)) && course.asks(at(30 * MINUTE)));
    let bundle = course.bundle(at(0)).unwrap();
    assert_eq!(bundle.look_at, at(30 * MINUTE));
    // It could not be asked for.
    let bundle = course.bundle(at(31 * MINUTE)).unwrap();
    assert_eq!(bundle.look_at, at(31 * MINUTE + 10));

    let now = at(30 * MINUTE);
    course = course.asked(Asked::new("r".into(), "new key".into(), now, 1.0));
    assert!(!course.asks(at(59 * MINUTE)));
    for (minute, state, reasons, next) in [
        (31, "fresh", vec![], 40),
        (
            41,
            "overdue_for_refresh",
            vec!["CertificateOverdueForRefresh"],
            45,
        ),
        (44, "overdue_for_refresh", vec![], 45),
    ] {
        let now = at(minute * MINUTE);
        let (after, news) = course.look("ns", Some(&[request("r", "")]), now, 0.0);
        course = after;
        assert_eq!(
            (course.state(now), told(&news)),
            (state, reasons),
            "{minute}"
        );
        let bundle = course.bundle(now).unwrap();
        assert_eq!(
            (&*bundle.key, bundle.look_at),
            ("key of old", at(next * MINUTE))
        );
    }
    let late = at(61 * MINUTE);
    let (after, news) = course.look("ns", Some(&[request("r", "")]), late, 0.0);
    assert_eq!(
        (after.state(late), told(&news)),
        ("expired", vec!["CertificateExpired"])
    );
    let bundle = after.bundle(late).unwrap();
    assert_eq!(bundle.look_at, at(61 * MINUTE + 10));
    let (after, news) = after.look("ns", Some(&[request("r", "Issued")]), at(0), 0.0);
    assert_eq!((after.state(at(0)), news), ("fresh", vec![]));
    assert_eq!(&*after.bundle(at(0)).unwrap().key, "new key");
}

#[test]
fn renewals_are_spread() {
    for (share, minutes) in [(0.0, 30), (1.0, 35), (7.0, 35), (-1.0, 30)] {
        let known = [request("r", "Issued")];
        let (course, _) = Course::Asked(asked("r")).look("ns", Some(&known), at(0), share);
        assert_eq!(course.bundle(at(0)).unwrap().look_at, at(minutes * MINUTE));
    }
}
