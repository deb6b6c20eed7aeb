# shellcheck shell=bash
# The registry kubernetes: a small API server that knows Nodes (tartan-test-apiserver), with a Node and its podCIDRs for
# every node of the lab. Sourced by scripts/lab.
#
# What it holds lives in its memory; `registry stop` keeps it in a file for `start`.

KUBERNETES_PORT=6443
# Of flannel's annotations.
FLANNEL=flannel.alpha.coreos.com/

kubernetes_prepare() {
    need_tools curl
    [ -x "$LAB_BIN/tartan-test-apiserver" ] || die "no tartan-test-apiserver in $LAB_BIN: run scripts/build --load"
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
        registry_in nft "table inet starting { chain input { type filter hook input priority 0;
            iif != lo tcp dport $KUBERNETES_PORT reject with tcp reset; }; }"
    fi
    registry_process "$LAB_BIN/tartan-test-apiserver" --listen "$(registry_host):$KUBERNETES_PORT" "${options[@]}" "$@"
}

# It says its address once it has everything. A real one has forgotten what was before its start. Revisions of ours
# begin anew: a watch from one of an earlier server would go on here, and get what was loaded one by one.
kubernetes_answers() {
    grep -q '^http://' <<<"$(tail -n 1 "$STATE/registry/log")" && kubernetes_api GET /api/v1/nodes || return 1
    if [ -s "$STATE/registry/data/nodes.json" ]; then
        kubernetes_api POST /test/compact && registry_in nft delete table inet starting
    fi
}

# kubernetes_api METHOD PATH [OBJECT]: its answer. (Its addresses are behind no proxy, whatever the shell has set.)
kubernetes_api() {
    local kind=json
    if [ "$1" = PATCH ]; then kind=merge-patch+json; fi
    registry_in curl -sS --fail-with-body -m 5 --noproxy '*' -X "$1" -H "content-type: application/$kind" \
        ${3:+--data "$3"} "http://$(registry_host):$KUBERNETES_PORT$2"
}

# The Node as the controller manager leaves it, and kubelet: flanneld stumbles over one without any annotation. A kernel
# node's has what flanneld would have written there.
kubernetes_node() {
    local family ranges=() spec metadata notes="\"volumes.kubernetes.io/controller-managed-attach-detach\":\"true\""
    for family in $(inside); do ranges+=("$(pod_subnet "$1" "$family")"); done
    if [ "$(node_kind "$1")" != tartan ]; then notes+=$(kubernetes_notes "$1"); fi
    spec=$(jq -nc '{podCIDR: $ARGS.positional[0], podCIDRs: $ARGS.positional}' --args "${ranges[@]}")
    metadata="{\"name\":\"node$1\",\"labels\":{\"kubernetes.io/hostname\":\"node$1\"},\"annotations\":{$notes}}"
    spec="\"metadata\":$metadata,\"spec\":$spec"
    kubernetes_api POST /api/v1/nodes "{\"apiVersion\":\"v1\",\"kind\":\"Node\",$spec}" >/dev/null 2>&1 ||
        kubernetes_api PATCH "/api/v1/nodes/node$1" "{$spec}" >/dev/null
}

# flannel's annotations of a kernel node.
kubernetes_notes() {
    local family names=([4]='public-ip backend-data' [6]='public-ipv6 backend-v6-data') ip data
    printf ',"%s":"%s"' "${FLANNEL}kube-subnet-manager" true "${FLANNEL}backend-type" vxlan
    for family in $(inside); do
        read -r ip data <<<"${names[family]}"
        printf ',"%s":%s' "$FLANNEL$ip" "\"$(underlay_address "$1" "$family")\"" \
            "$FLANNEL$data" "$(kernel_backend_data "$1" "$family" | jq -R .)"
    done
}

kubernetes_node_gone() {
    kubernetes_api DELETE "/api/v1/nodes/node$1" >/dev/null
}

kubernetes_options() {
    printf '%s\n' --kubeconfig "$STATE/registry/kubeconfig" --net-conf "$STATE/node$1/net-conf.json"
}

kubernetes_leases() {
    kubernetes_api GET /api/v1/nodes | jq -c --arg flannel "$FLANNEL" '.items[]
        | (.metadata.annotations // {} | with_entries(.key |= ltrimstr($flannel))) as $of
        | select($of["kube-subnet-manager"] == "true")
        | {key: .metadata.name, subnets: (.spec.podCIDRs // [.spec.podCIDR]), type: ($of["backend-type"] // "udp"),
            public4: $of["public-ip"], mac4: ($of["backend-data"] // "{}" | fromjson.VtepMAC),
            public6: $of["public-ipv6"], mac6: ($of["backend-v6-data"] // "{}" | fromjson.VtepMAC)}'
}

kubernetes_save() {
    kubernetes_api GET /api/v1/nodes | jq .items >"$1.new"
    mv "$1.new" "$1"
}

# The server has not started yet, and loads it then.
kubernetes_restore() {
    cp "$1" "$STATE/registry/data/nodes.json"
}
