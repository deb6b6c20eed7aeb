#!/usr/bin/env bash
# What crosses the wire is flannel's format to the bit: raw IP in UDP 8285, or VXLAN on 8472 with the I flag alone, VNI
# 1 and a right outer checksum that is not zero; no outer fragment, nothing else at all but the underlay's own neighbour
# discovery. With both families inside and outside each keeps to its own. Captured on the bridge's port of node1.
# labs: underlay=wire probes=off
# labs: format=vxlan inside=dual outside=dual underlay=offload
# full: underlay=wire|offload probes=off
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# Sizes near the boundaries of one packet and two, asked and answered over both protocols, and more datagrams than LEAST
# each way.
SIZES=(0-2 1200 1380-1460 2830-2880 4000)
BYTES=$((1 << 20))
LEAST=500
if [ -n "${FULL:-}" ]; then SIZES=(0-4000) BYTES=$((8 << 20)) LEAST=20000; fi

# way NODE FAMILY: between node1 and that node, as wire.py takes it.
way() {
    local outer ends
    outer=$(carrier "$2" "$OUTSIDE")
    ends=$(underlay_of node1 "$outer"),$(vtep_mac_of node1 "$2"),$(underlay_of "$1" "$outer"),$(vtep_mac_of "$1" "$2")
    echo "$2,$ends"
}

exercise() {
    local far
    far=$(address_of "$1" "$2")
    start_in "$1" python3 "$TOOLS/sizes.py" serve "$far"
    learn_path_mtu "$1" "$(address_of pod1 "$2")"
    equal "ping of $far" "10 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$far" 10 0.01 2)"
    in_ns pod1 python3 "$TOOLS/sizes.py" ask "$far" "${SIZES[@]}" || fail "sizes to $far"
    transfer pod1 "$1" "$2" "$BYTES"
    transfer "$1" pod1 "$2" "$BYTES"
}

# What leaves as one message is cut before it is captured.
as_wire node1:eth0 net:node1
# The registry's host is on the same wire.
capture net node1 "$SCRATCH/wire.pcap" not host 192.0.2.252 and not host 2001:db8:192::252
CAPTURE=$PID
WAYS=()
for POD in pod3 pod5; do
    for FAMILY in "${FAMILIES[@]}"; do
        exercise "$POD" "$FAMILY"
        WAYS+=("$(way "$(node_of_pod "$POD")" "$FAMILY")")
    done
done
stop "$CAPTURE" INT
equal "frames lost by the capture" "0 packets dropped by kernel" "$(grep 'dropped by kernel' "$SCRATCH/wire.pcap.log")"
python3 "$TOOLS/wire.py" "$BACKEND" "$SCRATCH/wire.pcap" "$LEAST" "${WAYS[@]}" || fail "the wire format"
