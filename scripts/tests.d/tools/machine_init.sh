#!/usr/bin/env bash
# A machine of its own for one node of a lab, with Debian's systemd as its first process: the file system is the host's as
# it can be read; what is written there, and all of /run, /tmp and /dev, lies in memory and ends with the first process. Of
# the host's units only those that systemd itself cannot do without are left, and none of its own.
#
#   nsenter --net=NODE unshare --mount --pid --uts --ipc --cgroup --fork --kill-child machine_init.sh HOSTNAME
#
# The caller's control group (version 2) is the machine's root. What was written can be listed below /mnt/written.
set -euo pipefail

NAME=$1
BASE=/mnt
ROOT=$BASE/root

mount --make-rprivate /
# Anything mounted there stays the host's: this mount is seen in here alone.
mount -t tmpfs -o mode=755 machine "$BASE"
mkdir "$BASE/written" "$BASE/work" "$ROOT"
mount -t overlay -o "lowerdir=/,upperdir=$BASE/written,workdir=$BASE/work" machine "$ROOT"

kernel_files() {
    mount -t proc -o nosuid,nodev,noexec proc "$ROOT/proc"
    mount -t sysfs -o nosuid,nodev,noexec sysfs "$ROOT/sys"
    # Settings of the kernel as a whole are the host's; those of the network are of the node's namespace.
    read_only_but proc/sys net
    read_only_but sys devices/virtual/net
    mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup"
}

# read_only_but DIRECTORY PART: as systemd-nspawn does.
read_only_but() {
    mount --bind "$ROOT/$1" "$ROOT/$1"
    mount --bind "$ROOT/$1/$2" "$ROOT/$1/$2"
    mount -o remount,bind,ro "$ROOT/$1"
}

device_files() {
    local dev=$ROOT/dev node
    mount -t tmpfs -o mode=755 machine "$dev"
    mkdir "$dev/net" "$dev/pts" "$dev/shm"
    for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 net/tun:10:200 console:1:3; do
        mknod -m 666 "$dev/${node%%:*}" c "$(cut -d: -f2 <<<"$node")" "${node##*:}"
    done
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$dev/pts"
    mount -t tmpfs -o mode=1777 machine "$dev/shm"
    ln -s pts/ptmx "$dev/ptmx"
    ln -s /proc/self/fd "$dev/fd"
}

# systemd as it comes, with a journal in memory and no unit of any package.
units() {
    local units=$ROOT/usr/lib/systemd/system
    rm -rf "$ROOT/etc/systemd/system" "$ROOT/etc/systemd/network" "$ROOT"/usr/lib/systemd/system-generators/* \
        "$units"/*.wants "$units"/*.d "$ROOT/var/log/journal"
    mkdir -p "$ROOT/etc/systemd/system" "$ROOT/etc/systemd/network" "$units/sysinit.target.wants"
    ln -s ../systemd-journald.service "$units/sysinit.target.wants/"
    ln -s /lib/systemd/system/multi-user.target "$ROOT/etc/systemd/system/default.target"
    # Without one systemd takes this for its first boot, and enables every unit that there is.
    rm -f "$ROOT/etc/machine-id"
    tr -d - </proc/sys/kernel/random/uuid >"$ROOT/etc/machine-id"
}

# The clone, read only, where it lies in one of the directories that the machine has of its own, or is a mount.
repository() {
    local here
    here=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../../..")
    [ ! -e "$ROOT$here/scripts/tests.d/tools/machine_init.sh" ] || return 0
    mkdir -p "$ROOT$here"
    mount --bind "$here" "$ROOT$here"
    mount -o remount,bind,ro "$ROOT$here"
}

# No trace of Tartan or of a container runtime that the host itself may have.
without_tartan() {
    rm -rf "$ROOT/etc/tartan" "$ROOT/var/lib/tartan" "$ROOT"/usr/local/bin/tartan* "$ROOT/etc/cni" "$ROOT/opt/cni"
    rm -f "$ROOT/usr/sbin/policy-rc.d"
}

kernel_files
for directory in run tmp; do mount -t tmpfs -o mode=755 machine "$ROOT/$directory"; done
chmod 1777 "$ROOT/tmp"
repository
device_files
units
without_tartan
echo "$NAME" >"$ROOT/etc/hostname"
hostname "$NAME"
mkdir -p "$ROOT/mnt/written" "$ROOT/mnt/host"
mount --bind "$BASE/written" "$ROOT/mnt/written"
cd "$ROOT"
pivot_root . mnt/host
umount -l /mnt/host
exec env -i container=tartan-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=journal --show-status=no </dev/null >/dev/null
