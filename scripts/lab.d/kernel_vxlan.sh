# shellcheck shell=bash
# A node without Tartan: the kernel's VXLAN devices exactly as flannel's vxlan backend sets them up
# (pkg/backend/vxlan/device.go and vxlan_network.go). Sourced by scripts/lab.
#
#   flannel.1      inner IPv4 over the IPv4 underlay
#   flannel-v6.1   inner IPv6 over the IPv6 underlay, with a MAC of its own

kernel_vxlan_up() {
    local node=$1 family other
    sysctl_in "node$node" net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    for family in $(inside); do
        kernel_vxlan_device "$node" "$family"
        [ "$REGISTRY" = file ] || continue
        for other in $(node_numbers); do
            [ "$other" = "$node" ] || kernel_vxlan_peer "$node" "$(pod_subnet "$other" "$family")" \
                "$(vtep_mac "$other" "$family")" "$(underlay_address "$other" "$family")" "$family"
        done
    done
}

# The kernel's devices on node $1, whose agent was stopped, as flannel leaves them. What the registry says of the node
# is not written; without one the lists of all nodes say it.
kernel_vxlan_instead() {
    local third=$KERNEL KERNEL="$KERNEL $1" family
    kernel_vxlan_up "$1"
    if [ "$REGISTRY" != file ]; then
        kernel_vxlan_follow "$1"
        return 0
    fi
    lists_of_nodes
    for family in $(inside); do
        kernel_vxlan_peer "$third" "$(pod_subnet "$1" "$family")" "$(vtep_mac "$1" "$family")" \
            "$(underlay_address "$1" "$family")" "$family"
    done
}

# Makes a kernel node agree with the registry, as flanneld would by its watch: what it learns of a node is set, the
# routes to those that are gone go.
kernel_vxlan_follow() {
    local node=$1 space=$PREFIX-node$1 family device leases subnet mac public gone
    leases=$(registry_leases)
    for family in $(inside); do
        device=${KERNEL_VXLAN[$family]}
        gone=$(ip -n "$space" "-$family" -j route show dev "$device" proto boot | jq -r '.[].dst')
        while read -r subnet mac public; do
            if [ "$subnet" = "$(pod_subnet "$node" "$family")" ]; then continue; fi
            kernel_vxlan_peer "$node" "$subnet" "$mac" "$public" "$family"
            gone=$(grep -vxF "$subnet" <<<"$gone") || true
        done < <(jq -r --arg family "$family" 'select(.type == "vxlan") | .["mac" + $family] as $mac
            | .["public" + $family] as $public | .subnets[] | select(contains(":") == ($family == "6"))
            | "\(.) \($mac // empty) \($public // empty)"' <<<"$leases")
        for subnet in $gone; do
            ip -n "$space" "-$family" route delete "$subnet" dev "$device"
            ip -n "$space" neighbour delete "${subnet%/*}" dev "$device"
        done
    done
}

kernel_vxlan_device() {
    local node=$1 family=$2 device space=$PREFIX-node$1 checksums='' no_dad=''
    device=${KERNEL_VXLAN[$family]}
    if [ "$family" = 6 ]; then
        checksums='noudp6zerocsumtx noudp6zerocsumrx'
        no_dad=nodad
    fi
    # shellcheck disable=SC2086
    ip -n "$space" link add "$device" address "$(vtep_mac "$node" "$family")" \
        mtu $((UNDERLAY_MTU - ${VXLAN_OVERHEAD[$family]})) \
        type vxlan id 1 dev eth0 local "$(underlay_address "$node" "$family")" dstport 8472 nolearning $checksums
    ip -n "$space" address add "$(tunnel_address "$node" "$family")/${HOST_BITS[$family]}" dev "$device" $no_dad
    ip -n "$space" link set "$device" up
}

# One remote lease: neighbour, forwarding entry, route, in flannel's order. $1 node, $2 subnet, $3 MAC, $4 public
# address, $5 family.
kernel_vxlan_peer() {
    local space=$PREFIX-node$1 subnet=$2 mac=$3 public=$4 device gateway=${2%/*}
    device=${KERNEL_VXLAN[$5]}
    ip -n "$space" neighbour replace "$gateway" lladdr "$mac" dev "$device" nud permanent
    bridge -n "$space" fdb replace "$mac" dev "$device" dst "$public" self permanent
    ip -n "$space" route replace "$subnet" via "$gateway" dev "$device" onlink
}
