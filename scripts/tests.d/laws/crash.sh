#!/usr/bin/env bash
# SIGKILL of the service under load, in turn on two nodes, and SIGSTOP, after which the keeper kills it because its
# workers have stood still for 2 s: the next service adopts device, addresses, routes, carrier and descriptors as they
# are, and leaves nothing open. No TCP connection is reset, a datagram that is lost is booked with its reason or by the
# kernel, and no forged datagram that arrives meanwhile reaches a pod.
# labs: lab=vxlan-v6|vxlan-tap|udp-over-v6
# full: run=default|full
# last: it kills services
# seconds: 900
. "$TOOLS/kill_service.sh"
. "$TOOLS/held_load.sh"

# KILLS says how many: of a hundred or more the pauses are judged (../kills.sh).
KILLS=${KILLS:-${FULL:+10}}
KILLS=${KILLS:-2}
# Datagrams, or packets, that a worker has in its hands at most (dataplane/src/limits.rs), in both directions.
IN_HANDS=4096

# refusals: on node1, of what is forged.
refusals() {
    agent_json node1 drops | jq '[.workers[].inbound.dropped | (.UnknownPeer, .NotPeersSource, .Ipv6InUdp) // 0] | add'
}

kills() {
    local round node pid
    for ((round = 1; round <= KILLS; round++)); do
        node=node$((2 - round % 2))
        pid=$(service_of "$node")
        mark
        kill -KILL "$pid"
        # One that forwarded for less than a second is followed with a delay.
        if [ "$KILLS" -gt 2 ]; then sleep 1.3; fi
        until_true 5 "another service of $node forwards" another_service "$node" "$pid"
    done
}

# standstills: how often a service of node1 was killed because its workers stood still, and those that stood for less
# than 2 s.
standstills() {
    sed -nE 's/.*worker [0-9]+ has stood still for ([0-9.]+) s.*/\1/p' "$LAB_STATE/node1/log" |
        awk '{ count++ } $1 < 1.9 { early++ } END { print count + 0, early + 0 }'
}

stands_still() {
    local pid count early
    read -r count early < <(standstills)
    pid=$(service_of node1)
    kill -STOP "$pid"
    until_true 10 "another service in the place of one that stands still" another_service node1 "$pid"
    equal "services killed because they stood still, those too early" "$((count + 1)) $early" "$(standstills)"
}

# Each forged datagram was refused for its reason, or was in the hands of a service that was killed.
all_refused() {
    local lost
    lost=$((FORGED - $(refusals) + REFUSED))
    [ "$lost" -ge 0 ] && [ "$lost" -le $(($(booked node1) - BOOKED1)) ]
}

start_load
start_datagrams pod1 pod3
begin_transfer pod1 pod3 "${FAMILIES[0]}" $((1 << 40)) 20000000
note_held node1 node2
BEFORE=$(kernel_state node1 node2)
REFUSED=$(refusals)
BOOKED1=$(booked node1)
BOOKED=$((BOOKED1 + $(booked "${TARTAN[@]:1}")))
IN_CRASH=$(lost_in_crash node1)
start_forging pod1
kills
stands_still
all_go_on "after $KILLS kills and a standstill"
stop_datagrams
end_forging pod1
[ "$FORGED" -gt $((KILLS * 50)) ] || fail "only $FORGED datagrams were forged"
until_true 5 "each of $FORGED forged datagrams is refused or booked" all_refused ||
    fail "of $FORGED, $(($(refusals) - REFUSED)) refused and $(($(booked node1) - BOOKED1)) booked"
kill "${SENDING[pod3]}" || fail "the TCP transfer ended before the last kill: it proves nothing"
end_transfer pod1 pod3
load_survived
at_most "datagrams lost, beside what is booked" "$(($(booked "${TARTAN[@]}") - BOOKED))" "$LOST"
at_most "booked as lost in crashes of node1, beside what its workers can have had in their hands" \
    $(((KILLS / 2 + 1) * $(agent_json node1 status | jq .workers) * IN_HANDS)) "$(($(lost_in_crash node1) - IN_CRASH))"
if [ "$KILLS" -ge 100 ]; then
    mapfile -t PAUSES < <(sed -n 's/^pauses //p' "$SCRATCH/sent" | tr ' ' '\n' | sort -n)
    measured_at_most "pause of datagrams within 1 s of each kill, p99, ms" 50 "${PAUSES[KILLS * 99 / 100 - 1]}"
    measured_at_most "longest pause, ms" 200 "${PAUSES[-1]}"
fi
same "device, addresses, routes, carrier and repairs" "$BEFORE" "$(kernel_state node1 node2)"
for NODE in node1 node2; do still_held "$NODE"; done
