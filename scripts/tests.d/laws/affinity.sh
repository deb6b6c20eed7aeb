#!/usr/bin/env bash
# A flow and direction has one worker on each node for its whole life, whatever else is going on: UDP flows that
# ping-pong, UDP flows of one direction that are answered once, and TCP flows. Each is seen in three turns, by the
# workers' counters, and all of them send at once between the turns. Where the kernel path carries them, its programs
# are that worker.
# labs: workers=2 kernel-path=off probes=off
# full: workers=2 probes=off
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

COUNTS=(64 8 8)
if [ -n "${FULL:-}" ]; then COUNTS=(128 16 16); fi

sends_by_programs() {
    agent_json "$1" status | jq -e '.kernel_path.user_space_peers == []'
}

IDLE=0
if kernel_path_carries; then
    IDLE=$WORKERS
    in_ns pod1 ping -q -c 3 -i 0.1 "$(address_of pod3 4)" >/dev/null || fail "ping of pod3"
    # Until then what workers carry is no fault of theirs.
    for NODE in node1 node2; do until_true 5 "the programs of $NODE send to each peer" sends_by_programs "$NODE"; done
fi
FAMILY=${FAMILIES[0]}
DROPPED="$(dropped node1 inbound) $(dropped node2 inbound)"
python3 "$TOOLS/affinity.py" "$(address_of pod1 "$FAMILY")" "$(address_of pod3 "$FAMILY")" "$IDLE" "${COUNTS[@]}" ||
    fail "one worker for each flow"
equal "dropped on either node" "$DROPPED" "$(dropped node1 inbound) $(dropped node2 inbound)"
