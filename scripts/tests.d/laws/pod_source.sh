#!/usr/bin/env bash
# A pod sends with its own source address only: with any other its packets end at its own interface, whichever way they
# are bound and whatever the node's rp_filter is, and each is counted. With its own source all arrive. Neighbour
# discovery and reports of multicast listeners pass from a link-local address; what only routers say, and everything
# else, does not.
# labs: format=vxlan inside=dual outside=dual
# labs: format=vxlan inside=v4 registry=kubernetes|etcd
# full: format=vxlan

PORT=7000
# Of each source to each destination; a number that no other count of this law is.
COUNT=19
# says WHAT EXPECTED SOURCES DESTINATIONS: a case of forge.py, which node1 counts.
says() {
    printf 'pod1\tnode1\t%s\t%s\tsources=%s destinations=%s port=%s count=%s\n' "$2" "$1" "$3" "$4" "$PORT" "$COUNT"
}

# rp_filter VALUE: what the kernel takes is the larger one of all and of the interface.
rp_filter() {
    in_ns node1 sh -c "for setting in /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/tt*/rp_filter; do
        echo $1 >\$setting; done"
}

forged_sources() {
    agent_json node1 drops | jq '[.kernel[] | select(.counter == "forged_sources").count] | add // 0'
}

# icmp6 TYPE...: pod1 sends $COUNT of each from its link-local address to the node, and looks at what is counted.
icmp6() {
    local before
    before=$(forged_sources)
    in_ns pod1 python3 -c "import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
for kind in sys.argv[2:] * int(sys.argv[1]):
    s.sendto(bytes([int(kind)]) + bytes(23), ('fe80::1', 0, 0, socket.if_nametoindex('eth0')))" "$COUNT" "${@:2}"
    [ "$1" = 0 ] || until_true 5 "ICMPv6 is counted" prints $((before + $1)) forged_sources || true
    equal "counted of ICMPv6 of the types ${*:2}" "$1" $(($(forged_sources) - before))
}

for NAME in node1 node2 pod2 pod3; do sink "$NAME" "$PORT"; done
# Whom pod1 is not.
OTHERS=10.244.1.0,10.244.2.0,10.244.1.77,10.244.77.2,203.0.113.7,127.0.0.1
if [ "$INSIDE" = dual ]; then
    OTHERS+=,fd00:10:244:1::,fd00:10:244:2::,fd00:10:244:1::77,fd00:10:244:77::2,2001:db8:ffff::7
fi
for FAMILY in "${SERVED[@]}"; do
    OWN+=,$(address_of pod1 "$FAMILY") FAR+=,$(address_of pod3 "$FAMILY")
    NEAR+=,$(address_of pod2 "$FAMILY"),$(underlay_of node1 "$FAMILY"),$(underlay_of node2 "$FAMILY")
done
undo rp_filter 0
for VALUE in 0 1 2; do
    rp_filter "$VALUE"
    # Of all four nodes and pods Tartan reads what goes to pod3 alone.
    forgeries "$(says "as itself, rp_filter $VALUE" nothing "${OWN#,}" "${NEAR#,}"
        says "as itself to pod3, rp_filter $VALUE" read "${OWN#,}" "${FAR#,}"
        says "as others, rp_filter $VALUE" forged_sources "$OTHERS$NEAR$FAR" "${FAR#,}$NEAR")"
done
# Sources that belong to no host would reach every socket of the node that listens at all addresses.
forgeries "$(says "from nowhere" forged_sources 0.0.0.0,169.254.7.7,fe80::1:77,:: "${FAR#,}$NEAR"
    says "from 0.0.0.0 to everyone" forged_sources 0.0.0.0 255.255.255.255)"
if [ "$INSIDE" != v4 ]; then
    icmp6 0 131 132 133 135 136 143
    # An echo, a router's advertisement and a redirect.
    icmp6 $((3 * COUNT)) 128 134 137
fi
# As many at each of the four, and nothing of what was forged.
for NAME in node1 node2 pod2 pod3; do
    equal "datagrams that reached $NAME" $((3 * COUNT * ${#SERVED[@]})) "$(sunk "$NAME" .count)"
done
