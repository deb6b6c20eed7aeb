# shellcheck shell=bash
# The registry kubernetes: a small API server that knows Nodes (tartan-test-apiserver), with a Node and its podCIDRs for
# every node of the lab. Sourced by scripts/lab.
#
# What it holds lives in its memory; `registry stop` keeps it in a file for `start`.

KUBERNETES_PORT=6443

kubernetes_prepare() {
    need_tools python3
    [ -x "$LAB_BIN/tartan-test-apiserver" ] || die "no tartan-test-apiserver in $LAB_BIN: run scripts/build --load, or set LAB_BIN"
    echo "KUBECONFIG=$STATE/registry/kubeconfig" >"$STATE/registry/environment"
    cat >"$STATE/registry/kubeconfig" <<TEXT
apiVersion: v1
kind: Config
clusters: [{ name: lab, cluster: { server: "http://$(registry_host):$KUBERNETES_PORT" } }]
users: [{ name: node, user: {} }]
contexts: [{ name: lab, context: { cluster: lab, user: node } }]
current-context: lab
TEXT
}

# No client is to see it before it has all that it held.
kubernetes_start() {
    local saved=$STATE/registry/data/nodes.json options=()
    if [ -s "$saved" ]; then
        options=(--load "$saved")
        registry_in nft "table inet starting { chain input { type filter hook input priority 0; iif != lo tcp dport $KUBERNETES_PORT reject with tcp reset; }; }"
    fi
    registry_process "$LAB_BIN/tartan-test-apiserver" --listen "$(registry_host):$KUBERNETES_PORT" "${options[@]}" "$@"
}

# It says its address once it has everything.
kubernetes_answers() {
    grep -q '^http://' <<<"$(tail -n 1 "$STATE/registry/log")" && kubernetes_nodes list
}

# A real one has forgotten what was before its start. Revisions of ours begin anew: a watch from one of an earlier server
# would go on here, and get what was loaded one by one.
kubernetes_started() {
    [ -s "$STATE/registry/data/nodes.json" ] || return 0
    kubernetes_nodes compact
    registry_in nft delete table inet starting
}

kubernetes_stopping() {
    kubernetes_save "$STATE/registry/data/nodes.json"
}

kubernetes_fill() {
    registry_nodes
}

# kubernetes_nodes VERB...: see kube_nodes.py.
kubernetes_nodes() {
    registry_in python3 "$LAB_HOME/lab.d/kube_nodes.py" "http://$(registry_host):$KUBERNETES_PORT" "$@"
}

# The Node as the controller manager leaves it; a kernel node's with what flanneld would have written there.
kubernetes_node() {
    local family ranges=()
    for family in $(inside); do ranges+=("$(pod_subnet "$1" "$family")"); done
    kubernetes_nodes add "node$1" "${ranges[@]}"
    [ "$(node_kind "$1")" != kernel-vxlan ] || kubernetes_kernel_annotations "$1" | kubernetes_nodes annotate "node$1"
}

kubernetes_node_gone() {
    kubernetes_nodes delete "node$1"
}

# One a line: the name behind flannel's prefix, and the value.
kubernetes_kernel_annotations() {
    echo 'kube-subnet-manager true'
    echo 'backend-type vxlan'
    if has 4 "$(inside)"; then
        echo "public-ip $(underlay_address "$1" 4)"
        echo "backend-data $(kernel_backend_data "$1" 4)"
    fi
    if has 6 "$(inside)"; then
        echo "public-ipv6 $(underlay_address "$1" 6)"
        echo "backend-v6-data $(kernel_backend_data "$1" 6)"
    fi
}

kubernetes_options() {
    printf '%s\n' --kubeconfig "$STATE/registry/kubeconfig" --net-conf "$STATE/node$1/net-conf.json"
}

# Every lease on a line of JSON.
kubernetes_leases() {
    kubernetes_nodes leases
}

kubernetes_save() {
    kubernetes_nodes list | jq .items >"$1.new"
    mv "$1.new" "$1"
}

# The server has not started yet, and loads it then.
kubernetes_restore() {
    cp "$1" "$STATE/registry/data/nodes.json"
}
