#!/usr/bin/env bash
# An agent takes over from another of the same node, as a pod of a rolling update does (`tartan run --take-over`): each has PID and
# mount namespaces of its own, and both have the node's network, run directory and state directory. No TCP connection ends, hardly
# a datagram is lost, device and host stay as they are. Whichever is killed or stopped on the way, one forwards.
#
#   client (no node) ─────────────────────────────────────────┐
#   pod1 ── node1: agent a ▷ agent b ▷ agent c ... ══ underlay ══ node2 ── pod3, which serves
#     └ 1000 datagrams a second, each answered
#
# Connections: pod1 → pod3; node1 → the ClusterIP of pod3; client → the NodePort of pod3 at node1.
#
# handover.sh [--from PROGRAM|COMMIT] BACKEND FAMILIES ROUNDS [killed], where FAMILIES is v4, v6 or dual, inside and outside. With
# `killed`, SIGKILL meets the old keeper or the new one, in turn, in named steps of a hand-over, and at as many further moments,
# evenly over one, as rounds. With --from, the first agent is that program, or a build of that commit (tools/build_of.sh): one that
# knows no hand-over, and is waited for.
# alone: it measures pauses
# case: vxlan v4 3
# case: udp v4 4 killed
# full: vxlan dual 50 workers=2
# full: udp v4 50
# full: vxlan v4 40 killed workers=2
# full: vxlan v4 5 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

OLDER=
if [ "${1:-}" = --from ]; then
    OLDER=$("$TOOLS/build_of.sh" "$2")
    shift 2
fi
BACKEND=$1
FAMILIES=$2
ROUNDS=$3
WAY=${4:-}
PORT=8080
BIN=$(readlink -f "${LAB_BIN:-$SCRIPTS/../target/fast}")
ROOT=$LAB_STATE/node1
# Datagrams a second, and at most so many ms without one, of hand-overs and where one goes back after its second.
RATE=1000
LARGEST_GAP=1000
LARGEST_GAP_OF_FAILURE=1500
# Of how many datagrams one may be lost.
OF_DATAGRAMS=10000

declare -A UNSHARE
LAST=

# agent NAME [PROGRAM [VARIABLE=VALUE...]]: starts one on node1, with the arguments of the lab's own.
agent() {
    local name=$1 program=${2:-$BIN/tartan}
    env -C "$ROOT" TARTAN_TAKE_OVER="$name" "${@:3}" ip netns exec "$PREFIX-node1" unshare --pid --mount --fork --mount-proc \
        "$program" "${ARGUMENTS[@]}" >>"$ROOT/log" 2>&1 </dev/null &
    UNSHARE[$name]=$!
    STARTED+=("$!")
    disown
    LAST=$name
}

# keeper_of NAME: its process id, as it is seen from here.
keeper_of() {
    pgrep -P "${UNSHARE[$1]}" || true
}

# lives NAME: its keeper does.
lives() {
    [ -n "$(keeper_of "$1")" ]
}

# A zombie has no namespace.
ends() {
    ! readlink "/proc/${UNSHARE[$1]}/ns/net" >/dev/null && ! lives "$1"
}

# end NAME [SIGNAL]: its keeper ends.
end() {
    until_true 10 "the keeper of agent $1 is there" lives "$1"
    kill "-${2:-TERM}" "$(keeper_of "$1")"
    until_true 10 "agent $1 ends" ends "$1"
}

# crash NAME: its service is killed, by its process id as it is seen from here, and the next one forwards.
crash() {
    local service
    service=$(services_of "$1")
    kill -KILL "$service"
    until_true 5 "another service of agent $1" has_another "$1" "$service"
}

has_another() {
    [ -n "$(services_of "$1")" ] && [ "$(services_of "$1")" != "$2" ] && ready "$1"
}

# ready NAME: as its readiness probe asks.
ready() {
    tartan node1 ready --take-over "$1"
}

# Processes of services on node1, which a keeper has as children.
services_of() {
    pgrep -P "$(keeper_of "$1")" || true
}

has_no_service() {
    [ -z "$(services_of "$1")" ]
}

# one_forwards NAME: it does, and no other agent's service reads.
one_forwards() {
    local name
    until_true 15 "agent $1 is ready" ready "$1" || return 0
    for name in "${!UNSHARE[@]}"; do
        [ "$name" = "$1" ] || ! lives "$name" || until_true 2 "agent $name has no service" has_no_service "$name" || true
    done
    equal "services of agent $1" 1 "$(services_of "$1" | wc -l)"
}

# What the agent NAME has open of the table, and has put into its directories. A file that was opened in a mount namespace that is gone
# has the path below its own mount.
holds() {
    find "/proc/$(keeper_of "$1")/fd" -lname '*/net/tun' | wc -l
    in_ns node1 ss -Hlun | awk '{ sub(/:[0-9]+$/, "", $4); print $4 }' | sort
    find "$ROOT/run" "$ROOT/var" -printf '%P %y\n' 2>/dev/null | grep -v 'handed-over' | sort
}

# holds_nothing NAME: neither the device nor a lock, once it has let them go.
holds_nothing() {
    until_true 2 "agent $1 has no queue of the device, and no lock" has_let_go "$(keeper_of "$1")" || true
}

# has_let_go PROCESS
has_let_go() {
    [ -z "$(find "/proc/$1/fd" -lname '*/net/tun' -o -lname '*/run/tartan/lock')" ]
}

start_datagrams() {
    start_in pod3 python3 "$TOOLS/steady.py" serve "$(address_of pod3 4)" 9000 >"$SCRATCH/arrivals"
    ANSWERING=$PID
    until_true 10 "pod3 answers datagrams" is_bound pod3 udp 9000
    start_in pod1 python3 "$TOOLS/steady.py" send "$(address_of pod1 4)" 9001 "$(address_of pod3 4)" 9000 "$RATE" >"$SCRATCH/sent"
    SENDING=$PID
    sleep 0.3
}

# stop_datagrams WHAT MS [LOST]: what became of them; so many may be lost, or one of OF_DATAGRAMS.
stop_datagrams() {
    local sent answered gap
    sleep 0.5
    stop "$SENDING"
    stop "$ANSWERING"
    read -r sent answered < <(sed -nE 's/^([0-9]+) sent, ([0-9]+) answered$/\1 \2/p' "$SCRATCH/sent")
    [ -n "$sent" ] || die "steady.py: $(cat "$SCRATCH/sent")"
    gap=$(awk 'NR > 1 && $1 - last > longest { longest = $1 - last } { last = $1 } END { printf "%d", longest * 1000 + 0.5 }' "$SCRATCH/arrivals")
    say "$1: $answered of $sent datagrams were answered; the longest time without one was $gap ms"
    # From which number on how many did not arrive: the others' answers did not.
    awk '$2 != last + 1 && NR > 1 { printf "%d+%d ", last + 1, $2 - last - 1 } { last = $2 } END { print "" }' "$SCRATCH/arrivals"
    measured_at_most "longest time without a datagram, ms" "$2" "$gap"
    at_most "datagrams lost ($1)" "${3:-$((sent / OF_DATAGRAMS))}" $((sent - answered))
}

# hand_over FROM TO: TO takes over, and FROM stays and holds nothing.
hand_over() {
    agent "$2"
    one_forwards "$2"
    lives "$1" || fail "agent $1 has ended by itself"
    holds_nothing "$1"
    # Its readiness probe says so too.
    if ready "$1" 2>/dev/null; then fail "agent $1 says that it is ready"; fi
}

# pauses: of all hand-overs that the log has.
pauses() {
    sed -nE 's/.*handed over: no service read for ([0-9]+) ms.*/\1/p' "$ROOT/log" | paste -sd ' '
}

rounds() {
    local number before
    before=$(kernel_state node1)
    start_load
    start_datagrams
    for ((number = 1; number <= ROUNDS; number++)); do
        hand_over "agent$((number - 1))" "agent$number"
        # As the controller does, once the new pod is ready.
        end "agent$((number - 1))"
        ready "agent$number" || fail "agent$number is not ready after the end of the one before"
        sleep 0.2
    done
    stop_datagrams "$ROUNDS hand-overs" "$LARGEST_GAP"
    # A worker finishes what it has in its hands.
    equal "packets booked as held by services that ended" 0 "$(lost_in_crash node1)"
    say "no service read for, ms: $(pauses)"
    equal "hand-overs in the log" "$ROUNDS" "$(pauses | wc -w)"
    load_survived
    same "addresses, routes and carrier changes of node1" "$before" "$(kernel_state node1)"
    equal "problems, repairs and restarts" '[] 0 0' "$(agent_json node1 status | jq -r '"\([.problems[].code]) \(.repairs) \(.restarts)"')"
    after_hand_overs
}

# What may come later: a crash, an end, a container that is started anew, and `tartan upgrade`.
after_hand_overs() {
    local former=agent$ROUNDS program
    crash "$former"
    program=$SCRATCH/program/tartan
    mkdir -p "$SCRATCH/program"
    cp "$BIN/tartan" "$program"
    tartan node1 upgrade --program "$program" >"$SCRATCH/upgrade" 2>&1 || fail "tartan upgrade: $(cat "$SCRATCH/upgrade")"
    ready "$former" || fail "$former is not ready after an upgrade"
    hand_over "$former" next
    # The container that has handed over is started anew, and does not ask.
    end "$former" KILL
    agent "$former"
    sleep 2
    one_forwards next
    # The one that has taken over dies, and the other has all of it.
    end next KILL
    one_forwards "$former"
    # It is started anew, and takes over again.
    hand_over "$former" next
    end "$former"
    former=next
    if [ -z "$(agents_option workers)" ]; then
        # Its service cannot start beside the other, which ends first.
        agent wider "$BIN/tartan" TARTAN_WORKERS=2
        one_forwards wider
        holds_nothing next
        equal "workers of an agent that has other descriptors" 2 "$(agent_json node1 status | jq .workers)"
        end next
        former=wider
    fi
    end "$former"
}

# agent_with FROM NAME: an agent that runs our program, and whose service is the program of standard input. The path of a service is
# known when its keeper has asked, and the keeper of FROM, which is stopped meanwhile, forwards nothing itself.
agent_with() {
    local program=$SCRATCH/$2/tartan keeper
    keeper=$(keeper_of "$1")
    mkdir -p "$SCRATCH/$2"
    cp "$BIN/tartan" "$program"
    kill -STOP "$keeper"
    agent "$2" "$program"
    sleep 1
    {
        echo '#!/usr/bin/env python3'
        echo 'import socket, sys, time'
        cat
    } >"$program.new"
    chmod 755 "$program.new"
    mv "$program.new" "$program"
    kill -CONT "$keeper"
}

# What a service beside another does up to go.
TO_GO='
keeper = socket.socket(fileno=0)
while b"\"last\":true" not in keeper.recv(65536): pass
keeper.send(b"\"ready\"")
assert keeper.recv(65536) == b"\"go\""
'

# refusals: how often the log says that it was not handed over.
refusals() {
    grep -c 'not handed over' "$ROOT/log" || true
}

refused_once_more() {
    [ "$(refusals)" -gt "$1" ]
}

# fails FROM NAME: FROM goes on, and NAME waits, until it is ended.
fails() {
    local before
    before=$(refusals)
    agent_with "$1" "$2"
    until_true 10 "agent $2 is refused" refused_once_more "$before"
    say "$2: $(grep -o 'not handed over.*' "$ROOT/log" | tail -n 1)"
    lives "$2" || fail "agent $2 has ended by itself"
    one_forwards "$1"
    end "$2"
}

failing() {
    local last=$1
    start_datagrams
    fails "$last" ends < <(echo 'sys.exit(3)')
    fails "$last" ends-after-go < <(echo "$TO_GO"'sys.exit(3)')
    fails "$last" hangs-after-go < <(echo "$TO_GO"'time.sleep(60)')
    fails "$last" withdraws < <(echo "$TO_GO"'keeper.send(b"{\"withdraw\":\"tun-queue-0\"}"); sys.exit(1)')
    # What has waited for a whole second comes to the other node at once, and its sockets may be full where the machine is busy.
    stop_datagrams "hand-overs that fail" "$LARGEST_GAP_OF_FAILURE" "$RATE"
    all_go_on "after hand-overs that fail"
}

# An agent without --take-over hands nothing over, and one that comes second waits until it is stopped.
without_a_name() {
    ARGUMENTS_OF=("$@")
    env -C "$ROOT" ip netns exec "$PREFIX-node1" unshare --pid --mount --fork --mount-proc "${ARGUMENTS_OF[@]}" "${ARGUMENTS[@]}" \
        >>"$ROOT/log" 2>&1 </dev/null &
    UNSHARE[nameless]=$!
    STARTED+=("$!")
    until_true 15 "an agent without a name is ready" tartan node1 status
    HOLDERS=()
    start_load
    agent patient
    until_true 10 "an agent says that it waits" grep -q 'does not take over from the one that runs' "$ROOT/log"
    sleep 2.5
    equal "how often it says so" 1 "$(grep -c 'does not take over from the one that runs' "$ROOT/log")"
    say "$(grep -o 'does not take over from.*' "$ROOT/log" | tail -n 1)"
    lives patient || fail "the agent that waits has ended"
    end nameless
    one_forwards patient
}

holds_as_before() {
    [ "$(holds "$1")" = "$HELD" ]
}

# survives WHAT NAME: it forwards with what there was.
survives() {
    one_forwards "$2"
    all_go_on "after $1"
    # A start may still open sockets.
    until_true 5 "agent $2 holds what was held" holds_as_before "$2" || true
    same "what agent $2 holds after $1" "$HELD" "$(holds "$2")"
}

exists() {
    [ -e "$1" ]
}

# A service that comes to a step, says so in a file, and waits for the end of its keeper.
waiting() {
    echo "$2"
    echo "open('$SCRATCH/step-$1', 'w')"
    echo 'while keeper.recv(65536): pass'
}

killed() {
    local before whole since delay current=agent0 next victim survivor
    # Connections alone: datagrams are refused while nothing serves.
    start_load
    before=$(device_and_routes node1)
    HELD=$(holds "$current")
    agent_with "$current" waits-before < <(waiting before-pause 'keeper = socket.socket(fileno=0)')
    until_true 10 "the new service is there" exists "$SCRATCH/step-before-pause"
    end waits-before KILL
    survives "SIGKILL of the new keeper before the pause" "$current"
    agent_with "$current" waits-in < <(waiting in-pause "$TO_GO")
    until_true 10 "the new service is there" exists "$SCRATCH/step-in-pause"
    end waits-in KILL
    survives "SIGKILL of the new keeper in the pause" "$current"
    # How long a hand-over takes.
    since=$(date +%s%3N)
    agent whole
    until_true 10 "agent whole is ready" ready whole
    whole=$(($(date +%s%3N) - since))
    end "$current"
    current=whole
    say "a hand-over takes $whole ms at most, with what it takes to ask"
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
        next=round$ROUND
        delay=$((whole * ((ROUND + 1) / 2) / ((ROUNDS + 1) / 2)))
        agent "$next"
        sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
        victim=$current survivor=$next
        if [ $((ROUND % 2)) = 0 ]; then victim=$next survivor=$current; fi
        end "$victim" KILL
        survives "SIGKILL of agent $victim, $delay ms after $next started beside $current" "$survivor"
        current=$survivor
    done
    load_survived
    same "device, addresses and routes of node1" "$before" "$(device_and_routes node1)"
    equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
}

say "handover: backend $BACKEND, families $FAMILIES, rounds $ROUNDS${OLDER:+, from $OLDER}"
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2
lab services >/dev/null
SERVED=()
for FAMILY in $(families "$FAMILIES"); do SERVED+=("$(address_of pod3 "$FAMILY")"); done
start_in pod3 python3 "$TOOLS/held.py" serve "$PORT" "${SERVED[@]}"
until_true 10 "pod3 serves" serves_all
# The arguments of the lab's own agent, whose place agents of this test take.
mapfile -d '' -t ARGUMENTS <"/proc/$(cat "$ROOT/pid")/cmdline"
ARGUMENTS=("${ARGUMENTS[@]:1}")
lab stop node1 >/dev/null
if [ -n "$OLDER" ]; then
    without_a_name "$OLDER"
    hand_over patient newer
    end patient
    load_survived
else
    agent agent0
    one_forwards agent0
    if [ "$WAY" = killed ]; then
        killed
    else
        rounds
        without_a_name "$BIN/tartan"
        failing patient
        load_survived
    fi
fi
# For the lab to end it.
keeper_of "$LAST" >"$ROOT/pid"
for NAME in "${!UNSHARE[@]}"; do if ready "$NAME" 2>/dev/null; then keeper_of "$NAME" >"$ROOT/pid"; fi; done
law_one node1
law_one node2
