//! Whatever is asked of a door with everything behind it.

use http::header;
use proptest::prelude::*;
use tokio::time::timeout;

use super::rights::{Authority, full_door};
use super::*;

/// A log that is followed has no end.
const HOUR: Duration = Duration::from_secs(3600);

const METHOD: &str = "(GET|GET|POST|POST|PUT|DELETE|PATCH|HEAD|OPTIONS|[A-Z]{1,8})";

/// Half of them lead somewhere.
const PATH: &str = "(/(containerLogs|exec|attach|run|checkpoint)/ns/p(/u)?/c\
    |/portForward/ns/p(/u)?|/logs/(syslog|container\\.log)?|/stats/summary|/metrics/cadvisor\
    |(/(pods|logs|exec|attach|run|portForward|containerLogs|checkpoint|debug|flags|v|pprof|healthz|metrics|stats|configz|flagz|statusz|runningpods\
    |ns|p|c|u|%2e%2e|%00|%ff|\\.\\.|[a-zA-Z0-9._~%-]{0,6})){1,6}/?)";

/// One part of a query, with numbers as large as they come.
const ASKED: &str = "(follow|previous|timestamps|tail|tailLines|limitBytes|sinceSeconds|sinceTime|stream|query|input\
    |output|error|tty|command|cmd|port|timeout|exclude|verbose|[a-zA-Z]{0,10})\
    =?(-?[0-9]{1,19}|1|true|All|Stdout|[a-zA-Z0-9%+:=&./-]{0,20})";

struct Asked {
    method: Method,
    uri: http::Uri,
    upgrade: Option<&'static str>,
}

/// The code of the answer, and whether all of it could be had if it had an end.
async fn answered(router: &Router, asked: &Asked, token: Option<&str>) -> (u16, bool) {
    let mut request = Request::builder()
        .method(&asked.method)
        .uri(asked.uri.clone());
    if let Some(upgrade) = asked.upgrade {
        request = request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, upgrade)
            .header(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
            .header(header::SEC_WEBSOCKET_VERSION, "13");
    }
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = timeout(HOUR, answer.into_body().collect()).await;
    (code, body.is_err() || body.is_ok_and(|body| body.is_ok()))
}

/// However it is spelt: nobody unknown is answered, and who may ask gets an answer.
#[test]
fn any_request_is_answered() {
    let (authority, logs) = (Authority::new(), tempfile::tempdir().unwrap());
    proptest!(|(
        method in METHOD,
        path in PATH,
        query in proptest::collection::vec(ASKED, 0..4),
        upgrade in proptest::sample::select(vec![None, Some("SPDY/3.1"), Some("websocket")]),
        split_logs in proptest::bool::ANY,
    )| {
        let Ok(uri) = format!("{path}?{}", query.join("&")).parse::<http::Uri>() else {
            return Ok(());
        };
        let asked = Asked { method: method.parse().unwrap(), uri, upgrade };
        let clock = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let (unknown, right) = clock.unwrap().block_on(async {
            let router = full_door(&authority, &logs, split_logs);
            (answered(&router, &asked, None).await, answered(&router, &asked, Some("right")).await)
        });
        prop_assert_eq!(unknown, (401, true));
        let (code, whole) = right;
        prop_assert!(code != 401 && code != 403, "{}", code);
        prop_assert!(whole, "{} in pieces", code);
    });
}
