//! What nodes ask of the API server, as the server itself writes it down.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::calls::Calls;

/// The server's record of requests by nodes.
pub struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

impl Audit {
    /// The record is kept in this directory.
    pub fn prepare(dir: &Path) -> Result<Self> {
        let audit = Self {
            policy: dir.join("audit-policy.json"),
            log: dir.join("audit.log"),
        };
        // Each request once, as it comes: a watch has no end to wait for.
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
            "rules": [
                {"level": "Metadata", "userGroups": ["system:nodes"]},
                {"level": "None"},
            ],
        });
        fs::write(&audit.policy, policy.to_string())?;
        Ok(audit)
    }

    /// What the API server has to be told for this.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
        ]
    }

    /// Requests of a node so far.
    pub fn requests(&self, node: &str) -> Result<Calls> {
        let text = fs::read_to_string(&self.log)
            .with_context(|| format!("the API server's record {}", self.log.display()))?;
        Ok(parse(&text, node))
    }
}

fn parse(text: &str, node: &str) -> Calls {
    let user = format!("system:node:{node}");
    let requests = text
        .lines()
        // The last line may be under way.
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|request| request["user"]["username"] == user.as_str());
    requests.map(|request| name(&request)).collect()
}

/// `patch pods/status`, or the path of what is no object.
fn name(request: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &request["objectRef"];
    let verb = text(&request["verb"]);
    match (&object["resource"], &object["subresource"]) {
        (Value::Null, _) => {
            let uri = text(&request["requestURI"]);
            format!("{verb} {}", uri.split('?').next().unwrap_or_default())
        }
        (resource, Value::Null) => format!("{verb} {}", text(resource)),
        (resource, part) => format!("{verb} {}/{}", text(resource), text(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_node_and_kind() {
        let request = |node: &str, more: Value| {
            let mut request = json!({"user": {"username": format!("system:node:{node}")}});
            if let (Some(all), Some(more)) = (request.as_object_mut(), more.as_object()) {
                all.extend(more.clone());
            }
            format!("{request}\n")
        };
        let status =
            json!({"verb": "patch", "objectRef": {"resource": "pods", "subresource": "status"}});
        let text = [
            request("a", status.clone()),
            request("a", status.clone()),
            request("b", status),
            request(
                "a",
                json!({"verb": "watch", "objectRef": {"resource": "pods"}}),
            ),
            request(
                "a",
                json!({"verb": "get", "requestURI": "/version?timeout=5s"}),
            ),
            "{\"user".to_owned(),
        ];
        let calls = parse(&text.concat(), "a");
        assert_eq!(calls.total(), 4);
        assert_eq!(
            calls.per_pod(1),
            "patch pods/status 2.0, get /version 1.0, watch pods 1.0"
        );
    }
}
