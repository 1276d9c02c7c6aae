//! Service accounts, as far as plugins are told of them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::hidden::Hidden;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

/// A token is bound to the pod it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenAsk {
    pub namespace: String,
    pub account: String,
    pub account_uid: String,
    pub audience: String,
    pub pod_name: String,
    pub pod_uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: Hidden,
    /// How long it is good for, from now on.
    pub lifetime: Duration,
}

/// Who knows service accounts: the API server, or nobody.
#[async_trait]
pub trait ServiceAccounts: Send + Sync {
    async fn account(&self, namespace: &str, name: &str) -> Result<Account, String>;
    async fn token(&self, ask: TokenAsk) -> Result<Token, String>;
}

/// A node without an API server.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAccounts;

const NO_SERVER: &str = "cannot use TokenManager when kubelet is in standalone mode";

#[async_trait]
impl ServiceAccounts for NoAccounts {
    async fn account(&self, _: &str, _: &str) -> Result<Account, String> {
        Err(NO_SERVER.to_owned())
    }

    async fn token(&self, _: TokenAsk) -> Result<Token, String> {
        Err(NO_SERVER.to_owned())
    }
}
