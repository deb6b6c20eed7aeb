#!/usr/bin/env bash
# A datagram boundary is the application's. A pod behind a kernel VXLAN peer sends 1,200 x 10 bytes in
# one UDP_SEGMENT call: ten datagrams of 1,200 bytes arrive. With a payload that looks like VXLAN
# datagrams wherever a wrong cut could fall, nothing else arrives.
#
#   pod1 ── node1 tartan ══ underlay ══ flannel.1 node2 ── pod2
#
# udp_segment.sh PEER UNDERLAY [FAMILIES], where PEER is kernel-vxlan or control (no Tartan: is the test right?), and
# FAMILIES, v4, v6 or dual, are those of pods and underlay.
# case: kernel-vxlan offload dual
# full: kernel-vxlan no-tunnel dual
# full: kernel-vxlan wire dual
# full: kernel-vxlan offload
# full: kernel-vxlan offload v6
# full: control offload dual
# full: kernel-vxlan offload kernel-path=stateless
# full: kernel-vxlan offload kernel-path=auto
# full: kernel-vxlan wire kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

PEER=$1
UNDERLAY=$2
FAMILIES=${3:-v4}
SIZE=1200
COUNT=10
GOOD_PORT=7000
FORGED_PORT=7001
# A cut at every 1,200 bytes of the whole datagram falls 50 bytes of headers earlier in the payload:
# VXLAN 8, Ethernet 14, IP 20, UDP 8. Without the VXLAN header it is 42, in the other format 28. IPv6 has 20 more.
# By family.
declare -A OFFSETS=([4]="0 1150 1158 1172" [6]="0 1130 1138 1152")

# What the pod's kernel counts, of both families.
udp_counter() {
    in_ns "$1" nstat -asz "Udp$2" "Udp6$2" | awk '$1 ~ /^Udp/ { sum += $2 } END { print sum }'
}

# reached POD COUNT: whether its programs have read so many datagrams.
reached() {
    [ "$(udp_counter "$1" InDatagrams)" -ge "$2" ]
}

# prove FROM TO FAMILY: sends from one pod to the other and proves what arrives: a plain super-packet, then the forged ones.
prove() {
    local from=$1 to=$2 family=$3 address source offset sink sends=1 before mac1 mac2
    address=$(address_of "$to" "$family")
    source=$(address_of "$from" "$family")
    mac1=$(vtep_mac_of node1 "$family")
    mac2=$(vtep_mac_of node2 "$family")
    before=$(udp_counter "$to" InDatagrams)
    start_in "$to" "$LOAD" count "$GOOD_PORT" "$FORGED_PORT" >"$SCRATCH/sink"
    sink=$PID
    until_true 5 "the sink listens" is_bound "$to" udp "$FORGED_PORT"
    in_ns "$from" python3 "$TOOLS/segments.py" "$address" "$GOOD_PORT" "$SIZE" "$COUNT"
    for offset in ${OFFSETS[$family]}; do
        in_ns "$from" python3 "$TOOLS/segments.py" "$address" "$GOOD_PORT" "$SIZE" "$COUNT" \
            "$offset" "$source" "$mac2" "$mac1" "$FORGED_PORT"
        sends=$((sends + 1))
    done
    until_true 5 "all datagrams reach $to" reached "$to" $((before + sends * COUNT)) || true
    # A datagram that no program sent would come now.
    sleep 0.5
    stop "$sink"
    equal "IPv$family datagrams of $SIZE bytes from $from at $to" "{\"$SIZE\":$((sends * COUNT))}" "$(jq -c ".\"$GOOD_PORT\".sizes" "$SCRATCH/sink")"
    equal "forged IPv$family datagrams from $from at $to" 0 "$(jq ".\"$FORGED_PORT\".count" "$SCRATCH/sink")"
    equal "all datagrams that reached $to" $((sends * COUNT)) $(($(udp_counter "$to" InDatagrams) - before))
    equal "datagrams for no socket at $to" 0 "$(udp_counter "$to" NoPorts)"
}

say "UDP_SEGMENT: peer $PEER, underlay $UNDERLAY, $FAMILIES"
OPTIONS=(--peer kernel-vxlan)
if [ "$PEER" = control ]; then OPTIONS=(--control); fi
lab_up "${OPTIONS[@]}" --underlay "$UNDERLAY" --inside "$FAMILIES" --outside "$FAMILIES"
for FAMILY in $(families "$FAMILIES"); do
    prove pod2 pod1 "$FAMILY"
    prove pod1 pod2 "$FAMILY"
done
