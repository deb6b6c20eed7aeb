# shellcheck shell=bash
# A router between the underlay and one node of a lab, for a path that is narrower than the rest. Sourced by tests
# after test_case.sh.
#
#   PREFIX-net br0 ── outside  PREFIX-router  inside ── eth0 PREFIX-nodeN
#
# The nodes are told nothing: their devices, addresses and MTUs stay, and the router answers for either side who asks
# for the other's link address. What is larger than its routes carry it drops with frag-needed or packet-too-big, as a
# router with a narrow link does. It goes with the lab.

# router_before NODE MTU FAMILY...: puts the router there; MTU is that of the path through it, both ways.
router_before() {
    local node=$1 mtu=$2 router=$PREFIX-router family
    shift 2
    make_namespace router
    ip -n "$router" link set lo up
    ip -n "$PREFIX-net" link set "$node" netns "$router" name inside
    ip -n "$router" link add outside mtu 1500 type veth peer name router mtu 1500 netns "$PREFIX-net"
    ip -n "$PREFIX-net" link set router master br0 up
    for family in 4 6; do
        case " $* " in
        *" $family "*) "router_ipv$family" "$node" "$mtu" ;;
        *) if [ "$family" = 6 ]; then in_router net.ipv6.conf.{outside,inside}.disable_ipv6=1; fi ;;
        esac
    done
    ip -n "$router" link set inside up
    ip -n "$router" link set outside up
    for family; do router_routes "$family" "$node" "$mtu"; done
    forget_neighbours
}

in_router() {
    ip netns exec "$PREFIX-router" sysctl -q -w "$@"
}

router_ipv4() {
    in_router net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
        net.ipv4.conf.{outside,inside}.{rp_filter=0,proxy_arp=1} net.ipv4.neigh.{outside,inside}.proxy_delay=0
}

router_ipv6() {
    in_router net.ipv6.conf.all.forwarding=1 net.ipv6.conf.{outside,inside}.{proxy_ndp=1,accept_dad=0} \
        net.ipv6.neigh.{outside,inside}.proxy_delay=0
}

# Its own address is that of no node; only the named node is inside.
router_routes() {
    local family=$1 node=$2 mtu=$3 own=192.0.2.251 all=192.0.2.0/24 length=32 other side
    if [ "$family" = 6 ]; then own=2001:db8:192::251 all=2001:db8:192::/64 length=128; fi
    ip -n "$PREFIX-router" address add "$own/$length" dev outside
    ip -n "$PREFIX-router" route add "$all" dev outside mtu lock "$mtu"
    ip -n "$PREFIX-router" route add "$(underlay_of "$node" "$family")/$length" dev inside mtu lock "$mtu"
    [ "$family" = 6 ] || return 0
    # IPv6 is answered for by the address, not by the route.
    while read -r other _; do
        side=inside
        if [ "$other" = "$node" ]; then side=outside; fi
        ip -n "$PREFIX-router" neighbour add proxy "$(underlay_of "$other" 6)" dev "$side"
    done <"$LAB_STATE/nodes"
}

# A node that spoke with the other side before still knows that one's own link address.
forget_neighbours() {
    local node
    while read -r node _; do
        ip -n "$PREFIX-$node" neighbour flush dev eth0
    done <"$LAB_STATE/nodes"
}
