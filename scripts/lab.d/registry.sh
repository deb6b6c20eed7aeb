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

# What it holds before the nodes start: the cluster's configuration, a place for each node's subnet (not with --acquire,
# where a node takes any), and what flanneld would have written for a kernel node.
registry_up() {
    local node
    mkdir -p "$STATE/registry/data"
    underlay_host registry "$REGISTRY_HOST"
    "${REGISTRY}_prepare"
    registry_start
    [ "$REGISTRY" != etcd ] || etcdctl put "$ETCD_PREFIX/config" "$(net_conf)" >/dev/null
    for node in $(node_numbers); do "${REGISTRY}_node" "$node"; done
    [ -z "$SECURE" ] || etcd_users
}

# The server with further arguments of its own; waits until it answers.
registry_start() {
    local wait pid
    echo '--- a start' >>"$STATE/registry/log"
    "${REGISTRY}_start" "$@"
    pid=$(cat "$STATE/registry/pid")
    for ((wait = 0; wait < 200; wait++)); do
        if "${REGISTRY}_answers" >/dev/null 2>&1; then return 0; fi
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

# Asks the server to end; the API server's Nodes are kept.
registry_stop() {
    local wait pid
    pid=$(cat "$STATE/registry/pid")
    lives "$pid" 2>/dev/null || return 0
    [ "$REGISTRY" = etcd ] || kubernetes_save "$STATE/registry/data/nodes.json"
    kill -TERM "$pid" 2>/dev/null || true
    for ((wait = 0; wait < 300; wait++)); do
        lives "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
    die "the registry (process $pid) does not end"
}

registry_command() {
    local action=${1:-}
    [ "$REGISTRY" != file ] || die "the lab '$PREFIX' has its list of nodes in files: 'scripts/lab up --registry etcd'"
    [ $# -eq 0 ] || shift
    if [ "${1:-}" = -- ]; then shift; fi
    case $action in
    stop) registry_stop ;;
    start) registry_start "$@" ;;
    wipe)
        registry_empty
        registry_start
        ;;
    save) "${REGISTRY}_save" "$(readlink -m "$1")" ;;
    restore)
        registry_empty
        "${REGISTRY}_restore" "$(readlink -m "$1")"
        registry_start
        ;;
    write) registry_write "$@" ;;
    delete) "${REGISTRY}_node_gone" "$1" ;;
    follow) [ -z "$KERNEL" ] || kernel_vxlan_follow "$KERNEL" ;;
    leases) registry_leases ;;
    *) wrong "registry stop, start, wipe, save, restore, write, delete, follow or leases: see 'scripts/lab help'" ;;
    esac
}

# Stopped, and nothing is left of what it held, users neither.
registry_empty() {
    registry_stop
    rm -rf "$STATE/registry/data"
    mkdir "$STATE/registry/data"
    sed -i '/^ETCDCTL_USER=/d' "$STATE/registry/environment"
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

# The options of the agent of node $1, one a line.
registry_options() {
    printf '%s\n' --registry "$REGISTRY" --iface eth0
    "${REGISTRY}_options" "$1"
}

# Its addresses, in the form of a URL's host.
registry_hosts() {
    local family
    for family in $(outside); do underlay_address "$REGISTRY_HOST" "$family" | sed 's/.*:.*/[&]/'; done
}

# The one for nodes and certificates.
registry_host() {
    local first
    read -r first < <(registry_hosts)
    echo "$first"
}

# What flanneld's VXLAN backend publishes of a kernel node's device of a family.
kernel_backend_data() {
    printf '{"VNI":1,"VtepMAC":"%s"}' "${KERNEL_MAC:-$(vtep_mac "$1" "$2")}"
}
