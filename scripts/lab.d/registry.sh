# shellcheck shell=bash
# The registry of a lab with --registry etcd or kubernetes: a server on a host of its own on the underlay, what it holds
# before the nodes start, and how it fails. Sourced by scripts/lab, beside etcd.sh and kubernetes.sh.
#
#   PREFIX-registry   192.0.2.252   2001:db8:192::252    etcd: port 2379; the Kubernetes API: port 6443
#
#   /run/tartan-lab/PREFIX/registry/
#       log  pid         the server's log and process id
#       environment      variables by which etcdctl or kubectl reach it, for `scripts/lab exec registry`
#       data/            etcd's data; the API server's nodes while it is stopped
#       tls/             with --secure: certificates and keys

# The number of its host on the underlay.
REGISTRY_HOST=252

registry_up() {
    mkdir -p "$STATE/registry/data"
    underlay_host registry "$REGISTRY_HOST"
    "${REGISTRY}_prepare"
    registry_start
    "${REGISTRY}_fill"
}

# The server with further arguments of its own; waits until it answers.
registry_start() {
    local wait pid
    echo '--- a start' >>"$STATE/registry/log"
    "${REGISTRY}_start" "$@"
    pid=$(cat "$STATE/registry/pid")
    for ((wait = 0; wait < 200; wait++)); do
        if "${REGISTRY}_answers" >/dev/null 2>&1; then
            "${REGISTRY}_started"
            return 0
        fi
        lives "$pid" || break
        sleep 0.05
    done
    die "the registry did not become ready. Its log ends:
$(tail -n 15 "$STATE/registry/log")"
}

# registry_process CMD...: in the registry's namespace and in the background.
registry_process() {
    (exec setsid ip netns exec "$PREFIX-registry" "$@") </dev/null >>"$STATE/registry/log" 2>&1 &
    echo $! >"$STATE/registry/pid"
    disown
}

# Asks the server to end, and ends it after 5 seconds: a paused one does not hear.
registry_stop() {
    local wait pid
    pid=$(cat "$STATE/registry/pid")
    lives "$pid" 2>/dev/null || return 0
    "${REGISTRY}_stopping"
    kill -TERM "$pid" 2>/dev/null || true
    for ((wait = 0; wait < 150; wait++)); do
        lives "$pid" 2>/dev/null || return 0
        if [ "$wait" = 50 ]; then kill -KILL "$pid" 2>/dev/null || true; fi
        sleep 0.1
    done
    die "the registry (process $pid) does not end"
}

registry_command() {
    local action
    parse_prefix "$@"
    set -- "${REST[@]}"
    load_settings
    [ "$REGISTRY" != file ] || die "the lab '$PREFIX' has its list of nodes in files: use 'scripts/lab up --registry etcd' or 'kubernetes'"
    action=${1:-}
    [ $# -eq 0 ] || shift
    if [ "${1:-}" = -- ]; then shift; fi
    case $action in
    stop) registry_stop ;;
    start) registry_start "$@" ;;
    pause) kill -STOP "$(cat "$STATE/registry/pid")" ;;
    resume) kill -CONT "$(cat "$STATE/registry/pid")" ;;
    wipe)
        registry_stop
        registry_empty
        registry_start "$@"
        ;;
    fill) "${REGISTRY}_fill" ;;
    save) "${REGISTRY}_save" "$(registry_file "$@")" ;;
    restore)
        registry_stop
        registry_empty
        "${REGISTRY}_restore" "$(registry_file "$@")"
        registry_start
        ;;
    cut) registry_cut "$@" ;;
    heal) registry_in nft delete table inet lab ;;
    write) registry_write "$@" ;;
    delete) "${REGISTRY}_node_gone" "$1" ;;
    follow) [ -z "$KERNEL" ] || kernel_vxlan_follow "$KERNEL" ;;
    leases) registry_leases ;;
    *) wrong "registry is followed by stop, start, pause, resume, wipe, fill, save, restore, cut, heal, write, delete, follow or leases: see 'scripts/lab help'" ;;
    esac
}

# Nothing is left of what it held, users neither.
registry_empty() {
    rm -rf "$STATE/registry/data"
    mkdir "$STATE/registry/data"
    sed -i '/^ETCDCTL_USER=/d' "$STATE/registry/environment"
}

registry_file() {
    [ $# -eq 1 ] || wrong "registry save and restore take the name of a file"
    readlink -m "$1"
}

# Whatever the nodes named send to the registry's host is lost there; every node's without a name.
registry_cut() {
    local node family nodes=("${@##*node}")
    [ $# -gt 0 ] || mapfile -t nodes < <(node_numbers)
    {
        echo 'table inet lab { chain input { type filter hook input priority 0; }; }'
        for node in "${nodes[@]}"; do
            for family in $(outside); do
                echo "add rule inet lab input ip${family#4} saddr $(underlay_address "$node" "$family") drop"
            done
        done
    } | registry_in nft -f -
}

# registry_write NODE [MAC]: what flanneld would write of a kernel node of that number, whether it is there or not.
registry_write() {
    local KERNEL="$KERNEL $1" KERNEL_MAC=${2:-}
    "${REGISTRY}_node" "$1"
}

# A command on the registry's host.
registry_in() {
    exec_in registry "$@"
}

# What it says of nodes, whichever program wrote it: a lease on a line of JSON.
registry_leases() {
    "${REGISTRY}_leases"
}

# What it holds, before the nodes start: a place for each node's subnet (not with --acquire, where a node takes any), and
# what flanneld would have written for a kernel node.
registry_nodes() {
    local node
    for node in $(node_numbers); do "${REGISTRY}_node" "$node"; done
}

# The options of the agent of node $1, one a line.
registry_options() {
    echo "--registry"
    echo "$REGISTRY"
    echo "--iface"
    echo eth0
    "${REGISTRY}_options" "$1"
}

# The registry's address for nodes and certificates, in the form of a URL's host.
registry_host() {
    local family
    family=$(outside)
    case ${family%% *} in
    4) underlay_address "$REGISTRY_HOST" 4 ;;
    6) echo "[$(underlay_address "$REGISTRY_HOST" 6)]" ;;
    esac
}

# What flanneld's VXLAN backend publishes of a kernel node's device of a family.
kernel_backend_data() {
    printf '{"VNI":1,"VtepMAC":"%s"}' "${KERNEL_MAC:-$(vtep_mac "$1" "$2")}"
}
