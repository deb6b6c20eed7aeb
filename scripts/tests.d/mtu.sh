#!/usr/bin/env bash
# In a cluster of both families each has an MTU of its own, as with flannel: what the outer headers of that family leave.
# The pods' interfaces, the tunnel device and subnet.env have the larger, routes of the other family the smaller.
#
#   pod1 ── node1 tartan ══ underlay, MTU 1500 ══ node2 tartan ── pod2
#                                      ╚═════════ node3: tartan, or the kernel's VXLAN ── pod3
#
# mtu.sh BACKEND PEER OUTSIDE, the last as in scripts/lab up
# case: vxlan kernel-vxlan dual
# full: vxlan tartan dual
# full: vxlan tartan v4
# full: vxlan tartan v6
# full: udp tartan dual
# full: vxlan tartan v4 kernel-path=auto
# full: vxlan tartan v4 kernel-path=stateless
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PEER=$2
OUTSIDE=$3
UNDERLAY_MTU=1500
BULK=$((8 << 20))
declare -A MTU RECEIVER EXPECTED

# The largest inner packet of a family: IP 20 or 40 bytes, UDP 8, and in vxlan 22 more.
inner_mtu() {
    local bytes=28
    if [ "$(carrier "$1" "$OUTSIDE")" = 6 ]; then bytes=48; fi
    if [ "$BACKEND" = vxlan ]; then bytes=$((bytes + 22)); fi
    echo $((UNDERLAY_MTU - bytes))
}

# IP and UDP headers, bytes.
headers() {
    if [ "$1" = 6 ]; then echo 48; else echo 28; fi
}

# What flannel writes on node1 (pkg/subnet/subnet.go, WriteSubnetFile).
flannels_file() {
    echo "FLANNEL_NETWORK=10.244.0.0/16"
    echo "FLANNEL_SUBNET=10.244.1.1/24"
    echo "FLANNEL_IPV6_NETWORK=fd00:10:244::/48"
    echo "FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64"
    echo "FLANNEL_MTU=${MTU[4]}"
    echo "FLANNEL_IPMASQ=true"
}

# route_mtu NAME FAMILY DESTINATION: the MTU that a route has of its own; that of the device where it has none.
route_mtu() {
    local route
    route=$(ip -n "$PREFIX-$1" -j "-$2" route show "$3" | jq -r '.[0] | "\(.dev) \(.metrics[0].mtu // 0)"')
    if [ "${route#* }" = 0 ]; then device_mtu "$1" "${route% *}"; else echo "${route#* }"; fi
}

device_mtu() {
    ip -n "$PREFIX-$1" -j link show dev "$2" | jq '.[0].mtu'
}

receive_at() {
    local pod=$1 family=$2
    start_in "$pod" python3 "$TOOLS/icmp_errors.py" receive "$(address_of "$pod" "$family")" >"$SCRATCH/$pod"
    RECEIVER[$pod]=$PID
    EXPECTED[$pod]=
    until_true 5 "the receiver in $pod" is_bound "$pod" udp 5004
}

# What came to a pod is what was to come, in order, and right to the byte.
received_at() {
    stop "${RECEIVER[$1]}"
    same "datagrams that came to $1" "${EXPECTED[$1]%$'\n'}" "$(cat "$SCRATCH/$1")"
}

# What the errors are that a sender of a packet of BYTES with DF gets: errors FROM TO FAMILY BYTES.
errors() {
    in_ns "$1" python3 "$TOOLS/icmp_errors.py" send "$(address_of "$2" "$3")" $(($4 - $(headers "$3"))) --wait "${5:-0.3}" |
        tail -n +2
}

# fits FROM TO FAMILY: the largest packet of the family crosses whole.
fits() {
    local bytes=${MTU[$3]}
    equal "IPv$3 from $1 to $2, $bytes bytes with DF: reported to the sender" "" "$(errors "$1" "$2" "$3" "$bytes")"
    EXPECTED[$2]+="$((bytes - $(headers "$3"))) right"$'\n'
}

# too_big FROM TO FAMILY: one byte more than the family's largest, where the device takes it, is reported.
too_big() {
    local error="EMSGSIZE icmp6 2/0"
    if [ "$3" = 4 ]; then error="EMSGSIZE icmp 3/4"; fi
    equal "IPv$3 from $1 to $2, $((MTU[$3] + 1)) bytes with DF: reported to the sender" "$error mtu ${MTU[$3]}" \
        "$(errors "$1" "$2" "$3" $((MTU[$3] + 1)) 2 | cut -d ' ' -f 1-5)"
}

# Much over TCP: what the pods' kernels make of the MTU crosses without one packet that is too large for us.
bulk() {
    local from=$1 to=$2 family=$3 address receiver sent
    address=$(address_of "$to" "$family")
    start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    sent=$(in_ns "$from" python3 "$TOOLS/bulk.py" send "$address" 5003 "$BULK") || fail "sending from $from to $to"
    wait "$receiver" || fail "receiving at $to"
    equal "IPv$family from $from to $to: bytes and sha256" "$sent" "$(cat "$SCRATCH/received")"
}

prove() {
    local family=$1 pod
    for pod in pod1 pod2 pod3; do receive_at "$pod" "$family"; done
    for pod in pod2 pod3; do
        fits pod1 "$pod" "$family"
        fits "$pod" pod1 "$family"
        if [ "${MTU[$family]}" -lt "$DEVICE" ]; then
            too_big pod1 "$pod" "$family"
            too_big node1 "$pod" "$family"
        fi
    done
    for pod in pod1 pod2 pod3; do received_at "$pod"; done
    for pod in pod2 pod3; do
        bulk pod1 "$pod" "$family"
        bulk "$pod" pod1 "$family"
    done
}

say "the MTU of each family: backend $BACKEND, peer $PEER, $OUTSIDE outside"
OPTIONS=()
if [ "$PEER" != tartan ]; then OPTIONS=(--peer "$PEER"); fi
lab_up --nodes 3 --backend "$BACKEND" --inside dual --outside "$OUTSIDE" "${OPTIONS[@]}"
MTU[4]=$(inner_mtu 4)
MTU[6]=$(inner_mtu 6)
DEVICE=${MTU[4]}
same "subnet.env" "$(flannels_file)" "$(cat "$LAB_STATE/node1/run/flannel/subnet.env")"
equal "MTU of the tunnel device" "$DEVICE" "$(device_mtu node1 tartan0)"
equal "MTU of the pod's interface" "$DEVICE" "$(device_mtu pod1 eth0)"
equal "MTU of the node's route, IPv4" "${MTU[4]}" "$(route_mtu node1 4 10.244.0.0/16)"
equal "MTU of the node's route, IPv6" "${MTU[6]}" "$(route_mtu node1 6 fd00:10:244::/48)"
equal "MTU of the pod's route, IPv4" "${MTU[4]}" "$(route_mtu pod1 4 default)"
equal "MTU of the pod's route, IPv6" "${MTU[6]}" "$(route_mtu pod1 6 default)"
for family in 4 6; do prove "$family"; done
for node in node1 node2; do
    law_one "$node"
    equal "repairs on $node" 0 "$(agent_json "$node" status | jq .repairs)"
done
