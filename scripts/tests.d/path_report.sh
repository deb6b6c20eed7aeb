#!/usr/bin/env bash
# A stranger's ICMP errors change nothing. They quote datagrams from node1 to node2 in which all that is public is right:
# addresses, every UDP port that node1 has, VNI, MACs and the pods inside. Meanwhile the pods exchange large packets.
# The path MTU that node1 shows stays, and no packet is lost. No such datagram was sent: the payload that they quote is made
# up. That real routers' reports are believed icmp.sh shows; what a single one that quotes what was sent does, the law
# path_reports.
#
#   mallory .250 ─── underlay ─── node1 ── pod1
#                        ╚═══════ node2 ── pod2
#
# path_report.sh BACKEND INSIDE OUTSIDE, the last two as in scripts/lab up
# case: vxlan dual dual
# full: udp v4 v4
# full: udp dual dual
# full: vxlan v4 v6
# full: vxlan v4 v4 workers=2
# full: udp v4 v4 workers=2
# full: vxlan v4 v4 kernel-path=stateless
# full: vxlan v4 v4 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=$2
OUTSIDE=$3
WIDE=1500
# Large enough to be reported of, small enough for the device.
PING=1350

# What node1's kernel counted of such errors in a family.
errors_in() {
    case $1 in
    4) in_ns node1 nstat -asz IcmpInDestUnreachs | awk '/^Icmp/ { print $2 }' ;;
    6) in_ns node1 nstat -asz Icmp6InPktTooBigs | awk '/^Icmp/ { print $2 }' ;;
    esac
}

# path_mtu FAMILY: what node1 knows of the path to node2's address of a family.
path_mtu() {
    local field=path_mtu
    if [ "$OUTSIDE$1" = dual6 ]; then field=path_mtu_v6; fi
    agent_json node1 peers | jq ".peers[] | select(.name == \"node2\") | .$field"
}

# Every UDP port that a socket of node1 has.
ports() {
    in_ns node1 ss -Hlun | awk '{ print $4 }' | sed 's/.*://' | sort -un | jq -cs .
}

# What node1 dropped where it left a pod.
from_pods() {
    agent_json node1 drops | jq '[.kernel[] | select(.counter == "forged_encapsulation").count] | add // 0'
}

# forge WHO INNER OUTER MTU...: one report of each MTU for each port, quoting inner packets of a family.
forge() {
    local who=$1 inner=$2 outer=$3 mtus
    mtus=$(jq -cs . <<<"${*:4}")
    jq -nc --arg format "$BACKEND" --argjson mtus "$mtus" --argjson ports "$(ports)" \
        --arg node "$(underlay_of node1 "$outer")" --arg peer "$(underlay_of node2 "$outer")" \
        --arg source "$(address_of pod1 "$inner")" --arg destination "$(address_of pod2 "$inner")" \
        --arg from "$(vtep_mac_of node1 "$inner")" --arg to "$(vtep_mac_of node2 "$inner")" \
        '{$format, $mtus, $ports, $node, $peer, $source, $destination, source_mac: $from, destination_mac: $to}' |
        in_ns "$who" python3 "$TOOLS/forge_report.py"
}

# pings INNER: large packets with DF between the pods; prints how many were answered.
pings() {
    # ping(8) does not wait long for its last answers: the second half gives the first its time.
    in_ns pod1 ping "-$1" -n -M "do" -s "$PING" -i 0.01 -c 100 -W 1 "$(address_of pod2 "$1")" |
        grep -cE 'bytes from .* icmp_seq=([1-9]|[1-4][0-9]|50) '
}

prove() {
    local inner=$1 outer before sent arrived wait dropped
    outer=$(carrier "$inner" "$OUTSIDE")
    local mtus=(68 576 626 1000 1400)
    if [ "$outer" = 6 ]; then mtus=(1280 1350 1400); fi
    say "IPv$inner over IPv$outer"
    equal "pings beforehand" 50 "$(pings "$inner")"
    before=$(errors_in "$outer")
    # Twice: a second report is what a first one is confirmed by.
    sent=$(forge mallory "$inner" "$outer" "${mtus[@]}")
    equal "pings in between" 50 "$(pings "$inner")"
    sent=$((sent + $(forge mallory "$inner" "$outer" "${mtus[@]}")))
    for ((wait = 0; wait < 50; wait++)); do
        arrived=$(($(errors_in "$outer") - before))
        [ "$arrived" -lt "$sent" ] || break
        sleep 0.1
    done
    equal "forged errors that node1's kernel took" "$sent" "$arrived"
    [ "$sent" -gt 0 ] || fail "nothing was forged"
    # What a pod of node1 says of it does not get that far.
    dropped=$(from_pods)
    sent=$(forge pod1 "$inner" "$outer" "${mtus[@]}")
    for ((wait = 0; wait < 50; wait++)); do
        [ "$(($(from_pods) - dropped))" -lt "$sent" ] || break
        sleep 0.1
    done
    equal "counted: forged errors from a pod" "$sent" "$(($(from_pods) - dropped))"
    equal "forged errors that node1's kernel took then" "$((before + arrived))" "$(errors_in "$outer")"
    equal "pings afterwards" 50 "$(pings "$inner")"
    equal "path MTU to node2 over IPv$outer" "$WIDE" "$(path_mtu "$outer")"
}

say "forged reports of a path MTU: backend $BACKEND, $INSIDE inside, $OUTSIDE outside"
lab_up --nodes 2 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
for family in $(families "$INSIDE"); do prove "$family"; done
for node in node1 node2; do law_one "$node"; done
