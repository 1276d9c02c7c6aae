//! Who hands out tokens.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::TokenRequest;
use krablet_kube::{Call, Kube, Priority, Verb};

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotIssued {
    /// What users read.
    pub text: String,
    /// Nobody refused: the server is away, or busy.
    pub passing: bool,
}

/// The boundary: one request for a token.
#[async_trait]
pub trait Issuer: Send + Sync {
    async fn issue(
        &self,
        namespace: &str,
        service_account: &str,
        request: TokenRequest,
    ) -> Result<TokenRequest, NotIssued>;
}

/// The API server.
pub struct KubeIssuer(pub Kube);

#[async_trait]
impl Issuer for KubeIssuer {
    async fn issue(
        &self,
        namespace: &str,
        service_account: &str,
        request: TokenRequest,
    ) -> Result<TokenRequest, NotIssued> {
        let path =
            format!("/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token");
        let body = serde_json::to_vec(&request).map_err(|e| NotIssued {
            text: e.to_string(),
            passing: false,
        })?;
        let call = Call::new(Verb::Create, path)
            .body(body)
            .priority(Priority::Normal);
        self.0.object(call).await.map_err(|e| NotIssued {
            text: e.to_string(),
            passing: e.is_passing(),
        })
    }
}
