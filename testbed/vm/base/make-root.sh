#!/bin/sh
# Makes what the virtual machine boots from, in the directory given: vmlinuz, modules/ for the
# initial RAM disk, and root/ for the disk. Run it in a mount namespace of its own.
set -eu
work=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$work/root

# The mirror is debootstrap's own choice unless one is given.
debootstrap --variant=minbase \
    --include=systemd,systemd-sysv,dbus,udev,kmod,iproute2,iptables,runc,procps,curl,jq,e2fsprogs,nfs-kernel-server,open-iscsi,apparmor,secilc \
    bookworm "$root" ${KRABLET_DEBIAN_MIRROR:+"$KRABLET_DEBIAN_MIRROR"}

# The kernel is unpacked, not installed: no boot loader, no hooks.
chroot "$root" apt-get -q update
kernel=$(chroot "$root" apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
chroot "$root" sh -c "cd /tmp && apt-get -q download $kernel"
dpkg-deb -x "$root"/tmp/linux-image-*.deb "$work/kernel"
version=$(ls "$work/kernel/lib/modules")
cp "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
mkdir -p "$root/usr/lib/modules"
cp -a "$work/kernel/lib/modules/$version" "$root/usr/lib/modules/"
chroot "$root" depmod "$version"
mkdir "$work/modules"
for module in virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk; do
    find "$work/kernel/lib/modules" -name "$module.ko" -exec cp {} "$work/modules/" \;
done

# The job starts as soon as the system is up, and ends it.
cp "$here/krablet-job.service" "$root/etc/systemd/system/"
cp "$here/krablet-job" "$root/usr/local/sbin/krablet-job"
chmod 755 "$root/usr/local/sbin/krablet-job"
mkdir -p "$root/job" "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../krablet-job.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
# A getty hangs up the console; the timers only take processor time from the test. Servers of disks and file systems are
# started by the jobs that need them.
for unit in nfs-server.service nfs-blkmap.service nfs-idmapd.service nfs-mountd.service nfsdcld.service \
    nfs-client.target rpcbind.service rpcbind.socket rpc-statd.service rpc-statd-notify.service run-rpc_pipefs.mount \
    open-iscsi.service serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-networkd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
echo krablet-vm > "$root/etc/hostname"
echo 127.0.0.1 localhost krablet-vm > "$root/etc/hosts"
rm -rf "$work/kernel" "$root"/tmp/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* \
    "$root"/usr/share/doc "$root"/usr/share/locale "$root"/usr/share/man
