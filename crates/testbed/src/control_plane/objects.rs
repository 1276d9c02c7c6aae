//! What a cluster made by kubeadm holds so that nodes can join it by token.

use serde_json::{Value, json};

/// The group of the tokens that kubeadm hands out.
const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const CSR: &str = "system:certificates.k8s.io:certificatesigningrequests";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A bootstrap token: six characters, a dot, sixteen characters.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: String,
    pub secret: String,
}

impl Token {
    /// A token out of hexadecimal digits that nobody can guess.
    pub fn from_digits(digits: &str) -> Self {
        let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default().to_owned();
        Self {
            id: part(0..6),
            secret: part(6..22),
        }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.id, self.secret)
    }
}

/// The objects, each with the path of the collection it is created in.
pub fn for_joining(token: &Token) -> Vec<(String, Value)> {
    let bindings = format!("{RBAC}/clusterrolebindings");
    let binding = |name, role: &str, group| (bindings.clone(), cluster_binding(name, role, group));
    vec![
        (
            "/api/v1/namespaces/kube-system/secrets".to_owned(),
            secret(token),
        ),
        binding(
            "kubeadm:kubelet-bootstrap",
            "system:node-bootstrapper",
            TOKEN_GROUP,
        ),
        binding(
            "kubeadm:node-autoapprove-bootstrap",
            &format!("{CSR}:nodeclient"),
            TOKEN_GROUP,
        ),
        binding(
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{CSR}:selfnodeclient"),
            "system:nodes",
        ),
        (format!("{RBAC}/clusterroles"), get_nodes()),
        binding("kubeadm:get-nodes", "kubeadm:get-nodes", TOKEN_GROUP),
    ]
}

fn secret(token: &Token) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": TOKEN_GROUP,
        },
    })
}

fn cluster_binding(name: &str, role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Group",
            "name": group,
        }],
    })
}

/// `kubeadm join` looks whether a node of its name is there already.
fn get_nodes() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "kubeadm:get-nodes"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
    })
}

/// Asks whether the one who asks may create certificate signing requests.
pub fn may_request_certificates() -> Value {
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "verb": "create",
        }},
    })
}

/// The account that pods of a namespace get unless they name another. A controller makes it, where
/// there is one.
pub fn default_account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
}

/// The authority's certificate as pods find it beside their token.
pub fn root_authority(certificate: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kube-root-ca.crt"},
        "data": {"ca.crt": certificate},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_form_the_server_asks_for() {
        let token = Token::from_digits(&"0123456789abcdef".repeat(4));
        assert_eq!(token.to_string(), "012345.6789abcdef012345");
        let (path, secret) = for_joining(&token).remove(0);
        assert_eq!(path, "/api/v1/namespaces/kube-system/secrets");
        assert_eq!(secret["metadata"]["name"], "bootstrap-token-012345");
    }
}
