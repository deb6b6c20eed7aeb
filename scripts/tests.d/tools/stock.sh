# shellcheck shell=bash
# The stock flannel contract: a node's pods on the bridge cni0, made by Debian's `bridge` and `host-local`
# as flannel's CNI plugin delegates to them (flannel-io/cni-plugin, flannel.go and flannel_linux.go). All
# that the plugin knows of the node it reads from subnet.env. Sourced after test_case.sh or law.sh.

STOCK_PLUGINS=/usr/lib/cni

# stock ADD|DEL NODE POD: the container runtime's call of flannel's plugin, and its call of the delegate.
stock() {
    local verb=$1 node=$2 pod=$3 kept=$LAB_STATE/$2/cni/flannel/$3
    case $verb in
    ADD)
        mkdir -p "$(dirname "$kept")"
        delegate "$node" >"$kept"
        delegated ADD "$node" "$pod" <"$kept"
        ;;
    DEL)
        delegated DEL "$node" "$pod" <"$kept"
        rm "$kept"
        ;;
    esac
}

# The configuration that flannel's plugin renders from its default list (kube-flannel's cni-conf.json:
# hairpinMode and isDefaultGateway) and from the node's subnet.env. Where host-local keeps its addresses is
# the lab's, not the host's.
delegate() {
    local env=$LAB_STATE/$1/run/flannel/subnet.env
    jq -n --arg data "$LAB_STATE/$1/cni/networks" \
        --arg network "$(env_value FLANNEL_NETWORK "$env")" --arg subnet "$(subnet_value FLANNEL_SUBNET "$env")" \
        --arg network6 "$(env_value FLANNEL_IPV6_NETWORK "$env")" --arg subnet6 "$(subnet_value FLANNEL_IPV6_SUBNET "$env")" \
        --argjson mtu "$(env_value FLANNEL_MTU "$env")" --argjson masquerade "$(env_value FLANNEL_IPMASQ "$env")" '
        [$subnet, $subnet6 | select(. != "")] as $subnets | [$network, $network6 | select(. != "")] as $networks |
        {cniVersion: "0.3.1", name: "cbr0", type: "bridge", hairpinMode: true, isDefaultGateway: true,
         isGateway: true, ipMasq: ($masquerade | not), $mtu,
         ipam: {type: "host-local", dataDir: $data, ranges: [$subnets[] | [{subnet: .}]],
                routes: [$networks[] | {dst: .}]}}'
}

env_value() {
    sed -n "s/^$1=//p" "$2"
}

# A subnet is written with the bridge's address in it, and means the network (Go's net.ParseCIDR).
subnet_value() {
    local value
    value=$(env_value "$1" "$2")
    [ -z "$value" ] || python3 -c 'import ipaddress, sys; print(ipaddress.ip_network(sys.argv[1], strict=False))' "$value"
}

delegated() {
    ip netns exec "$PREFIX-$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-$3" CNI_IFNAME=eth0 \
        CNI_NETNS="/var/run/netns/$PREFIX-$3" CNI_PATH="$STOCK_PLUGINS" "$STOCK_PLUGINS/bridge"
}

# bridged_pod NODE: the pod `bridged`, for a law, beside the node's pods of tartan-cni: it has the addresses from 100
# on.
bridged_pod() {
    local configuration=$SCRATCH/bridged result
    undo no_bridged_pod "$1"
    make_namespace bridged
    delegate "$1" | jq '.ipam.ranges[][] |= . +
        {rangeStart: (.subnet | split("/")[0] | sub("(?<last>:?)0?$"; "\(.last)100"))}' >"$configuration"
    result=$(delegated ADD "$1" bridged <"$configuration") || die "the stock plugin on $1 says: $result"
    jq -r '"bridged '"$1"' \([.ips[].address | split("/")[0]] | join(" "))"' <<<"$result" >>"$LAB_STATE/pods"
}

no_bridged_pod() {
    local family
    sed -i '/^bridged /d' "$LAB_STATE/pods"
    delegated DEL "$1" bridged <"$SCRATCH/bridged" || true
    ip -n "$PREFIX-$1" link delete cni0 || true
    ip netns delete "$PREFIX-bridged"
    rm -rf "$LAB_STATE/$1/cni"
    # What the plugin wrote there to masquerade.
    for family in ip ip6; do ip netns exec "$PREFIX-$1" nft delete table "$family" nat 2>/dev/null || true; done
}
