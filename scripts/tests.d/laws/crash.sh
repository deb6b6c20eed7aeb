#!/usr/bin/env bash
# SIGKILL of the service under load, in turn on two nodes, and SIGSTOP, after which the keeper kills it because its
# workers have stood still for 2 s: the next service adopts device, addresses, routes, carrier and descriptors as they
# are, and leaves nothing open. No TCP connection is reset, a datagram that is lost is booked with its reason or by the
# kernel, and no forged datagram that arrives meanwhile reaches a pod.
# labs: lab=vxlan-v6|vxlan-tap|udp-over-v6
# full: run=default|full
# last: it kills services
# seconds: 900
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

# KILLS says how many: of a hundred or more the holes are judged (../kills.sh).
KILLS=${KILLS:-${FULL:+10}}
KILLS=${KILLS:-2}
SINK_PORT=7000
# Forged datagrams a second, of each format from each forger; bytes a second of the transfer.
FORGED_RATE=50
RATE=20000000
# A node's services are killed twice as far apart: one that forwarded for less than a second is followed with a delay.
SECONDS_LOOKED_AT=1
SECONDS_BETWEEN=1.3
# Milliseconds.
MOST_P99=50
MOST=200
# Datagrams, or packets, that a worker has in its hands at most (dataplane/src/limits.rs), in both directions.
IN_HANDS=4096

state() {
    local node
    for node in node1 node2; do
        echo "$node: device $(in_ns "$node" cat /sys/class/net/tartan0/{ifindex,carrier_changes} | paste -sd ' ')," \
            "repairs $(agent_json "$node" status | jq .repairs)"
    done
}

# forge HOST SOURCE: datagrams of both formats for pod1, by their inner source none that it may get.
forge() {
    local inner=${FAMILIES[0]}
    jq -n --arg to "$(underlay_of node1 "$(carrier "$inner" "$OUTSIDE")")" --arg source "$2" \
        --arg destination "$(address_of pod1)" --arg source_mac "$(vtep_mac_of node2 "$inner")" \
        --arg destination_mac "$(vtep_mac_of node1 "$inner")" \
        --argjson port "$SINK_PORT" --argjson rate "$FORGED_RATE" \
        '$ARGS.named + {formats: ["udp", "vxlan"]}' >"$SCRATCH/order-$1"
    # Not start_in, whose programs read nothing.
    ip netns exec "$PREFIX-$1" python3 "$TOOLS/forge.py" <"$SCRATCH/order-$1" >"$SCRATCH/forged-$1" &
    STARTED+=("$!")
    FORGERS+=("$!")
}

# refusals: on node1, of what is forged.
refusals() {
    agent_json node1 drops | jq '[.workers[].inbound.dropped | .UnknownPeer // 0, .NotPeersSource // 0] | add'
}

start_everything() {
    start_load
    start_datagrams pod1 pod3
    start_in pod3 python3 "$TOOLS/bulk.py" receive "$(address_of pod3)" 5003 >"$SCRATCH/received"
    RECEIVER=$PID
    until_true 5 "the transfer can begin" is_bound pod3 tcp 5003
    start_in pod1 python3 "$TOOLS/bulk.py" send "$(address_of pod3)" 5003 $((1 << 40)) "$RATE" >"$SCRATCH/sent"
    SENDER=$PID
    if [ "$KILLS" -ge 100 ]; then start_in pod1 ping -n -D -i 0.002 "$(address_of pod3)" >"$SCRATCH/ping"; fi
    start_in pod1 "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink"
    SINK=$PID
    until_true 5 "the sink listens" is_bound pod1 udp "$SINK_PORT"
    note_held node1 node2
    REFUSED=$(refusals)
    # Of no node's subnet: as a pod of node2 it would be a problem of the status for a while.
    case ${FAMILIES[0]} in
    4) forge mallory 10.244.77.2 && forge node2 203.0.113.7 ;;
    6) forge mallory fd00:10:244:77::2 && forge node2 2001:db8:ffff::7 ;;
    esac
}

kills() {
    local round node pid
    for ((round = 1; round <= KILLS; round++)); do
        node=node$((2 - round % 2))
        pid=$(service_of "$node")
        echo "$EPOCHREALTIME" >>"$SCRATCH/kills"
        kill -KILL "$pid"
        if [ "$KILLS" -gt 2 ]; then sleep "$SECONDS_BETWEEN"; fi
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
forged_reach_no_pod() {
    local forger sent lost
    for forger in "${FORGERS[@]}"; do stop "$forger"; done
    sent=$(cat "$SCRATCH"/forged-* | jq -s add)
    [ "$sent" -gt $((KILLS * FORGED_RATE)) ] || fail "only $sent datagrams were forged"
    until_true 5 "what is forged is refused" all_refused "$1" "$sent" || true
    lost=$((sent - $(refusals) + REFUSED))
    [ "$lost" -ge 0 ] || fail "more were refused than the $sent that were forged"
    at_most "of $sent forged datagrams not refused, beside what is booked" "$(($(booked node1) - $1))" "$lost"
    stop "$SINK"
    equal "forged datagrams that reached the pod" 0 "$(jq '[.[].count] | add // 0' "$SCRATCH/sink")"
}

# all_refused BOOKED SENT
all_refused() {
    [ $(($2 - $(refusals) + REFUSED)) -le $(($(booked node1) - $1)) ]
}

transfer_survived() {
    kill -0 "$SENDER" || fail "the TCP transfer ended before the last kill: it proves nothing"
    kill -TERM "$SENDER" 2>/dev/null || true
    wait "$SENDER" || fail "the TCP transfer did not survive at the sender"
    wait "$RECEIVER" || fail "the TCP transfer did not survive at the receiver"
    equal "bytes and sha256 across the kills" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

holes() {
    local found
    sed -nE 's/^\[([0-9.]+)\].* bytes from .*/\1/p' "$SCRATCH/ping" >"$SCRATCH/answers"
    found=$(python3 "$TOOLS/holes.py" "$SCRATCH/answers" "$SCRATCH/kills" "$SECONDS_LOOKED_AT") || die "no figures"
    say "holes within $SECONDS_LOOKED_AT s of each kill, ms: $found"
    measured_at_most "hole among pings, p99 of all kills, ms" "$MOST_P99" "$(jq '.p99 | ceil' <<<"$found")"
    measured_at_most "longest hole among pings, ms" "$MOST" "$(jq '.most | ceil' <<<"$found")"
}

FORGERS=()
start_everything
BEFORE=$(state)
BOOKED1=$(booked node1)
BOOKED=$(booked "${TARTAN[@]}")
IN_CRASH=$(lost_in_crash node1)
kills
stands_still
all_go_on "after $KILLS kills and a standstill"
stop_datagrams
forged_reach_no_pod "$BOOKED1"
transfer_survived
load_survived
at_most "datagrams lost, beside what is booked" "$(($(booked "${TARTAN[@]}") - BOOKED))" "$LOST"
at_most "booked as lost in crashes of node1, beside what its workers can have had in their hands" \
    $(((KILLS / 2 + 1) * $(agent_json node1 status | jq .workers) * IN_HANDS)) "$(($(lost_in_crash node1) - IN_CRASH))"
if [ "$KILLS" -ge 100 ]; then holes; fi
same "device, carrier and repairs" "$BEFORE" "$(state)"
for NODE in node1 node2; do still_held "$NODE"; done
