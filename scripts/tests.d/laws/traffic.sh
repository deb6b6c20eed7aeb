#!/usr/bin/env bash
# Pods talk with pods of every other node: ping, UDP and TCP of every payload size near a boundary, and traceroute,
# which shows an address of each node on the way. Much over several TCP flows at once arrives as it was sent, both ways;
# every worker has its share, and no offload is given up. A datagram boundary is the application's: 1,200 x 10 bytes of
# one UDP_SEGMENT call arrive as ten datagrams, from and to a pod behind the kernel's VXLAN device; with a payload that
# looks like VXLAN datagrams wherever a wrong cut could fall, nothing else arrives.
#
# In some labs what crosses the wire of node1 meanwhile is captured, at the bridge: it is flannel's format to the bit,
# raw IP in UDP 8285, or VXLAN on 8472 with the I flag alone, VNI 1 and a right outer checksum that is not zero; no
# outer fragment, nothing but the underlay's own neighbour discovery. Each of two families keeps to its own.
# seconds: 900

# Bytes of payload: nothing, around what one packet and two hold with each family's headers and format, and the largest
# datagram of both families. Bytes of each of eight flows.
SIZES=(0-2 1200 1360-1480 2780-2920 4000 9000 16384 65000 65487)
BYTES=$((8 << 20))
# Datagrams on the wire, of each family and way, at least.
LEAST=500
CAPTURED=$INSIDE$OUTSIDE
if [ -n "${FULL:-}" ]; then SIZES=(0-4000 "${SIZES[@]}") BYTES=$((128 << 20)) LEAST=20000 CAPTURED=dualdual; fi
if [ "${TARTAN_PROBE:-}" != false ] || [ "$UNDERLAY" = no-tunnel ]; then CAPTURED=; fi

# all_of POD...: their addresses.
all_of() {
    awk -v pods=" $* " 'index(pods, " " $1 " ") { for (i = 3; i <= NF; i++) print $i }' "$LAB_STATE/pods" | paste -sd ,
}

# Each node on the way answers with an address of its own: of the underlay, or its tunnel's.
traced() {
    in_ns "$1" traceroute -n -q 1 -w 2 -m 5 "$2" | awk 'NR > 1 { print $2 }' | sed -E '
        s/^(192\.0\.2\.|2001:db8:192::)([0-9])$/node\2/
        s/^(10\.244\.|fd00:10:244:)([0-9])(\.0|::)$/node\2/' | paste -sd ' '
}

# meet FROM TO FAMILY
meet() {
    local to
    to=$(address_of "$2" "$3")
    equal "ping from $1 to $2, IPv$3" "10 received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$to" 10 0.01 20)"
    equal "traceroute from $1 to $2" "$(node_of_pod "$1") $(node_of_pod "$2") $to" "$(traced "$1" "$to")"
    { [ -n "$PEER" ] && [[ "$1 $2" == *pod5* ]]; } || return 0
    python3 "$TOOLS/segments.py" "$1" "$(address_of "$1" "$3")" "$2" "$to" "$(vtep_mac_of "$(node_of_pod "$1")" "$3")" \
        "$(vtep_mac_of "$(node_of_pod "$2")" "$3")" || fail "segments from $1 to $2"
}

# ask FROM TO...
ask() {
    in_ns "$1" python3 "$TOOLS/sizes.py" ask "$(all_of "${@:2}")" "${SIZES[@]}"
}

flows() {
    python3 "$TOOLS/bulk.py" flows 4 "$BYTES" "$@" || fail "flows of $*"
}

# way NODE FAMILY: between node1 and that node, as wire.py takes it but for the family.
way() {
    local node outer
    outer=$(carrier "$2" "$OUTSIDE")
    for node in node1 "$1"; do printf ',%s' "$(underlay_of "$node" "$outer")" "$(vtep_mac_of "$node" "$2")"; done
}

for POD in pod1 pod3 pod5; do start_in "$POD" python3 "$TOOLS/sizes.py" serve "$(all_of "$POD")"; done
for FAMILY in "${FAMILIES[@]}"; do
    for POD in pod3 pod5; do
        meet pod1 "$POD" "$FAMILY"
        meet "$POD" pod1 "$FAMILY"
    done
    NEAR=$(address_of pod1 "$FAMILY")
    flows "pod1,pod3,$(address_of pod3 "$FAMILY")" "pod1,pod5,$(address_of pod5 "$FAMILY")"
    flows "pod3,pod1,$NEAR" "pod5,pod1,$NEAR"
done
if [ "$CAPTURED" = dualdual ]; then
    # What leaves as one message is cut before it is captured. The registry's host is on the same wire.
    as_wire node1:eth0 net:node1
    capture net node1 "$SCRATCH/wire" not host 192.0.2.252 and not host 2001:db8:192::252
fi
for FAMILY in "${FAMILIES[@]}"; do learn_path_mtu pod5 "$(address_of pod1 "$FAMILY")"; done
ask pod1 pod3 pod5 &
STARTED+=("$!")
ask pod3 pod1 || fail "sizes from pod3 to pod1"
ask pod5 pod1 || fail "sizes from pod5 to pod1"
wait "${STARTED[-1]}" || fail "sizes from pod1 to pod3 and pod5"
if [ "$CAPTURED" = dualdual ]; then
    stop "$PID" INT
    equal "frames lost by the capture" "0 packets dropped by kernel" "$(grep 'dropped by kernel' "$SCRATCH/wire.log")"
    for FAMILY in "${FAMILIES[@]}"; do WAYS+=("$FAMILY$(way node2 "$FAMILY")" "$FAMILY$(way node3 "$FAMILY")"); done
    python3 "$TOOLS/wire.py" "$BACKEND" "$SCRATCH/wire" "$LEAST" "${WAYS[@]}" || fail "the wire format"
fi
# A datagram of each of many flows, to a port without a listener, so that every worker gets some.
in_ns pod1 bash -c "for _ in {1..64}; do echo x >/dev/udp/$(address_of pod3)/9; done"
in_ns pod3 bash -c "for _ in {1..64}; do echo x >/dev/udp/$(address_of pod1)/9; done"
for NODE in "${TARTAN[@]}"; do
    kernel_path_carried "$NODE"
    equal "offloads of $NODE given up" 0 "$(agent_json "$NODE" status | jq .offloads_given_up)"
    # Where the kernel path carries IPv4, its programs are the worker that does.
    kernel_path_carries || [ "$NODE" = node3 ] || equal "workers of $NODE that sent and delivered" "$WORKERS" \
        "$(agent_json "$NODE" drops |
            jq '[.workers[] | select(.outbound.sent > 0 and .inbound.delivered > 0)] | length')"
done
