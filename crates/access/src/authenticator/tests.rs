mod strangers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use krablet_kube::{Api, ApiError, Call, Kube, Watch};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::{Authorizer, SubjectReviews, attributes};

/// Knows tokens and rights, and counts the questions.
#[derive(Default)]
struct Server {
    tokens: BTreeMap<&'static str, Value>,
    /// `user verb subresource`
    rights: Vec<&'static str>,
    down: Mutex<bool>,
    asked: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        if *self.down.lock().unwrap() {
            return Err(ApiError::Connection("refused".into()));
        }
        let body: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        let spec = &body["spec"];
        let (question, status) = if let Some(token) = spec["token"].as_str() {
            let status = self.tokens.get(token).cloned().unwrap_or(json!({}));
            (format!("token {token}"), status)
        } else {
            let wanted = &spec["resourceAttributes"];
            assert_eq!(wanted["resource"], "nodes");
            assert_eq!(wanted["name"], "n1");
            let text = |v: &Value| v.as_str().unwrap().to_owned();
            let parts = [&spec["user"], &wanted["verb"], &wanted["subresource"]];
            let question = parts.map(text).join(" ");
            let allowed = self.rights.contains(&question.as_str());
            (question, json!({"allowed": allowed}))
        };
        self.asked.lock().unwrap().push(question);
        Ok(json!({"status": status}).to_string().into())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        Err(ApiError::Connection("nothing to watch".into()))
    }

    fn reconnect(&self) {}
}

impl Server {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

const MINUTE: Duration = Duration::from_secs(60);

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap();
        let text = STANDARD.encode(der.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn client(&self, name: &str, groups: &[&str]) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        if !name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, name);
        } else {
            params.distinguished_name = rcgen::DistinguishedName::new();
        }
        for group in groups {
            let group = (*group).to_owned();
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()]
    }
}

fn certificates(authority: &Authority) -> ClientCertificates {
    ClientCertificates::new(authority.pem.as_bytes()).unwrap()
}

fn shown<'a>(chain: &'a [CertificateDer<'static>], header: Option<&'a str>) -> Credentials<'a> {
    Credentials {
        chain,
        authorization: header,
        offered: Ok(None),
        from: None,
        now: UnixTime::since_unix_epoch(Duration::from_secs(
            jiff::civil::date(2026, 1, 1)
                .to_zoned(jiff::tz::TimeZone::UTC)
                .unwrap()
                .timestamp()
                .as_second()
                .unsigned_abs(),
        )),
    }
}

fn text(found: Result<User, Denied>) -> String {
    match found {
        Ok(user) => format!("{} {:?}", user.name, user.groups),
        Err(why) => why.to_string(),
    }
}

fn server() -> Arc<Server> {
    let user = json!({"username": "prom", "groups": ["monitors"], "uid": "7"});
    let good = json!({"authenticated": true, "user": user});
    let odd = json!({"authenticated": false, "error": "the key is unknown"});
    Arc::new(Server {
        tokens: BTreeMap::from([("good", good), ("odd", odd)]),
        rights: vec![
            "prom get metrics",
            "prom get proxy",
            "admin create proxy",
            "lister get pods",
        ],
        ..Server::default()
    })
}

#[tokio::test(start_paused = true)]
async fn each_way_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = server();
    let mut door = Authenticator {
        certificates: Some(certificates(&ours)),
        tokens: Some(TokenReviews::new(Kube::new(server.clone()), MINUTE)),
        anonymous: true,
    };
    let admin = ours.client("admin", &["system:masters"]);
    let stranger = theirs.client("admin", &["system:masters"]);
    let nameless = ours.client("", &[]);
    let none: &[CertificateDer<'static>] = &[];
    let anonymous = r#"system:anonymous ["system:unauthenticated"]"#;
    let prom = r#"prom ["monitors", "system:authenticated"]"#;
    let known = r#"admin ["system:masters", "system:authenticated"]"#;
    let cases: [(&[CertificateDer<'static>], Option<&str>, &str); 12] = [
        (&admin, None, known),
        (&admin, Some("Bearer bad"), known),
        (&stranger, None, "Unauthorized"),
        (&stranger, Some("Bearer good"), prom),
        (&nameless, None, "Unauthorized"),
        (none, Some("Bearer good"), prom),
        (none, Some("bearer   good"), prom),
        (none, Some("Bearer bad"), "Unauthorized"),
        (none, Some("Bearer odd"), "Unauthorized"),
        (none, Some("Basic Z29vZA=="), anonymous),
        (none, Some("Bearer"), anonymous),
        (none, None, anonymous),
    ];
    for (number, (chain, header, expected)) in cases.into_iter().enumerate() {
        let found = door.authenticate(shown(chain, header)).await;
        assert_eq!(text(found), expected, "case {number}");
    }
    let offers = [
        (None, Ok(Some("good")), prom),
        (None, Ok(Some("bad")), "Unauthorized"),
        (None, Err("two"), "Unauthorized"),
        (Some("Bearer bad"), Ok(Some("good")), prom),
        (Some("Bearer good"), Err("two"), prom),
    ];
    for (header, offered, expected) in offers {
        let shown = Credentials {
            offered,
            ..shown(none, header)
        };
        let found = door.authenticate(shown).await;
        assert_eq!(text(found), expected, "{header:?} {offered:?}");
    }
    door.anonymous = false;
    assert_eq!(
        text(door.authenticate(shown(none, None)).await),
        "Unauthorized"
    );
    door.tokens = None;
    let found = door.authenticate(shown(none, Some("Bearer good"))).await;
    assert_eq!(text(found), "Unauthorized");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_asked_about_once_in_a_while() {
    let server = server();
    let door = Authenticator {
        tokens: Some(TokenReviews::new(Kube::new(server.clone()), MINUTE)),
        ..Authenticator::default()
    };
    let ask = async |header: &str| text(door.authenticate(shown(&[], Some(header))).await);
    for _ in 0..3 {
        assert!(ask("Bearer good").await.starts_with("prom"));
        assert_eq!(ask("Bearer bad").await, "Unauthorized");
    }
    assert_eq!(server.asked(), ["token good", "token bad"]);
    *server.down.lock().unwrap() = true;
    assert!(ask("Bearer good").await.starts_with("prom"), "known");
    assert_eq!(ask("Bearer other").await, "Unauthorized", "cannot be told");
    tokio::time::advance(MINUTE).await;
    assert_eq!(
        ask("Bearer good").await,
        "Unauthorized",
        "not known any more"
    );
    *server.down.lock().unwrap() = false;
    assert!(ask("Bearer good").await.starts_with("prom"));
    let long = format!("Bearer {}", "x".repeat(20_000));
    assert_eq!(ask(&long).await, "Unauthorized");
    assert_eq!(server.asked(), ["token good"]);
}

#[tokio::test(start_paused = true)]
async fn rights_are_asked_for_narrow_ones_first() {
    let server = server();
    let kube = Kube::new(server.clone());
    let door = Authorizer::Webhook(SubjectReviews::new(
        kube,
        "n1".into(),
        5 * MINUTE,
        MINUTE / 2,
    ));
    let user = |name: &str| User {
        name: name.to_owned(),
        ..User::default()
    };
    let ask = async |name: &str, method: Method, path: &str| {
        let wanted = attributes(&method, path);
        let verdict = door.authorize(&user(name), &wanted).await;
        verdict.map_or_else(|why| why.to_string(), |()| "yes".to_owned())
    };
    assert_eq!(ask("prom", Method::GET, "/metrics").await, "yes");
    assert_eq!(ask("prom", Method::GET, "/pods").await, "yes");
    assert_eq!(
        server.asked(),
        ["prom get metrics", "prom get pods", "prom get proxy"]
    );
    let refused =
        "Forbidden (user=nobody, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!(ask("nobody", Method::GET, "/pods").await, refused);
    let refused = "Forbidden (user=prom, verb=create, resource=nodes, subresource(s)=[proxy])\n";
    assert_eq!(ask("prom", Method::POST, "/exec/a/b/c").await, refused);
    server.asked();
    *server.down.lock().unwrap() = true;
    assert_eq!(ask("prom", Method::GET, "/metrics").await, "yes", "known");
    let unknown =
        "Authorization error (user=admin, verb=create, resource=nodes, subresource=proxy)";
    assert_eq!(ask("admin", Method::POST, "/run/a/b/c").await, unknown);
    tokio::time::advance(5 * MINUTE).await;
    let unknown = "Authorization error (user=prom, verb=get, resource=nodes, subresource=metrics)";
    assert_eq!(ask("prom", Method::GET, "/metrics").await, unknown);
    let always = Authorizer::AlwaysAllow;
    let wanted = attributes(&Method::POST, "/run/a/b/c");
    assert_eq!(always.authorize(&user("nobody"), &wanted).await, Ok(()));
}

/// What was learnt while the API server answered is enough for as long as it holds, whichever of the rights it is of.
#[tokio::test(start_paused = true)]
async fn a_right_that_is_known_is_enough() {
    let unknown = "Authorization error (user=USER, verb=get, resource=nodes, subresource=pods)";
    let seconds = Duration::from_secs;
    // Who was let in for this before, and so long ago; a no is remembered for half a minute, a yes for five.
    for (name, before, ago, expected) in [
        ("prom", "/pods", 0, "yes"),
        ("prom", "/pods", 31, "yes"),
        ("prom", "/exec/a/b/c", 31, "yes"),
        ("prom", "/pods", 301, unknown),
        ("prom", "/metrics", 1, unknown),
        ("lister", "/pods", 31, "yes"),
        ("lister", "/pods", 301, unknown),
        ("nobody", "/pods", 1, "no"),
        ("nobody", "/pods", 31, unknown),
        ("nobody", "/exec/a/b/c", 1, unknown),
    ] {
        let server = server();
        let kube = Kube::new(server.clone());
        let reviews = SubjectReviews::new(kube, "n1".into(), seconds(300), seconds(30));
        let door = Authorizer::Webhook(reviews);
        let user = User {
            name: name.to_owned(),
            ..User::default()
        };
        let ask = async |path| door.authorize(&user, &attributes(&Method::GET, path)).await;
        let _ = ask(before).await;
        *server.down.lock().unwrap() = true;
        tokio::time::advance(seconds(ago)).await;
        let found = match ask("/pods").await {
            Ok(()) => "yes".to_owned(),
            Err(Denied::Forbidden(_)) => "no".to_owned(),
            Err(why) => why.to_string(),
        };
        let expected = expected.replace("USER", name);
        assert_eq!(found, expected, "{name}, {before} {ago} s before");
    }
}

#[test]
fn authorities_change_while_connections_are_open() {
    let (old, new) = (Authority::new(), Authority::new());
    let certificates = certificates(&old);
    let chain = old.client("admin", &[]);
    let now = shown(&[], None).now;
    assert!(certificates.user(&chain, now).is_ok());
    assert!(certificates.replace(b"no certificate").is_err());
    assert!(certificates.user(&chain, now).is_ok());
    certificates.replace(new.pem.as_bytes()).unwrap();
    assert!(certificates.user(&chain, now).is_err());
    assert!(certificates.user(&new.client("admin", &[]), now).is_ok());
}
