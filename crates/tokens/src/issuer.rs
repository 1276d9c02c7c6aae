//! Who hands out tokens.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::TokenRequest;
use krablet_kube::{Call, Kube, Priority, Verb};

/// The boundary: one request for a token. The error is what users read.
#[async_trait]
pub trait Issuer: Send + Sync {
    async fn issue(
        &self,
        namespace: &str,
        service_account: &str,
        request: TokenRequest,
    ) -> Result<TokenRequest, String>;
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
    ) -> Result<TokenRequest, String> {
        let path =
            format!("/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token");
        let body = serde_json::to_vec(&request).map_err(|e| e.to_string())?;
        let call = Call::new(Verb::Create, path)
            .body(body)
            .priority(Priority::Normal);
        self.0.object(call).await.map_err(|e| e.to_string())
    }
}
