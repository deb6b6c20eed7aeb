# shellcheck shell=bash
# Container runtimes on the nodes of a lab, as Debian has them: podman with its CNI backend, containerd with
# `ctr` and with its CRI. Each node's have directories, mounts and processes of their own (runtime_host.sh); no image comes from anywhere:
# a container is a busybox. Sourced after test_case.sh.
#
#   PREFIX-node1  ──  runtime host of node1: /etc/cni/net.d, /opt/cni/bin, /run, /var/lib/cni ...  ──  containers
#   the agent is outside of it: it knows pods by their records alone, as a DaemonSet does

# The first process of each node's runtime host, and those of containerd.
declare -A RUNTIME_HOST CONTAINERD
# What is known of a pod by its name here: its node, and its attachment record as it was when it came.
declare -A POD_NODE POD_RECORD POD_ID
BYTES=$((16 << 20))
# Milliseconds in which they have to arrive, below 1 MB/s: no healthy speed, even on the busiest machine.
SLOWEST=20000
PINGS=5
# Seconds until an attachment that no runtime will ever detach is free again.
RECLAIMED_WITHIN=120
SERVICE=10.96.0.10
DEBIAN_PLUGINS=/usr/lib/cni
# Debian's python3 alone has Debian's python3-grpcio.
PYTHON_WITH_GRPC=/usr/bin/python3

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
    cgroups | sort -r | xargs -r rmdir
}

cgroups() {
    find /sys/fs/cgroup -type d -path "*/$PREFIX-runtimes*"
}

# runtime_host_up NODE: makes its runtime host, with the plugin, as `in_runtime_host NODE CMD...` will find it.
runtime_host_up() {
    local base=$SCRATCH/$1 parent
    mkdir "$base"
    nsenter --net="/run/netns/$PREFIX-$1" unshare --mount --pid --fork --kill-child --mount-proc \
        "$TOOLS/runtime_host.sh" "$base" "$LAB_STATE" &
    parent=$!
    STARTED+=("$parent")
    until_true 10 "the runtime host of $1" runtime_host_stands "$parent" || die "no runtime host for $1"
    RUNTIME_HOST[$1]=$(pgrep -P "$parent")
    busybox_root "$1"
    install_plugin "$1"
}

runtime_host_stands() {
    [ "$(cat "/proc/$(pgrep -P "$1")/comm")" = catatonit ]
}

# Runs a command in the runtime host of a node, and in its network namespace.
in_runtime_host() {
    nsenter --target "${RUNTIME_HOST[$1]}" --mount --pid --net -- "${@:2}"
}

# kill_inside PID NAME: ends the program NAME that `in_runtime_host NODE NAME ... &` runs, PID being the shell that waits for it.
kill_inside() {
    kill -KILL "$(pgrep -P "$(pgrep -P "$1" -x nsenter)" -x "$2")"
    wait "$1" 2>/dev/null || true
}

busybox_root() {
    local root=$SCRATCH/$1/rootfs
    # shellcheck disable=SC2016
    in_runtime_host "$1" sh -c '
        mkdir -p "$0/bin" "$0/proc" "$0/sys" "$0/dev" "$0/tmp" "$0/etc" "$0/run" "$0/root"
        cp "$1" "$0/bin/busybox"
        for name in sh ip ping sleep cat ls nc httpd wget true; do ln -s busybox "$0/bin/$name"; done
        ' "$root" "$(command -v busybox)"
}

install_plugin() {
    in_runtime_host "$1" install -m 755 "$(plugin)" /opt/cni/bin/tartan-cni
}

plugin() {
    echo "${LAB_BIN:-$SCRIPTS/../target/fast}/tartan-cni"
}

# conflist NODE [PLUGIN...]: the network `tartan`: our plugin with what a runtime may tell it, with $IPAM if that is
# set, and others, JSON objects, chained behind it. Written in place, which containerd notices.
conflist() {
    local node=$1
    shift
    jq -n --arg root "$LAB_STATE/$node" --argjson ipam "${IPAM:-null}" '{cniVersion: "1.0.0",
        cniVersions: ["0.4.0", "1.0.0", "1.1.0"], name: "tartan",
        plugins: [{type: "tartan-cni", $root, $ipam, capabilities: {ips: true, mac: true,
                   bandwidth: all($ARGS.positional[]; .type != "bandwidth"), "io.kubernetes.cri.pod-annotations": true}},
                  $ARGS.positional[]]}' --jsonargs "$@" |
        in_runtime_host "$node" dd of=/etc/cni/net.d/10-tartan.conflist status=none
}

# note_pod POD NODE CONTAINER: notes what its attachment record says; a container is named as in CNI_CONTAINERID.
note_pod() {
    local record
    record=$(record_of "$2" "$3") || die "$1 on $2: $record"
    POD_NODE[$1]=$2
    POD_RECORD[$1]=$record
    say "$1 on $2: $(pod_address "$1")"
}

# reclaimed NODE CONTAINER [IFNAME]: the agent takes away what no runtime ever detaches, in time by the clock.
reclaimed() {
    local start=$SECONDS
    while record_of "$@" >/dev/null && [ $((SECONDS - start)) -le "$RECLAIMED_WITHIN" ]; do sleep 1; done
    measured_at_most "seconds until $2 ${3:-eth0} was reclaimed" "$RECLAIMED_WITHIN" $((SECONDS - start))
}

# record_of NODE CONTAINER [IFNAME]
record_of() {
    local found
    found=$(records "$1" | jq -c --arg container "$2" --arg ifname "${3:-eth0}" 'select(.container == $container and .ifname == $ifname)')
    [ -n "$found" ] || {
        echo "no attachment record of $2"
        return 1
    }
    echo "$found"
}

records() {
    find "$LAB_STATE/$1/run/tartan/attachments" -name '*.json' -exec cat {} + 2>/dev/null | jq -c .
}

# pod_address POD [4|6]
pod_address() {
    jq -r --arg family "${2:-4}" '[.addresses[] | split("/")[0] | select(contains(":") == ($family == "6"))][0] // empty' <<<"${POD_RECORD[$1]}"
}

# Runs a tool of ours in the network namespace of a pod.
in_pod() {
    local node=${POD_NODE[$1]}
    in_runtime_host "$node" nsenter --net="$(jq -r .netns <<<"${POD_RECORD[$1]}")" -- "${@:2}"
}

# reaches FROM ADDRESS [COUNT]: every ping of a pod is answered, however late a busy machine lets it be, or COUNT are.
reaches() {
    equal "ping $1 to $2" "${3:-$PINGS} received" "$(in_pod "$1" python3 "$TOOLS/pings.py" "$2" "$PINGS" 0.02 3)"
}

# transfer FROM TO [ADDRESS PORT]: what one pod sends arrives at another whole, to whatever address it is sent: one of
# its own at port 5003, or one that leads there, of IPv4. How fast is measured elsewhere: here only that nothing is
# retransmitted all the time.
transfer() {
    local from=$1 to=$2 receiver sent start=${EPOCHREALTIME/[.,]/}
    local address=${3:-$(pod_address "$2")} port=${4:-5003} arrives
    arrives=$(pod_address "$to")
    [[ $address != *:* ]] || arrives=$address
    in_pod "$to" python3 "$TOOLS/bulk.py" receive "$arrives" 5003 >"$SCRATCH/received" &
    receiver=$!
    sent=$(in_pod "$from" python3 "$TOOLS/bulk.py" send "$address" "$port" "$BYTES") || fail "sending from $from to $address"
    wait "$receiver" || fail "receiving at $to"
    equal "bytes from $from to $address:$port" "$BYTES" "${sent%% *}"
    equal "bytes and sha256 at $to" "$sent" "$(cat "$SCRATCH/received")"
    measured_at_most "milliseconds that took" "$SLOWEST" $(((${EPOCHREALTIME/[.,]/} - start) / 1000))
}

# hairpin POD: it reaches itself by a Service, as kube-proxy would have it: another destination on the way in, and
# another source, so that the answer comes back the same way.
hairpin() {
    local node=${POD_NODE[$1]} address
    address=$(pod_address "$1")
    in_ns "$node" nft -f - <<NFT
table ip service {
    chain prerouting {
        type nat hook prerouting priority dstnat;
        ip daddr $SERVICE tcp dport 80 dnat to $address:5003
    }
    chain postrouting {
        type nat hook postrouting priority srcnat - 5;
        ip saddr $address ip daddr $address masquerade
    }
}
NFT
    transfer "$1" "$1" "$SERVICE" 80
    in_ns "$node" nft delete table ip service
}

# Pods of two nodes: pings and a transfer each way, in every family they have.
exchange() {
    local family from to
    for family in 4 6; do
        for to in "$1 $2" "$2 $1"; do
            read -r from to <<<"$to"
            if [ -z "$(pod_address "$to" "$family")" ]; then continue; fi
            reaches "$from" "$(pod_address "$to" "$family")"
            transfer "$from" "$to" "$(pod_address "$to" "$family")"
        done
    done
}

# podman_up NODE: podman with its CNI backend, its network `tartan` by default.
podman_up() {
    in_runtime_host "$1" mkdir -p /etc/containers
    in_runtime_host "$1" dd of=/etc/containers/containers.conf status=none <<'TOML'
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
    in_runtime_host "$1" dd of=/etc/containers/storage.conf status=none <<TOML
[storage]
driver = "vfs"
graphroot = "$SCRATCH/$1/podman"
runroot = "/run/containers/storage"
TOML
}

podman() {
    in_runtime_host "$1" podman "${@:2}"
}

# podman_run NODE NAME OPTION...: a container that sleeps, noted as a pod.
podman_run() {
    local id
    id=$(podman "$1" run -d --name "$2" --cgroup-parent "/$PREFIX-runtimes" "${@:3}" --rootfs "$SCRATCH/$1/rootfs" /bin/sleep 600) ||
        die "podman run of $2 on $1"
    note_pod "$2" "$1" "$id"
}

# containerd_up NODE: containerd with its CRI, which `ctr` and `cri` speak to, and the image that sandboxes are made of.
containerd_up() {
    in_runtime_host "$1" dd of=/etc/containerd/config.toml status=none <<TOML
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
    in_runtime_host "$1" cp -r "$DEBIAN_PLUGINS/." /opt/cni/bin/
    containerd_start "$1"
    python3 "$TOOLS/oci_image.py" "/proc/${RUNTIME_HOST[$1]}/root$SCRATCH/$1/rootfs" "$SCRATCH/pause.tar" localhost/pause:1 /bin/sleep 2147483647
    in_runtime_host "$1" ctr -n k8s.io images import "$SCRATCH/pause.tar" >/dev/null || die "containerd on $1 refuses the image"
}

# Its process, as the host sees it, is in CONTAINERD[NODE].
containerd_start() {
    local entered
    nsenter --target "${RUNTIME_HOST[$1]}" --mount --pid --net -- containerd -l info >>"$SCRATCH/containerd-$1.log" 2>&1 &
    entered=$!
    disown "$entered"
    until_true 15 "containerd on $1 answers" in_runtime_host "$1" ctr version || die "$(tail -n 20 "$SCRATCH/containerd-$1.log")"
    CONTAINERD[$1]=$(pgrep -P "$entered" -x containerd)
}

# containerd_stop NODE [SIGNAL]
containerd_stop() {
    kill "-${2:-TERM}" "${CONTAINERD[$1]}"
    until_true 10 "containerd on $1 ends" containerd_gone "$1"
}

containerd_gone() {
    [ ! -e "/proc/${CONTAINERD[$1]}/exe" ]
}

# ctr_in NODE ARG...; a container's cgroup is /NAMESPACE/ID.
ctr_in() {
    in_runtime_host "$1" ctr -n "$PREFIX-runtimes" "${@:2}"
}

# ctr_run NODE NAME OPTION...: a detached container with a network, noted as a pod.
ctr_run() {
    ctr_in "$1" run -d --cni "${@:3}" --rootfs "$SCRATCH/$1/rootfs" "$2" /bin/sleep 600 || die "ctr run of $2 on $1"
    note_pod "$2" "$1" "$PREFIX-runtimes-$2"
}

ctr_kill() {
    ctr_in "$1" task kill -s KILL "$2"
    until_true 5 "the task $2 ends" ctr_stopped "$1" "$2"
    ctr_in "$1" task rm "$2" >/dev/null
    ctr_in "$1" container rm "$2"
}

ctr_stopped() {
    grep -q "^$2 .*STOPPED" <<<"$(ctr_in "$1" task ls)"
}

# cri NODE VERB ARG...
cri() {
    in_runtime_host "$1" "$PYTHON_WITH_GRPC" "$TOOLS/cri.py" /run/containerd/containerd.sock "${@:2}"
}

# cri_run NODE NAME OPTION...: a sandbox, noted as a pod; its id is in POD_ID[NAME].
cri_run() {
    POD_ID[$2]=$(cri "$1" run "$2" "/$PREFIX-runtimes" "${@:3}") || die "RunPodSandbox of $2 on $1"
    note_pod "$2" "$1" "${POD_ID[$2]}"
}

# contains WHAT PART TEXT
contains() {
    if [[ $3 == *"$2"* ]]; then
        say "$1: ... $2 ..."
    else
        fail "$1: expected '$2' in: $3"
    fi
}

# remember NODE: what it holds before the first pod, for forgotten.
remember() {
    holdings "$1" >"$SCRATCH/$1.before"
}

# forgotten NODE: of the pods that are gone nothing is left, wherever a runtime or a plugin leaves something.
forgotten() {
    local wait now
    for ((wait = 0; wait < 10; wait++)); do
        now=$(holdings "$1")
        if [ "$now" = "$(cat "$SCRATCH/$1.before")" ]; then break; fi
        sleep 0.5
    done
    same "what $1 holds after its pods, and held before them" "$(cat "$SCRATCH/$1.before")" "$now"
}

# nothing_dropped NODE: whatever pods exchanged has arrived, and has one fate.
nothing_dropped() {
    equal "drops on $1" '{}' "$(agent_json "$1" drops |
        jq -c '[.reasons[] | select(.count > 0) | {"\(.direction) \(.reason)": .count}] | add // {}')"
    law_one "$1"
}

# One fact a line. Debian's portmap and firewall keep their empty chains, which name no pod, for the next one.
holdings() {
    local space=$PREFIX-$1
    ip -n "$space" -j link show | jq -r '.[] | "link \(.ifname)"'
    ip -n "$space" -4 -o route show table all | sed 's/^/route /'
    ip -n "$space" -6 -o route show table all | sed 's/^/route6 /'
    ip -n "$space" -4 rule show | sed 's/^/rule /'
    ip netns exec "$space" nft list ruleset 2>/dev/null | sed -E 's/counter packets [0-9]+ bytes [0-9]+//' |
        { grep -E '10\.244\.[0-9]+\.[0-9]+[^/0-9]|fd00:10:244:|CNI-(DN-)?[0-9a-f]{10}|tt[0-9a-f]{8}' || true; } | sed 's/^/nft /'
    records "$1" | sed 's/^/record /'
    in_runtime_host "$1" find /run/netns /var/lib/cni -type f ! -name 'last_reserved_ip*' ! -name lock -printf 'file %p\n' 2>/dev/null || true
    in_runtime_host "$1" findmnt -rno TARGET,FSTYPE | sed 's/^/mount /'
    in_runtime_host "$1" ps -e -o comm= | { grep -vxE 'ps|catatonit' || true; } | sort | sed 's/^/process /'
}
