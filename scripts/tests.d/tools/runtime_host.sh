#!/usr/bin/env bash
# A host for one node's container runtimes: they find their usual directories, which no other program uses. Becomes
# the first process of a mount and a process namespace of its own, so that with it ends all that ran there.
#
#   nsenter --net=NODE unshare --mount --pid --fork --mount-proc runtime_host.sh BASE STATE PLUGIN
#
# BASE is an empty directory, which takes what is written, and BASE/rootfs a container's files; STATE, below /run, stays
# visible: the agents' files.
set -euo pipefail

BASE=$1
STATE=$2
PLUGIN=$3

# The namespaces of others are not to live longer for being seen from here.
if mountpoint -q /run/netns; then umount --recursive --lazy /run/netns; fi
# Nor the BPF file systems of nodes, of this lab or of another that is up beside it.
for place in "${STATE%/*}"/*/node*/sys/fs/bpf; do
    if mountpoint -q "$place"; then umount "$place"; fi
done
mount -t tmpfs -o mode=711 runtime-host "$BASE"
mkdir -p "$BASE/run" "$BASE/rootfs"/{bin,proc,sys,dev,tmp,etc,run,root}
cp "$(command -v busybox)" "$BASE/rootfs/bin/busybox"
for name in sh ip ping sleep true; do ln -s busybox "$BASE/rootfs/bin/$name"; done
# Readable as on the machine; what is written there stays in BASE.
for directory in /etc /opt /var/lib; do
    mkdir -p "$BASE$directory"/{upper,work}
    layers=lowerdir=$directory,upperdir=$BASE$directory/upper,workdir=$BASE$directory/work
    mount -t overlay -o "$layers" runtime-host "$directory"
done
# Sockets of shims, states of containers, bound network namespaces: nothing of it is the host's.
mount -t tmpfs -o mode=755 runtime-host "$BASE/run"
mkdir -p "$BASE$STATE" "$BASE/run/netns"
mount --bind "$STATE" "$BASE$STATE"
mount --rbind "$BASE/run" /run
# As podman and `ip netns` would do once for all.
mount --bind /run/netns /run/netns
mount --make-shared /run/netns
mount -t tmpfs -o mode=1777 runtime-host /dev/shm
rm -rf /etc/cni /opt/cni /etc/containers/containers.conf /etc/containers/storage.conf
mkdir -p /etc/cni/net.d
install -D -m 755 "$PLUGIN" /opt/cni/bin/tartan-cni
# It waits for children whose parents are gone, as the first process has to.
exec catatonit -P
