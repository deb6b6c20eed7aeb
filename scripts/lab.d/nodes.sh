# shellcheck shell=bash
# The nodes: their configuration, the agent of each, and how it ends. Sourced by scripts/lab.
#
#   /run/tartan-lab/PREFIX/nodeI/          the agent's --root
#       net-conf.json  nodes.toml          its configuration; nodes.toml may be edited, it is watched (with
#                                          --registry etcd neither, with kubernetes no nodes.toml)
#       log  pid                           its log and the process id of the keeper
#       run/tartan/  var/lib/tartan/       its own
#
# STATE/nodes has one line per node: name, kind, its underlay address and VTEP MAC of IPv4, those of IPv6; "-" for
# what it has not.

note_nodes() {
    local node family line
    for node in $(node_numbers); do
        line="node$node $(node_kind "$node")"
        for family in 4 6; do
            if has "$family" "$(outside)"; then line+=" $(underlay_address "$node" "$family")"; else line+=' -'; fi
            if has "$family" "$(inside)"; then line+=" $(vtep_mac "$node" "$family")"; else line+=' -'; fi
        done
        echo "$line"
    done >"$STATE/nodes"
}

nodes_up() {
    local node
    for node in $(node_numbers); do
        case $(node_kind "$node") in
        tartan)
            listed_route "$node"
            node_files "$node"
            node_start "$node"
            ;;
        kernel-vxlan) kernel_vxlan_up "$node" ;;
        direct) direct_up "$node" ;;
        esac
    done
    for node in $(node_numbers); do
        [ "$(node_kind "$node")" != tartan ] || node_ready "$node"
    done
    [ "$REGISTRY" = file ] || [ -z "$KERNEL" ] || kernel_vxlan_follow "$KERNEL"
}

node_files() {
    local node=$1 root=$STATE/node$1
    mkdir -p "$root"
    # With etcd it is there, with a list of nodes in files these are.
    [ "$REGISTRY" = etcd ] || net_conf >"$root/net-conf.json"
    [ "$REGISTRY" = file ] || return 0
    node_list >"$root/nodes.toml"
}

# The list of nodes.
node_list() {
    local other
    for other in $(node_numbers); do node_entry "$other"; done
    listed_entries
}

# Nodes that are not there. Their addresses are behind mallory (listed_route), so that each has a next hop.
listed_entries() {
    awk -v count="$LISTED" 'BEGIN {
        for (k = 1; k <= count; k++) {
            low = int(k / 256) "." k % 256
            printf "[[node]]\nname = \"listed%d\"\nsubnets = [\"10.%s.0/24\"]\n", k, low
            printf "public-ip = \"198.18.%s\"\n\n", low
        }
    }'
}

listed_route() {
    [ "$LISTED" = 0 ] || ip -n "$PREFIX-node$1" route add 198.18.0.0/15 via "$(underlay_address 250 4)"
}

# flannel's, with nothing said that is its default.
net_conf() {
    local keys
    keys="\"Network\": \"$(cluster_network 4)\", "
    case $INSIDE in
    v6) keys='"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/48", ' ;;
    dual) keys+='"EnableIPv6": true, "IPv6Network": "fd00:10:244::/48", ' ;;
    esac
    printf '{ %s"Backend": { "Type": "%s" } }\n' "$keys" "$BACKEND"
}

node_entry() {
    local node=$1 family subnets='' public='' key
    for family in $(inside); do
        subnets+="${subnets:+, }\"$(pod_subnet "$node" "$family")\""
    done
    for family in $(outside); do
        key=${public:+public-ipv6}
        public+="${key:-public-ip} = \"$(underlay_address "$node" "$family")\""$'\n'
    done
    printf '[[node]]\nname = "node%s"\nsubnets = [%s]\n%s' "$node" "$subnets" "$public"
    if [ "$(node_kind "$node")" = kernel-vxlan ]; then
        printf 'backend = "vxlan"\n'
        key=
        for family in $(inside); do
            key=${key:+vtep-mac-v6}
            printf '%s = "%s"\n' "${key:=vtep-mac}" "$(vtep_mac "$node" "$family")"
        done
    # Without probes it does not say so itself.
    elif [ "${TARTAN_PROBE:-}" = false ] && [ "${KERNEL_PATH:-off}" != off ]; then
        printf 'kernel-path = true\n'
    fi
    printf '\n'
}

# A BPF file system where the agent looks for one below its root, as systemd mounts one at /sys/fs/bpf.
mount_bpf() {
    local place=$STATE/node$1/sys/fs/bpf
    mountpoint -q "$place" && return 0
    mkdir -p "$place"
    mount -t bpf -o mode=0700 bpf "$place" ||
        echo "lab '$PREFIX': node$1 has no BPF file system: a kill of its agent ends the flows of its kernel path" >&2
}

# unmount_bpf ROOT: with all that is pinned there.
unmount_bpf() {
    ! mountpoint -q "$1/sys/fs/bpf" || umount "$1/sys/fs/bpf"
}

node_start() {
    local root=$STATE/node$1 options
    if [ "$REGISTRY" = file ]; then
        options=(--net-conf "$root/net-conf.json" --node-file "$root/nodes.toml")
    else
        mapfile -t options < <(registry_options "$1")
    fi
    # Stock flannel cannot carry it: an option, which every node of the cluster must have.
    if [ "$BACKEND" = udp ] && has 6 "$(inside)"; then options+=(--ipv6-over-udp); fi
    if [ -n "$WORKERS" ]; then options+=(--workers "$WORKERS"); fi
    if [ -n "$DEVICE" ]; then options+=(--device "$DEVICE"); fi
    if [ -n "$DEVICE_TYPE" ]; then options+=(--device-type "$DEVICE_TYPE"); fi
    # A test may have put it into the file, to change it while the agent runs.
    if [ -n "$KERNEL_PATH" ] && ! grep -qs '^kernel-path' "$root/etc/tartan/tartan.toml"; then
        options+=(--kernel-path "$KERNEL_PATH")
    fi
    mount_bpf "$1"
    (
        cd "$root" || exit
        if [ -n "$SECURE" ]; then export TARTAN_ETCD_PASSWORD=$ETCD_PASSWORD; fi
        # The lab's addresses are behind no proxy, whatever the shell has set.
        unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
        exec setsid ip netns exec "$PREFIX-node$1" "${LAB_AGENT:-$LAB_BIN/tartan}" --root "$root" run \
            --node-name "node$1" "${options[@]}"
    ) </dev/null >>"$root/log" 2>&1 &
    echo $! >"$root/pid"
    disown
}

# Asks the keeper of a node to stop and waits for its end, at most 10 seconds.
node_stop() {
    local wait pid
    pid=$(cat "$STATE/node$1/pid")
    kill -TERM "$pid" 2>/dev/null || true
    for ((wait = 0; wait < 100; wait++)); do
        lives "$pid" || return 0
        sleep 0.1
    done
    die "the agent of node$1 (process $pid) does not end"
}

# Waits until the agent says that all is well, at most 20 seconds.
node_ready() {
    local root=$STATE/node$1 wait pid answer
    pid=$(cat "$root/pid")
    for ((wait = 0; wait < 200; wait++)); do
        if exec_in "node$1" tartan status -o json >"$root/status" 2>&1 &&
            jq -e --arg node "node$1" '.node == $node and .snapshot_adopted' "$root/status" >/dev/null; then
            rm -f "$root/status"
            return 0
        fi
        lives "$pid" || break
        sleep 0.1
    done
    answer=$(cat "$root/status")
    die "node$1 did not become ready. 'tartan status' says:
$answer
Its log ends:
$(tail -n 25 "$root/log")
Take the lab away with: scripts/lab down --prefix $PREFIX"
}

# Adds node $1 to a lab that is up, with its pods.
node_join() {
    local node=$1 pod
    underlay_host "node$node" "$node"
    note_nodes
    if [ "$REGISTRY" = file ]; then lists_of_nodes; else "${REGISTRY}_node" "$node"; fi
    listed_route "$node"
    node_files "$node"
    node_start "$node"
    node_ready "$node"
    [ "$REGISTRY" = file ] || [ -z "$KERNEL" ] || kernel_vxlan_follow "$KERNEL"
    for pod in $(pod_numbers "$node"); do pod_up "$node" "$pod"; done
}

# Takes node $1 away with its pods, and what the registry holds of it.
node_leave() {
    local node=$1 name names
    mapfile -t names < <(pods_of "node$node")
    for name in "${names[@]}"; do
        pod_down "$name" "node$node"
        ip netns delete "$PREFIX-$name"
    done
    sed -i "/ node$node /d" "$STATE/pods"
    if [ -e "$STATE/node$node/pid" ]; then node_stop "$node"; fi
    # A socket without a process, of an address that the node has lost, keeps the namespace for a minute or two.
    ip -n "$PREFIX-net" link delete "node$node"
    ip netns delete "$PREFIX-node$node"
    unmount_bpf "$STATE/node$node"
    rm -rf "$STATE/node$node"
    note_nodes
    if [ "$REGISTRY" = file ]; then lists_of_nodes; else "${REGISTRY}_node_gone" "$node"; fi
    [ "$REGISTRY" = file ] || [ -z "$KERNEL" ] || [ "$node" = "$KERNEL" ] || kernel_vxlan_follow "$KERNEL"
}

# Writes the list of nodes anew on every node that has one; as a whole, as an editor does.
lists_of_nodes() {
    local node
    for node in $(node_numbers); do
        [ -e "$STATE/node$node/nodes.toml" ] || continue
        node_list >"$STATE/node$node/nodes.toml.new"
        mv "$STATE/node$node/nodes.toml.new" "$STATE/node$node/nodes.toml"
    done
}

# Asks every keeper to stop and waits for it; one that does not end is ended with its namespace.
nodes_down() {
    local file pid wait keepers=''
    for file in "$STATE"/node*/pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        if grep -qx "$pid" <<<"$(lab_processes)"; then keepers+=" $pid"; fi
    done
    [ -n "$keepers" ] || return 0
    # shellcheck disable=SC2086
    kill -TERM $keepers 2>/dev/null || true
    for pid in $keepers; do
        for ((wait = 0; wait < 60; wait++)); do
            lives "$pid" || break
            sleep 0.1
        done
    done
}

# A zombie that its parent has not collected no longer lives, and has no namespace.
lives() {
    readlink "/proc/$1/ns/net" >/dev/null
}

sysctl_in() {
    local name=$1
    shift
    ip netns exec "$PREFIX-$name" sysctl -q -w "$@"
}
