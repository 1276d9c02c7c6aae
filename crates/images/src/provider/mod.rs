//! Exec credential providers: programs that know a registry's credentials. An answer is kept as long as it
//! says; the same question is never put twice at the same time.

mod accounts;
mod answer;
mod cache;
mod config;
mod exec;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use krablet_linux::Files;
use krablet_metrics::ImageMetrics;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub use accounts::{Account, NoAccounts, ServiceAccounts, Token, TokenAsk};
use answer::{Answer, AnswerError, KeyType};
use cache::Cache;
pub use config::{
    ConfigError, ProviderConfig, ProviderConfigs, TokenCache, TokenConfig, read_providers,
};
pub use exec::{Plugin, Program};

use crate::docker_config::DockerConfig;
use crate::hidden::Hidden;
use crate::keyring::{Coordinates, Source, hex};
use crate::location::pattern_means;

/// The name under which an answer for all images is kept; no image is called so.
const GLOBAL: &str = "<global>";

/// The pod an image is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub service_account: String,
}

/// Why a provider gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    #[error("failed to get service account: {0}")]
    Account(String),
    #[error("failed to get service account token: {0}")]
    Token(String),
    #[error(
        "failed to get credential from external registry credential provider: error execing credential provider plugin {plugin} for image {image}: {problem}"
    )]
    Exec {
        plugin: String,
        image: String,
        problem: String,
    },
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

/// What is asked of a plugin beyond the image.
#[derive(Clone, Debug, Default)]
struct Identity {
    token: Option<Hidden>,
    annotations: BTreeMap<String, String>,
    coordinates: Option<Coordinates>,
    /// Who may share an answer.
    cache_key: String,
    /// Who may share a question under way.
    flight_key: String,
}

type Question = BoxFuture<'static, Result<Arc<Answer>, ProviderError>>;
type Flight = Shared<Question>;

/// One plugin with what it said so far.
pub struct Provider {
    config: ProviderConfig,
    plugin: Arc<dyn Plugin>,
    accounts: Arc<dyn ServiceAccounts>,
    metrics: ImageMetrics,
    cache: Mutex<Cache<Arc<Answer>>>,
    tokens: Mutex<Cache<Token>>,
    flights: Mutex<BTreeMap<String, WeakShared<Question>>>,
}

/// The plugins of `--image-credential-provider-config`, in their order.
pub async fn load(
    files: &dyn Files,
    config: &Path,
    bin_dir: &Path,
    tokens: bool,
    accounts: &Arc<dyn ServiceAccounts>,
    metrics: &ImageMetrics,
) -> Result<Vec<Provider>, ConfigError> {
    let found = read_providers(files, config, bin_dir, tokens).await?;
    metrics.provider_config.set([(vec![&*found.hash], 1)]);
    let provider = |config: ProviderConfig| {
        let program = Program {
            path: bin_dir.join(&config.name),
            args: config.args.clone(),
            env: config.env.clone(),
        };
        Provider::new(config, Arc::new(program), accounts.clone(), metrics.clone())
    };
    Ok(found.providers.into_iter().map(provider).collect())
}

impl Provider {
    pub fn new(
        config: ProviderConfig,
        plugin: Arc<dyn Plugin>,
        accounts: Arc<dyn ServiceAccounts>,
        metrics: ImageMetrics,
    ) -> Self {
        Self {
            config,
            plugin,
            accounts,
            metrics,
            cache: Mutex::default(),
            tokens: Mutex::default(),
            flights: Mutex::default(),
        }
    }

    /// The logins for a repository and whom they belong to. What goes wrong is told in the log; the pull is
    /// tried without.
    pub(crate) async fn provide(
        &self,
        repository: &str,
        pod: &ForPod,
    ) -> Option<(DockerConfig, Option<Source>)> {
        match self.try_provide(repository, pod).await {
            Ok(provided) => provided,
            Err(error) => {
                tracing::error!(provider = self.config.name, image = repository, pod = %format_args!("{}/{}", pod.namespace, pod.name), podUID = pod.uid, %error, "Failed to provide credentials for image");
                None
            }
        }
    }

    async fn try_provide(
        &self,
        repository: &str,
        pod: &ForPod,
    ) -> Result<Option<(DockerConfig, Option<Source>)>, ProviderError> {
        let images = &self.config.match_images;
        if !images.iter().any(|i| pattern_means(i, repository)) {
            return Ok(None);
        }
        let Some(identity) = self.identity(pod).await? else {
            return Ok(None);
        };
        let source = identity.coordinates.clone().map(Source::ServiceAccount);
        if let Some(answer) = self.cached(repository, &identity.cache_key) {
            return Ok(Some((answer.logins.clone(), source)));
        }
        let answer = self.ask(repository, &identity).await?;
        self.check_echo(&answer, &identity)?;
        self.keep(repository, &identity.cache_key, &answer);
        Ok(Some((answer.logins.clone(), source)))
    }

    fn cached(&self, repository: &str, identity: &str) -> Option<Arc<Answer>> {
        let now = Instant::now();
        let cache = lock(&self.cache);
        let places = [repository, registry(repository), GLOBAL];
        let held = |place: &&str| cache.get(&key(&[place, identity]), now).cloned();
        places.iter().find_map(held)
    }

    fn keep(&self, repository: &str, identity: &str, answer: &Arc<Answer>) {
        let duration = answer
            .duration
            .unwrap_or(self.config.default_cache_duration);
        if duration.is_zero() {
            return;
        }
        let place = match answer.key_type {
            KeyType::Image => repository,
            KeyType::Registry => registry(repository),
            KeyType::Global => GLOBAL,
        };
        let now = Instant::now();
        lock(&self.cache).put(key(&[place, identity]), answer.clone(), now, duration);
    }

    /// A token given back as a password holds for one pod only.
    fn check_echo(&self, answer: &Answer, identity: &Identity) -> Result<(), AnswerError> {
        let Some(token) = &identity.token else {
            return Ok(());
        };
        let per_account = self
            .config
            .token
            .as_ref()
            .is_some_and(|t| t.cache != TokenCache::Token);
        match per_account && answer.logins.values().any(|l| l.password == *token) {
            true => Err(AnswerError::Echo),
            false => Ok(()),
        }
    }

    async fn ask(&self, image: &str, identity: &Identity) -> Result<Arc<Answer>, ProviderError> {
        self.flight(image, identity).await
    }

    /// The question under way, or a new one. It ends when nobody waits for it any more.
    fn flight(&self, image: &str, identity: &Identity) -> Flight {
        let key = key(&[image, &identity.flight_key]);
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        flights.retain(|_, flight| flight.upgrade().is_some());
        let flight = self.question(image, identity).boxed().shared();
        flights.extend(flight.downgrade().map(|weak| (key, weak)));
        flight
    }

    fn question(
        &self,
        image: &str,
        identity: &Identity,
    ) -> impl Future<Output = Result<Arc<Answer>, ProviderError>> + Send + 'static {
        let version = self.config.api_version.clone();
        let asked = answer::request(
            &version,
            image,
            identity.token.as_ref(),
            &identity.annotations,
        );
        let (plugin, metrics) = (self.plugin.clone(), self.metrics.clone());
        let (name, image) = (self.config.name.clone(), image.to_owned());
        async move {
            let begun = Instant::now();
            let said = plugin.ask(asked).await;
            metrics
                .plugin_duration
                .observe_duration(&[&name], begun.elapsed());
            let said = said.map_err(|problem| {
                metrics.plugin_errors.add(&[&name], 1);
                ProviderError::Exec {
                    plugin: name,
                    image,
                    problem,
                }
            })?;
            Ok(Arc::new(answer::read(&version, &said)?))
        }
    }

    /// Whose token the plugin gets; `None` if it is not to be asked for this pod.
    async fn identity(&self, pod: &ForPod) -> Result<Option<Identity>, ProviderError> {
        let Some(config) = &self.config.token else {
            return Ok(Some(Identity::default()));
        };
        if pod.service_account.is_empty() {
            // Static pods have none.
            return Ok((!config.required).then(Identity::default));
        }
        let account = self
            .accounts
            .account(&pod.namespace, &pod.service_account)
            .await;
        let account = account.map_err(ProviderError::Account)?;
        let Some(annotations) = chosen_annotations(config, &account) else {
            // Those who do not carry the annotation have not asked for it.
            return Ok(None);
        };
        let token = self.token(config, pod, &account).await?;
        let hash = hex(&Sha256::digest(token.text.expose()));
        let notes = annotations
            .iter()
            .flat_map(|(k, v)| [k.as_str(), v.as_str()]);
        let notes: Vec<&str> = notes.collect();
        let mut who = vec![pod.namespace.as_str(), &pod.service_account, &account.uid];
        who.extend(&notes);
        if config.cache == TokenCache::Token {
            who.extend(["token", &hash]);
        }
        let mut flight = vec![hash.as_str()];
        flight.extend(&notes);
        let (cache_key, flight_key) = (key(&who), key(&flight));
        Ok(Some(Identity {
            token: Some(token.text),
            annotations,
            coordinates: Some(Coordinates {
                namespace: pod.namespace.clone(),
                name: pod.service_account.clone(),
                uid: account.uid,
            }),
            cache_key,
            flight_key,
        }))
    }

    /// A token for this pod, kept for four fifths of its life.
    async fn token(
        &self,
        config: &TokenConfig,
        pod: &ForPod,
        account: &Account,
    ) -> Result<Token, ProviderError> {
        let ask = TokenAsk {
            namespace: pod.namespace.clone(),
            account: pod.service_account.clone(),
            account_uid: account.uid.clone(),
            audience: config.audience.clone(),
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        };
        let name = key(&[&ask.namespace, &ask.account, &ask.account_uid, &ask.pod_uid]);
        if let Some(token) = lock(&self.tokens).get(&name, Instant::now()) {
            return Ok(token.clone());
        }
        let token = self
            .accounts
            .token(ask)
            .await
            .map_err(ProviderError::Token)?;
        let kept = token.lifetime.mul_f64(0.8);
        lock(&self.tokens).put(name, token.clone(), Instant::now(), kept);
        Ok(token)
    }
}

/// Annotations the plugin wants to see; `None` if one it needs is missing.
fn chosen_annotations(config: &TokenConfig, account: &Account) -> Option<BTreeMap<String, String>> {
    let mut chosen = BTreeMap::new();
    for name in &config.required_annotations {
        chosen.insert(name.clone(), account.annotations.get(name)?.clone());
    }
    for name in &config.optional_annotations {
        if let Some(value) = account.annotations.get(name) {
            chosen.insert(name.clone(), value.clone());
        }
    }
    Some(chosen)
}

/// Words put together so that no other words give the same.
fn key(words: &[&str]) -> String {
    words.iter().map(|w| format!("{}:{w}", w.len())).collect()
}

fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
