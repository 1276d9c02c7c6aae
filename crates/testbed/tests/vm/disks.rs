//! Volumes that the host's own tools bring, with real servers behind them: a share of NFS, a disk of iSCSI, and a disk under
//! the name that one behind Fibre Channel has.

use krablet_testbed::vm::VmReport;

/// Bytes that each disk has at first.
const SMALL_DISK: u64 = 32 << 20;

/// Before the agent starts: who serves what.
pub const MACHINE: &str = r#"
    modprobe -a nfsd nfsv4 iscsi_tcp iscsi_target_mod target_core_file tcm_loop sd_mod
    mkdir -p /srv/share
    echo from the server > /srv/share/greeting
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=1 '*:/srv/share'
    rpc.mountd --no-nfs-version 3
    rpc.nfsd --no-nfs-version 3 2
    # Nobody has anything to take up again after this start of the server.
    echo Y > /proc/fs/nfsd/v4_end_grace

    target=/sys/kernel/config/target
    backing() {
        truncate -s 32M "/var/$1.img"
        mkdir -p "$target/core/fileio_$2/$1"
        echo "fd_dev_name=/var/$1.img,fd_dev_size=33554432" > "$target/core/fileio_$2/$1/control"
        echo 1 > "$target/core/fileio_$2/$1/enable"
    }
    backing fabric 0
    local=$target/loopback/naa.6001405000000001/tpgt_1
    mkdir -p $local
    echo naa.6001405000000002 > $local/nexus
    mkdir -p $local/lun/lun_0
    ln -s $target/core/fileio_0/fabric $local/lun/lun_0/fabric
    disk() { ls /sys/block | grep -m 1 '^sd'; }
    no_disk() { ! disk; }
    # What udev does for disks behind a fabric.
    fabric=/dev/disk/by-path/pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0
    name_fabric() {
        eventually disk
        udevadm settle
        mkdir -p /dev/disk/by-path
        ln -s "/dev/$(disk)" $fabric
    }
    name_fabric

    backing remote 1
    portal=$target/iscsi/iqn.2026-01.test:disk/tpgt_1
    mkdir -p $portal/lun/lun_0 $portal/np/127.0.0.1:3260
    ln -s $target/core/fileio_1/remote $portal/lun/lun_0/remote
    echo 0 > $portal/attrib/authentication
    echo 1 > $portal/attrib/generate_node_acls
    echo 0 > $portal/attrib/demo_mode_write_protect
    echo 1 > $portal/enable
    [ -s /etc/iscsi/initiatorname.iscsi ] || echo InitiatorName=iqn.2026-01.test:node > /etc/iscsi/initiatorname.iscsi
    systemctl start iscsid
"#;

/// While the agent runs, and no other pods. `manifest`, `ready`, `gone` and `eventually` are the script's around it.
pub const SCRIPT: &str = r#"
    storage() {
        manifest "$1" <<END
  volumes: [{name: data, $2}]
  containers:
    - name: main
      image: krablet.local/tool:v1
      command: [/bin/sh, -c, "cat /data/greeting; echo $1 > /data/from-$1 && sync && exec /tool hold"]
      volumeMounts: [{name: data, mountPath: /data}]
END
    }
    storage share 'nfs: {server: 127.0.0.1, path: /srv/share}'
    storage remote 'iscsi: {targetPortal: 127.0.0.1, iqn: "iqn.2026-01.test:disk", lun: 0, fsType: ext4}'
    storage fabric 'fc: {targetWWNs: [500a0981891b8dc5], lun: 0, fsType: ext4}'
    for name in share remote fabric; do eventually ready $name; done
    # A pod is ready once it runs, which may be before it has written.
    written() { test -s /var/lib/kubelet/pods/*/volumes/kubernetes.io~$1/data/from-$2; }
    eventually written nfs share
    eventually written iscsi remote
    eventually written fc fabric
    # Another disk of a target that the node is logged in to.
    backing later 2
    mkdir -p $portal/lun/lun_1
    ln -s $target/core/fileio_2/later $portal/lun/lun_1/later
    storage later 'iscsi: {targetPortal: 127.0.0.1, iqn: "iqn.2026-01.test:disk", lun: 1, fsType: ext4}'
    eventually ready later
    eventually written iscsi later
    test -s /srv/share/from-share
    {
        grep -h . /var/log/pods/default_share-vm_*/main/0.log
        findmnt --noheadings --list --output FSTYPE,TARGET | grep /volumes/kubernetes.io~
        iscsiadm -m session
        for plugin in iscsi fc; do
            for volume in /var/lib/kubelet/pods/*/volumes/kubernetes.io~$plugin/data; do echo "$plugin $(cat "$volume"/from-*)"; done
        done
    } | tee /job/out/disks
    # The same disk for the next pod, with what the last one wrote, and larger by now.
    rm /etc/manifests/*.yaml
    eventually gone
    eventually no_tasks
    unused() { ! findmnt --noheadings --list --output TARGET | grep /kubernetes.io; }
    eventually unused
    no_session() { ! iscsiadm -m session; }
    eventually no_session
    # Nothing of the disks is left on the node, though the fabric still has its own.
    eventually no_disk
    no_volumes() { ! ls -d /var/lib/kubelet/pods/*/volumes/kubernetes.io~*; }
    eventually no_volumes
    rm $fabric
    truncate -s 64M /var/remote.img
    echo fd_dev_size=67108864 > $target/core/fileio_1/remote/control
    storage again 'iscsi: {targetPortal: 127.0.0.1, iqn: "iqn.2026-01.test:disk", lun: 0, fsType: ext4, readOnly: false}'
    eventually ready again
    echo "again $(cat /var/lib/kubelet/pods/*/volumes/kubernetes.io~iscsi/data/from-remote)" | tee -a /job/out/disks
    echo "grown $(( $(stat -f -c '%b * %S' /var/lib/kubelet/pods/*/volumes/kubernetes.io~iscsi/data) ))" | tee -a /job/out/disks
    rm /etc/manifests/again.yaml
    eventually gone
    eventually no_session
    eventually no_disk
    # The agent has the fabric looked at, and the disk is back.
    storage back 'fc: {targetWWNs: [500a0981891b8dc5], lun: 0, fsType: ext4}'
    name_fabric
    eventually ready back
    echo "back $(cat /var/lib/kubelet/pods/*/volumes/kubernetes.io~fc/data/from-fabric)" | tee -a /job/out/disks
    rm /etc/manifests/back.yaml
    eventually gone
    eventually no_disk
    rm $fabric
"#;

pub fn assert_held(report: &VmReport) {
    let told = report.text("disks");
    let has = |what: &str| {
        assert!(
            told.lines().any(|line| line.contains(what)),
            "{what}: {told}"
        )
    };
    has("stdout F from the server");
    has("iqn.2026-01.test:disk");
    has("iscsi remote");
    has("fc fabric");
    has("iscsi later");
    has("again remote");
    has("back fabric");
    let grown = told.lines().find_map(|line| line.strip_prefix("grown "));
    let grown: u64 = grown.and_then(|bytes| bytes.parse().ok()).unwrap();
    assert!(grown > SMALL_DISK, "{told}");
    for (kind, plugin) in [("nfs4", "nfs"), ("ext4", "iscsi"), ("ext4", "fc")] {
        let mounted = told.lines().any(|line| {
            line.starts_with(kind)
                && line.contains(&format!("/volumes/kubernetes.io~{plugin}/data"))
        });
        assert!(mounted, "{plugin}: {told}");
    }
}
