# shellcheck shell=bash
# The nodes: their configuration, the agent of each, and how it ends. Sourced by scripts/lab.
#
#   /run/tartan-lab/PREFIX/nodeI/          the agent's --root
#       net-conf.json  nodes.toml          what it is told; nodes.toml may be edited, it is watched
#       log  pid                           its log and the process id of the keeper
#       run/tartan/  var/lib/tartan/       its own

nodes_up() {
    local node
    for node in $(node_numbers); do
        if [ "$(node_kind "$node")" = kernel-vxlan ]; then
            kernel_vxlan_up "$node"
        else
            node_files "$node"
            node_start "$node"
        fi
    done
    for node in $(node_numbers); do
        [ "$(node_kind "$node")" = kernel-vxlan ] || node_ready "$node"
    done
}

node_files() {
    local node=$1 root=$STATE/node$1 other
    mkdir -p "$root"
    printf '{ "Network": "10.244.0.0/16", "Backend": { "Type": "%s" } }\n' "$BACKEND" >"$root/net-conf.json"
    for other in $(node_numbers); do
        printf '[[node]]\nname = "node%s"\nsubnets = ["10.244.%s.0/24"]\npublic-ip = "192.0.2.%s"\n' "$other" "$other" "$other"
        if [ "$(node_kind "$other")" = kernel-vxlan ]; then
            printf 'backend = "vxlan"\nvtep-mac = "%s"\n' "$(vtep_mac "$other")"
        fi
        printf '\n'
    done >"$root/nodes.toml"
}

node_start() {
    local root=$STATE/node$1
    (
        cd "$root" || exit
        exec setsid ip netns exec "$PREFIX-node$1" "$LAB_BIN/tartan" --root "$root" run \
            --net-conf "$root/net-conf.json" --node-file "$root/nodes.toml" --node-name "node$1"
    ) </dev/null >"$root/log" 2>&1 &
    echo $! >"$root/pid"
    disown
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

# Asks every keeper to stop and waits for it; whoever does not listen is ended with its namespace.
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

# A zombie that nobody has collected yet no longer lives, and has no namespace.
lives() {
    readlink "/proc/$1/ns/net" >/dev/null
}

# A kernel device gets a MAC of the lab's choice, which the list of nodes names. A Tartan node's follows
# from its public address (agent/src/lease.rs).
vtep_mac() {
    case $(node_kind "$1") in
    tartan) printf '0a:74:c0:00:02:%02x' "$1" ;;
    kernel-vxlan) printf '02:00:5e:10:00:%02x' "$1" ;;
    esac
}

sysctl_in() {
    local name=$1
    shift
    ip netns exec "$PREFIX-$name" sysctl -q -w "$@"
}
