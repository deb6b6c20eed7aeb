# shellcheck shell=bash
# Container runtimes on the nodes of a lab, as Debian has them: podman with its CNI backend, containerd with `ctr` and
# with its CRI. Each node's have directories, mounts and processes of their own. A container is a busybox: no image
# comes from anywhere. Sourced after test_case.sh.
#
#   PREFIX-node1 ── runtime host of node1: /etc/cni/net.d, /opt/cni/bin, /run, /var/lib/cni ... ── containers
#   the agent is outside of it: it knows pods by their records alone, as a DaemonSet does

# The first process of each node's runtime host, and those of containerd.
declare -A RUNTIME_HOST CONTAINERD
# Of a pod by its name here: its node, its container as in CNI_CONTAINERID, its network namespace, its addresses.
declare -A POD_NODE POD_ID POD_NETNS POD_ADDRESSES

# What the runtime hosts leave on the machine: the empty directories of their control groups.
runtime_hosts_down() {
    local code=$? pid
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    until_true 5 "the control groups of the containers are empty" \
        find /sys/fs/cgroup -depth -type d -path "*/$PREFIX-runtimes*" -exec rmdir {} +
    (exit "$code")
    finish
}
trap runtime_hosts_down EXIT

# runtimes_up SERVICE: a lab of both families with podman_up or containerd_up on two nodes, and no network yet.
runtimes_up() {
    local node
    lab_up --pods 0 --inside dual
    for node in node1 node2; do
        runtime_host_up "$node"
        "$1" "$node"
    done
    holdings >"$SCRATCH/before"
}

# runtimes_end: all that pods exchanged has arrived, and nothing is left of them, wherever a program leaves something.
runtimes_end() {
    local node
    until_true 5 "the nodes hold what they held before their pods" hold_as_before || diff "$SCRATCH"/{before,after}
    for node in node1 node2; do
        equal "drops on $node" 0 "$(($(dropped "$node" outbound) + $(dropped "$node" inbound)))"
        law_one "$node"
    done
}

hold_as_before() {
    holdings >"$SCRATCH/after"
    cmp -s "$SCRATCH"/{before,after}
}

# One fact a line. Debian's portmap and firewall keep their empty chains, which name no pod, for the next one.
holdings() {
    local node space
    for node in node1 node2; do
        space=$PREFIX-$node
        ip -n "$space" -j link show | jq -r '.[].ifname'
        ip -n "$space" -4 -o route show table all
        ip -n "$space" -6 -o route show table all
        ip -n "$space" rule show
        ip netns exec "$space" nft list ruleset 2>/dev/null | sed -E 's/counter packets [0-9]+ bytes [0-9]+//' |
            { grep -E '10\.244\.[0-9]+\.[0-9]+[^/0-9]|fd00:10:244:|CNI-(DN-)?[0-9a-f]{10}|tt[0-9a-f]{8}' || true; }
        find "$LAB_STATE/$node/run/tartan/attachments" -name '*.json'
        in_runtime_host "$node" sh -c 'findmnt -rno TARGET,FSTYPE
            ps -e -o comm= | grep -vxE "ps|sh|grep|sort|catatonit" | sort
            find /run/netns /var/lib/cni -type f ! -name "last_reserved*" ! -name lock 2>/dev/null || true'
    done
}

# runtime_host_up NODE: makes its runtime host, as `in_runtime_host NODE CMD...` will find it.
runtime_host_up() {
    local parent
    mkdir "$SCRATCH/$1"
    nsenter --net="/run/netns/$PREFIX-$1" unshare --mount --pid --fork --kill-child --mount-proc \
        bash -c "set -euo pipefail; $(declare -f runtime_host); runtime_host '$SCRATCH/$1' '$LAB_STATE'" &
    parent=$!
    STARTED+=("$parent")
    until_true 10 "the runtime host of $1" pgrep -P "$parent" -x catatonit || die "no runtime host for $1"
    RUNTIME_HOST[$1]=$(pgrep -P "$parent")
}

# runtime_host BASE STATE: becomes the first process of a runtime host, with which ends all that ran there. BASE takes
# what is written, and BASE/rootfs a container's files; STATE, below /run, stays visible: the agents' files.
runtime_host() {
    local base=$1 place name
    # The namespaces of others are not to live longer for being seen from here, nor the BPF file systems of nodes.
    for place in /run/netns "${2%/*}"/*/node*/sys/fs/bpf; do
        if mountpoint -q "$place"; then umount --recursive --lazy "$place"; fi
    done
    mount -t tmpfs -o mode=711 runtime-host "$base"
    mkdir -p "$base"/run "$base"/{etc,opt,var/lib}/{upper,work} "$base"/rootfs/{bin,proc,sys,dev,tmp,etc,run,root}
    cp "$(command -v busybox)" "$base/rootfs/bin/busybox"
    for name in sh ip ping sleep true; do ln -s busybox "$base/rootfs/bin/$name"; done
    # Readable as on the machine; what is written there stays in BASE.
    for place in /etc /opt /var/lib; do
        mount -t overlay -o "lowerdir=$place,upperdir=$base$place/upper,workdir=$base$place/work" runtime-host "$place"
    done
    # Sockets of shims, states of containers, bound network namespaces: nothing of it is the host's.
    mount -t tmpfs -o mode=755 runtime-host "$base/run"
    mkdir -p "$base$2" "$base/run/netns"
    mount --bind "$2" "$base$2"
    mount --rbind "$base/run" /run
    # As podman and `ip netns` would do once for all.
    mount --bind /run/netns /run/netns
    mount --make-shared /run/netns
    mount -t tmpfs -o mode=1777 runtime-host /dev/shm
    rm -rf /etc/cni /opt/cni /etc/containers/containers.conf /etc/containers/storage.conf
    mkdir -p /etc/cni/net.d /opt/cni/bin
    ln -s /usr/lib/cni/* /opt/cni/bin/
    # It waits for children whose parents are gone, as the first process has to.
    exec catatonit -P
}

# Runs a command in the runtime host of a node, and in its network namespace.
in_runtime_host() {
    nsenter --target "${RUNTIME_HOST[$1]}" --mount --pid --net -- "${@:2}"
}

# write_on NODE FILE: standard input. In place, which containerd notices.
write_on() {
    in_runtime_host "$1" install -D /dev/null "$2"
    in_runtime_host "$1" dd of="$2" status=none
}

# kill_inside PID NAME: ends the program that `in_runtime_host NODE NAME ... &` runs; PID is the shell that waits.
kill_inside() {
    kill -KILL "$(pgrep -P "$(pgrep -P "$1" -x nsenter)" -x "$2")"
    wait "$1" 2>/dev/null || true
}

# cni NODE install|uninstall [OPTION...]: as an operator calls it there.
cni() {
    in_runtime_host "$1" "$BIN/tartan" --root "$LAB_STATE/$1" cni "${@:2}" --bin-dir /opt/cni/bin \
        --conf-dir /etc/cni/net.d
}

# note_pod POD NODE CONTAINER: notes what its attachment record says.
note_pod() {
    POD_NODE[$1]=$2
    POD_ID[$1]=$3
    read -r "POD_NETNS[$1]" "POD_ADDRESSES[$1]" < <(record_of "$1" |
        jq -r '"\(.netns) \([.addresses[] | split("/")[0]] | join(" "))"') || die "no attachment record of $1 on $2"
}

record_of() {
    cat "$LAB_STATE/${POD_NODE[$1]}/run/tartan/attachments/${POD_ID[$1]}:eth0.json" 2>/dev/null
}

is_detached() {
    ! record_of "$1" >/dev/null
}

# Runs a tool of ours in the network namespace of a pod.
in_pod() {
    in_runtime_host "${POD_NODE[$1]}" nsenter --net="${POD_NETNS[$1]}" -- "${@:2}"
}

# reaches FROM ADDRESS: each ping of a pod is answered, however late a busy machine lets it be.
reaches() {
    equal "ping $1 to $2" "5 received" "$(in_pod "$1" python3 "$TOOLS/pings.py" "$2" 5 0.02 20)"
}

# transfer FROM TO ADDRESS [PORT]: what a pod or node sends arrives in a pod whole, to an address of its own, or one of
# IPv4 that leads there.
transfer() {
    local arrives=$3 receiver sent from=in_pod
    [ -n "${POD_NODE[$1]:-}" ] || from=in_ns
    [[ $3 == *:* ]] || arrives=${POD_ADDRESSES[$2]%% *}
    in_pod "$2" python3 "$TOOLS/bulk.py" receive "$arrives" 5003 >"$SCRATCH/received" &
    receiver=$!
    sent=$("$from" "$1" python3 "$TOOLS/bulk.py" send "$3" "${4:-5003}" $((16 << 20))) || fail "sending from $1 to $3"
    wait "$receiver" || fail "receiving at $2"
    equal "bytes and sha256 from $1 to $3" "$sent" "$(cat "$SCRATCH/received")"
}

# exchange POD POD: of two nodes: pings and a transfer each way, in every family they have.
exchange() {
    local address
    for address in ${POD_ADDRESSES[$2]}; do
        reaches "$1" "$address"
        transfer "$1" "$2" "$address"
    done
    if [ "${3:-}" != back ]; then exchange "$2" "$1" back; fi
}

# podman_up NODE: podman with its CNI backend, its network `tartan` by default.
podman_up() {
    write_on "$1" /etc/containers/containers.conf <<'TOML'
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
default_network = "tartan"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
TOML
    printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "/run/containers/storage"\n' "$SCRATCH/$1/podman" |
        write_on "$1" /etc/containers/storage.conf
}

podman() {
    in_runtime_host "$1" podman "${@:2}"
}

# containerd_up NODE: containerd with its CRI, which `ctr` and `cri` speak to, and the image of sandboxes.
containerd_up() {
    write_on "$1" /etc/containerd/config.toml <<TOML
version = 2
root = "$SCRATCH/$1/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
TOML
    containerd_start "$1"
    python3 "$TOOLS/oci_image.py" "/proc/${RUNTIME_HOST[$1]}/root$SCRATCH/$1/rootfs" "$SCRATCH/pause.tar" \
        localhost/pause:1 /bin/sleep 2147483647
    in_runtime_host "$1" ctr -n k8s.io images import "$SCRATCH/pause.tar" >/dev/null || die "no image in $1"
}

# Its process, as the host sees it, is in CONTAINERD[NODE].
containerd_start() {
    in_runtime_host "$1" containerd -l info >>"$SCRATCH/containerd-$1.log" 2>&1 &
    disown "$!"
    until_true 15 "containerd on $1 answers" in_runtime_host "$1" ctr version || tail -n 20 "$SCRATCH/containerd-$1.log"
    # shellcheck disable=SC2034 # The tests use it.
    CONTAINERD[$1]=$(pgrep -P "$(pgrep -P "$!" -x nsenter)" -x containerd)
}

# contains WHAT PART TEXT
contains() {
    if [[ $3 == *"$2"* ]]; then say "$1: ... $2 ..."; else fail "$1: expected '$2' in: $3"; fi
}
