#!/usr/bin/env bash
# A pod sends with its own source address only: with any other its packets end at its own interface, whichever way
# they are bound and whatever the node's rp_filter is, and each is counted. With its own source all arrive.
#
#   pod1 ── node1: tartan ══ underlay ══ tartan node2 ── pod3
#   pod2 ──┘
#
# pod_source.sh INSIDE: the families of the pods, v4, v6 or dual
# case: dual
# full: v4 kernel-path=stateless
# full: v4 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

INSIDE=$1
PORT=7000
# Of each source to each destination; a number that no other count of this test is.
COUNT=19
SINKS=()
ARRIVING=0

# speak SOURCE...: pod1 sends as each of them to a pod beside it, to the node, to a pod of the other node, and to the
# other node itself. How many datagrams that were is in $SENT.
speak() {
    SENT=$(jq -nc --argjson port "$PORT" --argjson count "$COUNT" --argjson destinations "$DESTINATIONS" \
        '{$port, $count, $destinations, sources: $ARGS.positional}' --args "$@" |
        in_ns pod1 python3 "$TOOLS/send_as.py")
}

forged_sources() {
    agent_json node1 drops | jq '[.kernel[] | select(.counter == "forged_sources").count] | add // 0'
}

# counted WHAT BEFORE EXPECTED: the growth of the kernel's counter. A busy kernel takes the last packets a moment after
# they were sent.
counted() {
    local wait grown
    for ((wait = 0; wait < 20; wait++)); do
        grown=$(($(forged_sources) - $2))
        [ "$grown" -lt "$3" ] || break
        sleep 0.1
    done
    equal "counted as forged: $1" "$3" "$grown"
}

# rp_filter VALUE: what the kernel takes is the larger one of all and of the interface.
rp_filter() {
    local veth
    ip netns exec "$PREFIX-node1" sysctl -qw "net.ipv4.conf.all.rp_filter=$1"
    for veth in $(ip -n "$PREFIX-node1" -j link show type veth | jq -r '.[].ifname | select(startswith("tt"))'); do
        ip netns exec "$PREFIX-node1" sysctl -qw "net.ipv4.conf.$veth.rp_filter=$1"
    done
}

# Whom pod1 is not, by family.
others() {
    local family
    for family in $(families "$INSIDE"); do
        address_of pod2 "$family"
        address_of pod3 "$family"
        underlay_of node1 "$family"
        case $family in
        4) printf '%s\n' 10.244.1.0 10.244.2.0 10.244.1.77 10.244.77.2 203.0.113.7 127.0.0.1 ;;
        6) printf '%s\n' fd00:10:244:1:: fd00:10:244:2:: fd00:10:244:1::77 fd00:10:244:77::2 2001:db8:ffff::7 ;;
        esac
    done
}

destinations() {
    local family
    for family in $(families "$INSIDE"); do
        address_of pod2 "$family"
        address_of pod3 "$family"
        underlay_of node1 "$family"
        underlay_of node2 "$family"
    done
}

read_by_tartan() {
    [ "$(flow node1 outbound received)" = "$1" ]
}

every_source() {
    local before received
    before=$(forged_sources)
    received=$(flow node1 outbound received)
    speak "${OWN[@]}"
    counted "pod1 as itself, $1" "$before" 0
    ARRIVING=$((ARRIVING + SENT))
    # Those to the pod of the other node.
    received=$((received + SENT / 4))
    until_true 5 "tartan reads what pod1 says as itself, $1" read_by_tartan "$received" || true
    speak "${OTHERS[@]}"
    counted "pod1 as ${#OTHERS[@]} others, $1" "$before" "$SENT"
    equal "of that read by tartan, $1" 0 "$(($(flow node1 outbound received) - received))"
}

# Sources that belong to no host: they would reach every socket of the node that listens at all addresses.
nowhere() {
    local before sources=(0.0.0.0 169.254.7.7)
    [ "$INSIDE" = v4 ] || sources+=(fe80::1:77 ::)
    before=$(forged_sources)
    speak "${sources[@]}"
    counted "pod1 from ${sources[*]}" "$before" "$SENT"
    before=$(forged_sources)
    DESTINATIONS='["255.255.255.255"]' speak 0.0.0.0
    counted "pod1 from 0.0.0.0 to everyone" "$before" "$SENT"
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

has_link_local() {
    grep -q fe80 <<<"$(in_ns "$1" ip -6 address show dev eth0 scope link -tentative)"
}

checks_sources() {
    grep -q drop <<<"$(in_ns "$1" nft list chain inet tartan prerouting)"
}

# Neighbour discovery and reports of multicast listeners (MLD) pass from a link-local address. What only routers say, and
# everything else, does not.
neighbour_discovery() {
    local before
    until_true 5 "pod1 has a link-local address" has_link_local pod1
    before=$(forged_sources)
    icmp6 131 132 133 135 136 143
    counted "neighbour discovery and listener reports" "$before" 0
    icmp6 128 134 137
    counted "an echo, a router's advertisement, a redirect" "$before" $((3 * COUNT))
}

say "sources of pods: inside $INSIDE"
lab_up --nodes 2 --pods 2 --inside "$INSIDE" --outside "$INSIDE"
for name in node1 node2 pod2 pod3; do
    start_in "$name" "$LOAD" count "$PORT" >"$SCRATCH/sink $name"
    SINKS+=("$PID")
    until_true 5 "the sink of $name listens" is_bound "$name" udp "$PORT"
done
DESTINATIONS=$(destinations | jq -Rnc '[inputs]')
mapfile -t OTHERS < <(others)
mapfile -t OWN < <(for family in $(families "$INSIDE"); do address_of pod1 "$family"; done)
equal "counted as forged after pods were attached" 0 "$(forged_sources)"
for value in 0 1 2; do
    rp_filter "$value"
    every_source "rp_filter $value"
done
nowhere
if [ "$INSIDE" != v4 ]; then neighbour_discovery; fi
sleep 0.5
for sink in "${SINKS[@]}"; do stop "$sink"; done
law_one node1
law_one node2
# As many at each of the four, and nothing of what was forged.
for name in node1 node2 pod2 pod3; do
    equal "datagrams that reached $name" "$((ARRIVING / 4))" "$(jq ".\"$PORT\".count" "$SCRATCH/sink $name")"
done
ip netns exec "$PREFIX-node1" nft flush chain inet tartan prerouting || fail "there is no check to flush"
until_true 10 "a flushed check is there again" checks_sources node1
