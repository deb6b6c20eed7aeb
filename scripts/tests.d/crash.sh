#!/usr/bin/env bash
# A killed service takes nothing down with it: the device keeps its carrier, addresses and routes stay,
# the pause is short, a TCP transfer goes on, and the packets it held are booked. A service whose workers stand still is killed.
#
#   pod1 ── node1: keeper, service (killed) ══ underlay ══ node2: keeper, service (killed) ── pod2
#     └ ping 100 times a second, and a large TCP transfer, in each family
#
# crash.sh BACKEND [INSIDE OUTSIDE], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the
# underlay.
# alone: it measures pauses
# full: udp
# full: vxlan
# case: vxlan dual dual workers=2
# full: udp workers=2
# full: vxlan workers=4
# full: vxlan device=plain
# full: udp v6 v6
# full: vxlan dual v4
# full: vxlan dual dual workers=2 device-type=tap
# full: vxlan kernel-path=auto
# full: vxlan kernel-path=stateless
# full: vxlan dual v4 workers=2 kernel-path=auto
# full: vxlan kernel-path=auto device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
BYTES=$((1 << 30))
# Seconds of the transfer, at least: it is to outlast the kills.
LASTS=8
PINGS=800
# Milliseconds.
LARGEST_GAP=1000
# Of a service that stands still: the keeper kills it after 2 s.
LARGEST_GAP_OF_HANG=4000

# Ping and a transfer from pod1 to pod2, which go on in the background.
start_load() {
    local address bytes
    address=$(address_of pod2 "$1")
    in_ns pod1 ping -c 2 -i 0.1 "$address" >"$SCRATCH/warm" || fail "ping before"
    start_in pod1 ping -n -D -i 0.01 -c "$PINGS" -W 1 "$address" >"$SCRATCH/ping$1"
    PINGERS[$1]=$PID
    start_in pod2 python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received$1"
    RECEIVERS[$1]=$PID
    bytes=$((BYTES / ${#FAMILIES[@]}))
    start_in pod1 python3 "$TOOLS/bulk.py" send "$address" 5003 "$bytes" $((bytes / LASTS)) >"$SCRATCH/sent$1"
    SENDERS[$1]=$PID
}

still_sending() {
    local family
    for family in "${FAMILIES[@]}"; do
        kill -0 "${SENDERS[$family]}" 2>/dev/null || return 1
    done
}

# What became of the load of one family.
load_survived() {
    local gap answers last
    wait "${PINGERS[$1]}" || true
    wait "${SENDERS[$1]}" || fail "the TCP transfer did not survive at the sender"
    wait "${RECEIVERS[$1]}" || fail "the TCP transfer did not survive at the receiver"
    equal "IPv$1 bytes and sha256 across the kills" "$(cat "$SCRATCH/sent$1")" "$(cat "$SCRATCH/received$1")"
    read -r gap answers < <(gaps "$SCRATCH/ping$1")
    measured_at_most "longest pause of the ping, ms" "$LARGEST_GAP" "$gap"
    [ "$answers" -gt $((PINGS * 3 / 4)) ] || fail "only $answers of $PINGS pings were answered"
    say "$answers of $PINGS pings were answered"
    last=$(last_ping "$SCRATCH/ping$1")
    # ping waits for its last answers not long: what was sent behind the last that came may have been on its way, if it is little.
    LOST=$((LOST + (PINGS - last > 10 ? PINGS : last) - answers))
    [ "$last" -gt $((PINGS - 100)) ] || fail "the path was dead at the end: the last answer was to ping $last of $PINGS"
}

pinged_since() {
    [ "$(last_ping "$SCRATCH/hang")" -gt $(($1 + 10)) ]
}

# A service that is stopped (SIGSTOP), as one whose worker hangs, is killed by its keeper, and the next one forwards.
stands_still() {
    local pid gap answers family last
    family=${FAMILIES[0]}
    pid=$(service_pid node1)
    start_in pod1 ping -n -D -i 0.01 "$(address_of pod2 "$family")" >"$SCRATCH/hang"
    until_true 5 "the first ping is answered" grep -q 'bytes from' "$SCRATCH/hang"
    kill -STOP "$pid"
    until_true 10 "a new service on node1 in the place of one that stands still" another_service node1 "$pid"
    last=$(last_ping "$SCRATCH/hang")
    until_true 5 "pings are answered again" pinged_since "$last"
    stop "$PID" INT
    read -r gap answers < <(gaps "$SCRATCH/hang")
    say "$answers pings were answered; the longest pause was $gap ms"
    measured_at_most "longest pause with a service that stood still, ms" "$LARGEST_GAP_OF_HANG" "$gap"
    # Its workers had to stand still for two seconds; the programs of the kernel path carry the pings on.
    [ "$KERNEL_PATH" != off ] || [ "$gap" -gt 1500 ] || fail "it was killed after $gap ms already"
    grep -q 'worker [0-9]* has stood still for' "$LAB_STATE/node1/log" || fail "the log does not say why the service was killed"
    law_one node1
}

say "SIGKILL of the service: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
read -ra FAMILIES < <(families "$INSIDE")
PINGERS=() RECEIVERS=() SENDERS=()
BEFORE1=$(kernel_state node1)
BEFORE2=$(kernel_state node2)
for FAMILY in "${FAMILIES[@]}"; do start_load "$FAMILY"; done
sleep 0.5
for node in node1 node2 node1; do
    still_sending || fail "a TCP transfer ended before the last kill: it proves nothing"
    kill_service "$node"
    sleep 1
done
LOST=0
for FAMILY in "${FAMILIES[@]}"; do load_survived "$FAMILY"; done
same "addresses, routes and carrier changes of node1" "$BEFORE1" "$(kernel_state node1)"
same "addresses, routes and carrier changes of node2" "$BEFORE2" "$(kernel_state node2)"
for node in node1 node2; do
    law_one "$node"
    equal "repairs on $node" 0 "$(agent_json "$node" status | jq .repairs)"
    equal "how the last service of $node ended" 1 "$(agent_json "$node" status | jq -r .last_end | grep -c SIGKILL)"
done
# Nothing is lost that is not booked, and nothing is booked that was not held.
booked_is_held node1 2
booked_is_held node2 1
BOOKED=$(($(lost_in_crash node1) + $(lost_in_crash node2) + $(lost_in_kernel node1) + $(lost_in_kernel node2)))
at_most "pings lost, beside what is booked as lost in a crash or in the kernel" "$BOOKED" "$LOST"
stands_still
