#!/usr/bin/env bash
# An agent takes over from another of the same node under load, as a pod of a rolling update does (`tartan run
# --take-over`): each has PID and mount namespaces of its own, and both have the node's network, run directory and state
# directory. No TCP connection ends, no datagram is lost, device and host stay as they are. Whichever is killed or
# stopped on the way, the other forwards. An agent that hands nothing over is waited for.
#
#   mallory (no node) ────────────────────────────────────────┐
#   pod1 ── node1: agent 0 ▷ agent 1 ▷ agent 2 ... ══ underlay ══ node2 ── pod3
#
# handover.sh [--from PROGRAM|COMMIT] BACKEND FAMILIES HANDOVERS KILLS: FAMILIES is v4, v6 or dual, inside and outside;
# SIGKILL meets the old keeper or the new one, in turn, at moments evenly over a hand-over. With --from, the agent that
# hands nothing over is that program, or a build of that commit (tools/build_of.sh).
# case: udp v4 2 2
# full: vxlan dual 20 20 workers=2
# full: vxlan v4 10 5 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

OLDER=$BIN/tartan
if [ "$1" = --from ]; then
    OLDER=$("$TOOLS/build_of.sh" "$2")
    shift 2
fi
BACKEND=$1
OUTSIDE=$2
HANDOVERS=$3
KILLS=$4
read -ra FAMILIES < <(families "$OUTSIDE")
ROOT=$LAB_STATE/node1
# Each agent's process here, by its name.
declare -A AGENT

# agent NAME [PROGRAM]: starts one on node1, with the arguments of the lab's own. `nameless` has no name to hand over
# by.
agent() {
    local name=(TARTAN_TAKE_OVER="$1")
    [ "$1" != nameless ] || name=()
    env -C "$ROOT" "${name[@]}" ip netns exec "$PREFIX-node1" unshare --pid --mount --fork --mount-proc \
        "${2:-$BIN/tartan}" "${ARGUMENTS[@]}" >>"$ROOT/log" 2>&1 </dev/null &
    AGENT[$1]=$!
    STARTED+=("$!")
    disown
}

forwards() {
    agent_json node1 status | jq -e .snapshot_adopted
}

# keeper_in NAME: its process id, as it is seen from here.
keeper_in() {
    pgrep -P "${AGENT[$1]}"
}

# One that was not collected has no namespace.
has_ended() {
    ! readlink "/proc/${AGENT[$1]}/ns/net" && ! keeper_in "$1"
}

# end NAME [SIGNAL]: its keeper ends.
end() {
    until_true 10 "the keeper of agent $1 is there" keeper_in "$1"
    kill "-${2:-TERM}" "$(keeper_in "$1")"
    until_true 10 "agent $1 ends" has_ended "$1"
    unset "AGENT[$1]"
}

# is_ready NAME: as its readiness probe asks.
is_ready() {
    tartan node1 ready --take-over "$1"
}

# has_let_go NAME: it has neither a service, nor a queue of the device, nor the lock.
has_let_go() {
    [ -z "$(pgrep -P "$(keeper_in "$1")")" ] &&
        [ -z "$(find "/proc/$(keeper_in "$1")/fd" -lname '*/net/tun' -o -lname '*/run/tartan/lock')" ]
}

# forwarding_is NAME: this agent forwards, and no other.
forwarding_is() {
    local name
    until_true 15 "agent $1 is ready" is_ready "$1"
    for name in "${!AGENT[@]}"; do
        [ "$name" = "$1" ] || until_true 5 "agent $name holds nothing" has_let_go "$name"
    done
    keeper_in "$1" >"$ROOT/pid"
}

# hand_over FROM TO: TO takes over; FROM stays and is not ready, until it is ended, as the controller does once TO is
# ready.
hand_over() {
    agent "$2"
    forwarding_is "$2"
    if is_ready "$1"; then fail "agent $1 says that it is ready"; fi
    end "$1"
    is_ready "$2" || fail "agent $2 is not ready after the end of the one before"
}

handovers() {
    local before number
    before=$(kernel_state node1)
    start_datagrams pod1 pod3
    for ((number = 1; number <= HANDOVERS; number++)); do hand_over "agent$((number - 1))" "agent$number"; done
    stop_datagrams
    equal "datagrams lost" 0 "$LOST"
    equal "packets that services held which ended" 0 "$(lost_in_crash node1)"
    equal "hand-overs in the log" "$HANDOVERS" "$(grep -c 'handed over: no service read for' "$ROOT/log")"
    same "addresses, routes and carrier changes of node1" "$before" "$(kernel_state node1)"
    equal "problems, repairs and restarts" '[[],0,0]' \
        "$(agent_json node1 status | jq -c '[[.problems[].code], .repairs, .restarts]')"
}

# What may come later, of agent $1: a crash, an upgrade, a container that is started anew and one that dies.
later() {
    kill_service node1
    cp "$BIN/tartan" "$SCRATCH/program"
    tartan node1 upgrade --program "$SCRATCH/program" >"$SCRATCH/upgrade" 2>&1 ||
        fail "tartan upgrade: $(cat "$SCRATCH/upgrade")"
    agent next
    forwarding_is next
    # The container that has handed over is started anew, and does not ask.
    end "$1" KILL
    agent "$1"
    until_true 10 "agent $1 runs" keeper_in "$1"
    forwarding_is next
    end next KILL
    forwarding_is "$1"
}

# kills NAME: begins with agent NAME, and ends with agent LAST.
kills() {
    local before round whole since delay victim
    before=$(device_and_routes node1)
    note_held node1
    since=$(date +%s%3N)
    agent whole
    until_true 15 "agent whole is ready" is_ready whole
    whole=$(($(date +%s%3N) - since))
    end "$1"
    LAST=whole
    for ((round = 1; round <= KILLS; round++)); do
        delay=$((whole * round / (KILLS + 1)))
        agent "killed$round"
        sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
        victim=killed$round
        if [ $((round % 2)) = 1 ]; then
            victim=$LAST
            LAST=killed$round
        fi
        end "$victim" KILL
        say "SIGKILL of agent $victim, $delay ms after the other began to ask"
        forwarding_is "$LAST"
        all_go_on "after it"
        still_held node1
    done
    same "device, addresses and routes of node1" "$before" "$(device_and_routes node1)"
    equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
}

# waits_for_nameless NAME: an agent that hands nothing over takes the place of NAME, and `patient` waits until it ends.
waits_for_nameless() {
    end "$1"
    agent nameless "$OLDER"
    until_true 15 "an agent without a name forwards" forwards
    agent patient
    until_true 10 "an agent says that it waits" grep -q 'does not take over from the one that runs' "$ROOT/log"
    end nameless
    forwarding_is patient
}

say "handover: backend $BACKEND, families $OUTSIDE"
lab_up --backend "$BACKEND" --inside "$OUTSIDE" --outside "$OUTSIDE" --pods 2
mapfile -d '' -t ARGUMENTS < <(tail -z -n +2 "/proc/$(keeper_of node1)/cmdline")
lab stop node1
agent agent0
forwarding_is agent0
start_load
handovers
later "agent$HANDOVERS"
kills "agent$HANDOVERS"
waits_for_nameless "$LAST"
all_go_on "after all of it"
load_survived
for NODE in node1 node2; do law_one "$NODE"; done
