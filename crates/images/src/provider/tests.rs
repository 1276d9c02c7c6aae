use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::*;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A plugin that keeps what it was asked.
struct FakePlugin {
    asked: Mutex<Vec<Value>>,
    says: Mutex<Value>,
    takes: Duration,
}

#[async_trait]
impl Plugin for FakePlugin {
    async fn ask(&self, request: Vec<u8>) -> Result<Vec<u8>, String> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        self.asked.lock().unwrap().push(request.clone());
        tokio::time::sleep(self.takes).await;
        let mut answer = self.says.lock().unwrap().clone();
        let token = &request["serviceAccountToken"];
        if answer["auth"]["r.io"]["password"] == "ECHO" && token.is_string() {
            answer["auth"]["r.io"]["password"] = token.clone();
        }
        match answer.is_null() {
            true => Err("exit status 1: no".into()),
            false => Ok(answer.to_string().into_bytes()),
        }
    }
}

#[derive(Default)]
struct FakeAccounts {
    annotations: Mutex<BTreeMap<String, String>>,
    given: AtomicUsize,
}

#[async_trait]
impl ServiceAccounts for FakeAccounts {
    async fn account(&self, namespace: &str, name: &str) -> Result<Account, String> {
        Ok(Account {
            uid: format!("uid-{namespace}-{name}"),
            annotations: self.annotations.lock().unwrap().clone(),
        })
    }

    async fn token(&self, ask: TokenAsk) -> Result<Token, String> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        Ok(Token {
            text: Hidden::new(format!("token-{}-{number}", ask.pod_uid)),
            lifetime: Duration::from_secs(3600),
        })
    }
}

struct World {
    plugin: Arc<FakePlugin>,
    accounts: Arc<FakeAccounts>,
    provider: Provider,
}

fn says(key_type: &str, duration: Option<&str>, password: &str) -> Value {
    json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": V1,
        "cacheKeyType": key_type,
        "cacheDuration": duration,
        "auth": {"r.io": {"username": "u", "password": password}},
    })
}

fn world(token: Option<TokenConfig>, says: Value) -> World {
    let plugin = Arc::new(FakePlugin {
        asked: Mutex::default(),
        says: Mutex::new(says),
        takes: Duration::from_millis(10),
    });
    let accounts = Arc::new(FakeAccounts::default());
    let config = ProviderConfig {
        name: "fake".into(),
        match_images: vec!["r.io".into(), "*.r.io".into()],
        default_cache_duration: Duration::from_secs(60),
        api_version: V1.into(),
        args: Vec::new(),
        env: Vec::new(),
        token,
    };
    let provider = Provider::new(
        config,
        plugin.clone(),
        accounts.clone(),
        ImageMetrics::default(),
    );
    World {
        plugin,
        accounts,
        provider,
    }
}

fn pod(name: &str, account: &str) -> ForPod {
    ForPod {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("u-{name}"),
        service_account: account.into(),
    }
}

impl World {
    async fn password(&self, image: &str, pod: &ForPod) -> Option<String> {
        let (logins, _) = self.provider.provide(image, pod).await?;
        logins.get("r.io").map(|l| l.password.expose().to_owned())
    }

    fn asked(&self) -> usize {
        self.plugin.asked.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_kept_by_key_type_and_duration() {
    // (key type, duration, asked for the same image again, for another one, in another registry, after 61 s)
    let cases = [
        ("Image", None, [0, 1, 1, 1]),
        ("Registry", None, [0, 0, 1, 1]),
        ("Global", None, [0, 0, 0, 1]),
        ("Global", Some("10m"), [0, 0, 0, 0]),
        ("Image", Some("0s"), [1, 1, 1, 1]),
    ];
    for (key_type, duration, expected) in cases {
        let world = world(None, says(key_type, duration, "p"));
        let p = pod("p", "");
        world.password("r.io/a", &p).await.unwrap();
        let mut more = Vec::new();
        for image in ["r.io/a", "r.io/b", "x.r.io/a"] {
            let before = world.asked();
            world.password(image, &p).await;
            more.push(world.asked() - before);
        }
        tokio::time::advance(Duration::from_secs(61)).await;
        let before = world.asked();
        world.password("r.io/a", &p).await;
        more.push(world.asked() - before);
        assert_eq!(more, expected, "{key_type} {duration:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_question_at_a_time() {
    let world = world(None, says("Image", Some("0s"), "p"));
    let p = pod("p", "");
    let asks = (0..10).map(|_| world.password("r.io/a", &p));
    let answers = futures::future::join_all(asks).await;
    assert!(answers.iter().all(|a| a.as_deref() == Some("p")));
    assert_eq!(world.asked(), 1);
    world.password("r.io/a", &p).await;
    assert_eq!(world.asked(), 2, "an answer that is not to be kept is not");
}

#[tokio::test(start_paused = true)]
async fn other_images_and_failures_give_nothing() {
    let world = world(None, Value::Null);
    let p = pod("p", "");
    assert_eq!(world.password("other.io/a", &p).await, None);
    assert_eq!(world.asked(), 0);
    assert_eq!(world.password("r.io/a", &p).await, None);
    let error = world.provider.try_provide("r.io/a", &p).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to get credential from external registry credential provider: error execing credential provider plugin fake for image r.io/a: exit status 1: no"
    );
    *world.plugin.says.lock().unwrap() = says("Pod", None, "geheim");
    let error = world.provider.try_provide("r.io/a", &p).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("geheim"));
}

fn token(cache: TokenCache, required: bool) -> Option<TokenConfig> {
    Some(TokenConfig {
        audience: "r.io".into(),
        required,
        cache,
        required_annotations: if required {
            vec!["id".into()]
        } else {
            Vec::new()
        },
        optional_annotations: vec!["more".into()],
    })
}

#[tokio::test(start_paused = true)]
async fn plugins_get_tokens_of_service_accounts() {
    let world = world(
        token(TokenCache::ServiceAccount, true),
        says("Image", None, "p"),
    );
    assert_eq!(world.password("r.io/a", &pod("static", "")).await, None);
    assert_eq!(
        world.password("r.io/a", &pod("p", "sa")).await,
        None,
        "not opted in"
    );
    assert_eq!(
        (world.asked(), world.accounts.given.load(Ordering::Relaxed)),
        (0, 0)
    );
    let notes = [
        ("id".to_owned(), "7".to_owned()),
        ("other".into(), "x".into()),
    ];
    *world.accounts.annotations.lock().unwrap() = notes.into();
    let (_, source) = world
        .provider
        .provide("r.io/a", &pod("p", "sa"))
        .await
        .unwrap();
    let expected = Source::ServiceAccount(Coordinates {
        namespace: "ns".into(),
        name: "sa".into(),
        uid: "uid-ns-sa".into(),
    });
    assert_eq!(source, Some(expected));
    let request = world.plugin.asked.lock().unwrap()[0].clone();
    assert_eq!(request["serviceAccountToken"], "token-u-p-0");
    assert_eq!(request["serviceAccountAnnotations"], json!({"id": "7"}));
    // Another pod of the account shares the answer, one of another account does not.
    world.password("r.io/a", &pod("q", "sa")).await.unwrap();
    assert_eq!(world.asked(), 1);
    world.password("r.io/a", &pod("q", "sb")).await.unwrap();
    assert_eq!(world.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn tokens_given_back_are_for_one_pod() {
    let shared = world(
        token(TokenCache::ServiceAccount, false),
        says("Image", None, "ECHO"),
    );
    let error = shared.provider.try_provide("r.io/a", &pod("p", "sa")).await;
    assert_eq!(error, Err(AnswerError::Echo.into()));
    let own = world(token(TokenCache::Token, false), says("Image", None, "ECHO"));
    let p = own.password("r.io/a", &pod("p", "sa")).await;
    let again = own.password("r.io/a", &pod("p", "sa")).await;
    let q = own.password("r.io/a", &pod("q", "sa")).await;
    assert_eq!((own.asked(), &p, p == q), (2, &again, false));
    // At four fifths of its life a new token is asked for.
    tokio::time::advance(Duration::from_secs(2881)).await;
    assert_ne!(own.password("r.io/a", &pod("p", "sa")).await, p);
    // Without an account it is asked all the same.
    assert!(
        own.provider
            .provide("r.io/a", &pod("static", ""))
            .await
            .is_some()
    );
}
