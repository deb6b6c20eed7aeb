#!/usr/bin/env bash
# A flow and direction has one worker on each node, for its whole life, whatever else is going on: 128 UDP flows that
# ping-pong, 16 TCP flows, and 16 UDP flows of one direction that are answered once in 5 s. Every flow is seen in three
# turns, by the workers' counters, with a storm of all flows between the turns. And TCP finds no more of its segments
# out of order than with one worker, but for strays.
#
# affinity.sh BACKEND workers=N
# case: vxlan workers=2
# case: udp workers=2
# full: vxlan workers=4
# full: udp workers=4
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"

BACKEND=$1
WORKERS=${AGENTS[1]}
# Each of 160 flows, out of and into both nodes.
WATCHED=640
# A pod's own kernel may overtake itself when a sender moves to another core: 0 to 2 times in as many bytes, with one
# worker or more. Flows that change their workers are out of order thousands of times.
STRAY=5

affinity() {
    python3 "$TOOLS/affinity.py" "$1" "$PREFIX" "$(address_of pod1)" "$(address_of pod2)"
}

# Segments that TCP of both pods found out of order: by SACK, by timestamps, and without either.
reordered() {
    local pod
    for pod in pod1 pod2; do
        ip netns exec "$PREFIX-$pod" nstat -asz 'TcpExtTCP*Reorder'
    done | awk '/Reorder/ { sum += $2 } END { print sum + 0 }'
}

say "one worker, $BACKEND: what TCP finds out of order then"
AGENTS=(--workers 1)
lab_up --backend "$BACKEND"
affinity storm >"$SCRATCH/alone"
affinity storm >>"$SCRATCH/alone"
ALONE=$(reordered)
say "$(jq -s 'map(.bytes) | add' "$SCRATCH/alone") bytes, $ALONE segments out of order"
law_one node1
law_one node2

say "$WORKERS workers, $BACKEND"
AGENTS=(--workers "$WORKERS")
lab_up --backend "$BACKEND"
FOUND=$(affinity watch)
say "$FOUND"
equal "flows and directions watched, per node" "$WATCHED" "$(jq .watched <<<"$FOUND")"
equal "turns in which each was seen" '[3]' "$(jq -c .turns <<<"$FOUND")"
equal "changes of worker per flow and direction" 0 "$(jq .changes <<<"$FOUND")"
equal "turns in which more or less than one worker carried a flow" 0 "$(jq .unclear <<<"$FOUND")"
equal "workers without a flow" '{}' "$(jq -c .idle <<<"$FOUND")"
at_most "segments out of order" "$((ALONE + STRAY))" "$(reordered)"
equal "workers of the nodes" "$WORKERS $WORKERS" "$(told node1 status | jq .workers) $(told node2 status | jq .workers)"
equal "dropped on either node" '0 0' "$(dropped node1 inbound) $(dropped node2 inbound)"
law_one node1
law_one node2
