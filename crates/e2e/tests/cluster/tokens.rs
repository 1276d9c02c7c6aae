//! Tokens of service accounts as containers see them: whole, and renewed in time.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use krablet_e2e::Member;
use krablet_e2e::cluster_stage::{Joining, PODS};
use krablet_e2e::manifest::{scratch_volume, shell, single, with};
use serde_json::json;

use crate::volumes::at;

/// A token of ten minutes has then lived four fifths of its life in a few seconds: when it is renewed differs by ten of them.
const AHEAD: i64 = 468;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// A clock that is ahead of the API server's.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && id == CLOCK_REALTIME) now->tv_sec += AHEAD;
    return failed;
}
"#;

/// The agent goes by a clock that is ahead by so many seconds from its next start on.
pub fn go_ahead(node: &mut Member, seconds: i64) {
    let dir = node.stage.scratch("clock");
    let file = |name: &str| dir.join(name).display().to_string();
    let (source, library, program) = (file("clock.c"), file("clock.so"), file("krablet"));
    fs::write(&source, CLOCK).unwrap();
    let mut gcc = Command::new("gcc");
    let ahead = format!("-DAHEAD={seconds}");
    gcc.args(["-shared", "-fPIC", &ahead, "-o", &library, &source]);
    assert!(gcc.status().unwrap().success());
    let own = node.stage.krablet.program().display();
    let script = format!("#!/bin/sh\nexec env LD_PRELOAD='{library}' '{own}' \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    node.stage.krablet.replace_program(program.into());
}

/// A reader in a tight loop never sees anything but a whole token, while the agent renews it, and comes and goes.
pub async fn are_whole_while_they_are_renewed(main: &Member) {
    let mut node = main.prepared_beside("vol-tokens", Joining::default()).await;
    go_ahead(&mut node, AHEAD);
    node.start().await;
    let name = "vol-tokens";
    let scratch = node.stage.scratch(name);
    // Three parts, no more and no less, and never empty. What differs from the last is noted.
    let script = "last=; while :; do \
        if ! read -r t < /var/run/token && [ -z \"$t\" ]; then echo empty >> /scratch/bad; continue; fi; \
        case \"$t\" in *.*.*.*) echo more >> /scratch/bad;; *.?*.?*) ;; *) echo \"less $t\" >> /scratch/bad;; esac; \
        if [ \"$t\" != \"$last\" ]; then echo \"${#t}\" >> /scratch/seen; last=$t; fi; done";
    let container = with(
        shell("main", script),
        json!({"volumeMounts": [at("token", "/var/run"), at("scratch", "/scratch")]}),
    );
    let mut manifest = single(name, container);
    manifest["spec"]["volumes"] = json!([
        {"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        scratch_volume(&scratch),
    ]);
    node.run(&manifest).await;
    seen(&node, &scratch, 4).await;
    for _ in 0..2 {
        // A new agent asks for a new one.
        let before = node.stage.lines(&scratch, "seen").len();
        node.stage.crash().await;
        node.ready().await;
        seen(&node, &scratch, before + 1).await;
    }
    assert_eq!(node.stage.lines(&scratch, "bad"), Vec::<String>::new());
    node.end(name).await;
    node.down().await;
}

/// What nobody gives a pod keeps it waiting, with the API server's words; it comes by itself when somebody does.
pub async fn of_an_account_that_is_gone(node: &Member) {
    let name = "vol-no-account";
    let account = json!({"metadata": {"name": name}});
    node.plane.create(ACCOUNTS, &account).await.unwrap();
    let container = with(
        shell("main", "test -s /var/run/token && exec tail -f /dev/null"),
        json!({"volumeMounts": [at("token", "/var/run")]}),
    );
    let mut manifest = single(name, container);
    manifest["spec"]["serviceAccountName"] = json!(name);
    // The account has to be there when the pod is made, and is not any more when it comes to its node.
    manifest["spec"]["schedulerName"] = json!("nobody");
    manifest["spec"]["volumes"] = json!([
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]);
    node.create_unbound(&manifest).await;
    node.plane
        .delete(&format!("{ACCOUNTS}/{name}"))
        .await
        .unwrap();
    let binding = json!({
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
    });
    let path = format!("{PODS}/{name}/binding");
    node.plane.create(&path, &binding).await.unwrap();
    let why = format!(
        "MountVolume.SetUp failed for volume \"token\" : failed to fetch token: serviceaccounts \"{name}\" not found"
    );
    node.event(name, "FailedMount", &why).await;
    node.plane.create(ACCOUNTS, &account).await.unwrap();
    node.running(name).await;
    node.end(name).await;
}

async fn seen(node: &Member, scratch: &Path, wanted: usize) {
    node.wait("vol-tokens", "a token is seen", async || {
        match node.stage.lines(scratch, "seen").len() {
            seen if seen >= wanted => Ok(()),
            seen => Err(format!("{seen} of {wanted}")),
        }
    })
    .await;
}
