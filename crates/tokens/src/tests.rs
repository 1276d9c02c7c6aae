use super::*;

use async_trait::async_trait;
use jiff::SignedDuration;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_linux::fake::FixedClock;

/// Issues `token-1`, `token-2` and so on, or fails.
struct Counting {
    clock: FixedClock,
    asked: Mutex<Vec<TokenRequest>>,
    failing: Mutex<bool>,
}

#[async_trait]
impl Issuer for Counting {
    async fn issue(
        &self,
        _: &str,
        _: &str,
        mut request: TokenRequest,
    ) -> Result<TokenRequest, NotIssued> {
        if *self.failing.lock().unwrap() {
            return Err(NotIssued {
                text: "no route to host".to_owned(),
                passing: true,
            });
        }
        let mut asked = self.asked.lock().unwrap();
        asked.push(request.clone());
        let spec = request.spec.get_or_insert_default();
        let seconds = *spec.expiration_seconds.get_or_insert(3600);
        let expires = self.clock.now() + SignedDuration::from_secs(seconds);
        request.status = Some(TokenRequestStatus {
            expiration_timestamp: Some(Time(expires)),
            token: Some(format!("token-{}", asked.len())),
        });
        Ok(request)
    }
}

fn wanted(uid: &str) -> Wanted {
    Wanted {
        pod: PodRef::new(uid, "ns", "web"),
        service_account: "robot".to_owned(),
        audience: Some("vault".to_owned()),
        expiration_seconds: Some(600),
    }
}

fn tokens() -> (Tokens, Arc<Counting>, FixedClock) {
    tokens_with(None)
}

fn tokens_with(shelf: Option<Shelf>) -> (Tokens, Arc<Counting>, FixedClock) {
    let clock = FixedClock::default();
    let issuer = Arc::new(Counting {
        clock: clock.clone(),
        asked: Mutex::default(),
        failing: Mutex::new(false),
    });
    let tokens = Tokens::new(issuer.clone(), Arc::new(clock.clone()), 1, shelf);
    (tokens, issuer, clock)
}

#[tokio::test]
async fn asked_for_once_bound_to_the_pod_and_renewed_in_time() {
    let (tokens, issuer, clock) = tokens();
    let first = tokens.get(&wanted("u")).await.unwrap();
    assert_eq!(&*first.text, "token-1");
    assert_eq!(tokens.get(&wanted("u")).await.unwrap().text, first.text);
    let spec = issuer.asked.lock().unwrap()[0].spec.clone().unwrap();
    assert_eq!(spec.audiences, Some(vec!["vault".to_owned()]));
    let bound = spec.bound_object_ref.unwrap();
    assert_eq!(
        (bound.kind.as_deref(), bound.uid.as_deref()),
        (Some("Pod"), Some("u"))
    );

    let renew_at = first.renew_at.unwrap();
    let (earliest, latest) = (470, 480);
    assert!(
        (earliest..=latest).contains(&renew_at.as_second()),
        "{renew_at}"
    );
    clock.set(renew_at);
    assert_eq!(&*tokens.get(&wanted("u")).await.unwrap().text, "token-2");
    // Another pod has its own; a forgotten one asks anew.
    assert_eq!(&*tokens.get(&wanted("v")).await.unwrap().text, "token-3");
    tokens.forget(&"u".into());
    assert_eq!(&*tokens.get(&wanted("u")).await.unwrap().text, "token-4");
    assert_eq!(&*tokens.get(&wanted("v")).await.unwrap().text, "token-3");
}

#[tokio::test]
async fn a_server_that_is_away_takes_no_good_token() {
    let (tokens, issuer, clock) = tokens();
    *issuer.failing.lock().unwrap() = true;
    let error = tokens.get(&wanted("u")).await.err().unwrap();
    assert_eq!(error.to_string(), "failed to fetch token: no route to host");
    *issuer.failing.lock().unwrap() = false;
    tokens.get(&wanted("u")).await.unwrap();
    *issuer.failing.lock().unwrap() = true;
    clock.advance(std::time::Duration::from_secs(500));
    let old = tokens.get(&wanted("u")).await.unwrap();
    assert_eq!(&*old.text, "token-1");
    assert_eq!(old.renew_at, Some(clock.now() + RETRY));
    clock.advance(std::time::Duration::from_secs(101));
    let error = tokens.get(&wanted("u")).await.err().unwrap().to_string();
    let key = r#"token "robot"/"ns"/[]string{"vault"}/600/v1.BoundObjectReference{Kind:"Pod", APIVersion:"v1", Name:"web", UID:"u"}/"" expired"#;
    assert!(error.starts_with(key), "{error}");
    *issuer.failing.lock().unwrap() = false;
    assert_eq!(&*tokens.get(&wanted("u")).await.unwrap().text, "token-2");
}

#[tokio::test]
async fn a_start_without_a_server_takes_the_token_of_the_former_life() {
    let files = Arc::new(krablet_linux::fake::MemoryFiles::default());
    let (shelf, task) = krablet_checkpoint::shelf(files.clone(), "/kept");
    {
        let (tokens, ..) = tokens_with(Some(shelf));
        tokens.get(&wanted("u")).await.unwrap();
        tokens.get(&wanted("gone")).await.unwrap();
        tokens.forget(&"gone".into());
    }
    task.run().await;

    let (shelf, _task) = krablet_checkpoint::shelf(files, "/kept");
    let (tokens, issuer, clock) = tokens_with(Some(shelf));
    *issuer.failing.lock().unwrap() = true;
    // It has long expired.
    clock.advance(std::time::Duration::from_secs(100_000));
    let kept = tokens.get(&wanted("u")).await.unwrap();
    assert_eq!(&*kept.text, "token-1");
    assert_eq!(kept.renew_at, Some(clock.now() + RETRY));
    let mut other = wanted("u");
    other.audience = None;
    assert!(tokens.get(&other).await.is_err(), "another token");
    assert!(tokens.get(&wanted("gone")).await.is_err());
    *issuer.failing.lock().unwrap() = false;
    assert_ne!(
        tokens.get(&wanted("u")).await.unwrap().renew_at,
        kept.renew_at
    );
}
