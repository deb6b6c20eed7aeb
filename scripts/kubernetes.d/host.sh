#!/usr/bin/env bash
# A host for the programs of one node: containerd, kubelet and kube-proxy find their usual directories, which no other
# program uses. Becomes the first process of a mount and a process namespace of its own: with it ends all that ran.
#
# host.sh BASE STATE: BASE is an empty directory, which takes what is written; STATE, below /run, stays visible.
set -euo pipefail

BASE=$1
STATE=$2

# The namespaces of others are not to live longer for being seen from here, nor the BPF file systems of labs.
for PLACE in /run/netns "${STATE%/*}"/*/node*/sys/fs/bpf; do
    if mountpoint -q "$PLACE"; then umount --recursive --lazy "$PLACE"; fi
done
mount -t tmpfs -o mode=711 node-host "$BASE"
# Readable as on the machine; what is written there stays in BASE.
for PLACE in /etc /opt /var/lib; do
    mkdir -p "$BASE$PLACE"/{upper,work}
    mount -t overlay -o "lowerdir=$PLACE,upperdir=$BASE$PLACE/upper,workdir=$BASE$PLACE/work" node-host "$PLACE"
done
# Empty, and a file system that an overlay may lie upon, which an overlay is not.
for PLACE in /var/log /var/lib/{containerd,kubelet,cni}; do
    mkdir -p "$BASE/own$PLACE" "$PLACE"
    mount --bind "$BASE/own$PLACE" "$PLACE"
done
mount --make-shared /var/lib/kubelet
# A kubelet sets these for the whole machine: it is shown the values that it wants, and writes into files.
for PLACE in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    [ -e "/proc/sys/${PLACE%=*}" ] || continue
    echo "${PLACE#*=}" >"$BASE/${PLACE##*/}"
    mount --bind "$BASE/${PLACE##*/}" "/proc/sys/${PLACE%=*}"
done
# Sockets, states of containers, bound network namespaces: nothing of it is the machine's.
mkdir "$BASE/run"
mount -t tmpfs -o mode=755 node-host "$BASE/run"
mkdir -p "$BASE/run/netns" "$BASE$STATE"
mount --bind "$STATE" "$BASE$STATE"
mount --rbind "$BASE/run" /run
mount --bind /run/netns /run/netns
mount --make-shared /run/netns
mount -t tmpfs -o mode=1777 node-host /dev/shm
rm -rf /etc/cni /opt/cni /etc/kubernetes
mkdir -p /etc/cni/net.d /opt/cni/bin /var/log/pods /var/log/containers
# It waits for children whose parents are gone, as the first process has to.
exec catatonit -P
