//! What only a whole machine has: a kernel with AppArmor, huge pages to mount, and a journal to ask for its lines.

use krablet_testbed::vm::VmReport;
use serde_json::Value;

/// Before the agent starts: a profile that takes one directory away, and further lines of the configuration.
pub const MACHINE: &str = r#"
    test "$(cat /sys/module/apparmor/parameters/enabled)" = Y
    cat > /job/no-scratch <<END
profile no-scratch flags=(attach_disconnected) {
  file,
  capability,
  network,
  signal,
  deny /scratch/** w,
}
END
    apparmor_parser --replace --skip-cache /job/no-scratch
    cat > /job/features.yaml <<END
enableSystemLogHandler: true
enableSystemLogQuery: true
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
END
"#;

/// While the agent runs, and no other pods. `manifest`, `is`, `gone` and `eventually` are the script's around it.
pub const SCRIPT: &str = r#"
    looking() {
        manifest "$1" <<END
  restartPolicy: Never
  volumes: [{name: data, emptyDir: $2}]
  containers:
    - name: main
      image: krablet.local/tool:v1
      command: [/bin/sh, -c, "{ $3; } > /dev/termination-log 2>&1"]
      securityContext: $4
      resources: $5
      volumeMounts: [{name: data, mountPath: /scratch}]
END
    }
    confined='cat /proc/self/attr/current; touch /scratch/file && echo written || echo refused'
    looking by-default '{}' "$confined" '{}' '{}'
    looking by-profile '{}' "$confined" '{appArmorProfile: {type: Localhost, localhostProfile: no-scratch}}' '{}'
    looking unconfined '{}' "$confined" '{appArmorProfile: {type: Unconfined}}' '{}'
    looking huge '{medium: HugePages}' 'grep /scratch /proc/mounts' '{}' '{limits: {memory: 64Mi, hugepages-2Mi: 4Mi}}'
    looking missing '{}' true '{appArmorProfile: {type: Localhost, localhostProfile: not-there}}' '{}'
    for name in by-default by-profile unconfined huge; do eventually is $name .status.phase Succeeded; done
    eventually is missing '.status.containerStatuses[0].state.waiting.reason' CreateContainerError
    cp /job/out/pods /job/out/pods-of-features
    # The unit's own lines, by the agent and by the journal itself.
    systemd-run --wait --unit=speaker sh -c 'echo a word; echo another'
    query() { curl -sfk "https://127.0.0.1:10250/logs/?query=$1" > /job/out/query && grep -q another /job/out/query; }
    eventually query speaker
    journalctl -u speaker --no-pager -o short-precise | grep ' sh\[' > /job/out/speaker
    curl -sfk "https://127.0.0.1:10250/logs/?query=speaker&pattern=another&tailLines=1" > /job/out/query-part
    rm /etc/manifests/*.yaml
    eventually gone
    eventually no_tasks
"#;

pub fn assert_held(report: &VmReport) {
    let pods: Value = serde_json::from_str(&report.text("pods-of-features")).unwrap();
    let seen = |name: &str| {
        let mut items = pods["items"].as_array().unwrap().iter();
        let pod = items.find(|p| p["metadata"]["name"] == format!("{name}-vm"));
        let ended = &pod.unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
        ended["message"].as_str().unwrap_or_default().to_owned()
    };
    let by_default = seen("by-default");
    assert!(by_default.contains("(enforce)"), "{by_default}");
    assert!(by_default.ends_with("written\n"), "{by_default}");
    let by_profile = seen("by-profile");
    assert!(
        by_profile.starts_with("no-scratch (enforce)"),
        "{by_profile}"
    );
    assert!(by_profile.ends_with("refused\n"), "{by_profile}");
    let unconfined = seen("unconfined");
    assert!(unconfined.starts_with("unconfined"), "{unconfined}");
    let mut items = pods["items"].as_array().unwrap().iter();
    let missing = items.find(|p| p["metadata"]["name"] == "missing-vm");
    let waiting = &missing.unwrap()["status"]["containerStatuses"][0]["state"]["waiting"];
    let why = waiting["message"].as_str().unwrap_or_default();
    assert!(why.contains("not-there"), "{waiting}");
    let huge = seen("huge");
    assert!(huge.contains(" hugetlbfs "), "{huge}");
    assert!(huge.contains("pagesize=2M"), "{huge}");

    let said = |name: &str| -> Vec<String> {
        let text = report.text(name);
        let words = text.lines().filter_map(|line| line.split("]: ").nth(1));
        words.map(str::to_owned).collect()
    };
    let journal = said("speaker");
    assert_eq!(journal, ["a word", "another"]);
    let told = said("query");
    assert!(
        journal.iter().all(|line| told.contains(line)),
        "{}",
        report.text("query")
    );
    assert_eq!(said("query-part"), ["another"]);
}
