//! Probes of each kind, and what they bring about.

use std::path::Path;

use krablet_e2e::manifest::{pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::{Stage, status};
use serde_json::{Value, json};

/// A pod of one container with probes and the scratch directory.
fn probed(name: &str, scratch: &Path, container: Value, probes: Value) -> Value {
    pod(
        name,
        json!({
            "volumes": [scratch_volume(scratch)],
            "containers": [with(scratched(container), probes)],
        }),
    )
}

/// A probe that asks as often as it can and believes the first answer.
fn quick(probe: Value) -> Value {
    with(
        probe,
        json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5}),
    )
}

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["/bin/sh", "-c", script]}})
}

async fn ready(stage: &Stage, name: &str, wanted: bool) {
    let what = if wanted { "is ready" } else { "is not ready" };
    stage
        .until(name, what, |pod| {
            status::running(pod, "main")?;
            let container = status::container(pod, "main")?.ready;
            let conditions = ["Ready", "ContainersReady"].map(|kind| status::condition(pod, kind));
            match container == wanted && conditions == [wanted; 2] {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
}

/// Readiness goes up and down with the answers, and the container stays.
async fn readiness_follows(
    stage: &Stage,
    name: &str,
    container: Value,
    probe: Value,
    (file, bad, good): (&str, &str, &str),
    complaint: &str,
) {
    let scratch = stage.scratch(name);
    let file = scratch.join(file);
    let set = |text: &str| std::fs::write(&file, text).unwrap();
    set(bad);
    let manifest = probed(
        name,
        &scratch,
        container,
        json!({"readinessProbe": quick(probe)}),
    );
    let pod = stage.run(name, &manifest).await;
    let event = stage.event(name, "Unhealthy", complaint).await;
    assert_eq!(event.kind, "Warning");
    ready(stage, name, false).await;
    set(good);
    ready(stage, name, true).await;
    set(bad);
    ready(stage, name, false).await;
    set(good);
    ready(stage, name, true).await;
    let after = stage.pod(name).await.unwrap();
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&pod), id(&after));
    assert_eq!(status::container(&after, "main").unwrap().restart_count, 0);
    stage.end(name).await;
}

pub async fn readiness_by_exec(stage: &Stage) {
    readiness_follows(
        stage,
        "ready-exec",
        tool("main", &["hold"]),
        exec("cat /scratch/state; grep -q good /scratch/state"),
        ("state", "poor", "good"),
        "Readiness probe failed: poor",
    )
    .await;
}

pub async fn readiness_by_http(stage: &Stage) {
    readiness_follows(
        stage,
        "ready-http",
        tool("main", &["http", "-file", "/scratch/state"]),
        json!({"httpGet": {"path": "/healthz", "port": 8080}}),
        ("state", "503", "204"),
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
    )
    .await;
}

pub async fn readiness_by_grpc(stage: &Stage) {
    readiness_follows(
        stage,
        "ready-grpc",
        tool(
            "main",
            &["grpc", "-service", "db", "-file", "/scratch/state"],
        ),
        json!({"grpc": {"port": 8080, "service": "db"}}),
        ("state", "NOT_SERVING", "SERVING"),
        "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
    )
    .await;
}

/// A TCP probe is refused until somebody listens.
pub async fn readiness_by_tcp(stage: &Stage) {
    let (name, scratch) = ("ready-tcp", stage.scratch("ready-tcp"));
    let script = "while [ ! -f /scratch/listen ]; do sleep 0.1; done; exec /tool tcp";
    let manifest = probed(
        name,
        &scratch,
        shell("main", script),
        json!({
            "ports": [{"name": "db", "containerPort": 8080}],
            "readinessProbe": quick(json!({"tcpSocket": {"port": "db"}})),
        }),
    );
    stage.run(name, &manifest).await;
    stage
        .event(name, "Unhealthy", "Readiness probe failed: dial tcp")
        .await;
    ready(stage, name, false).await;
    std::fs::write(scratch.join("listen"), "").unwrap();
    ready(stage, name, true).await;
    stage.end(name).await;
}

pub async fn liveness_restarts_the_container(stage: &Stage) {
    let (name, scratch) = ("alive", stage.scratch("alive"));
    std::fs::write(scratch.join("state"), "200").unwrap();
    let probe = quick(json!({"httpGet": {"path": "/healthz", "port": 8080}}));
    let manifest = probed(
        name,
        &scratch,
        tool("main", &["http", "-file", "/scratch/state"]),
        json!({"livenessProbe": with(probe, json!({"initialDelaySeconds": 1}))}),
    );
    let before = stage.run(name, &manifest).await;
    std::fs::write(scratch.join("state"), "500").unwrap();
    stage
        .event(
            name,
            "Unhealthy",
            "Liveness probe failed: HTTP probe failed with statuscode: 500",
        )
        .await;
    stage
        .event(
            name,
            "Killing",
            "Container main failed liveness probe, will be restarted",
        )
        .await;
    std::fs::write(scratch.join("state"), "200").unwrap();
    stage
        .until(name, "is restarted", |pod| {
            status::running(pod, "main")?;
            status::ended_before(pod, "main")?;
            let id = |pod| status::id(status::container(pod, "main").unwrap());
            assert_ne!(id(&before), id(pod));
            Ok(())
        })
        .await;
    stage.end(name).await;
}

/// A probe's own grace period counts for what it kills, not the pod's much longer one.
pub async fn liveness_has_its_own_grace(stage: &Stage) {
    let (name, scratch) = ("alive-grace", stage.scratch("alive-grace"));
    // Only the first instance is stubborn, or the pod would need an hour to end.
    let script = "test -f /scratch/second && touch /scratch/fine && exec /tool hold; \
                  touch /scratch/second; exec /tool ignore-term";
    let own = json!({"terminationGracePeriodSeconds": 1, "initialDelaySeconds": 2});
    let container = with(
        scratched(shell("main", script)),
        json!({"livenessProbe": with(quick(exec("test -f /scratch/fine")), own)}),
    );
    let manifest = pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 3600,
            "volumes": [scratch_volume(&scratch)],
            "containers": [container],
        }),
    );
    stage.apply(name, &manifest);
    stage
        .until(name, "was killed by force and runs again", |pod| {
            let last = status::ended_before(pod, "main")?;
            assert_eq!(last.exit_code, 137);
            status::running(pod, "main").map(drop)
        })
        .await;
    stage.end(name).await;
}

/// While the startup probe has not succeeded no other probe runs; when it gives up, the container is restarted.
pub async fn startup_gates_the_others(stage: &Stage) {
    let (name, scratch) = ("startup", stage.scratch("startup"));
    let startup = exec("echo startup >> /scratch/asked; test -f /scratch/up");
    let manifest = probed(
        name,
        &scratch,
        tool("main", &["hold"]),
        json!({
            "startupProbe": with(quick(startup), json!({"failureThreshold": 1000})),
            "livenessProbe": quick(exec("echo liveness >> /scratch/asked")),
            "readinessProbe": quick(exec("echo readiness >> /scratch/asked")),
        }),
    );
    let asked = |what: &str| {
        let lines = stage.lines(&scratch, "asked");
        lines.iter().filter(|line| *line == what).count()
    };
    stage.run(name, &manifest).await;
    stage
        .wait(
            name,
            "the startup probe has asked often",
            async || match asked("startup") {
                3.. => Ok(()),
                count => Err(format!("{count} times")),
            },
        )
        .await;
    assert_eq!((asked("liveness"), asked("readiness")), (0, 0));
    let pod = stage.pod(name).await.unwrap();
    let container = status::container(&pod, "main").unwrap();
    assert_eq!((container.started, container.ready), (Some(false), false));
    std::fs::write(scratch.join("up"), "").unwrap();
    ready(stage, name, true).await;
    stage
        .wait(name, "the other probes ask", async || {
            match (asked("liveness"), asked("readiness")) {
                (1.., 1..) => Ok(()),
                counts => Err(format!("{counts:?}")),
            }
        })
        .await;
    let pod = stage.pod(name).await.unwrap();
    let container = status::container(&pod, "main").unwrap();
    assert_eq!(
        (container.started, container.restart_count),
        (Some(true), 0)
    );
    stage.end(name).await;
}

pub async fn failed_startup_restarts_the_container(stage: &Stage) {
    let name = "startup-fails";
    let probe = with(quick(exec("exit 3")), json!({"failureThreshold": 2}));
    let container = with(tool("main", &["hold"]), json!({"startupProbe": probe}));
    stage.apply(name, &single(name, container));
    stage
        .event(
            name,
            "Killing",
            "Container main failed startup probe, will be restarted",
        )
        .await;
    stage
        .until(name, "is restarted", |pod| {
            status::ended_before(pod, "main").map(drop)
        })
        .await;
    stage.end(name).await;
}
