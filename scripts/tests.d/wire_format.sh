#!/usr/bin/env bash
# What crosses the wire is flannel's format to the bit: raw IP in UDP 8285, or VXLAN on 8472 with the I
# flag alone, VNI 1 and a right outer checksum that is not zero; no outer fragment, nothing else at all.
#
#   pod1 ── node1 ══ captured here, on the bridge's port of node1, with --underlay wire ══ node2 ── pod2
#
# wire_format.sh BACKEND PEER, where PEER is tartan or control (the kernel alone: is the oracle right?)
# case: udp tartan
# case: vxlan tartan
# full: vxlan control
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"

BACKEND=$1
PEER=$2
BYTES=$((8 << 20))
# Sizes 0 to 4000 over both protocols, asked and answered: more datagrams than this each way.
LEAST=20000

mac_of() {
    case $PEER in
    tartan) printf '0a:74:c0:00:02:%02x' "$1" ;;
    control) printf '02:00:5e:10:00:%02x' "$1" ;;
    esac
}

transfer() {
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$3" 5003 >"$SCRATCH/received"
    local receiver=$PID
    in_ns "$1" python3 "$TOOLS/bulk.py" send "$3" 5003 "$BYTES" >"$SCRATCH/sent" || fail "the transfer from $1"
    wait "$receiver" || fail "the transfer to $2"
}

say "wire format: backend $BACKEND, peer $PEER"
if [ "$PEER" = control ]; then
    lab_up --underlay wire --control
else
    lab_up --underlay wire --backend "$BACKEND"
fi
POD1=$(address_of pod1)
POD2=$(address_of pod2)
start_in pod2 python3 "$TOOLS/sizes.py" serve "$POD2"
# The IPv6 neighbour discovery of the underlay's own kernels is none of ours.
capture net node1 "$SCRATCH/wire.pcap" not ip6
CAPTURE=$PID
in_ns pod1 ping -n -q -c 10 -i 0.02 "$POD2" >"$SCRATCH/ping" || fail "ping"
in_ns pod1 python3 "$TOOLS/sizes.py" ask "$POD2" 0 4000 || fail "sizes"
transfer pod1 pod2 "$POD2"
transfer pod2 pod1 "$POD1"
stop "$CAPTURE" INT
equal "frames lost by the capture" "0 packets dropped by kernel" "$(grep 'dropped by kernel' "$SCRATCH/wire.pcap.log")"
python3 "$TOOLS/wire.py" "$BACKEND" "$SCRATCH/wire.pcap" "$LEAST" "$(mac_of 1)" "$(mac_of 2)" || fail "the wire format"
