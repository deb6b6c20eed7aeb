#!/usr/bin/env bash
# A flood with forged sources, of strangers and of a peer's own address, does not fill the connection-tracking table,
# and pods go on talking behind a firewall that knows connections by their state alone.
# labs: third=kernel-vxlan inside=dual
# labs: third=kernel-vxlan outside=v6
# full: format=udp outside=v4
# last: the table stays full for half a minute

# What a node has without a rule for the udp format, whose two ports are the same: answers are let in. A new connection
# is let in to the port of the vxlan format, by name.
state_firewall() {
    in_ns node1 nft -f - <<'RULES'
table inet firewall {
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

# flood SOURCES PORTS LEAST MOST GREP...: 24,000 datagrams, or a little less, from each source and port, while pods
# talk. So many connections of UDP are tracked then, at least of all that grep chooses by their source, for laws before
# have a share, and at most of the flood, by its ports: what laws before forged within packets, from port 4000, goes to
# other ones.
flood() {
    local found
    in_ns mallory python3 "$TOOLS/forge.py" >/dev/null <<<"{\"sources\": [$1], \"ports\": $2,
        \"destinations\": [\"$NODE1\"], \"port\": 8472, \"count\": 1}" &
    PID=$!
    STARTED+=("$PID")
    talk "under a flood"
    wait "$PID"
    in_ns node1 conntrack -L -p udp 2>/dev/null | grep "${@:5}" >"$SCRATCH/tracked" || true
    found=$(wc -l <"$SCRATCH/tracked")
    [ "$found" -ge "$3" ] || fail "tracked after a flood: at least $3 expected, found $found"
    found=$(grep -cE '^[^[]*dst=[^ ]+ sport=([4-9]|1[0-9]|2[0-7])[0-9]{3} dport=8472 ' "$SCRATCH/tracked" || true)
    at_most "tracked of a flood" "$4" "$found"
}

talk() {
    equal "$1: pings of pod1 to pod3" "50 received" \
        "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod3 "$FAMILY")" 50 0.02 20)"
}

FAMILY=${FAMILIES[0]}
NODE1=$(underlay_of node1 "$FAMILY") NODE2=$(underlay_of node2 "$FAMILY") NODE3=$(underlay_of node3 "$FAMILY")
undo in_ns node1 conntrack -F
undo in_ns node1 nft delete table inet firewall
state_firewall
flood "$(seq -f "\"${NODE1%1}%g\"" 10 240 | paste -sd ,)" 103 1000 1024 -vE "^[^=]*src=($NODE1|$NODE2|$NODE3) "
flood "\"$NODE2\"" 24000 16000 16384 -E "^[^=]*src=($NODE2|$NODE3) "
talk "after both floods"
