//! The real kubectl, as a user would run it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::ControlPlane;

const PATIENCE: Duration = Duration::from_secs(180);

impl ControlPlane {
    /// Runs kubectl as an administrator and returns what it printed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_as(&self.admin_kubeconfig(), arguments, None)
            .await
    }

    /// The same with `-o json` added, read.
    pub async fn kubectl_json(&self, arguments: &[&str]) -> Result<Value> {
        let arguments = [arguments, &["-o", "json"]].concat();
        let text = self.kubectl(&arguments).await?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {arguments:?}"))
    }

    /// `kubectl apply` of an object or a list of them.
    pub async fn kubectl_apply(&self, object: &Value) -> Result<String> {
        let text = object.to_string();
        let arguments = ["apply", "-f", "-"];
        self.kubectl_as(&self.admin_kubeconfig(), &arguments, Some(&text))
            .await
    }

    /// Runs kubectl with another kubeconfig, and with something to read from its standard input.
    pub async fn kubectl_as(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<String> {
        let mut command = Command::new(self.bins().path("kubectl")?);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            // It caches below the home directory what one server can do, by the server's address.
            .env("HOME", self.dir().join("home"))
            // The keeper ends it if nobody else does.
            .env("KRABLET_BED", self.dir())
            .env_remove("KUBECONFIG")
            .stdin(input.map_or_else(Stdio::null, |_| Stdio::piped()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let run = async {
            let mut child = command.spawn().context("starting kubectl")?;
            if let (Some(mut stdin), Some(text)) = (child.stdin.take(), input) {
                // One that does not read it says why in its own words.
                let _ = stdin.write_all(text.as_bytes()).await;
            }
            Ok::<_, anyhow::Error>(child.wait_with_output().await?)
        };
        let output = tokio::time::timeout(PATIENCE, run)
            .await
            .with_context(|| format!("kubectl {arguments:?} does not end"))??;
        if !output.status.success() {
            bail!(
                "kubectl {arguments:?}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
