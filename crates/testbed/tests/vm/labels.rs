//! SELinux: what a container sees of its labels, and what it may open because of them. A kernel has either this or
//! AppArmor, so it takes a boot of its own.

use krablet_testbed::vm::VmReport;
use serde_json::Value;

/// What is not labelled may do as it likes until there is a policy.
pub const KERNEL: &str = "security=selinux selinux=1 enforcing=0";

/// A policy in which the host may do everything and a container everything but open what is labelled as the host's, or what
/// is labelled with categories it does not have. Whatever bears no label is the host's.
const POLICY: &str = r#"
(handleunknown allow)
(mls true)
(policycap nnp_nosuid_transition)
(class process (transition dyntransition))
(class file (read write open entrypoint))
(class dir (search))
(classorder (process file dir))
(sensitivity s0)
(sensitivityorder (s0))
(sensitivitycategory s0 (range c0 c1023))
(level low (s0))
(level high (s0 (range c0 c1023)))
(levelrange all_levels (low high))
(user system_u)
(role system_r)
(role object_r)
(userrole system_u system_r)
(userrole system_u object_r)
(userlevel system_u low)
(userrange system_u all_levels)
(type kernel_t)
(type container_t)
(type spc_t)
(type host_t)
(type open_t)
(type container_file_t)
(type container_ro_file_t)
(typeattribute process_type)
(typeattributeset process_type (kernel_t container_t spc_t))
(typeattribute file_type)
(typeattributeset file_type (host_t open_t container_file_t container_ro_file_t))
(typeattribute free_type)
(typeattributeset free_type (kernel_t spc_t))
(roletype system_r process_type)
(roletype object_r file_type)
(allow kernel_t process_type (process (transition dyntransition)))
(allow free_type file_type (file (read write open entrypoint)))
(allow free_type file_type (dir (search)))
(allow process_type process_type (file (read write open)))
(allow process_type process_type (dir (search)))
(allow container_t container_file_t (file (read write open entrypoint)))
(allow container_t container_ro_file_t (file (read open)))
(allow container_t container_ro_file_t (dir (search)))
(allow container_t open_t (file (read write open)))
(allow container_t open_t (dir (search)))
(allow container_t container_file_t (dir (search)))
(mlsconstrain (file (read write open)) (or (dom h1 h2) (eq t1 free_type)))
(context of_kernel (system_u system_r kernel_t all_levels))
(context of_host (system_u object_r host_t (low low)))
(context of_all (system_u object_r open_t (low low)))
(fsuse xattr ext4 of_host)
(fsuse xattr overlay of_host)
(fsuse trans tmpfs of_all)
(fsuse trans devtmpfs of_all)
(fsuse trans devpts of_all)
(fsuse trans mqueue of_all)
(fsuse trans hugetlbfs of_all)
(genfscon proc "/" of_all)
(genfscon sysfs "/" of_all)
(genfscon cgroup2 "/" of_all)
"#;

/// Before anything else: the policy in force, and where the runtime looks for the labels of those who ask for none.
pub fn machine() -> String {
    format!(
        r#"
    mkdir -p /etc/selinux/lab/contexts
    printf 'SELINUX=enforcing\nSELINUXTYPE=lab\n' > /etc/selinux/config
    cat > /etc/selinux/lab/contexts/lxc_contexts <<END
process = "system_u:system_r:container_t:s0"
file = "system_u:object_r:container_file_t:s0"
ro_file = "system_u:object_r:container_file_t:s0"
END
    cat > /run/policy.cil <<END
{POLICY}
END
    # All categories there can be, and the kernel's own subjects and objects in the order it knows them by.
    categories=$(seq -f 'c%.0f' 0 1023)
    for one in $categories; do echo "(category $one)"; done >> /run/policy.cil
    echo "(categoryorder ($(echo $categories)))" >> /run/policy.cil
    subjects="kernel security unlabeled fs file file_labels init any_socket port netif netmsg node igmp_packet icmp_socket
        tcp_socket sysctl_modprobe sysctl sysctl_fs sysctl_kernel sysctl_net sysctl_net_unix sysctl_vm sysctl_dev kmod policy
        scmp_packet devnull"
    for one in $subjects; do
        context=of_all
        case $one in kernel|init|kmod) context=of_kernel ;; file|unlabeled) context=of_host ;; esac
        echo "(sid $one) (sidcontext $one $context)"
    done >> /run/policy.cil
    echo "(sidorder ($(echo $subjects)))" >> /run/policy.cil
    secilc -c 33 -o /run/policy -f /dev/null /run/policy.cil
    mountpoint -q /sys/fs/selinux || mount -t selinuxfs none /sys/fs/selinux
    # In one piece, or it is none.
    dd if=/run/policy of=/sys/fs/selinux/load bs=4M status=none
    echo 1 > /sys/fs/selinux/enforce
    test "$(cat /sys/fs/selinux/enforce)" = 1
    # What is below it will be called alike. Images are read by all, and below the labels of their mounts these count, too.
    mkdir -p /var/lib/containerd
    chcon system_u:object_r:container_ro_file_t:s0 /var/lib/containerd
    sed -i 's/^disable_hugetlb_controller/enable_selinux = true\n&/' /job/containerd.toml
"#
    )
}

/// While the agent runs. `manifest`, `is`, `ready`, `gone` and `eventually` are the script's around it.
pub const SCRIPT: &str = r#"
    # What is the host's, and what is one pod's that has those categories.
    mkdir -p /srv/shared
    echo of the host > /srv/shared/host
    echo of a container > /srv/shared/own
    chcon system_u:object_r:container_file_t:s0 /srv/shared
    chcon system_u:object_r:container_file_t:s0:c1,c2 /srv/shared/own
    looking() {
        manifest "$1" <<END
  restartPolicy: Never
  securityContext: $2
  volumes:
    - {name: data, emptyDir: {}}
    - {name: words, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
    - {name: shared, hostPath: {path: /srv/shared}}
  containers:
    - name: main
      image: krablet.local/tool:v1
      command: [/bin/sh, -c, "{ $look } > /dev/termination-log 2>&1"]
      securityContext: $3
      volumeMounts: [{name: data, mountPath: /scratch}, {name: words, mountPath: /words}, {name: shared, mountPath: /shared}]
END
    }
    try() { echo "if { $2; } > /dev/null 2>&1; then echo $1 yes; else echo $1 no; fi;"; }
    look="cat /proc/self/attr/current; echo; $(try scratch 'echo word > /scratch/file && cat /scratch/file')"
    look="$look $(try words 'cat /words/name') $(try host 'cat /shared/host') $(try own 'cat /shared/own')"
    labels() { echo "{seLinuxOptions: {type: $1, level: \"$2\"}}"; }
    # Whatever becomes of the rest, what was denied tells why.
    trap 'dmesg | grep avc: > /job/out/denials' EXIT
    looking by-default '{}' '{}'
    looking of-pod "$(labels container_t s0:c1,c2)" '{}'
    looking of-container "$(labels container_t s0:c1,c2)" "$(labels container_t s0:c3,c4)"
    looking free "$(labels spc_t s0)" '{}'
    looking privileged '{}' '{privileged: true}'
    looking unknown "$(labels no_such_t s0)" '{}'
    for name in by-default of-pod of-container free privileged; do eventually is $name .status.phase Succeeded; done
    # The kernel knows no such label, and the pod is told so.
    refused() { grep -q 'default/unknown-vm.*Failed to create pod sandbox: .*invalid argument' /job/out/krablet.log; }
    eventually refused
    eventually is unknown '.status.containerStatuses[0].state.waiting.reason' ContainerCreating
    cp /job/out/pods /job/out/pods-of-labels
    # A pod that has ended has no volumes any more.
    manifest stays <<END
  securityContext: $(labels container_t s0:c1,c2)
  volumes: [{name: data, emptyDir: {}}, {name: shared, hostPath: {path: /srv/shared}}]
  containers:
    - name: main
      image: krablet.local/tool:v1
      command: [/tool, hold]
      volumeMounts: [{name: data, mountPath: /scratch}, {name: shared, mountPath: /shared}]
END
    eventually ready stays
    uid=$(jq -r '.items[] | select(.metadata.name == "stays-vm") | .metadata.uid' /job/out/pods)
    ls -Zd "/var/lib/kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/data" /srv/shared/host > /job/out/labels
    rm /etc/manifests/*.yaml
    eventually gone
    eventually no_tasks
"#;

pub fn assert_held(report: &VmReport) {
    let pods: Value = serde_json::from_str(&report.text("pods-of-labels")).unwrap();
    let seen = |name: &str| {
        let mut items = pods["items"].as_array().unwrap().iter();
        let pod = items.find(|p| p["metadata"]["name"] == format!("{name}-vm"));
        let ended = &pod.unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
        ended["message"].as_str().unwrap_or_default().to_owned()
    };
    // The label, and then what could be done: with its own volumes, the host's file, and that of the pod with c1 and c2.
    let told = |name: &str| {
        let seen = seen(name);
        let (label, rest) = seen.split_once('\n').unwrap_or_default();
        let label = label.trim_end_matches('\0').to_owned();
        let rest: Vec<&str> = rest.lines().filter(|line| !line.is_empty()).collect();
        (label, rest.join(", "))
    };
    let confined = "scratch yes, words yes, host no, own";
    let free = "scratch yes, words yes, host yes, own yes";
    for (name, label, could) in [
        (
            "of-pod",
            "system_u:system_r:container_t:s0:c1,c2",
            format!("{confined} yes"),
        ),
        (
            "of-container",
            "system_u:system_r:container_t:s0:c3,c4",
            format!("{confined} no"),
        ),
        ("free", "system_u:system_r:spc_t:s0", free.to_owned()),
        (
            "privileged",
            "system_u:system_r:kernel_t:s0-s0:c0.c1023",
            free.to_owned(),
        ),
    ] {
        assert_eq!(
            told(name),
            (label.to_owned(), could),
            "{name}: {}",
            report.text("denials")
        );
    }
    // Who asks for no label has one nobody else has.
    let (label, could) = told("by-default");
    let categories = label.strip_prefix("system_u:system_r:container_t:s0:c");
    assert!(categories.is_some_and(|c| c.contains(",c")), "{label}");
    assert_eq!(could, format!("{confined} no"));
    // The pod's volume bears its label; what is the host's is left alone.
    let files = report.text("labels");
    let labelled = |label: &str, end: &str| {
        let mut lines = files.lines().map(str::trim_start);
        lines.any(|line| line.starts_with(label) && line.ends_with(end))
    };
    assert!(
        labelled("system_u:object_r:container_file_t:s0:c1,c2 ", "/data"),
        "{files}"
    );
    assert!(
        labelled("system_u:object_r:host_t:s0 ", "/srv/shared/host"),
        "{files}"
    );
}
