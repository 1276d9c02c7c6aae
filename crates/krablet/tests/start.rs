//! Starts that cannot succeed: the binary says why in one line and ends, whatever else is missing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::process::{Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Nobody listens there.
const NO_RUNTIME: &str = "unix:///nonexistent/containerd.sock";
/// Only a start that goes on gets here.
const LONG: Duration = Duration::from_secs(60);

/// Starts the agent with these flags; `DIR` in them is a directory of its own.
async fn start(dir: &TempDir, flags: &[&str]) -> Output {
    let dir = dir.path().display().to_string();
    let given = flags.iter().map(|flag| flag.replace("DIR", &dir));
    let agent = tokio::process::Command::new(env!("CARGO_BIN_EXE_krablet"))
        .arg(format!("--root-dir={dir}/root"))
        .arg(format!("--cert-dir={dir}/pki"))
        .arg(format!("--container-runtime-endpoint={NO_RUNTIME}"))
        .args(given)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(LONG, agent).await;
    ended.expect("it goes on").unwrap()
}

#[tokio::test]
async fn a_bad_kubeconfig_is_told_without_a_runtime() {
    let cut = "apiVersion: v1\nkind: Config\nclusters: [{name: a";
    let dangling = "apiVersion: v1\nkind: Config\ncurrent-context: away\n";
    let both: &[&str] = &["--kubeconfig=DIR/conf", "--bootstrap-kubeconfig=DIR/boot"];
    let one = &both[..1];
    for (file, text, flags, word) in [
        ("none", "", one, "no bootstrap kubeconfig is given"),
        ("conf", cut, one, "conf"),
        ("conf", dangling, one, "away"),
        ("none", "", both, "boot"),
        ("boot", cut, both, "boot"),
        ("boot", dangling, both, "away"),
    ] {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join(file), text).unwrap();
        let ended = start(&dir, flags).await;
        let log = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{file} {text}: {log}");
        let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
        assert_eq!(errors.len(), 1, "{file} {text}: one clear line: {log}");
        assert!(errors[0].contains(word), "{word} is missing in {log}");
    }
}
