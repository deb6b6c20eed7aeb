# shellcheck shell=bash
# A node without any overlay: one route per peer, as flannel's host-gw backend sets up
# (pkg/backend/hostgw). What an overlay is compared with. Sourced by scripts/lab.

direct_up() {
    local node=$1 family other
    sysctl_in "node$node" net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    for family in $(inside); do
        for other in $(node_numbers); do
            [ "$other" = "$node" ] || ip -n "$PREFIX-node$node" route replace \
                "$(pod_subnet "$other" "$family")" via "$(underlay_address "$other" "$family")"
        done
    done
}
