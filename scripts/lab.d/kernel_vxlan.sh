# shellcheck shell=bash
# A node without Tartan: the kernel's VXLAN device exactly as flannel's vxlan backend sets it up
# (pkg/backend/vxlan/device.go and vxlan_network.go). Sourced by scripts/lab.

kernel_vxlan_up() {
    local node=$1 other space=$PREFIX-node$1
    sysctl_in "node$node" net.ipv4.ip_forward=1
    ip -n "$space" link add flannel.1 address "$(vtep_mac "$node")" mtu $((UNDERLAY_MTU - 50)) \
        type vxlan id 1 dev eth0 local "192.0.2.$node" dstport 8472 nolearning
    ip -n "$space" address add "10.244.$node.0/32" dev flannel.1
    ip -n "$space" link set flannel.1 up
    for other in $(node_numbers); do
        [ "$other" = "$node" ] || kernel_vxlan_peer "$node" "$other"
    done
}

# One remote lease: neighbour, forwarding entry, route, in flannel's order.
kernel_vxlan_peer() {
    local space=$PREFIX-node$1 other=$2 mac
    mac=$(vtep_mac "$other")
    ip -n "$space" neighbour replace "10.244.$other.0" lladdr "$mac" dev flannel.1 nud permanent
    bridge -n "$space" fdb replace "$mac" dev flannel.1 dst "192.0.2.$other" self permanent
    ip -n "$space" route replace "10.244.$other.0/24" via "10.244.$other.0" dev flannel.1 onlink
}
