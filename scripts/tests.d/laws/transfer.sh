#!/usr/bin/env bash
# Much over several TCP flows at once arrives as it was sent, one way and the other; every worker has its share, and no
# offload is given up.
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

FLOWS=4
BYTES=$((64 << 20))
if [ -n "${FULL:-}" ]; then BYTES=$((1 << 30)); fi

# all_flows FAMILY FROM... to TO...: FLOWS transfers at once from each to each.
all_flows() {
    local family=$1 from=() to pod port=5100 end address senders=() receivers=()
    shift
    while [ "$1" != to ]; do
        from+=("$1")
        shift
    done
    shift
    for pod in "${from[@]}"; do
        for to; do
            address=$(address_of "$to" "$family")
            for ((end = port + FLOWS; port < end; port++)); do
                start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
                receivers+=("$PID")
                start_in "$pod" python3 "$TOOLS/bulk.py" send "$address" "$port" $((BYTES / FLOWS / 2)) >"$SCRATCH/sent$port"
                senders+=("$PID")
            done
        done
    done
    for PID in "${senders[@]}" "${receivers[@]}"; do wait "$PID" || fail "a transfer from ${from[*]} to $* over IPv$family"; done
    same "bytes and sha256 of each flow from ${from[*]} to $* over IPv$family" "$(cat "$SCRATCH"/sent*)" "$(cat "$SCRATCH"/received*)"
    equal "bytes of all of them" "$BYTES" "$(cut -d ' ' -f 1 "$SCRATCH"/received* | jq -s add)"
}

# spread FROM TO: a datagram of each of many flows, to a port without a listener, so that every worker gets some.
spread() {
    in_ns "$1" bash -c "for _ in {1..64}; do echo x >/dev/udp/$(address_of "$2" "${FAMILIES[0]}")/9; done"
}

for FAMILY in "${FAMILIES[@]}"; do
    all_flows "$FAMILY" pod1 to pod3 pod5
    all_flows "$FAMILY" pod3 pod5 to pod1
done
spread pod1 pod3
spread pod3 pod1
for NODE in node1 node2; do
    kernel_path_carried "$NODE"
    # Where the kernel path carries IPv4, its programs are the worker that does.
    kernel_path_carries || equal "each worker of $NODE sent and delivered" true \
        "$(agent_json "$NODE" drops | jq -c '[.workers[] | .outbound.sent > 0, .inbound.delivered > 0] | length > 1 and all')"
    equal "offloads of $NODE given up" 0 "$(agent_json "$NODE" status | jq .offloads_given_up)"
done
