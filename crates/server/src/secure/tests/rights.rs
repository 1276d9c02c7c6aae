//! Every path with every method for everyone: nobody unknown gets further than the guard, nobody without the
//! right gets further either, and who has it reaches the handler.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use krablet_access::ClientCertificates;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use super::*;

const METHODS: [(Method, &str); 7] = [
    (Method::GET, "get"),
    (Method::POST, "create"),
    (Method::PUT, "update"),
    (Method::PATCH, "patch"),
    (Method::DELETE, "delete"),
    // No right by name is for these.
    (Method::HEAD, ""),
    (Method::OPTIONS, ""),
];

/// All there are.
const RIGHTS: [&str; 9] = [
    "pods",
    "healthz",
    "configz",
    "stats",
    "metrics",
    "log",
    "checkpoint",
    "statusz",
    "proxy",
];

/// Each path, the query it is asked with, the rights of which any one will do, and what who has one is answered: by method,
/// `*` stands for all of them. What is not listed is `405`; `HEAD` is answered like `GET`.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("/pods", "", "pods:proxy", "GET 200"),
    ("/healthz", "", "healthz:proxy", "GET 200"),
    ("/healthz/{check}", "", "healthz:proxy", "GET 200"),
    ("/configz", "", "configz:proxy", "GET 200"),
    ("/runningpods/", "", "pods:proxy", "GET 200"),
    ("/stats/summary", "", "stats", "GET 200, POST 200"),
    ("/metrics", "", "metrics", "GET 200"),
    ("/metrics/probes", "", "metrics", "GET 200"),
    ("/metrics/slis", "", "metrics", "GET 200"),
    ("/metrics/resource", "", "metrics", "GET 200"),
    ("/metrics/cadvisor", "", "metrics", "GET 200"),
    ("/logs/", "", "log", "GET 200"),
    ("/logs/{*path}", "", "log", "GET 200"),
    ("/flagz", "", "configz", "GET 200"),
    ("/statusz", "", "statusz", "GET 200"),
    // The handler is reached, and the runtime cannot.
    (
        "/checkpoint/{namespace}/{pod}/{container}",
        "",
        "checkpoint",
        "POST 500",
    ),
    (
        "/containerLogs/{namespace}/{pod}/{container}",
        "",
        "proxy",
        "GET 200",
    ),
    (
        "/run/{namespace}/{pod}/{container}",
        "?cmd=echo",
        "proxy",
        "POST 200",
    ),
    (
        "/run/{namespace}/{pod}/{uid}/{container}",
        "?cmd=echo",
        "proxy",
        "POST 200",
    ),
    // No upgrade is asked for.
    (
        "/exec/{namespace}/{pod}/{container}",
        "?output=1",
        "proxy",
        "GET 400, POST 400",
    ),
    (
        "/exec/{namespace}/{pod}/{uid}/{container}",
        "?output=1",
        "proxy",
        "GET 400, POST 400",
    ),
    (
        "/attach/{namespace}/{pod}/{container}",
        "?output=1",
        "proxy",
        "GET 400, POST 400",
    ),
    (
        "/attach/{namespace}/{pod}/{uid}/{container}",
        "?output=1",
        "proxy",
        "GET 400, POST 400",
    ),
    (
        "/portForward/{namespace}/{pod}",
        "",
        "proxy",
        "GET 400, POST 400",
    ),
    (
        "/portForward/{namespace}/{pod}/{uid}",
        "",
        "proxy",
        "GET 400, POST 400",
    ),
    ("/debug/flags/v", "", "proxy", "* 406, PUT 400"),
    ("/debug/pprof/", "", "proxy", "GET 200"),
    ("/debug/pprof/{*name}", "", "proxy", "GET 200"),
];

/// What is not there is guarded as well.
const NOWHERE: &[(&str, &str, &str, &str)] = &[
    ("/", "", "proxy", "* 404"),
    ("/unknown", "", "proxy", "* 404"),
    ("/debug/", "", "proxy", "* 404"),
    ("/logs", "", "log", "* 307"),
    ("/runningpods", "?a=b", "pods:proxy", "* 307"),
    ("/debug/pprof", "", "proxy", "* 307"),
    ("/metrics/unknown", "", "metrics", "* 404"),
];

/// The last word on a method counts.
fn expected(codes: &str, method: &Method) -> u16 {
    let method = match *method {
        Method::HEAD => "GET",
        ref other => other.as_str(),
    };
    let cases = codes.split(", ").map(|case| case.split_once(' ').unwrap());
    let meant = cases.filter(|(name, _)| ["*", method].contains(name));
    meant.last().map_or(405, |(_, code)| code.parse().unwrap())
}

pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap();
        let text = STANDARD.encode(der.der());
        Self {
            pem: format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
            issuer: Issuer::new(params, key),
        }
    }

    /// Shows that he is somebody of this name.
    fn client(&self, name: &str) -> Shown {
        let mut params = params();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        Shown {
            peer: Peer {
                certificates: Arc::new(vec![made.der().clone()]),
                address: None,
            },
            ..Shown::default()
        }
    }
}

/// The node's clock stands where time began.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params
}

fn token(token: impl Into<String>) -> Shown {
    Shown {
        token: Some(token.into()),
        ..Shown::default()
    }
}

fn offered(token: &str) -> Shown {
    Shown {
        offered: Some(token.to_owned()),
        ..Shown::default()
    }
}

/// With everything behind it that the table's paths are for.
pub(super) fn full_door(
    authority: &Authority,
    logs: &tempfile::TempDir,
    split_logs: bool,
) -> Router {
    router(&Arc::new(full_door_of(authority, logs, split_logs)))
}

pub(super) fn full_door_of(
    authority: &Authority,
    logs: &tempfile::TempDir,
    split_logs: bool,
) -> Door {
    let certificates = ClientCertificates::new(authority.pem.as_bytes()).unwrap();
    std::fs::write(logs.path().join("syslog"), "line\n").unwrap();
    let written = logs.path().join("container.log");
    std::fs::write(&written, "2026-01-01T00:00:00Z stdout F line\n").unwrap();
    door_of(true, |parts| {
        parts.access.authenticator.certificates = Some(certificates);
        parts.view = node::Quiet::with(vec![node::running_pod("p", "u", "c")]);
        parts.inside = Arc::new(node::OnePod);
        parts.split_logs = split_logs;
        parts.runtime = Arc::new(node::OneContainer { log: written });
        parts.node_logs = NodeLogs::new(logs.path().to_owned(), Vec::new());
        parts.checkpoints = Some(Checkpoints {
            directory: logs.path().join("checkpoints"),
            runtime: Arc::new(NoCheckpoints),
        });
    })
}

#[tokio::test]
async fn every_path_by_every_method_for_everyone() {
    let listed: BTreeSet<&str> = TABLE.iter().map(|(route, ..)| *route).collect();
    let there: BTreeSet<&str> = all_paths().collect();
    assert_eq!(
        there, listed,
        "a path without a row, or a row without a path"
    );

    let (ours, theirs) = (Authority::new(), Authority::new());
    let logs = tempfile::tempdir().unwrap();
    let router = full_door(&ours, &logs, false);
    let unknown = [
        Shown::default(),
        token("nonsense"),
        offered("nonsense"),
        theirs.client("right"),
    ];
    let weak = [token("weak"), offered("weak"), ours.client("weak")];
    let strong = [token("right"), offered("right"), ours.client("right")];
    for (route, query, rights, codes) in TABLE.iter().chain(NOWHERE) {
        let path = format!("{}{query}", example(route));
        for (method, verb) in &METHODS {
            let case = format!("{method} {path}");
            let ask = async |shown: &Shown| ask_as(&router, method, &path, shown).await;
            for shown in &unknown {
                assert_eq!(ask(shown).await.0, 401, "{case}");
            }
            for shown in &weak {
                let (code, why) = ask(shown).await;
                let told = *method == Method::HEAD
                    || why.starts_with(&format!("Forbidden (user=weak, verb={verb}, "));
                assert!(code == 403 && told, "{case}: {code} {why}");
            }
            // Every right but those that count here is none.
            let (code, _) = ask(&token(format!("not:{verb}:{rights}"))).await;
            assert_eq!(code, 403, "{case}");
            let code = expected(codes, method);
            for shown in &strong {
                assert_eq!(ask(shown).await.0, code, "{case}");
            }
            for right in RIGHTS {
                let code = match rights.split(':').any(|r| r == right) {
                    true => code,
                    false => 403,
                };
                let shown = token(format!("only:{verb}:{right}"));
                assert_eq!(ask(&shown).await.0, code, "{case} with {right} alone");
            }
        }
    }
}
