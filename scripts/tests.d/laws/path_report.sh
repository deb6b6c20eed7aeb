#!/usr/bin/env bash
# A stranger's ICMP errors change nothing. They quote datagrams from node1 to node2 in which all that is public is
# right: addresses, every UDP port that node1 has, VNI, MACs and the pods inside. Meanwhile the pods exchange large
# packets. The path MTU that node1 shows stays, and no packet is lost; a pod's errors do not reach the node's sockets.
# No such datagram was sent: the payload that they quote is made up. That real routers' reports are believed the law
# icmp shows.
# labs: probes=off
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

WIDE=1500
# Large enough to be reported of, small enough for the device.
PING=1350

# What node1's kernel counted of such errors in a family.
errors_in() {
    local counter=IcmpInDestUnreachs
    if [ "$1" = 6 ]; then counter=Icmp6InPktTooBigs; fi
    in_ns node1 nstat -asz "$counter" | awk '/^Icmp/ { print $2 }'
}

# What the node dropped of a pod's.
from_pods() {
    agent_json node1 drops | jq '[.kernel[] | select(.counter == "forged_encapsulation").count] | add // 0'
}

# is COUNT CMD...
is() {
    [ "$("${@:2}")" = "$1" ]
}

# forge WHO INNER OUTER MTU,...: one report of each MTU for each port, quoting inner packets of a family.
forge() {
    local ports
    mapfile -t ports < <(in_ns node1 ss -Hlun | awk '{ print $4 }' | sed 's/.*://' | sort -un)
    in_ns "$1" python3 "$TOOLS/forge_report.py" "$BACKEND" "$(underlay_of node1 "$3")" "$(underlay_of node2 "$3")" \
        "$(address_of pod1 "$2")" "$(address_of pod3 "$2")" "$(vtep_mac_of node1 "$2")" \
        "$(vtep_mac_of node2 "$2")" "$4" "${ports[@]}"
}

pings() {
    equal "large pings of IPv$1 $2" "50 received" \
        "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod3 "$1")" 50 0.002 5 "$PING")"
}

prove() {
    local inner=$1 outer before sent mtus=68,576,626,1000,1400
    outer=$(carrier "$inner" "$OUTSIDE")
    if [ "$outer" = 6 ]; then mtus=1280,1350,1400; fi
    pings "$inner" beforehand
    before=$(errors_in "$outer")
    # Twice: a second report is what a first one is confirmed by.
    sent=$(forge mallory "$inner" "$outer" "$mtus")
    pings "$inner" "in between"
    sent=$((sent + $(forge mallory "$inner" "$outer" "$mtus")))
    [ "$sent" -ge 10 ] || fail "only $sent were forged"
    until_true 5 "node1's kernel takes $sent of IPv$outer" is $((before + sent)) errors_in "$outer" || true
    pings "$inner" afterwards
    before=$((before + sent)) dropped=$(from_pods)
    sent=$(forge pod1 "$inner" "$outer" "$mtus")
    until_true 5 "$sent from a pod are counted" is $((dropped + sent)) from_pods || true
    equal "errors of IPv$outer that node1's kernel took" "$before" "$(errors_in "$outer")"
    equal "path MTU to node2 over IPv$outer" "$WIDE" "$(path_mtu node1 node2 "$outer")"
}

for FAMILY in "${FAMILIES[@]}"; do prove "$FAMILY"; done
