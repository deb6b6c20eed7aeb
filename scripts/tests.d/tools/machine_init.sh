#!/usr/bin/env bash
# A machine of its own for one node of a lab, with Debian's systemd as its first process: the file system is the host's
# as it can be read; what is written there, and all of /run, /tmp and /dev, is in memory and ends with that process. Of
# the host's units only those that systemd itself cannot do without are left, and none of its own.
#
#   nsenter --net=NODE unshare --mount --pid --uts --ipc --cgroup --fork --kill-child machine_init.sh HOSTNAME
#
# The caller's control group (version 2) is the machine's root. What was written can be listed below /mnt/written.
set -euo pipefail

BASE=/mnt
ROOT=$BASE/root
DEV=$ROOT/dev
SYSTEMD=$ROOT/usr/lib/systemd
REPOSITORY=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../../..")

mount --make-rprivate /
# Anything mounted there stays the host's: this mount is seen in here alone.
mount -t tmpfs -o mode=755 machine "$BASE"
mkdir "$BASE/written" "$BASE/work" "$ROOT"
mount -t overlay -o "lowerdir=/,upperdir=$BASE/written,workdir=$BASE/work" machine "$ROOT"

# Settings of the kernel as a whole are the host's, and read only; those of the network are of the node's namespace.
mount -t proc -o nosuid,nodev,noexec proc "$ROOT/proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$ROOT/sys"
for OWN in proc/sys:net sys:devices/virtual/net; do
    PLACE=$ROOT/${OWN%:*}
    mount --bind "$PLACE" "$PLACE"
    mount --bind "$PLACE/${OWN#*:}" "$PLACE/${OWN#*:}"
    mount -o remount,bind,ro "$PLACE"
done
mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup"

mount -t tmpfs -o mode=755 machine "$ROOT/run"
mount -t tmpfs -o mode=1777 machine "$ROOT/tmp"
mount -t tmpfs -o mode=755 machine "$DEV"
mkdir "$DEV/net" "$DEV/pts" "$DEV/shm"
for NODE in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 net/tun:10:200 console:1:3; do
    mknod -m 666 "$DEV/${NODE%%:*}" c "$(cut -d: -f2 <<<"$NODE")" "${NODE##*:}"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$DEV/pts"
mount -t tmpfs -o mode=1777 machine "$DEV/shm"
ln -s pts/ptmx "$DEV/ptmx"
ln -s /proc/self/fd "$DEV/fd"

# The clone, read only, also where it lies in one of the directories that the machine has of its own, or is a mount.
mkdir -p "$ROOT$REPOSITORY"
mount --bind "$REPOSITORY" "$ROOT$REPOSITORY"
mount -o remount,bind,ro "$ROOT$REPOSITORY"
# systemd as it comes, with a journal in memory and no unit of any package; no trace of Tartan or of a container runtime
# that the host itself may have.
rm -rf "$ROOT"/etc/{systemd/system,systemd/network,tartan,cni} "$ROOT"/var/{lib/tartan,log/journal} "$ROOT/opt/cni" \
    "$ROOT"/usr/{local/bin/tartan*,sbin/policy-rc.d} "$SYSTEMD"/system/*.{wants,d} "$SYSTEMD"/system-generators/*
mkdir -p "$ROOT/etc/systemd/system" "$ROOT/etc/systemd/network" "$SYSTEMD/system/sysinit.target.wants"
ln -s ../systemd-journald.service "$SYSTEMD/system/sysinit.target.wants/"
ln -s /lib/systemd/system/multi-user.target "$ROOT/etc/systemd/system/default.target"
# Without one systemd takes this for its first boot, and enables every unit that there is.
rm -f "$ROOT/etc/machine-id"
tr -d - </proc/sys/kernel/random/uuid >"$ROOT/etc/machine-id"
echo "$1" >"$ROOT/etc/hostname"
hostname "$1"

mkdir -p "$ROOT/mnt/written" "$ROOT/mnt/host"
mount --bind "$BASE/written" "$ROOT/mnt/written"
cd "$ROOT"
pivot_root . mnt/host
umount -l /mnt/host
exec env -i container=tartan-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=journal --show-status=no </dev/null >/dev/null
