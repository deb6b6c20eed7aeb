#!/usr/bin/env bash
# A pod sends with its own source address only: with any other its packets end at its own interface, whichever way they are
# bound and whatever the node's rp_filter is, and each is counted. With its own source all arrive. Neighbour discovery and
# reports of multicast listeners pass from a link-local address; what only routers say, and everything else, does not.
# labs: format=vxlan inside=dual outside=dual
# labs: format=vxlan inside=v4 registry=kubernetes|etcd
# full: format=vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=7000
# Of each source to each destination; a number that no other count of this law is.
COUNT=19
declare -A SINKS

# says WHAT EXPECTED SOURCES DESTINATIONS, lists of words: a case of forgeries.py, which node1 counts.
says() {
    printf 'pod1\tnode1\t%s\t{"sources": %s, "destinations": %s, "port": %s, "count": %s}\t%s\n' "$2" "$(list "$3")" "$(list "$4")" \
        "$PORT" "$COUNT" "$1"
}

list() {
    local words
    read -ra words <<<"$1"
    printf '"%s"\n' "${words[@]}" | paste -sd , | sed 's/.*/[&]/'
}

# Whom pod1 is not.
others() {
    local family
    for family in "${FAMILIES[@]}"; do
        address_of pod2 "$family"
        address_of pod3 "$family"
        underlay_of node1 "$family"
        case $family in
        4) printf '%s\n' 10.244.1.0 10.244.2.0 10.244.1.77 10.244.77.2 203.0.113.7 127.0.0.1 ;;
        6) printf '%s\n' fd00:10:244:1:: fd00:10:244:2:: fd00:10:244:1::77 fd00:10:244:77::2 2001:db8:ffff::7 ;;
        esac
    done
}

# To each of the four nodes and pods but pod3, which Tartan reads: that is a case of its own.
every_source() {
    local own
    own=$(for FAMILY in "${FAMILIES[@]}"; do address_of pod1 "$FAMILY"; done | paste -sd ' ')
    says "pod1 as itself, rp_filter $1" nothing "$own" "$NEAR"
    says "pod1 as itself to pod3, rp_filter $1" read "$own" "$FAR"
    says "pod1 as others, rp_filter $1" forged_sources "$(others | paste -sd ' ')" "$NEAR $FAR"
}

# Sources that belong to no host: they would reach every socket of the node that listens at all addresses.
nowhere() {
    says "pod1 from nowhere" forged_sources "0.0.0.0 169.254.7.7 fe80::1:77 ::" "$NEAR $FAR"
    says "pod1 from 0.0.0.0 to everyone" forged_sources 0.0.0.0 255.255.255.255
}

# rp_filter VALUE: what the kernel takes is the larger one of all and of the interface.
rp_filter() {
    in_ns node1 sh -c "for setting in /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/tt*/rp_filter; do
        echo $1 >\$setting; done"
}

# icmp6 TYPE...: pod1 sends $COUNT of each from its link-local address to the node.
icmp6() {
    in_ns pod1 python3 -c "import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
for kind in sys.argv[2:]:
    for _ in range(int(sys.argv[1])):
        s.sendto(bytes([int(kind)]) + bytes(23), ('fe80::1', 0, 0, socket.if_nametoindex('eth0')))" "$COUNT" "$@"
}

forged_sources() {
    agent_json node1 drops | jq '[.kernel[] | select(.counter == "forged_sources").count] | add // 0'
}

has_forged() {
    [ "$(forged_sources)" -ge "$1" ]
}

neighbour_discovery() {
    local before
    before=$(forged_sources)
    icmp6 131 132 133 135 136 143
    icmp6 128 134 137
    until_true 5 "an echo, a router's advertisement and a redirect are counted" has_forged $((before + 3 * COUNT))
    equal "counted of these and of neighbour discovery" $((3 * COUNT)) $(($(forged_sources) - before))
}

checks_sources() {
    grep -q drop <<<"$(in_ns node1 nft list chain inet tartan prerouting)"
}

NEAR=$(for FAMILY in "${FAMILIES[@]}"; do
    address_of pod2 "$FAMILY"
    underlay_of node1 "$FAMILY"
    underlay_of node2 "$FAMILY"
done | grep -v '^-' | paste -sd ' ')
FAR=$(for FAMILY in "${FAMILIES[@]}"; do address_of pod3 "$FAMILY"; done | paste -sd ' ')
for NAME in node1 node2 pod2 pod3; do
    start_in "$NAME" "$LOAD" count "$PORT" >"$SCRATCH/sink $NAME"
    SINKS[$NAME]=$PID
    until_true 5 "the sink of $NAME listens" is_bound "$NAME" udp "$PORT"
done
undo rp_filter 0
for VALUE in 0 1 2; do
    rp_filter "$VALUE"
    forgeries "$(every_source "$VALUE")"
done
forgeries "$(nowhere)"
if [ "$INSIDE" != v4 ]; then neighbour_discovery; fi
# As many at each of the four, and nothing of what was forged.
for NAME in "${!SINKS[@]}"; do
    stop "${SINKS[$NAME]}"
    equal "datagrams that reached $NAME" $((3 * COUNT * ${#FAMILIES[@]})) "$(jq ".\"$PORT\".count" "$SCRATCH/sink $NAME")"
done
in_ns node1 nft flush chain inet tartan prerouting || fail "there is no check to flush"
until_true 10 "a flushed check is there again" checks_sources
