# shellcheck shell=bash
# Container runtimes on the nodes of a lab, as Debian has them: podman with its CNI backend, containerd with `ctr` and
# with its CRI. Each node's have directories, mounts and processes of their own (runtime_host.sh). A container is a
# busybox: no image comes from anywhere. Sourced after test_case.sh.
#
#   PREFIX-node1 ── runtime host of node1: /etc/cni/net.d, /opt/cni/bin, /run, /var/lib/cni ... ── containers
#   the agent is outside of it: it knows pods by their records alone, as a DaemonSet does

# The first process of each node's runtime host, and those of containerd.
declare -A RUNTIME_HOST CONTAINERD
# Of a pod by its name here: its node, its container as in CNI_CONTAINERID, its attachment record when it came.
declare -A POD_NODE POD_ID POD_RECORD
NODES=(node1 node2)
BYTES=$((16 << 20))
# shellcheck disable=SC2034 # Tests use it.
PORTMAP='{"type": "portmap", "capabilities": {"portMappings": true}}'

# What the runtime hosts leave on the machine: the empty directories of their control groups.
runtime_hosts_down() {
    local code=$? pid
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    until_true 5 "the control groups of the containers are empty" remove_cgroups
    (exit "$code")
    finish
}
trap runtime_hosts_down EXIT

remove_cgroups() {
    find /sys/fs/cgroup -type d -path "*/$PREFIX-runtimes*" | sort -r | xargs -r rmdir
}

# runtimes_up SERVICE [PLUGIN...]: a lab of both families with podman_up or containerd_up on each of NODES, and the
# plugins chained.
runtimes_up() {
    local node
    lab_up --pods 0 --inside dual
    for node in "${NODES[@]}"; do
        runtime_host_up "$node"
        conflist "$node" "${@:2}"
        "$1" "$node"
        holdings "$node" >"$SCRATCH/$node.before"
    done
}

# runtimes_end: all that pods exchanged has arrived, and of the pods nothing is left.
runtimes_end() {
    local node
    for node in "${NODES[@]}"; do
        forgotten "$node"
        equal "drops on $node" 0 "$(($(dropped "$node" outbound) + $(dropped "$node" inbound)))"
        law_one "$node"
    done
}

# runtime_host_up NODE: makes its runtime host, with the plugin, as `in_runtime_host NODE CMD...` will find it.
runtime_host_up() {
    local base=$SCRATCH/$1 parent
    mkdir "$base"
    nsenter --net="/run/netns/$PREFIX-$1" unshare --mount --pid --fork --kill-child --mount-proc \
        "$TOOLS/runtime_host.sh" "$base" "$LAB_STATE" "$BIN/tartan-cni" &
    parent=$!
    STARTED+=("$parent")
    until_true 10 "the runtime host of $1" runtime_host_stands "$parent" || die "no runtime host for $1"
    RUNTIME_HOST[$1]=$(pgrep -P "$parent")
}

runtime_host_stands() {
    [ "$(cat "/proc/$(pgrep -P "$1")/comm")" = catatonit ]
}

# Runs a command in the runtime host of a node, and in its network namespace.
in_runtime_host() {
    nsenter --target "${RUNTIME_HOST[$1]}" --mount --pid --net -- "${@:2}"
}

# write_on NODE FILE: standard input. In place, which containerd notices.
write_on() {
    in_runtime_host "$1" mkdir -p "$(dirname "$2")"
    in_runtime_host "$1" dd of="$2" status=none
}

# kill_inside PID NAME: ends the program that `in_runtime_host NODE NAME ... &` runs; PID is the shell that waits.
kill_inside() {
    kill -KILL "$(pgrep -P "$(pgrep -P "$1" -x nsenter)" -x "$2")"
    wait "$1" 2>/dev/null || true
}

# conflist NODE [PLUGIN...]: the network `tartan`: our plugin with what a runtime may tell it, and others, JSON objects,
# chained behind it.
conflist() {
    jq -n --arg root "$LAB_STATE/$1" '$ARGS.positional as $chained | {name: "tartan", cniVersion: "1.0.0",
        cniVersions: ["0.4.0", "1.0.0", "1.1.0"], plugins: [{type: "tartan-cni", $root, capabilities: {ips: true,
            mac: true, bandwidth: all($chained[]; .type != "bandwidth"), "io.kubernetes.cri.pod-annotations": true}},
        $chained[]]}' --jsonargs "${@:2}" | write_on "$1" /etc/cni/net.d/10-tartan.conflist
}

# note_pod POD NODE CONTAINER: notes what its attachment record says.
note_pod() {
    POD_NODE[$1]=$2
    POD_ID[$1]=$3
    POD_RECORD[$1]=$(record_of "$2" "$3")
    [ -n "${POD_RECORD[$1]}" ] || die "no attachment record of $1 on $2"
}

# record_of NODE CONTAINER: nothing, if it has none.
record_of() {
    records "$1" | jq -c --arg container "$2" 'select(.container == $container)'
}

records() {
    find "$LAB_STATE/$1/run/tartan/attachments" -name '*.json' -exec cat {} + 2>/dev/null | jq -c .
}

is_detached() {
    [ -z "$(record_of "${POD_NODE[$1]}" "${POD_ID[$1]}")" ]
}

# pod_addresses POD: as words.
pod_addresses() {
    jq -r '[.addresses[] | split("/")[0]] | join(" ")' <<<"${POD_RECORD[$1]}"
}

# pod_address POD: its first, which is of IPv4.
pod_address() {
    pod_addresses "$1" | cut -d ' ' -f 1
}

# Runs a tool of ours in the network namespace of a pod.
in_pod() {
    in_runtime_host "${POD_NODE[$1]}" nsenter --net="$(jq -r .netns <<<"${POD_RECORD[$1]}")" -- "${@:2}"
}

# reaches FROM ADDRESS: each ping of a pod is answered, however late a busy machine lets it be.
reaches() {
    equal "ping $1 to $2" "5 received" "$(in_pod "$1" python3 "$TOOLS/pings.py" "$2" 5 0.02 3)"
}

# transfer FROM TO ADDRESS [PORT]: what a pod or node sends arrives in a pod whole, to an address of its own, or one of
# IPv4 that leads there.
transfer() {
    local arrives receiver sent from=in_pod
    [ -n "${POD_NODE[$1]:-}" ] || from=in_ns
    arrives=$(pod_address "$2")
    [[ $3 != *:* ]] || arrives=$3
    in_pod "$2" python3 "$TOOLS/bulk.py" receive "$arrives" 5003 >"$SCRATCH/received" &
    receiver=$!
    sent=$("$from" "$1" python3 "$TOOLS/bulk.py" send "$3" "${4:-5003}" "$BYTES") || fail "sending from $1 to $3"
    wait "$receiver" || fail "receiving at $2"
    equal "bytes from $1 to $3" "$BYTES" "${sent%% *}"
    equal "bytes and sha256 at $2" "$sent" "$(cat "$SCRATCH/received")"
}

# exchange POD POD: of two nodes: pings and a transfer each way, in every family they have.
exchange() {
    local address
    for address in $(pod_addresses "$2"); do
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
cni_plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni"]
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

# podman_run NODE NAME OPTION...: a container that sleeps, noted as a pod.
podman_run() {
    local id
    id=$(podman "$1" run -d --name "$2" --cgroup-parent "/$PREFIX-runtimes" "${@:3}" --rootfs "$SCRATCH/$1/rootfs" \
        /bin/sleep 600) || die "podman run of $2 on $1"
    note_pod "$2" "$1" "$id"
}

# containerd_up NODE: containerd with its CRI, which `ctr` and `cri` speak to, and the image of sandboxes.
containerd_up() {
    write_on "$1" /etc/containerd/config.toml <<TOML
version = 2
root = "$SCRATCH/$1/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
TOML
    # It looks nowhere else for plugins, and brings `lo` up by one of them.
    in_runtime_host "$1" cp -r /usr/lib/cni/. /opt/cni/bin/
    containerd_start "$1"
    python3 "$TOOLS/oci_image.py" "/proc/${RUNTIME_HOST[$1]}/root$SCRATCH/$1/rootfs" "$SCRATCH/pause.tar" \
        localhost/pause:1 /bin/sleep 2147483647
    in_runtime_host "$1" ctr -n k8s.io images import "$SCRATCH/pause.tar" >/dev/null || die "no image in $1"
}

# Its process, as the host sees it, is in CONTAINERD[NODE].
containerd_start() {
    local entered
    in_runtime_host "$1" containerd -l info >>"$SCRATCH/containerd-$1.log" 2>&1 &
    entered=$!
    disown "$entered"
    until_true 15 "containerd on $1 answers" in_runtime_host "$1" ctr version || tail -n 20 "$SCRATCH/containerd-$1.log"
    # shellcheck disable=SC2034 # The tests use it.
    CONTAINERD[$1]=$(pgrep -P "$(pgrep -P "$entered" -x nsenter)" -x containerd)
}

# cri NODE VERB ARG...; Debian's python3 alone has Debian's python3-grpcio.
cri() {
    in_runtime_host "$1" /usr/bin/python3 "$TOOLS/cri.py" /run/containerd/containerd.sock "${@:2}"
}

# cri_run NODE NAME OPTION...: a sandbox, noted as a pod.
cri_run() {
    local id
    id=$(cri "$1" run "$2" "/$PREFIX-runtimes" "${@:3}") || die "RunPodSandbox of $2 on $1"
    note_pod "$2" "$1" "$id"
}

# cri_end POD: stopped twice, as after a restart of a kubelet, the second time without a namespace; and removed.
cri_end() {
    local node=${POD_NODE[$1]} id=${POD_ID[$1]}
    cri "$node" stop "$id" || fail "StopPodSandbox of $1"
    equal "$1 once stopped" 'notready ' "$(cri "$node" podstatus "$id")"
    cri "$node" stop "$id" || fail "the second StopPodSandbox of $1"
    cri "$node" rm "$id" || fail "RemovePodSandbox of $1"
}

# network_is true|false: what the CRI of node1 says.
network_is() {
    [[ $(cri node1 status) == "NetworkReady $1"* ]]
}

# contains WHAT PART TEXT
contains() {
    if [[ $3 == *"$2"* ]]; then say "$1: ... $2 ..."; else fail "$1: expected '$2' in: $3"; fi
}

# forgotten NODE: of the pods that are gone nothing is left, wherever a runtime or a plugin leaves something.
forgotten() {
    until_true 5 "$1 holds what it held before its pods" holds_as_before "$1" ||
        diff "$SCRATCH/$1.before" "$SCRATCH/$1.after" | grep '^[<>]'
}

holds_as_before() {
    holdings "$1" >"$SCRATCH/$1.after"
    cmp -s "$SCRATCH/$1.before" "$SCRATCH/$1.after"
}

# One fact a line. Debian's portmap and firewall keep their empty chains, which name no pod, for the next one.
holdings() {
    local space=$PREFIX-$1
    ip -n "$space" -j link show | jq -r '.[].ifname'
    ip -n "$space" -4 -o route show table all
    ip -n "$space" -6 -o route show table all
    ip -n "$space" rule show
    ip netns exec "$space" nft list ruleset 2>/dev/null | sed -E 's/counter packets [0-9]+ bytes [0-9]+//' |
        { grep -E '10\.244\.[0-9]+\.[0-9]+[^/0-9]|fd00:10:244:|CNI-(DN-)?[0-9a-f]{10}|tt[0-9a-f]{8}' || true; }
    records "$1"
    in_runtime_host "$1" find /run/netns /var/lib/cni -type f ! -name 'last_reserved*' ! -name lock 2>/dev/null || true
    in_runtime_host "$1" findmnt -rno TARGET,FSTYPE
    in_runtime_host "$1" ps -e -o comm= | { grep -vxE 'ps|catatonit' || true; } | sort
}
