//! The virtual machine boots, is what users have, and krablet runs pods in it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use krablet_testbed::vm::{self, VmJob, VmReport};
use krablet_testbed::{images, krablet_program};

/// What every job begins with.
const PRELUDE: &str = r#"
    set -eu
    eventually() {
        tries=0
        until "$@"; do
            tries=$((tries + 1))
            if [ $tries -gt 900 ]; then echo "did not come true: $*"; return 1; fi
            sleep 0.2
        done
    }
    /job/start-containerd
"#;

fn assert_done(report: &VmReport) {
    let journal = report.text("journal");
    assert_eq!(
        report.code,
        Some(0),
        "{}\n{journal}\n{}",
        report.output,
        report.text("krablet.log")
    );
}

/// What the machine has to be for the rest to mean something.
const MACHINE: &str = r#"
    test "$(cat /proc/1/comm)" = systemd
    test "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs
    ctr --namespace k8s.io images ls -q | tee /job/out/images
    ctr --namespace k8s.io run --rm --cgroup test.slice:lab:one --runc-systemd-cgroup \
        krablet.local/tool:v1 one /tool cat /proc/self/cgroup | tee /job/out/scope
"#;

/// One boot for all of it, as a boot is what costs: the machine, the runtime, and then a static pod of krablet under the systemd cgroup driver, with its limits in place.
#[tokio::test]
async fn krablet_runs_a_pod_under_systemd_and_cgroup_v2() {
    let script = r#"
        mkdir -p /etc/manifests
        cat > /job/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: systemd
readOnlyPort: 10255
address: 127.0.0.1
podPidsLimit: 123
systemReserved: {memory: 256Mi}
END
        cp /job/web.yaml /etc/manifests/
        systemd-run --unit=krablet --property=Delegate=yes --property=StandardOutput=append:/job/out/krablet.log \
            --property=StandardError=append:/job/out/krablet.log \
            /job/krablet --config=/job/config.yaml --hostname-override=vm
        pods() { curl -sf http://127.0.0.1:10255/pods > /job/out/pods; }
        ready() { pods && jq -r '.items[] | select(.metadata.name == "web-vm") | .status.conditions[] | "\(.type)=\(.status)"' /job/out/pods | grep -qx Ready=True; }
        gone() { pods && jq '.items | length' /job/out/pods | grep -qx 0; }
        no_tasks() { [ -z "$(ctr --namespace k8s.io tasks ls -q)" ]; }
        eventually ready
        find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope' | while read scope; do
            echo "$scope $(cat "$scope/memory.max") $(cat "$scope/cpu.weight")"
            for pid in $(cat "$scope/cgroup.procs"); do echo "oom $(cat /proc/$pid/comm) $(cat /proc/$pid/oom_score_adj)"; done
        done | tee /job/out/cgroups
        slice=$(basename /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod*.slice)
        show() { echo "$1 $(cat "$2/cpu.weight") $(cat "$2/cpu.max" | tr ' ' /) $(cat "$2/memory.max") $(cat "$2/pids.max")"; }
        {
            show pod "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/$slice"
            show class /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
            show lowest /sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice
            show all /sys/fs/cgroup/kubepods.slice
            echo total $(( $(awk '/MemTotal/ {print $2}' /proc/meminfo) * 1024 - 268435456 ))
            echo unit $(systemctl show "$slice" -p LoadState -p ActiveState -p Transient -p MemoryMax -p CPUWeight -p TasksMax)
        } | tee /job/out/limits
        # What systemd was told of survives its looking at everything anew.
        systemctl daemon-reload
        show again "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/$slice" | tee -a /job/out/limits
        rm /etc/manifests/web.yaml
        eventually gone
        eventually no_tasks
        no_slice() { ! systemctl list-units --all --plain --no-legend 'kubepods-burstable-pod*' | grep -q slice; }
        eventually no_slice
        systemctl stop krablet
    "#;
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = vec![
        (krablet_program().unwrap(), "krablet".to_owned()),
        (examples.join("web.yaml"), "web.yaml".to_owned()),
    ];
    let report = vm::run(VmJob {
        files,
        script: format!("{PRELUDE}{MACHINE}{script}"),
        ..VmJob::default()
    })
    .await
    .unwrap();
    assert_done(&report);
    assert!(report.text("images").contains(images::PAUSE));
    assert!(
        report.text("scope").contains("test.slice/lab-one.scope"),
        "{}",
        report.text("scope")
    );
    let cgroups = report.text("cgroups");
    let limited = cgroups.lines().any(|line| {
        line.contains("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod")
            && line.contains(" 67108864 ")
    });
    assert!(
        limited,
        "the container's scope has its memory limit: {cgroups}"
    );
    assert!(
        cgroups.contains("oom pause -998"),
        "the sandbox is the last to be killed: {cgroups}"
    );
    assert_limits(&report.text("limits"));
}

/// The slices of the pod, of its class and of all pods: weight, quota, memory, processes.
fn assert_limits(limits: &str) {
    let line = |name: &str| {
        let found = limits.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name}: {limits}")).trim()
    };
    assert_eq!(line("pod "), "1 max/100000 67108864 123");
    assert_eq!(line("again "), line("pod "), "after systemd's reload");
    assert_eq!(line("class "), "1 max/100000 max max");
    assert_eq!(line("lowest "), "1 max/100000 max max");
    let all: Vec<&str> = line("all ").split(' ').collect();
    assert_eq!(all[2], line("total "), "{limits}");
    let unit = line("unit ");
    for property in [
        "LoadState=loaded",
        "ActiveState=active",
        "Transient=yes",
        "MemoryMax=67108864",
        "CPUWeight=1",
        "TasksMax=123",
    ] {
        assert!(unit.split(' ').any(|p| p == property), "{property}: {unit}");
    }
}
