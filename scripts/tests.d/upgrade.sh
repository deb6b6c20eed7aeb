#!/usr/bin/env bash
# The agent of a node is replaced under load, by `tartan upgrade` or by another that takes over from it, as a pod of a
# rolling update does (`tartan run --take-over`), each in PID and mount namespaces of its own: no TCP connection ends,
# no datagram is lost, the device and the host stay as they are. A keeper that is killed in an upgrade leaves nothing
# behind, and the next start forwards. (What is refused, hangs, goes back, or is killed in a hand-over:
# agent/tests/keeper.)
#
#   mallory (no node) ────────────────────────┐
#   pod1 ── node1, whose agent is replaced ══ underlay ══ node2 ── pod3
#
# upgrade.sh upgrade|handover BACKEND FAMILIES TIMES [KILLS]: FAMILIES is v4, v6 or dual, inside and outside; SIGKILL
# meets the keeper at KILLS moments, evenly over an upgrade.
# case: upgrade vxlan dual 2 2 workers=2
# case: handover udp v4 2
# full: upgrade vxlan v4 20 20 kernel-path=auto
# full: handover vxlan dual 20 workers=2
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/kill_service.sh"
. "$TOOLS/held_load.sh"

WAY=$1 BACKEND=$2 OUTSIDE=$3 TIMES=$4 KILLS=${5:-0}
# shellcheck disable=SC2034 # held_load.sh uses it.
read -ra FAMILIES < <(families "$OUTSIDE")
ROOT=$LAB_STATE/node1
PROGRAMS=("$SCRATCH/first" "$SCRATCH/second")
# Each agent's process here, by its name, and the last one's name.
declare -A AGENT
LAST=agent0

# To the program that does not run.
upgrade() {
    local service program=${PROGRAMS[0]}
    service=$(service_of node1)
    if [ "/proc/$service/exe" -ef "$program" ]; then program=${PROGRAMS[1]}; fi
    tartan node1 upgrade --program "$program" >"$SCRATCH/upgrade" 2>&1 ||
        fail "upgrade to $program: $(cat "$SCRATCH/upgrade")"
    cmp "/proc/$(keeper_of node1)/exe" "$program" || fail "the keeper is not of $program"
    cmp "/proc/$(service_of node1)/exe" "$program" || fail "the service is not of $program"
    if [ "$(service_of node1)" = "$service" ]; then fail "the service is the same process"; fi
}

# upgrade_killed MILLISECONDS: the keeper is, so long after an upgrade began.
upgrade_killed() {
    start_in node1 "$BIN/tartan" --root "$ROOT" upgrade --program "${PROGRAMS[1]}" >"$SCRATCH/upgrade" 2>&1
    sleep "$(($1 / 1000)).$(printf '%03d' $(($1 % 1000)))"
    kill -KILL "$(keeper_of node1)"
    wait "$PID" || true
    until_true 5 "no process is left" prints "" pgrep -af -- "--root $ROOT run"
    lab start node1
}

# agent NAME: starts one on node1, with the arguments of the lab's own.
agent() {
    env -C "$ROOT" TARTAN_TAKE_OVER="$1" ip netns exec "$PREFIX-node1" unshare --pid --mount --fork --mount-proc \
        "$BIN/tartan" "${ARGUMENTS[@]}" >>"$ROOT/log" 2>&1 </dev/null &
    AGENT[$1]=$!
    STARTED+=("$!")
    disown
}

# end NAME: its keeper ends.
end() {
    local keeper
    keeper=$(pgrep -P "${AGENT[$1]}")
    kill "$keeper"
    until_true 10 "$1 ends" have_ended "$keeper"
    unset "AGENT[$1]"
}

# forwarding_is NAME: this agent is ready, as its readiness probe asks, and forwards, and no other.
forwarding_is() {
    local name
    until_true 15 "$1 is ready" tartan node1 ready --take-over "$1"
    for name in "${!AGENT[@]}"; do
        [ "$name" != "$1" ] || continue
        if tartan node1 ready --take-over "$name" >/dev/null 2>&1; then fail "$name says that it is ready"; fi
    done
    pgrep -P "${AGENT[$1]}" >"$ROOT/pid"
    LAST=$1
}

# handover NAME: it takes over; the one before stays, until it is ended as the controller does then.
handover() {
    local old=$LAST
    agent "$1"
    forwarding_is "$1"
    end "$old"
    tartan node1 ready --take-over "$1" >/dev/null || fail "$1 is not ready after the end of the one before"
}

replaced_under_load() {
    local before number
    before=$(kernel_state node1)
    start_datagrams pod1 pod3
    for ((number = 1; number <= TIMES; number++)); do "$WAY" "agent$number"; done
    stop_datagrams
    # shellcheck disable=SC2153 # held_load.sh sets it.
    equal "datagrams lost" 0 "$LOST"
    equal "packets that services held which ended" 0 "$(lost_in_crash node1)"
    equal "problems, repairs and restarts" '[[],0,0]' \
        "$(agent_json node1 status | jq -c '[[.problems[].code], .repairs, .restarts]')"
    same "addresses, routes and carrier changes of node1" "$before" "$(kernel_state node1)"
}

killed_on_the_way() {
    local before number whole
    before=$(device_and_routes node1)
    note_held node1
    whole=$EPOCHREALTIME
    upgrade
    whole=$(((${EPOCHREALTIME/./} - ${whole/./}) / 1000))
    for ((number = 1; number <= KILLS; number++)); do
        upgrade_killed $((whole * number / (KILLS + 1)))
        all_go_on "after a SIGKILL, number $number, in an upgrade that takes $whole ms"
        still_held node1
    done
    same "device, addresses and routes of node1" "$before" "$(device_and_routes node1)"
}

lab_up --backend "$BACKEND" --inside "$OUTSIDE" --outside "$OUTSIDE" --pods 2
for PROGRAM in "${PROGRAMS[@]}"; do cp "$BIN/tartan" "$PROGRAM"; done
if [ "$WAY" = handover ]; then
    mapfile -d '' -t ARGUMENTS < <(tail -z -n +2 "/proc/$(keeper_of node1)/cmdline")
    lab stop node1
    agent agent0
    forwarding_is agent0
fi
start_load
replaced_under_load
if [ "$WAY" = upgrade ]; then killed_on_the_way; fi
load_survived
for NODE in node1 node2; do law_one "$NODE"; done
