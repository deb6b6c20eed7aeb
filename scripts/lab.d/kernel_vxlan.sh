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
        for other in $(node_numbers); do
            [ "$other" = "$node" ] || kernel_vxlan_peer "$node" "$other" "$family"
        done
    done
}

kernel_vxlan_device() {
    local node=$1 family=$2 device space=$PREFIX-node$1 checksums='' no_dad=''
    device=$(kernel_vxlan_name "$family")
    if [ "$family" = 6 ]; then
        checksums='noudp6zerocsumtx noudp6zerocsumrx'
        no_dad=nodad
    fi
    # shellcheck disable=SC2086
    ip -n "$space" link add "$device" address "$(vtep_mac "$node" "$family")" \
        mtu $((UNDERLAY_MTU - $(vxlan_overhead "$family"))) \
        type vxlan id 1 dev eth0 local "$(underlay_address "$node" "$family")" dstport 8472 nolearning $checksums
    ip -n "$space" address add "$(tunnel_address "$node" "$family")/$(host_length "$family")" dev "$device" $no_dad
    ip -n "$space" link set "$device" up
}

kernel_vxlan_name() {
    case $1 in
    4) echo flannel.1 ;;
    6) echo flannel-v6.1 ;;
    esac
}

# One remote lease: neighbour, forwarding entry, route, in flannel's order.
kernel_vxlan_peer() {
    local space=$PREFIX-node$1 other=$2 family=$3 device mac gateway
    device=$(kernel_vxlan_name "$family")
    mac=$(vtep_mac "$other" "$family")
    gateway=$(tunnel_address "$other" "$family")
    ip -n "$space" neighbour replace "$gateway" lladdr "$mac" dev "$device" nud permanent
    bridge -n "$space" fdb replace "$mac" dev "$device" dst "$(underlay_address "$other" "$family")" self permanent
    ip -n "$space" route replace "$(pod_subnet "$other" "$family")" via "$gateway" dev "$device" onlink
}
