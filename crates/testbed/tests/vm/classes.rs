//! Pods of every class in the machine: where their cgroups are, what they are held to, who is killed first, and what
//! becomes of one that takes more memory than it may.

use krablet_testbed::vm::VmReport;
use serde_json::Value;

/// Before the agent starts: swap, huge pages, and further lines of its configuration.
pub const MACHINE: &str = r#"
    cat > /job/classes.yaml <<END
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
END
    fallocate -l 256M /swapfile
    chmod 600 /swapfile
    mkswap -q /swapfile
    swapon /swapfile
    echo 4 > /proc/sys/vm/nr_hugepages
"#;

/// While the agent runs, and no other pods. `manifest`, `is`, `gone` and `eventually` are the script's around it.
pub const SCRIPT: &str = r#"
    sized() {
        manifest "$1" <<END
  restartPolicy: $2
  containers: [{name: main, image: "krablet.local/tool:v1", command: $3, resources: $4}]
END
    }
    hold='[/tool, hold]'
    sized guaranteed Always "$hold" '{limits: {cpu: 500m, memory: 64Mi}}'
    sized burstable Always "$hold" '{requests: {cpu: 200m, memory: 64Mi}, limits: {memory: 512Mi, hugepages-2Mi: 4Mi}}'
    sized besteffort Always "$hold" '{}'
    # Its first process only looks on: what the kernel kills by itself is the other.
    sized greedy Never '[/bin/sh, -c, "/tool eat-memory 256; sleep 10000"]' '{limits: {memory: 32Mi}}'
    ready='.status.conditions[] | select(.type == "Ready") | .status'
    for name in guaranteed burstable besteffort; do eventually is $name "$ready" True; done
    eventually is greedy .status.phase Failed
    cp /job/out/pods /job/out/pods-of-classes
    file() { echo "$1 $(cat "$2" 2>/dev/null || echo absent)"; }
    tell() {
        uid=$(jq -r ".items[] | select(.metadata.name == \"$1-vm\") | .metadata.uid" /job/out/pods | tr - _)
        slice=$(find /sys/fs/cgroup/kubepods.slice -type d -name "kubepods*pod$uid.slice")
        echo "$1 in $(basename "$(dirname "$slice")")"
        for name in cpu.weight cpu.max memory.max pids.max hugetlb.2MB.max; do file "$1 pod $name" "$slice/$name"; done
        for scope in "$slice"/cri-containerd-*.scope; do
            pid=$(head -n 1 "$scope/cgroup.procs")
            if [ "$(cat "/proc/$pid/comm")" = pause ]; then continue; fi
            for name in cpu.max memory.max memory.swap.max memory.oom.group hugetlb.2MB.max; do
                file "$1 main $name" "$scope/$name"
            done
            file "$1 main oom_score_adj" "/proc/$pid/oom_score_adj"
        done
    }
    {
        for name in guaranteed burstable besteffort; do tell $name; done
        file "class burstable" /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/cpu.weight
        # Of all that has been below it: what was killed is counted here, whoever has removed its cgroup since.
        echo "class kills $(awk '/^oom_group_kill/ {print $2}' /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/memory.events)"
        echo "machine memory $(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) * 1024))"
        echo "machine swap $(($(awk '/^SwapTotal/ {print $2}' /proc/meminfo) * 1024))"
        echo "machine controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
    } | tee /job/out/classes
    # A manifest with another size: the pod comes back in a cgroup of that size, and the old one goes.
    sized guaranteed Always "$hold" '{limits: {cpu: 250m, memory: 48Mi}}'
    sizes() { cat /sys/fs/cgroup/kubepods.slice/kubepods-pod*.slice/"$1" | tr '\n' ,; }
    resized() { [ "$(sizes cpu.max) $(sizes memory.max)" = "25000 100000, 50331648," ]; }
    eventually resized
    eventually is guaranteed "$ready" True
    rm /etc/manifests/*.yaml
    eventually gone
    eventually no_tasks
"#;

/// What the files say, as the pods' manifests want it.
pub fn assert_held(report: &VmReport) {
    let text = report.text("classes");
    let line = |name: &str| {
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{name}: {text}"))
    };
    let number = |name: &str| line(name).parse::<u64>().unwrap();
    let (memory, swap) = (number("machine memory"), number("machine swap"));
    assert!(swap > 0, "{text}");
    let score = (1000 - 1000 * (64 << 20) / memory).to_string();
    for (name, expected) in [
        ("guaranteed in", "kubepods.slice"),
        ("guaranteed pod cpu.weight", "20"),
        ("guaranteed pod cpu.max", "50000 100000"),
        ("guaranteed pod memory.max", "67108864"),
        ("guaranteed pod pids.max", "123"),
        ("guaranteed main cpu.max", "50000 100000"),
        ("guaranteed main memory.max", "67108864"),
        ("guaranteed main memory.swap.max", "0"),
        ("guaranteed main memory.oom.group", "1"),
        ("guaranteed main oom_score_adj", "-997"),
        ("burstable in", "kubepods-burstable.slice"),
        ("burstable pod cpu.weight", "8"),
        ("burstable pod cpu.max", "max 100000"),
        ("burstable pod memory.max", "536870912"),
        // Static pods are critical, and critical pods do not swap. The share of others is a table of the runtime's room.
        ("burstable main memory.swap.max", "0"),
        ("burstable main memory.oom.group", "1"),
        ("burstable main oom_score_adj", score.as_str()),
        ("class burstable", "8"),
        ("besteffort in", "kubepods-besteffort.slice"),
        ("besteffort pod cpu.weight", "1"),
        ("besteffort pod cpu.max", "max 100000"),
        ("besteffort pod memory.max", "max"),
        ("besteffort main memory.swap.max", "0"),
        ("besteffort main memory.oom.group", "1"),
        ("besteffort main oom_score_adj", "1000"),
    ] {
        assert_eq!(line(name), expected, "{name}: {text}");
    }
    assert_huge_pages(line("machine controllers"), &line);
    assert!(number("class kills") > 0, "{text}");
    assert_killed(report);
}

fn assert_huge_pages<'a>(controllers: &str, line: &impl Fn(&str) -> &'a str) {
    if !controllers.split(' ').any(|name| name == "hugetlb") {
        eprintln!(
            "SKIPPED the limits of huge pages: the machine's kernel has no controller for them"
        );
        return;
    }
    assert_eq!(line("burstable pod hugetlb.2MB.max"), "4194304");
    assert_eq!(line("burstable main hugetlb.2MB.max"), "4194304");
    // Who asks for none gets none.
    assert_eq!(line("guaranteed pod hugetlb.2MB.max"), "0");
    assert_eq!(line("guaranteed main hugetlb.2MB.max"), "0");
}

/// The container went as a whole, though its first process had taken nothing. With systemd the runtime may not learn why:
/// it looks at the container's cgroup, which systemd removes as soon as it is empty. Then it says no more than `Error`.
fn assert_killed(report: &VmReport) {
    let pods: Value = serde_json::from_str(&report.text("pods-of-classes")).unwrap();
    let mut items = pods["items"].as_array().unwrap().iter();
    let pod = items.find(|p| p["metadata"]["name"] == "greedy-vm");
    let ended = &pod.unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
    let reason = ended["reason"].as_str().unwrap_or_default();
    assert!(["OOMKilled", "Error"].contains(&reason), "{pod:?}");
    assert_eq!(ended["exitCode"], 137, "{pod:?}");
}
