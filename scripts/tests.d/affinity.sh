#!/usr/bin/env bash
# A flow and direction has one worker on each node, for its whole life, whatever else is going on: 128 UDP flows that
# ping-pong, 16 TCP flows, and 16 UDP flows of one direction that are answered once in 5 s. Every flow is seen in three
# turns, by the workers' counters, with a storm of all flows between the turns. And TCP finds none of its segments out of
# order, as with one worker.
#
# TCP sends on whichever core the program or the last acknowledgment is, and a veth puts what it carries into that core's
# backlog: a sender that changes cores overtakes itself before anything of ours has seen its packets, with one worker, with
# the kernel's VXLAN device and with no overlay at all. So here the kernel is told to keep a flow on one core from where it
# enters the node (receive packet steering), by a hash that TCP does not draw anew when it sends again; then whoever still
# reorders is Tartan.
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

affinity() {
    python3 "$TOOLS/affinity.py" "$1" "$PREFIX" "$(address_of pod1)" "$(address_of pod2)"
}

# Every packet of a flow goes through the backlog of one core when it leaves its pod.
keep_senders_in_order() {
    local pod node device cores
    cores=$(printf '%x' $(((1 << $(nproc)) - 1)))
    for pod in pod1 pod2; do
        in_ns "$pod" sysctl -qw net.core.txrehash=0
        node=node${pod#pod}
        device=$(ip -n "$PREFIX-$node" -j route get "$(address_of "$pod")" | jq -r '.[0].dev')
        in_ns "$node" sh -c "echo $cores >/sys/class/net/$device/queues/rx-0/rps_cpus"
    done
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
keep_senders_in_order
affinity storm >"$SCRATCH/alone"
affinity storm >>"$SCRATCH/alone"
ALONE=$(reordered)
say "$(jq -s 'map(.bytes) | add' "$SCRATCH/alone") bytes"
# One worker is no excuse: it could reorder as well, and hide that several do.
equal "segments out of order with one worker" 0 "$ALONE"
law_one node1
law_one node2

say "$WORKERS workers, $BACKEND"
AGENTS=(--workers "$WORKERS")
lab_up --backend "$BACKEND"
keep_senders_in_order
FOUND=$(affinity watch)
say "$FOUND"
equal "flows and directions watched, per node" "$WATCHED" "$(jq .watched <<<"$FOUND")"
equal "turns in which each was seen" '[3]' "$(jq -c .turns <<<"$FOUND")"
equal "changes of worker per flow and direction" 0 "$(jq .changes <<<"$FOUND")"
equal "turns in which more or less than one worker carried a flow" 0 "$(jq .unclear <<<"$FOUND")"
equal "workers without a flow" '{}' "$(jq -c .idle <<<"$FOUND")"
equal "segments out of order" 0 "$(reordered)"
equal "workers of the nodes" "$WORKERS $WORKERS" "$(told node1 status | jq .workers) $(told node2 status | jq .workers)"
equal "dropped on either node" '0 0' "$(dropped node1 inbound) $(dropped node2 inbound)"
law_one node1
law_one node2
