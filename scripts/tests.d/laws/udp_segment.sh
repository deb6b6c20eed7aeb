#!/usr/bin/env bash
# A datagram boundary is the application's. A pod behind the kernel's VXLAN device sends 1,200 x 10 bytes in one
# UDP_SEGMENT call: ten datagrams of 1,200 bytes arrive, and the other way too. With a payload that looks like VXLAN
# datagrams wherever a wrong cut could fall, nothing else arrives.
# labs: third=kernel-vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# segments FROM TO FAMILY
segments() {
    python3 "$TOOLS/segments.py" "$1" "$(address_of "$1" "$3")" "$2" "$(address_of "$2" "$3")" \
        "$(vtep_mac_of "$(node_of_pod "$1")" "$3")" "$(vtep_mac_of "$(node_of_pod "$2")" "$3")" ||
        fail "segments from $1 to $2"
}

for FAMILY in "${FAMILIES[@]}"; do
    segments pod5 pod1 "$FAMILY"
    segments pod1 pod5 "$FAMILY"
done
