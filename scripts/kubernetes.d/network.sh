# shellcheck shell=bash
# The pod network: Tartan on every node, with the subnet that Kubernetes gave the node, and its CNI plugin. Sourced by
# scripts/kubernetes.

network_up() {
    local node
    for node in $(node_numbers); do tartan_files "$node"; done
    for node in $(node_numbers); do tartan_start "$node"; done
    for node in $(node_numbers); do plugin_installed "$node"; done
    for node in $(node_numbers); do member_ready "$node"; done
}

# member_network NUMBER: of one that has joined.
member_network() {
    local node
    for node in $(node_numbers); do tartan_files "$node"; done
    tartan_start "$1"
    plugin_installed "$1"
    member_ready "$1"
}

network_without() {
    local node
    for node in $(node_numbers); do tartan_files "$node"; done
}

# The list of nodes, for the registry `file`, is watched: written beside it, and put in its place whole.
tartan_files() {
    local root=$STATE/node$1 other
    mkdir -p "$root"
    printf '{ "Network": "10.244.0.0/16", "Backend": { "Type": "vxlan" } }\n' >"$root/net-conf.json"
    [ "$REGISTRY" = file ] || return 0
    for other in $(node_numbers); do
        printf '[[node]]\nname = "node%s"\nsubnets = ["%s"]\npublic-ip = "%s"\n\n' "$other" "$(pod_cidr "$other")" \
            "$(underlay_address "$other" 4)"
    done >"$root/nodes.toml.new"
    mv "$root/nodes.toml.new" "$root/nodes.toml"
}

tartan_start() {
    local root=$STATE/node$1 source
    case $REGISTRY in
    file) source=(--node-file "$root/nodes.toml") ;;
    kubernetes) source=(--registry kubernetes --kubeconfig "$STATE/control/tartan.kubeconfig") ;;
    esac
    (
        cd "$root" || exit
        exec setsid ip netns exec "$PREFIX-node$1" "$LAB_BIN/tartan" --root "$root" run \
            --net-conf "$root/net-conf.json" --node-name "node$1" "${source[@]}"
    ) </dev/null >>"$root/log" 2>&1 &
    echo $! >"$root/pid"
    disown
    node_ready "$1"
}

# Debian's plugins too: containerd brings `lo` up by one of them. The network's list comes last, because a kubelet calls
# its node ready from then on.
plugin_installed() {
    local node=node$1
    in_host "$node" cp -r /usr/lib/cni/. /opt/cni/bin/
    in_host "$node" install -m 755 "$LAB_BIN/tartan-cni" /opt/cni/bin/tartan-cni
    jq -n --arg root "$STATE/$node" '{cniVersion: "1.0.0", name: "tartan", plugins: [
        {type: "tartan-cni", $root, capabilities: {ips: true, mac: true, bandwidth: true, "io.kubernetes.cri.pod-annotations": true}},
        {type: "portmap", capabilities: {portMappings: true}}]}' |
        in_host "$node" dd of=/etc/cni/net.d/10-tartan.conflist status=none
}
