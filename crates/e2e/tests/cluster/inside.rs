//! Looking into containers from within: what a script says there is what their processes see.

use std::time::Duration;

use krablet_cri::RuntimeService;
use krablet_cri::v1::ContainerState;
use krablet_e2e::{Member, status};
use serde_json::Value;

/// The id of a running container of the pod: of the one with this name, or of the first.
pub async fn running_id(
    node: &Member,
    pod: &str,
    container: Option<&str>,
) -> Result<String, String> {
    let uid = status::uid(&node.pod(pod).await?);
    let all = node.containers(&uid).await.into_iter();
    let mut running = all.filter(|c| {
        let name = c.metadata.as_ref().map(|m| m.name.as_str());
        c.state == ContainerState::ContainerRunning as i32
            && (container.is_none() || container == name)
    });
    let first = running.next().ok_or("no container runs")?;
    Ok(first.id)
}

async fn said(
    node: &Member,
    pod: &str,
    container: Option<&str>,
    script: &str,
) -> Result<String, String> {
    let id = running_id(node, pod, container).await?;
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    let said = node
        .stage
        .runtime
        .exec_sync(&id, command.to_vec(), Duration::from_secs(30))
        .await
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    match said.exit_code {
        0 => Ok(text.trim_end().to_owned()),
        code => {
            let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
            Err(format!("exit {code}: {text}{complaint}"))
        }
    }
}

/// What a script says inside the pod's container.
pub async fn inside(node: &Member, pod: &str, script: &str) -> Result<String, String> {
    said(node, pod, None, script).await
}

/// The same in the container of that name.
pub async fn inside_of(
    node: &Member,
    pod: &str,
    container: &str,
    script: &str,
) -> Result<String, String> {
    said(node, pod, Some(container), script).await
}

/// Waits until the script says this.
pub async fn says(node: &Member, pod: &str, script: &str, expected: &str) {
    node.wait(
        pod,
        &format!("`{script}` says {expected:?}"),
        async || match inside(node, pod, script).await? {
            said if said == expected => Ok(()),
            said => Err(said),
        },
    )
    .await;
}

/// Waits until a container cannot be started for this reason with this message.
pub async fn waits(node: &Member, pod: &str, container: &str, reason: &str, message: &str) {
    let expected = (reason.to_owned(), message.to_owned());
    node.until(pod, message, |seen| {
        match status::waiting(seen, container)? {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

/// Applies a manifest and waits until the node has told why it does not take it. Nobody but the node looks at a static pod.
pub async fn refused_by_the_node(node: &Member, name: &str, manifest: &Value, why: &str) {
    node.stage.apply(name, manifest);
    node.wait(name, "is refused", async || {
        let log = node.stage.krablet.log().replace('\\', "");
        match log.contains(why) {
            true => Ok(()),
            false => Err("not told yet".to_owned()),
        }
    })
    .await;
    node.stage.remove(name);
}

/// Deletes these pods and waits until nothing is left of any.
pub async fn end_all(node: &Member, pods: &[&str]) {
    let mut uids = Vec::new();
    for pod in pods {
        uids.push(status::uid(&node.pod(pod).await.unwrap()));
        node.delete(pod).await;
    }
    for (pod, uid) in pods.iter().zip(&uids) {
        node.gone(pod, uid).await;
    }
}
