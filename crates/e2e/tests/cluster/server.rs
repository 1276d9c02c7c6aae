//! What kubectl asks of a node: logs, commands, terminals, ports.

use std::ffi::OsStr;
use std::process::Stdio;

use krablet_e2e::manifest::{self, shell, single, tool};
use krablet_e2e::{Member, status};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// kubectl as an administrator runs it: by itself, or started by the program in `by`. Ended with the test.
pub fn kubectl_command(node: &Member, by: &[&str], arguments: &[&str]) -> Command {
    let plane = &node.plane;
    let kubectl = plane.bins().path("kubectl").unwrap();
    let mut words = by.iter().map(OsStr::new).chain([kubectl.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .arg("--kubeconfig")
        .arg(plane.admin_kubeconfig())
        .args(arguments)
        .env("HOME", plane.dir().join("home"))
        .env("KRABLET_BED", plane.dir())
        .env_remove("KUBECONFIG")
        .kill_on_drop(true);
    command
}

/// kubectl in the background, ended with the test.
pub fn spawn_kubectl(node: &Member, arguments: &[&str], stdin: Stdio) -> Child {
    kubectl_command(node, &[], arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

async fn with_input(node: &Member, arguments: &[&str], input: &str) -> Result<String, String> {
    let admin = node.plane.admin_kubeconfig();
    let said = node.plane.kubectl_as(&admin, arguments, Some(input)).await;
    said.map_err(|e| format!("{e:#}"))
}

pub async fn logs(node: &Member) {
    // The runtime writes a line as long as that in several parts.
    let script = "for n in 1 2 3; do echo line $n; done; echo oops >&2; \
                  head -c 40000 /dev/zero | tr '\\0' x; echo; exec tail -f /dev/null";
    let long = "x".repeat(40_000) + "\n";
    node.run(&single("logs", shell("main", script))).await;
    node.wait("logs", "everything is there", async || {
        let all = node.plane.kubectl(&["logs", "logs"]).await;
        let all = all.map_err(|e| format!("{e:#}"))?;
        match all.contains("line 3") && all.contains("oops") && all.contains(&long) {
            true => Ok(()),
            false => Err(format!("{} bytes: {all:.200}", all.len())),
        }
    })
    .await;
    let all = node.kubectl(&["logs", "logs"]).await;
    assert_eq!(all.lines().count(), 5, "{all}");
    let last = node.kubectl(&["logs", "logs", "--tail=1"]).await;
    assert_eq!(last.lines().count(), 1, "{last}");
    let stamped = node.kubectl(&["logs", "logs", "--timestamps"]).await;
    let stamp = stamped.split(' ').next().unwrap();
    assert!(stamp.ends_with('Z') && stamp.len() == 30, "{stamped}");
    let few = node.kubectl(&["logs", "logs", "--limit-bytes=4"]).await;
    // Which of the two streams the runtime read first is its own affair.
    assert_eq!(few, all[..4]);
    let why = node.plane.kubectl(&["logs", "logs", "--previous"]).await;
    let why = format!("{:#}", why.unwrap_err());
    let expected = r#"previous terminated container "main" in pod "logs" not found"#;
    assert!(why.contains(expected), "{why}");
    node.end("logs").await;
}

pub async fn followed_logs(node: &Member) {
    let script =
        "n=0; while [ $n -lt 200 ]; do echo line $n; n=$((n+1)); [ $n = 100 ] && sleep 1; done";
    let spec = json!({"containers": [shell("main", script)], "restartPolicy": "Never"});
    node.create(&manifest::pod("followed", spec)).await;
    node.wait("followed", "has begun", async || {
        let pod = node.pod("followed").await?;
        let begun = status::container(&pod, "main")?;
        match begun.state.as_ref().is_some_and(|s| s.waiting.is_none()) {
            true => Ok(()),
            false => Err(status::shown(&pod)),
        }
    })
    .await;
    let all = node.kubectl(&["logs", "-f", "followed"]).await;
    let expected: String = (0..200).map(|n| format!("line {n}\n")).collect();
    assert_eq!(all, expected);
    node.end("followed").await;
}

pub async fn commands(node: &Member) {
    let container = manifest::with(
        shell("main", "exec cat"),
        json!({"stdin": true, "stdinOnce": false}),
    );
    node.run(&single("commands", container)).await;
    let said = node.kubectl(&[
        "exec",
        "commands",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2",
    ]);
    assert_eq!(said.await, "out\n");
    let failed = node
        .plane
        .kubectl(&["exec", "commands", "--", "sh", "-c", "exit 7"])
        .await;
    let failed = format!("{:#}", failed.unwrap_err());
    assert!(failed.contains("exit code 7"), "{failed}");
    let text = "x".repeat(300_000);
    let exec = ["exec", "-i", "commands", "--", "sh", "-c", "cat | wc -c"];
    let counted = with_input(node, &exec, &text).await.unwrap();
    assert_eq!(counted.trim(), "300000");
    let wrong = node
        .plane
        .kubectl(&["exec", "commands", "-c", "other", "--", "true"])
        .await;
    assert!(wrong.is_err());
    let exec = ["exec", "-i", "commands", "--", "sh", "-c", "cat; exit 5"];
    let mut older = kubectl_command(node, &[], &exec);
    older
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .stdin(Stdio::null());
    let code = older.output().await.unwrap().status.code();
    assert_eq!(code, Some(5), "a client that speaks SPDY");

    // What is attached to is the container's own process: it says what it is told, and so does its log.
    with_input(node, &["attach", "-i", "commands"], "hello\n")
        .await
        .unwrap();
    node.wait("commands", "has heard it", async || {
        let log = node.plane.kubectl(&["logs", "commands"]).await;
        match log.map_err(|e| format!("{e:#}"))? {
            log if log.contains("hello") => Ok(()),
            log => Err(log),
        }
    })
    .await;
    copies(node).await;
    let pods = format!("/api/v1/nodes/{}/proxy/pods", node.name);
    let pods = node.kubectl(&["get", "--raw", &pods]).await;
    assert!(pods.contains(r#""name":"commands""#));
    node.end("commands").await;
}

async fn copies(node: &Member) {
    let here = node.dir().join("copied");
    let back = node.dir().join("copied-back");
    let bytes: Vec<u8> = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&here, &bytes).unwrap();
    let there = "default/commands:/tmp/copied";
    node.kubectl(&["cp", here.to_str().unwrap(), there]).await;
    node.kubectl(&["cp", there, back.to_str().unwrap()]).await;
    assert!(std::fs::read(&back).unwrap() == bytes, "the copy differs");
}

pub async fn ports(node: &Member) {
    node.run(&single("ports", tool("main", &["http", "-port", "8080"])))
        .await;
    // As kubectl does by itself, and as older ones do.
    for sockets in ["true", "false"] {
        forwarded(node, sockets).await;
    }
    node.end("ports").await;
}

/// Two ports, one of which nobody listens on: the other does not suffer from it.
async fn forwarded(node: &Member, sockets: &str) {
    let mut command = kubectl_command(node, &[], &["port-forward", "pod/ports", ":8080", ":8081"]);
    command
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", sockets)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", sockets)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut place = async |there: &str| loop {
        let line = lines.next_line().await.unwrap().unwrap();
        let (here, remote) = line.split_once(" -> ").unwrap();
        if here.contains("127.0.0.1") && remote == there {
            let (_, port) = here.rsplit_once(':').unwrap();
            return port.parse::<u16>().unwrap();
        }
    };
    let (open, shut) = (place("8080").await, place("8081").await);
    let asked = (0..8).map(|_| page(open));
    for answer in futures::future::join_all(asked).await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(page(shut).await, "");
    child.kill().await.unwrap();
}

/// What comes from there until it ends.
async fn page(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    // Where nobody listens, the connection may have ended by now.
    let _ = stream.write_all(asked).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}
