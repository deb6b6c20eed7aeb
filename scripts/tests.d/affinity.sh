#!/usr/bin/env bash
# A flow and direction has one worker on each node, for its whole life, whatever else is going on: 128 UDP flows that
# ping-pong, 16 TCP flows, and 16 UDP flows of one direction that are answered once in 5 s. Every flow is seen in three
# turns, by the workers' counters, with a storm of all flows between the turns. And TCP finds none of its segments out of
# order, as with one worker.
#
# TCP sends on whichever core the program or the last acknowledgment is, and a veth puts what it carries into that core's
# backlog: a sender that changes cores overtakes itself before anything of ours has seen its packets, with one worker, with
# the kernel's VXLAN device and with no overlay at all. So here the kernel is told to keep a flow on one core from where it
# enters the node (receive packet steering), by a hash that TCP does not draw anew when it sends again; then what still
# reorders is Tartan.
#
# A machine whose host takes the cores away does not say what Tartan does: a worker that stands still changes cores when it
# goes on, TCP sends again what was only late and calls the answers reordered, and the ring of an owner that stands still
# fills. A run that found something while more than 5 % of what the machine wanted was taken is made again, at most twice;
# what a calm run finds, or the last, counts.
#
# With the kernel path its programs are one worker more, and carry all flows of the vxlan format: the worker of none changes.
#
# affinity.sh BACKEND workers=N
# alone: it measures whether TCP finds segments out of order, which a busy machine does to it
# case: vxlan workers=2
# full: udp workers=2
# full: vxlan workers=4
# full: udp workers=4
# full: vxlan workers=2 device-type=tap
# full: vxlan workers=2 kernel-path=stateless
# full: vxlan workers=2 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
WORKERS=$(agents_option workers)
GIVEN=("${AGENTS[@]}")
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

# in_calm RUN: a run in a lab of its own, which notes in FOUND whether it found anything.
in_calm() {
    local before
    for _ in 1 2; do
        before=$(cores_now)
        "$@"
        if [ -z "$FOUND" ] || ! disturbed "$before"; then return; fi
        say "made again, for the machine's cores were taken away: $FOUND"
    done
    "$@"
}

# Until the programs of both nodes send to the other one, what workers carry is no fault of theirs.
settled() {
    local node
    lab_up --backend "$BACKEND"
    kernel_path_carries || return 0
    in_ns pod1 ping -q -c 3 -i 0.1 "$(address_of pod2)" >/dev/null || fail "ping of pod2"
    for node in node1 node2; do until_true 5 "the programs of $node send to its peer" sends_by_programs "$node"; done
}

sends_by_programs() {
    agent_json "$1" status | jq -e '.kernel_path.user_space_peers == []'
}

alone() {
    settled
    keep_senders_in_order
    affinity storm >"$SCRATCH/alone"
    affinity storm >>"$SCRATCH/alone"
    REORDERED=$(reordered)
    FOUND=
    [ "$REORDERED" = 0 ] || FOUND="$REORDERED segments out of order"
}

several() {
    settled
    keep_senders_in_order
    WATCH=$(affinity watch)
    REORDERED=$(reordered)
    DROPPED="$(dropped node1 inbound) $(dropped node2 inbound)"
    FOUND=
    # A flow that changed its worker has no such excuse: it is told, not tried again.
    [ "$(jq '.changes + .unclear' <<<"$WATCH")" = 0 ] || return 0
    [ "$REORDERED $DROPPED" = "0 0 0" ] || FOUND="$REORDERED segments out of order, $DROPPED dropped"
}

say "one worker, $BACKEND: what TCP finds out of order then"
AGENTS=("${GIVEN[@]}" --workers 1)
in_calm alone
say "$(jq -s 'map(.bytes) | add' "$SCRATCH/alone") bytes"
# One worker is no excuse: it could reorder as well, and hide that several do.
equal "segments out of order with one worker" 0 "$REORDERED"
law_one node1
law_one node2

say "$WORKERS workers, $BACKEND"
AGENTS=("${GIVEN[@]}")
in_calm several
say "$WATCH"
equal "flows and directions watched, per node" "$WATCHED" "$(jq .watched <<<"$WATCH")"
equal "turns in which each was seen" '[3]' "$(jq -c .turns <<<"$WATCH")"
equal "changes of worker per flow and direction" 0 "$(jq .changes <<<"$WATCH")"
equal "turns in which more or less than one worker carried a flow" 0 "$(jq .unclear <<<"$WATCH")"
IDLE='{}'
if kernel_path_carries; then
    # Of each direction all but the kernel path.
    IDLE=$(jq -nc --argjson workers "$WORKERS" '{"node1 out": $workers, "node2 in": $workers, "node2 out": $workers, "node1 in": $workers}')
fi
equal "workers without a flow" "$IDLE" "$(jq -c .idle <<<"$WATCH")"
equal "segments out of order" 0 "$REORDERED"
equal "workers of the nodes" "$WORKERS $WORKERS" "$(agent_json node1 status | jq .workers) $(agent_json node2 status | jq .workers)"
equal "dropped on either node" '0 0' "$DROPPED"
law_one node1
law_one node2
