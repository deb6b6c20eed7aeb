#!/usr/bin/env bash
# What crosses the wire is flannel's format to the bit: raw IP in UDP 8285, or VXLAN on 8472 with the I
# flag alone, VNI 1 and a right outer checksum that is not zero; no outer fragment, nothing else at all but
# the underlay's own neighbour discovery. With both families inside and outside each keeps to its own.
#
#   pod1 ── node1 ══ captured here, on the bridge's port of node1, with --underlay wire ══ node2 ── pod2
#
# wire_format.sh BACKEND PEER [INSIDE OUTSIDE], where PEER is tartan or control (the kernel alone: is the oracle
# right?), and INSIDE and OUTSIDE are v4, v6 or dual.
# case: udp tartan
# full: vxlan tartan
# full: udp tartan v6 v6
# case: vxlan tartan dual dual
# full: udp tartan dual dual
# full: udp tartan dual v4
# full: vxlan tartan v6 v4
# full: vxlan tartan dual v6
# full: vxlan control
# full: vxlan control dual dual
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PEER=$2
INSIDE=${3:-v4}
OUTSIDE=${4:-v4}
BYTES=$((8 << 20))
# Sizes 0 to 4000 over both protocols, asked and answered: more datagrams than this each way.
LEAST=20000

# The argument of wire.py about inner packets of family $1.
way() {
    local outer
    outer=$(carrier "$1" "$OUTSIDE")
    echo "$1,$(underlay_of node1 "$outer"),$(vtep_mac_of node1 "$1"),$(underlay_of node2 "$outer"),$(vtep_mac_of node2 "$1")"
}

transfer() {
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$3" 5003 >"$SCRATCH/received"
    local receiver=$PID
    in_ns "$1" python3 "$TOOLS/bulk.py" send "$3" 5003 "$BYTES" >"$SCRATCH/sent" || fail "the transfer from $1"
    wait "$receiver" || fail "the transfer to $2"
}

exercise() {
    local pod1 pod2
    pod1=$(address_of pod1 "$1")
    pod2=$(address_of pod2 "$1")
    start_in pod2 python3 "$TOOLS/sizes.py" serve "$pod2"
    in_ns pod1 ping -n -q -c 10 -i 0.02 "$pod2" >"$SCRATCH/ping" || fail "ping to $pod2"
    in_ns pod1 python3 "$TOOLS/sizes.py" ask "$pod2" 0-4000 || fail "sizes to $pod2"
    transfer pod1 pod2 "$pod2"
    transfer pod2 pod1 "$pod1"
}

say "wire format: backend $BACKEND, peer $PEER, inside $INSIDE, outside $OUTSIDE"
OPTIONS=(--backend "$BACKEND")
if [ "$PEER" = control ]; then OPTIONS=(--control); fi
lab_up --underlay wire --inside "$INSIDE" --outside "$OUTSIDE" "${OPTIONS[@]}"
capture net node1 "$SCRATCH/wire.pcap"
CAPTURE=$PID
WAYS=()
for FAMILY in $(families "$INSIDE"); do
    exercise "$FAMILY"
    WAYS+=("$(way "$FAMILY")")
done
stop "$CAPTURE" INT
equal "frames lost by the capture" "0 packets dropped by kernel" "$(grep 'dropped by kernel' "$SCRATCH/wire.pcap.log")"
python3 "$TOOLS/wire.py" "$BACKEND" "$SCRATCH/wire.pcap" "$LEAST" "${WAYS[@]}" || fail "the wire format"
