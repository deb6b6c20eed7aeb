#!/usr/bin/env bash
# Pods talk with pods of every other node: ping, UDP and TCP of every payload size near a boundary, and traceroute, which
# shows an address of each node on the way.
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# Bytes of payload: nothing, around what one packet and two hold with each family's headers and format, and the largest datagram
# of both families.
SIZES=(0-2 1200 1360-1480 2780-2920 4000 9000 16384 65000 65487)
if [ -n "${FULL:-}" ]; then SIZES=(0-4000 "${SIZES[@]}"); fi

ping_each_other() {
    equal "ping $1 to $2" "10 received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" 10 0.02 2)"
}

# Each node on the way answers with an address of its own: of the underlay, or its tunnel's.
traced() {
    local hops
    mapfile -t hops < <(in_ns "$1" traceroute -n -q 1 -w 2 -m 5 "$2" | awk 'NR > 1 { print $2 }')
    equal "traceroute from $1 to $2" "$3 $4 $2" "$(node_of "${hops[0]:-}") $(node_of "${hops[1]:-}") ${hops[2]:-}"
}

# The node that has an address on the underlay or as its tunnel's.
node_of() {
    local parts
    case $1 in
    192.0.2.* | 2001:db8:192::*) echo "node${1##*[.:]}" ;;
    10.244.*.0 | fd00:10:244:*::)
        IFS=.: read -ra parts <<<"${1%::}"
        if [[ $1 == *:* ]]; then echo "node${parts[3]}"; else echo "node${parts[2]}"; fi
        ;;
    *) echo "no node ($1)" ;;
    esac
}

for FAMILY in "${FAMILIES[@]}"; do
    for POD in pod1 pod3 pod5; do start_in "$POD" python3 "$TOOLS/sizes.py" serve "$(address_of "$POD" "$FAMILY")"; done
    NEAR=$(address_of pod1 "$FAMILY")
    for POD in pod3 pod5; do
        FAR=$(address_of "$POD" "$FAMILY")
        NODE=$(node_of_pod "$POD")
        ping_each_other pod1 "$FAR"
        ping_each_other "$POD" "$NEAR"
        learn_path_mtu "$POD" "$NEAR"
        in_ns pod1 python3 "$TOOLS/sizes.py" ask "$FAR" "${SIZES[@]}" || fail "sizes from pod1 to $FAR"
        in_ns "$POD" python3 "$TOOLS/sizes.py" ask "$NEAR" "${SIZES[@]}" || fail "sizes from $POD to $NEAR"
        traced pod1 "$FAR" node1 "$NODE"
        traced "$POD" "$NEAR" "$NODE" node1
    done
done
for NODE in "${TARTAN[@]}"; do kernel_path_carried "$NODE"; done
