//! krablet in the kubelet's place on a node that `kubeadm join` brings into a cluster, as docs/joining.md has it, with the
//! control plane on the host. On that node a pod may swap its share, another is resized in place, and the kernel says what
//! they are held to.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use krablet_testbed::parts::{self, KUBERNETES, Part};
use krablet_testbed::vm::{self, VmReport};
use krablet_testbed::{ControlPlane, ControlPlaneOptions};
use serde_json::{Value, json};
use tokio::process::Command;

/// What the machine calls itself, and therefore its node.
const NODE: &str = "krablet-vm";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// What a pod asks for that may swap.
const SWAPPING: &str = "256Mi";

/// After everything else, with no agent running. `eventually` is the script's around it, [`vm::NETWORK`] comes before.
pub const SCRIPT: &str = r#"
    # As for any node, but for its swap. What the agent on its own has left is not part of a new one.
    echo 1 > /proc/sys/net/ipv4/ip_forward
    rm -rf --one-file-system /var/lib/kubelet
    install -m 0755 /job/kubeadm /usr/bin/kubeadm

    # What is in the kubelet's package beside the kubelet.
    mkdir -p /etc/systemd/system/kubelet.service.d /etc/kubernetes/manifests
    cat > /etc/systemd/system/kubelet.service <<'END'
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
END
    cat > /etc/systemd/system/kubelet.service.d/10-kubeadm.conf <<'END'
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
END
    systemctl daemon-reload
    systemctl enable kubelet

    # Steps 2 and 3 of the document. The kernel's configuration, which kubeadm would look at, is not on this disk.
    install -m 0755 /job/krablet /usr/bin/kubelet
    sh -c "$(cat /job/join) --ignore-preflight-errors=SystemVerification"
    test ! -e /etc/kubernetes/bootstrap-kubelet.conf
    systemctl is-active kubelet

    # The pod is ready while this file is there, by which the host knows that the first numbers are on record, and is not
    # ready again once the second are.
    mkdir -p /run/noted
    numbers() {
        slice=$(ls -d /sys/fs/cgroup/kubepods.slice/kubepods-pod*.slice 2>/dev/null) || return
        echo "pod $(cat "$slice/cpu.max") $(cat "$slice/memory.max")"
        for scope in "$slice"/cri-containerd-*.scope; do
            pid=$(head -n 1 "$scope/cgroup.procs")
            if [ "$(cat "/proc/$pid/comm")" = tool ]; then echo "main $(cat "$scope/cpu.max") $(cat "$scope/memory.max")"; fi
        done
    }
    # Both have moved to what is asked for; what they say then is what is recorded.
    moved() { numbers 2>/dev/null > /run/numbers && [ "$(grep -c " $1\$" /run/numbers)" = 2 ]; }
    record() { sed "s/^/$1 /" /run/numbers | tee -a /job/out/resize; }
    eventually moved '10000 100000 67108864'
    record first
    # Another process that takes more memory than there is goes alone: the host sees to it that the container goes on.
    for scope in "$slice"/cri-containerd-*.scope; do
        if [ "$(cat "/proc/$(head -n 1 "$scope/cgroup.procs")/comm")" = tool ]; then break; fi
    done
    id=${scope##*/cri-containerd-}
    code=0
    ctr --namespace k8s.io tasks exec --exec-id eater "${id%.scope}" /tool eat-memory 256 0s || code=$?
    echo "alone $code $(cat "$scope/memory.oom.group")" | tee -a /job/out/resize
    touch /run/noted/first
    eventually moved '20000 100000 100663296'
    record then
    systemctl daemon-reload
    numbers > /run/numbers
    record again
    rm /run/noted/first

    no_slice() { ! ls -d /sys/fs/cgroup/kubepods.slice/kubepods-pod*.slice > /dev/null 2>&1; }
    eventually no_slice
    # The last word on the pod has gone out too: with the node's own certificate there is none left to see.
    server=$(sed -n 's/^ *server: //p' /etc/kubernetes/kubelet.conf)
    left() {
        curl -sf --cacert /etc/kubernetes/pki/ca.crt --cert /var/lib/kubelet/pki/kubelet-client-current.pem \
            "$server/api/v1/pods?fieldSelector=spec.nodeName%3Dkrablet-vm" | jq '.items | length'
    }
    none_left() { [ "$(left)" = 0 ]; }
    eventually none_left
    {
        echo "share $(cat /run/noted/swap)"
        awk '/^(Mem|Swap)Total/ {print $1, $2}' /proc/meminfo
    } | tee /job/out/swap
    systemctl stop kubelet
"#;

/// A cluster that is waiting for the machine.
pub struct Cluster {
    plane: ControlPlane,
    kubeadm: PathBuf,
    /// Set once the machine has ended.
    over: Cell<bool>,
}

impl Cluster {
    pub async fn up() -> Self {
        let bins = tokio::task::spawn_blocking(|| parts::ensure(&[Part::Kubeadm]));
        let kubeadm = bins.await.unwrap().unwrap().path("kubeadm").unwrap();
        let plane = ControlPlane::up(ControlPlaneOptions {
            scheduler: false,
            // Who signs what a token alone makes a node believe. It is off unless asked for, which kubeadm does.
            controller_manager_args: vec!["--controllers=bootstrap-signer-controller".to_owned()],
            ..ControlPlaneOptions::default()
        });
        let cluster = Self {
            plane: plane.await.unwrap(),
            kubeadm,
            over: Cell::new(false),
        };
        cluster.furnish().await;
        cluster
    }

    /// What `kubeadm init` leaves in a cluster for those who join, made by kubeadm itself.
    async fn furnish(&self) {
        let (host, port) = (vm::HOST, self.port());
        let config = self.plane.dir().join("kubeadm.yaml");
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             localAPIEndpoint: {{advertiseAddress: {host}, bindPort: {port}}}\n\
             nodeRegistration: {{criSocket: 'unix:///run/containerd/containerd.sock'}}\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
             kubernetesVersion: {KUBERNETES}\ncontrolPlaneEndpoint: '{host}:{port}'\n---\n\
             apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             singleProcessOOMKill: true\nfailSwapOn: false\nmemorySwap: {{swapBehavior: LimitedSwap}}\n"
        );
        fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap();
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            let arguments = [&["init", "phase"], phase, &["--config", config]].concat();
            self.kubeadm(&arguments).await;
        }
        // kubeadm hands on the address by which it was told to reach the server.
        let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
        let info = self.plane.get_json(path).await.unwrap();
        let told = self.seen_inside(info["data"]["kubeconfig"].as_str().unwrap());
        let patch = json!({"data": {"kubeconfig": told}});
        self.plane.patch(path, &patch).await.unwrap();
        let join = self
            .kubeadm(&["token", "create", "--print-join-command"])
            .await;
        fs::write(self.plane.dir().join("join"), self.seen_inside(join.trim())).unwrap();
    }

    /// A text with the server's address as it is for the machine.
    fn seen_inside(&self, text: &str) -> String {
        let outside = self.plane.server_url().replace("https://", "");
        assert!(text.contains(&outside), "{outside}: {text}");
        text.replace(&outside, &format!("{}:{}", vm::HOST, self.port()))
    }

    fn port(&self) -> String {
        let url = self.plane.server_url();
        url.rsplit(':').next().unwrap().to_owned()
    }

    async fn kubeadm(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.kubeadm);
        command
            .args(arguments)
            .arg("--kubeconfig")
            .arg(self.plane.admin_kubeconfig())
            // The keeper ends it if nobody else does.
            .env("KRABLET_BED", self.plane.dir())
            .kill_on_drop(true);
        let output = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}{complaint}");
        said
    }

    /// What goes onto the machine's disk.
    pub fn files(&self) -> Vec<(PathBuf, String)> {
        vec![
            (self.kubeadm.clone(), "kubeadm".to_owned()),
            (self.plane.dir().join("join"), "join".to_owned()),
        ]
    }

    /// Runs the machine, and what is done to its node from outside. Says what became of both.
    pub async fn drive(
        &self,
        machine: impl Future<Output = Result<VmReport>>,
    ) -> (VmReport, Result<()>) {
        let machine = async {
            let report = machine.await;
            self.over.set(true);
            report
        };
        let (report, driven) = tokio::join!(machine, self.visit());
        if let Err(why) = &driven {
            // Beside whatever the machine has to say, which comes first.
            eprintln!("{why:#}\n{}", self.plane.evidence());
        }
        (report.unwrap(), driven)
    }

    async fn visit(&self) -> Result<()> {
        let plane = &self.plane;
        self.until("its node was ready", async || {
            let node = plane.get_json(&format!("/api/v1/nodes/{NODE}")).await?;
            let version = node["status"]["nodeInfo"]["kubeletVersion"].to_string();
            ensure!(version.contains("+krablet."), "{version}");
            ensure!(is_true(&node, "Ready"), "{}", node["status"]);
            Ok(())
        })
        .await?;
        self.swap().await?;
        self.resize().await
    }

    async fn swap(&self) -> Result<()> {
        let (plane, path) = (&self.plane, format!("{PODS}/swaps"));
        plane.create(PODS, &swapping()).await?;
        self.until("the pod had told of its swap", async || {
            let pod = plane.get_json(&path).await?;
            ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
            Ok(())
        })
        .await?;
        plane.delete(&path).await.map(drop)
    }

    async fn resize(&self) -> Result<()> {
        let (plane, path) = (&self.plane, format!("{PODS}/resized"));
        plane.create(PODS, &pod()).await?;
        self.until("the pod ran and its size was noted", async || {
            let pod = plane.get_json(&path).await?;
            ensure!(is_true(&pod, "Ready"), "{}", pod["status"]);
            Ok(())
        })
        .await?;
        // A merge patch replaces lists, so all of the container is in it.
        let patch = json!({"spec": {"containers": [container("200m", "96Mi")]}});
        plane.patch(&format!("{path}/resize"), &patch).await?;
        self.until("the pod had its other size", async || {
            let pod = plane.get_json(&path).await?;
            let now = &pod["status"]["containerStatuses"][0];
            let size = json!({"cpu": "200m", "memory": "96Mi"});
            ensure!(now["resources"]["limits"] == size, "{}", pod["status"]);
            ensure!(now["resources"]["requests"] == size, "{}", pod["status"]);
            ensure!(now["restartCount"] == 0, "{}", pod["status"]);
            // Not before the kernel's numbers have been noted too.
            ensure!(!is_true(&pod, "Ready"), "{}", pod["status"]);
            Ok(())
        })
        .await?;
        plane.delete(&path).await?;
        self.until("the pod was gone", async || {
            let status = plane.request("GET", &path, None).await?.status;
            ensure!(status == 404, "{status}");
            Ok(())
        })
        .await
    }

    pub async fn down(self) {
        self.plane.down().await.unwrap();
    }

    /// Waits as long as the machine runs. It has a time limit, and so have all its steps.
    async fn until(&self, what: &str, check: impl AsyncFn() -> Result<()>) -> Result<()> {
        loop {
            // What has been reached by the end counts.
            let over = self.over.get();
            match check().await {
                Ok(()) => return Ok(()),
                Err(why) if over => {
                    return Err(why.context(format!("the machine ended before {what}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(250)).await,
            }
        }
    }
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.any(|one| one["type"] == condition && one["status"] == "True")
}

fn container(cpu: &str, memory: &str) -> Value {
    let size = json!({"cpu": cpu, "memory": memory});
    json!({
        "name": "main",
        "image": "krablet.local/tool:v1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/tool", "hold"],
        "resources": {"requests": size, "limits": size},
        "volumeMounts": [{"name": "noted", "mountPath": "/noted"}],
        "readinessProbe": {
            "exec": {"command": ["/bin/sh", "-c", "test -e /noted/first"]},
            "periodSeconds": 1,
            // Whatever a process takes to start in an emulated machine.
            "timeoutSeconds": 60,
            "failureThreshold": 1,
        },
    })
}

/// One that says what it sees of its own cgroup.
fn swapping() -> Value {
    let mut pod = pod();
    pod["metadata"]["name"] = json!("swaps");
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"] = json!([{
        "name": "main",
        "image": "krablet.local/tool:v1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", "cat /sys/fs/cgroup/memory.swap.max > /noted/swap"],
        "resources": {"requests": {"memory": SWAPPING}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "noted", "mountPath": "/noted"}],
    }]);
    pod
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "resized"},
        "spec": {
            "nodeName": NODE,
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container("100m", "64Mi")],
            "volumes": [{"name": "noted", "hostPath": {"path": "/run/noted", "type": "DirectoryOrCreate"}}],
        },
    })
}

/// What the kernel said: quota and memory of the pod's slice and of its container's scope, before and after, and still after
/// systemd has looked at everything anew; and how a process ended that took more than there was.
pub fn assert_held(report: &VmReport) {
    let told = report.text("resize");
    let mut lines: Vec<&str> = told.lines().collect();
    lines.sort_unstable();
    let expected = [
        "again main 20000 100000 100663296",
        "again pod 20000 100000 100663296",
        "alone 137 0",
        "first main 10000 100000 67108864",
        "first pod 10000 100000 67108864",
        "then main 20000 100000 100663296",
        "then pod 20000 100000 100663296",
    ];
    assert_eq!(lines, expected, "{told}");
    assert_swap(&report.text("swap"));
}

/// Of the machine's swap a container may have what it asks for of the machine's memory, in whole pages.
fn assert_swap(told: &str) {
    let number = |name: &str| {
        let mut lines = told.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let found = found.unwrap_or_else(|| panic!("{name}: {told}"));
        found.parse::<f64>().unwrap()
    };
    let [memory, swap] = ["MemTotal:", "SwapTotal:"].map(|name| number(name) * 1024.0);
    let due = f64::from(256 << 20) / memory * swap;
    let share = number("share");
    assert!(
        share > 0.0 && (due - 4096.0..=due).contains(&share),
        "{due}: {told}"
    );
}
