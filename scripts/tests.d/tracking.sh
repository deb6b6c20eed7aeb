#!/usr/bin/env bash
# A flood with forged sources, of strangers and of a peer's own address, does not fill the connection-tracking table, and
# pods go on talking behind a firewall that knows connections by their state alone.
#
#   mallory .250 ── underlay ── node1 tartan, input: policy drop ── pod1
#                      └──────── node2 tartan ── pod2
#
# tracking.sh BACKEND OUTSIDE: the family of pods and of the underlay, v4 or v6
# alone: it floods a node
# case: vxlan v4
# full: vxlan v6
# full: udp v4
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
OUTSIDE=$2
FLOOD=24000
# Of peers, of strangers, and what else a node has.
BOUND=$((16384 + 1024 + 256))
PINGS=100

# What a node has without a rule for the udp format, whose two ports are the same: answers are let in. A new connection
# is let in to the port of the vxlan format, by name.
state_firewall() {
    ip netns exec "$PREFIX-node1" nft -f - <<'RULES'
table inet firewall {
    counter flood {}
    chain arriving {
        type filter hook prerouting priority -400;
        udp dport 8472 udp length 13 counter name flood
    }
    chain input {
        type filter hook input priority filter; policy drop;
        iif lo accept
        ct state established,related accept
        ct state invalid drop
        meta l4proto { icmp, ipv6-icmp } accept
        ct state new udp dport 8472 counter accept
    }
}
RULES
}

tracked() {
    ip netns exec "$PREFIX-node1" sysctl -n net.netfilter.nf_conntrack_count
}

# Datagrams of a flood that node1 received so far: real ones are longer.
arrived() {
    ip netns exec "$PREFIX-node1" nft -j list counter inet firewall flood | jq '[.nftables[].counter? // empty] | .[0].packets'
}

# all_arrived WHAT SENT ARRIVED: a machine that is busy otherwise drops some of a flood, and never makes any.
all_arrived() {
    [ "${3:-0}" -le "$2" ] || fail "$1: $3 arrived, and $2 were sent"
    measured_at_most "$1 that did not arrive" 0 $(($2 - ${3:-0}))
}

at_least() {
    if [ "$3" -ge "$2" ]; then say "$1: $3 (at least $2)"; else fail "$1: at least $2 expected, found $3"; fi
}

talk() {
    equal "$1: pings of pod1 to pod2" "$PINGS received" \
        "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" "$PINGS" 0.02 2)"
}

say "connection tracking under a flood: backend $BACKEND"
lab_up --backend "$BACKEND" --inside "$OUTSIDE" --outside "$OUTSIDE"
FAMILY=$(families "$OUTSIDE")
NODE1=$(underlay_of node1 "$FAMILY")
NODE2=$(underlay_of node2 "$FAMILY")
state_firewall
talk "a firewall that matches on state"
mapfile -t STRANGERS < <(seq -f "${NODE1%1}%g" 10 240)
in_ns mallory python3 "$TOOLS/flood.py" "$NODE1" 8472 "$FLOOD" "${STRANGERS[@]}"
all_arrived "datagrams of strangers" "$FLOOD" "$(arrived)"
at_least "tracked after a flood of strangers" 1000 "$(tracked)"
at_most "tracked after a flood of strangers" 1300 "$(tracked)"
start_in mallory python3 "$TOOLS/flood.py" "$NODE1" 8472 "$FLOOD" "$NODE2"
talk "under a flood from a peer's address"
wait "$PID"
all_arrived "datagrams of both floods" $((2 * FLOOD)) "$(arrived)"
at_least "tracked after a flood from a peer's address" 16000 "$(tracked)"
at_most "tracked after a flood from a peer's address" "$BOUND" "$(tracked)"
talk "after both floods"
law_one node1
