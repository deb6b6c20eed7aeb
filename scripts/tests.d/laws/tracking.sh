#!/usr/bin/env bash
# A flood with forged sources, of strangers and of a peer's own address, does not fill the connection-tracking table,
# and pods go on talking behind a firewall that knows connections by their state alone.
# labs: third=kernel-vxlan inside=dual
# labs: third=kernel-vxlan outside=v6
# full: format=udp outside=v4
# last: the table stays full for half a minute
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# Of peers, of strangers, and what else a node has.
BOUND=$((16384 + 1024 + 256))
PINGS=50

# What a node has without a rule for the udp format, whose two ports are the same: answers are let in. A new connection
# is let in to the port of the vxlan format, by name. A flood's datagrams are 5 bytes long; real ones are longer.
state_firewall() {
    in_ns node1 nft -f - <<'RULES'
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
    in_ns node1 sysctl -n net.netfilter.nf_conntrack_count
}

# flood SOURCES PORTS: from each source and port, while pods talk. As many have arrived in all; a machine that is busy
# otherwise drops some of a flood, and never makes any.
flood() {
    local arrived
    in_ns mallory python3 "$TOOLS/forge.py" >"$SCRATCH/flooded" <<<"{\"sources\": [$1], \"ports\": $2,
        \"destinations\": [\"$NODE1\"], \"port\": 8472, \"count\": 1}" &
    PID=$!
    STARTED+=("$PID")
    talk "under a flood"
    wait "$PID"
    SENT=$((SENT + $(cat "$SCRATCH/flooded")))
    arrived=$(in_ns node1 nft -j list counter inet firewall flood | jq '[.nftables[].counter? // empty][0].packets')
    at_most "of $SENT datagrams, how many arrived" "$SENT" "$arrived"
    measured_at_most "datagrams of a flood that did not arrive" 0 $((SENT - arrived))
}

# tracks LEAST MOST: connections, beside those of before.
tracks() {
    local found
    found=$(tracked)
    [ "$found" -ge "$1" ] || fail "tracked after a flood: at least $1 expected, found $found"
    at_most "tracked after a flood" $(($2 + BEFORE)) "$found"
}

talk() {
    equal "$1: pings of pod1 to pod3" "$PINGS received" \
        "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod3 "$FAMILY")" "$PINGS" 0.02 2)"
}

FAMILY=${FAMILIES[0]}
NODE1=$(underlay_of node1 "$FAMILY")
undo in_ns node1 conntrack -F
undo in_ns node1 nft delete table inet firewall
state_firewall
BEFORE=$(tracked) SENT=0
# Each flood has 24,000 datagrams or a little less.
flood "$(seq -f "\"${NODE1%1}%g\"" 10 240 | paste -sd ,)" 103
tracks 1000 1300
flood "\"$(underlay_of node2 "$FAMILY")\"" 24000
tracks 16000 "$BOUND"
talk "after both floods"
