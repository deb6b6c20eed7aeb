#!/usr/bin/env bash
# A host for the programs of one node: containerd, kubelet and kube-proxy find their usual directories, which no other
# program uses. Becomes the first process of a mount and a process namespace of its own, so that with it ends all that ran
# there, with every mount.
#
#   nsenter --net=NODE unshare --mount --pid --fork --kill-child --mount-proc host.sh BASE STATE
#
# BASE is an empty directory, which takes what is written; STATE, below /run, stays visible: the cluster's files.
set -euo pipefail

BASE=$1
STATE=$2

# Readable as on the machine; what is written there stays in BASE.
changeable() {
    mkdir -p "$BASE$1/upper" "$BASE$1/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$BASE$1/upper,workdir=$BASE$1/work" node-host "$1"
}

# Empty, and a file system that an overlay may lie upon, which an overlay is not.
own() {
    mkdir -p "$BASE/own$1" "$1"
    mount --bind "$BASE/own$1" "$1"
}

# A kubelet sets these for the whole machine: it is shown the values that it wants, and writes into files.
shown() {
    local file=/proc/sys/$1
    [ -e "$file" ] || return 0
    mkdir -p "$BASE/shown/$(dirname "$1")"
    echo "$2" >"$BASE/shown/$1"
    mount --bind "$BASE/shown/$1" "$file"
}

# Sockets, states of containers, bound network namespaces: nothing of it is the machine's.
private_run() {
    mkdir -p "$BASE/run"
    mount -t tmpfs -o mode=755 node-host "$BASE/run"
    mkdir -p "$BASE/run/netns" "$BASE$STATE"
    mount --bind "$STATE" "$BASE$STATE"
    mount --rbind "$BASE/run" /run
    mount --bind /run/netns /run/netns
    mount --make-shared /run/netns
}

# The namespaces of others are not to live longer for being seen from here.
if mountpoint -q /run/netns; then umount --recursive --lazy /run/netns; fi
mount -t tmpfs -o mode=711 node-host "$BASE"
for directory in /etc /opt /var/lib; do changeable "$directory"; done
for directory in /var/log /var/lib/containerd /var/lib/kubelet /var/lib/cni; do own "$directory"; done
mount --make-shared /var/lib/kubelet
shown vm/overcommit_memory 1
shown vm/panic_on_oom 0
shown kernel/panic 10
shown kernel/panic_on_oops 1
shown kernel/keys/root_maxkeys 1000000
shown kernel/keys/root_maxbytes 25000000
private_run
mount -t tmpfs -o mode=1777 node-host /dev/shm
rm -rf /etc/cni /opt/cni /etc/kubernetes
mkdir -p /etc/cni/net.d /opt/cni/bin /var/log/pods /var/log/containers
# It waits for children whose parents are gone, as the first process has to.
exec catatonit -P
