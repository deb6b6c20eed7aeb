#!/usr/bin/env bash
# The service is killed again and again under load, in turn on two nodes: the holes in a row of probes are short, no TCP
# connection is reset, the device keeps its carrier, nothing is left open, what is forged meanwhile reaches no pod, and what was
# lost is booked.
#
#   client (no node) ───────────────┐    mallory .250: forges
#   pod1 ── node1: keeper, service (killed) ══ underlay ══ node2: keeper, service (killed) ── pod3, which serves
#     │ ping 500 times a second, and a TCP transfer                └ forges as pods that are not its own
#
# Connections, in each family: pod1 → pod3; node1 → the ClusterIP of pod3; client → the NodePort of pod3 at node1, masqueraded.
#
# kills.sh BACKEND FAMILIES KILLS, where FAMILIES is v4, v6 or dual, inside and outside.
# alone: it measures pauses
# full: vxlan dual 6 workers=2
# full: vxlan v4 200
# full: udp dual 50 workers=2
# full: vxlan v6 50
# full: vxlan v4 50 device=plain
# full: vxlan v4 50 device-type=tap
# full: vxlan v4 50 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

BACKEND=$1
FAMILIES=$2
KILLS=$3
PORT=8080
SINK_PORT=7000
# Bytes a second of the transfer; forged datagrams a second of each format from each forger.
RATE=20000000
FORGED_RATE=50
# Seconds that are looked at after each kill, and that pass before the next one: those of one node are twice as far apart, because
# a service that forwarded for less than a second is followed by the next one with a delay (agent/src/keeper/backoff.rs).
LOOKED_AT=1
BETWEEN=1.3
# Milliseconds: of a hundred kills or more, as they are promised; of a few the longest alone, of a program that is built to be
# compiled fast.
MOST_P99=50
MOST=200
MOST_OF_FEW=500
NAMES=(pod1 pod3 node1 node2 client)

# keeper_of NODE, service_of NODE: without asking the agent, which is measured.
keeper_of() {
    cat "$LAB_STATE/$1/pid"
}

service_of() {
    pgrep -P "$(keeper_of "$1")"
}

# open_in PROCESS: how many descriptors of each kind it has.
open_in() {
    find "/proc/$1/fd" -mindepth 1 -printf '%l\n' | sed -E 's/:\[[0-9]+\]//' | sort | uniq -c
}

# holds NODE: what its agent has open, has in the kernel, and has put into its directories.
holds() {
    local keeper table
    keeper=$(keeper_of "$1")
    echo "keeper:"
    open_in "$keeper"
    echo "service:"
    open_in "$(service_of "$1")"
    echo "processes: $(pgrep -c -f -- "--root $LAB_STATE/$1 run")"
    echo "queues: $(ip -n "$PREFIX-$1" -d -j link show dev tartan0 | jq -c '.[0].linkinfo.info_data | [.numqueues, .numdisabled]')"
    # Not those of netlink: the kernel lists one from its first use on (netlink_autobind), which comes when it comes. Each is
    # a descriptor of the two processes above.
    for table in udp udp6 raw raw6 packet unix; do echo "sockets, $table: $(wc -l <"/proc/$keeper/net/$table")"; done
    find "$LAB_STATE/$1/run" "$LAB_STATE/$1/var" -printf '%P %y\n' | sort
}

holds_as_before() {
    [ "$(holds "$1")" = "${HELD[$1]}" ]
}

# A service opens some sockets shortly after it forwards: what it holds is known once two looks agree.
holds_the_same() {
    HELD[$1]=$(holds "$1")
    sleep 1
    holds_as_before "$1"
}

# forge HOST SOURCE: datagrams of both formats for pod1 that must not be delivered, until they are told to end. The program's process
# id is in $PID.
forge() {
    jq -n --arg address "$(underlay_of node1 "$OUTER")" --arg source "$2" --arg destination "${FORGED_TO[0]}" \
        --arg from "$(vtep_mac_of node2 "$INNER")" --arg to "$(vtep_mac_of node1 "$INNER")" --argjson port "$SINK_PORT" --argjson rate "$FORGED_RATE" \
        '{to: $address, formats: ["udp", "vxlan"], $rate, $source, $destination, $port, source_mac: $from, destination_mac: $to}' \
        >"$SCRATCH/order-$1"
    # Not start_in, whose programs read nothing.
    ip netns exec "$PREFIX-$1" python3 "$TOOLS/forge.py" <"$SCRATCH/order-$1" >"$SCRATCH/forged-$1" &
    PID=$!
    STARTED+=("$PID")
}

start_probes() {
    start_in pod1 ping -n -D -i 0.002 "${SERVED[0]}" >"$SCRATCH/ping"
    PING=$PID
    until_true 5 "the first probe is answered" grep -q 'bytes from' "$SCRATCH/ping"
}

# What the machine itself does to the probes.
without_kills() {
    local second
    for ((second = 0; second < 3; second++)); do
        echo "$EPOCHREALTIME" >>"$SCRATCH/quiet"
        sleep "$LOOKED_AT"
    done
}

kills() {
    local round node pid
    for ((round = 0; round < KILLS; round++)); do
        node=node$((round % 2 + 1))
        pid=$(service_of "$node")
        echo "$EPOCHREALTIME" >>"$SCRATCH/kills"
        kill -KILL "$pid"
        sleep "$BETWEEN"
        [ "$(service_of "$node" || true)" != "$pid" ] || die "process $pid of $node has outlived SIGKILL"
    done
}

# figures MOMENTS
figures() {
    python3 "$TOOLS/holes.py" "$SCRATCH/ping" "$SCRATCH/$1" "$LOOKED_AT" || die "no figures of $1"
}

probes_survived() {
    local found booked full
    sleep 1
    # What ping's own socket had no room for had arrived; the last column has that.
    full=$(in_ns pod1 cat /proc/net/raw /proc/net/raw6 | awk '$1 != "sl" { sum += $NF } END { print sum + 0 }')
    stop "$PING" INT
    say "holes without a kill, ms: $(figures quiet)"
    found=$(figures kills)
    say "holes within $LOOKED_AT s of each kill, ms: $found"
    equal "kills that were looked at" "$KILLS" "$(jq .count <<<"$found")"
    if [ "$KILLS" -ge 100 ]; then
        measured_at_most "hole in the probes, p99 of all kills, ms" "$MOST_P99" "$(jq '.p99 | ceil' <<<"$found")"
        measured_at_most "longest hole in the probes, ms" "$MOST" "$(jq '.most | ceil' <<<"$found")"
    else
        measured_at_most "longest hole in the probes, ms" "$MOST_OF_FEW" "$(jq '.most | ceil' <<<"$found")"
    fi
    booked=$((full + $(lost_in_crash node1) + $(lost_in_crash node2) + $(lost_in_kernel node1) + $(lost_in_kernel node2)))
    at_most "probes lost, beside what is booked as lost in a crash or in the kernel, or came to a full socket" "$booked" "$(jq '[.lost_after[] | select(. != null)] | length' <<<"$found")"
}

# Every forged datagram was refused for its reason, or was in the hands of a service that was killed.
forged_reach_nobody() {
    local forger sent=0 refused lost
    for forger in "${FORGERS[@]}"; do stop "$forger"; done
    sleep 0.5
    sent=$(cat "$SCRATCH"/forged-* | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$sent" -gt $((KILLS * FORGED_RATE)) ] || fail "only $sent datagrams were forged"
    refused=$(($(dropped_for node1 UnknownPeer inbound) + $(dropped_for node1 NotPeersSource inbound)))
    lost=$((sent - refused))
    say "of $sent forged datagrams $refused were refused by name"
    [ "$lost" -ge 0 ] || fail "more forged datagrams were refused than there were: $refused of $sent"
    at_most "forged datagrams that are not, beside what is booked" "$(($(lost_in_crash node1 inbound) + $(lost_in_kernel node1)))" "$lost"
    stop "$SINK"
    equal "forged datagrams that reached the pod" 0 "$(jq '[.[].count] | add // 0' "$SCRATCH/sink")"
}

transfer_survived() {
    kill -0 "$SENDER" 2>/dev/null || fail "the TCP transfer ended before the last kill: it proves nothing"
    kill -TERM "$SENDER" 2>/dev/null || true
    wait "$SENDER" || fail "the TCP transfer did not survive at the sender"
    wait "$RECEIVER" || fail "the TCP transfer did not survive at the receiver"
    equal "bytes and sha256 across the kills" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

say "SIGKILL of the service, $KILLS times: backend $BACKEND, families $FAMILIES"
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2
lab services >/dev/null
SERVED=() FORGED_TO=()
declare -A BEFORE HELD
for FAMILY in $(families "$FAMILIES"); do
    SERVED+=("$(address_of pod3 "$FAMILY")")
    FORGED_TO+=("$(address_of pod1 "$FAMILY")")
done
read -r INNER _ < <(families "$FAMILIES")
OUTER=$(carrier "$INNER" "$FAMILIES")
start_in pod3 python3 "$TOOLS/held.py" serve "$PORT" "${SERVED[@]}"
until_true 10 "pod3 serves" serves_all
start_in pod1 "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" is_bound pod1 udp "$SINK_PORT"
start_load
start_in pod3 python3 "$TOOLS/bulk.py" receive "${SERVED[0]}" 5003 >"$SCRATCH/received"
RECEIVER=$PID
start_in pod1 python3 "$TOOLS/bulk.py" send "${SERVED[0]}" 5003 $((1 << 40)) "$RATE" >"$SCRATCH/sent"
SENDER=$PID
for NODE in node1 node2; do
    BEFORE[$NODE]=$(kernel_state "$NODE")
    until_true 20 "the agent of $NODE has opened what it opens" holds_the_same "$NODE"
done
case $INNER in
4) forge mallory "$(address_of pod3 4)" && FORGERS=("$PID") && forge node2 203.0.113.7 ;;
6) forge mallory "$(address_of pod3 6)" && FORGERS=("$PID") && forge node2 2001:db8:ffff::7 ;;
esac
FORGERS+=("$PID")
start_probes
RESETS=$(resets "${NAMES[@]}")
without_kills
kills
all_go_on "after $KILLS kills"
probes_survived
forged_reach_nobody
transfer_survived
same "connections that were reset, of each host" "$RESETS" "$(resets "${NAMES[@]}")"
load_survived
for NODE in node1 node2; do
    same "addresses, routes and carrier changes of $NODE" "${BEFORE[$NODE]}" "$(kernel_state "$NODE")"
    law_one "$NODE"
    equal "repairs on $NODE" 0 "$(agent_json "$NODE" status | jq .repairs)"
    until_true 5 "$NODE holds what it held" holds_as_before "$NODE" || true
    same "descriptors, processes, queues, sockets and files of the agent of $NODE" "${HELD[$NODE]}" "$(holds "$NODE")"
    booked_is_held "$NODE" $(((KILLS + 1) / 2))
    say "$NODE lost in the kernel meanwhile: $(lost_in_kernel "$NODE"); dropped: $(agent_json "$NODE" drops | jq -c '[.workers[] | .outbound, .inbound | .dropped | to_entries[]] | group_by(.key) | map({(.[0].key): (map(.value) | add)}) | add')"
done
equal "restarts of both services" "$KILLS" "$(($(agent_json node1 status | jq .restarts) + $(agent_json node2 status | jq .restarts)))"
