#!/usr/bin/env bash
# The agent of a node is upgraded under load: no TCP connection ends, hardly a probe is lost, the device and the host stay as they
# are, and keeper and service are of the new program. A program that is none, or does not come to forward, changes nothing. A
# keeper that is killed on the way leaves nothing behind, and the next start forwards.
#
#   client (no node) ─────────────┐
#   pod1 ── node1: keeper, service (upgraded) ══ underlay ══ node2 ── pod3, which serves
#     └ ping 500 times a second
#
# Connections, in each family: pod1 → pod3; node1 → the ClusterIP of pod3; client → the NodePort of pod3 at node1.
#
# upgrade.sh [--from PROGRAM|COMMIT] BACKEND FAMILIES ROUNDS [killed], where FAMILIES is v4, v6 or dual, inside and outside. With
# --from, the agent is that program first, or a build of that commit (tools/build_of.sh), where `previous` is the last tag. One that
# knows `tartan upgrade` is upgraded to this release and taken back, as often as rounds; then services of each run below keepers of
# the other, by replaced files. Of one that does not know it, the service alone is replaced. With `killed`, SIGKILL meets the keeper
# in three steps of an upgrade, and at as many further moments, evenly over one, as rounds.
# alone: it measures pauses
# case: vxlan dual 3 workers=2
# full: vxlan v4 5 killed
# full: udp v4 3
# full: udp dual 40 killed workers=2
# full: vxlan v4 50
# full: udp dual 50 workers=2
# seconds --from: 3600: it builds another commit first
# full: --from previous vxlan dual 10 workers=2
# full: --from previous udp v4 10
# full: --from previous vxlan v4 50
# full: vxlan v4 5 device=plain
# full: vxlan v4 5 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

# shellcheck source=scripts/tests.d/tools/replaced_file.sh
. "$TOOLS/replaced_file.sh"

PREVIOUS=
if [ "${1:-}" = --from ]; then
    PREVIOUS=$("$TOOLS/build_of.sh" "$2")
    shift 2
fi
BACKEND=$1
FAMILIES=$2
ROUNDS=$3
WAY=${4:-}
PORT=8080
BIN=$(readlink -f "${LAB_BIN:-$SCRIPTS/../target/fast}")
# Milliseconds: of upgrades, and of those that go back after the second that a new service has.
LARGEST_GAP=1000
LARGEST_GAP_OF_FAILURE=1500
# Of how many probes one may be lost.
OF_PROBES=10000

start_probes() {
    start_in pod1 ping -n -D -i 0.002 "${SERVED[0]}" >"$SCRATCH/ping"
    PING=$PID
}

# stop_probes WHAT MILLISECONDS: what became of the probes.
stop_probes() {
    local gap answers sent lost last flying
    sleep 1
    stop "$PING" INT
    read -r gap answers < <(gaps "$SCRATCH/ping")
    sent=$(sed -nE 's/^([0-9]+) packets transmitted.*/\1/p' "$SCRATCH/ping")
    # What was sent behind the last that was answered may be on its way, up to 100 ms of it: sent 0.9 s after the last upgrade.
    # Numbers have 16 bits.
    last=$(last_ping "$SCRATCH/ping")
    flying=$(((sent - last) & 65535))
    lost=$((sent - answers))
    [ "$flying" -gt 50 ] || lost=$((lost - flying))
    say "$1: $answers of $sent probes were answered; the longest pause was $gap ms"
    measured_at_most "longest pause of the probes, ms" "$2" "$gap"
    at_most "probes lost ($1), times $OF_PROBES, against those sent" "$sent" $((lost * OF_PROBES))
}

# program NAME: a copy of the program, which is a file of its own.
program() {
    mkdir -p "$SCRATCH/$1"
    cp "$BIN/tartan" "$SCRATCH/$1/tartan"
    echo "$SCRATCH/$1/tartan"
}

keeper_pid() {
    cat "$LAB_STATE/node1/pid"
}

programs() {
    readlink "/proc/$(keeper_pid)/exe" "/proc/$(service_pid node1)/exe" | paste -sd ' '
}

descriptors() {
    # Those of the table; the keeper's own change their numbers.
    find "/proc/$(keeper_pid)/fd" -lname '/dev/net/tun' -o -lname 'socket:*' | wc -l
}

# upgrade PROGRAM: to it, and both are of it.
upgrade() {
    local code=0 pid
    pid=$(service_pid node1)
    tartan node1 upgrade --program "$1" -o json >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "exit code of the upgrade" 0 "$code"
    [ "$code" = 0 ] || cat "$SCRATCH/upgrade"
    equal "programs of keeper and service" "$1 $1" "$(programs)"
    if [ "$(service_pid node1)" = "$pid" ]; then fail "the service is the same process"; fi
    PAUSES+=("$(jq .pause_us "$SCRATCH/upgrade")")
}

# refused OUTCOME PROGRAM: nothing changes.
refused() {
    local code=0 before
    before="$(programs) $(service_pid node1) $(descriptors)"
    tartan node1 upgrade --program "$2" -o json >"$SCRATCH/upgrade" 2>&1 || code=$?
    say "$2: $(jq -c '{outcome, reason}' "$SCRATCH/upgrade")"
    equal "exit code of the upgrade to $2" 1 "$code"
    equal "outcome of the upgrade to $2" "$1" "$(jq -r .outcome "$SCRATCH/upgrade")"
    equal "programs, service and descriptors after $2" "$before" "$(programs) $(service_pid node1) $(descriptors)"
    if pgrep -f "$SCRATCH/bad" >/dev/null; then fail "$2 still runs"; fi
}

# bad NAME: a program by the text of standard input, which tells the version of ours.
bad() {
    mkdir -p "$SCRATCH/bad/$1"
    {
        echo '#!/usr/bin/env python3'
        echo 'import os, socket, sys, time'
        echo "if sys.argv[1] == 'version': os.execv('$BIN/tartan', ['tartan', 'version', '-o', 'json'])"
        cat
    } >"$SCRATCH/bad/$1/tartan"
    chmod 755 "$SCRATCH/bad/$1/tartan"
    echo "$SCRATCH/bad/$1/tartan"
}

# What a service beside another does up to go.
TO_GO='
keeper = socket.socket(fileno=0)
while b"\"last\":true" not in keeper.recv(65536): pass
keeper.send(b"\"ready\"")
assert keeper.recv(65536) == b"\"go\""
'

failing() {
    local nothing=$SCRATCH/bad/nothing
    mkdir -p "$SCRATCH/bad"
    echo 'no program' >"$nothing"
    refused unchanged "$nothing"
    chmod 755 "$nothing"
    refused unchanged "$nothing"
    refused unchanged /bin/true
    refused unchanged "$(echo 'sys.exit(3)' | bad ends)"
    refused returned "$(echo "$TO_GO"'sys.exit(3)' | bad ends-after-go)"
    refused returned "$(echo "$TO_GO"'time.sleep(60)' | bad hangs-after-go)"
    if [ -n "${SLOWLY:-}" ]; then refused unchanged "$(echo 'time.sleep(60)' | bad hangs)"; fi
    # It takes no device with it that it is told to keep no more, and what it gave is not kept.
    refused returned "$(echo "$TO_GO"'keeper.send(b"{\"withdraw\":\"tun-queue-0\"}"); sys.exit(1)' | bad withdraws)"
}

# slow PROGRAM: a program that takes a while to say its version.
slow() {
    local file=$SCRATCH/slow/tartan
    mkdir -p "$SCRATCH/slow"
    cat >"$file" <<TEXT
#!/bin/sh
[ "\$1" != version ] || { : >"$SCRATCH/asked"; sleep 1; }
exec "$1" "\$@"
TEXT
    chmod 755 "$file"
    echo "$file"
}

# A service that does not answer its keeper: the upgrade ends, and the next service comes as after a death.
stuck() {
    local pid code=0
    pid=$(service_pid node1)
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade --program "$(slow "$1")" -o json >"$SCRATCH/upgrade" 2>&1
    # It has taken the request, and the keeper asks the program for its version.
    until_true 10 "the program is asked" test -e "$SCRATCH/asked"
    rm "$SCRATCH/asked"
    kill -STOP "$pid"
    wait "$PID" || code=$?
    kill -CONT "$pid" 2>/dev/null || true
    until_true 10 "node1 is served after a service that hung" agent_json node1 status
    say "a service that hangs: $(jq -c '{outcome, reason, error}' "$SCRATCH/upgrade"), exit code $code"
    [ "$code" != 0 ] || fail "an upgrade succeeded whose old service was stopped: $(cat "$SCRATCH/upgrade")"
    if [ "$(service_pid node1)" = "$pid" ]; then fail "the service that hung still serves"; fi
}

# upgradable PROGRAM: whether an agent of it can be upgraded to this release, and back.
upgradable() {
    local state
    state=$("$BIN/tartan" version -o json | jq .keeper_state)
    # Version 3 of the protocol is the first with upgrades.
    "$1" version -o json | jq -e --argjson state "$state" '.protocol >= 3 and .keeper_state == $state' >/dev/null
}

# mixed PROGRAM OTHER: services of OTHER below a keeper of PROGRAM, after its file was replaced. Such an agent is reloaded, goes on
# after a crash, and is upgraded to OTHER as a whole.
mixed() {
    local keeper service
    keeper=$(keeper_pid)
    is_of keeper "$keeper" "$1"
    install_program "$2"
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do next_service TERM "$2" "$1"; done
    equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
    service=$(service_pid node1)
    kill -HUP "$keeper"
    sleep 1
    equal "service after a reload" "$service" "$(service_pid node1)"
    next_service KILL "$2" "$1"
    tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || fail "no upgrade of keeper and service: $(cat "$SCRATCH/upgrade")"
    is_of keeper "$keeper" "$2"
    is_of service "$(service_pid node1)" "$2"
}

# An agent of the release before is upgraded to this one and taken back, and the two are mixed.
both_ways() {
    local older=$SCRATCH/older/tartan newer=$SCRATCH/newer/tartan before
    mkdir -p "$SCRATCH/older" "$SCRATCH/newer"
    cp "$PREVIOUS" "$older"
    cp "$BIN/tartan" "$newer"
    run_installed "$older"
    before=$(kernel_state node1)
    start_load
    start_probes
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
        upgrade "$newer"
        sleep 0.2
        upgrade "$older"
        sleep 0.2
    done
    say "packets waited for, µs: ${PAUSES[*]}"
    stop_probes "$ROUNDS upgrades and as many back" "$LARGEST_GAP"
    equal "packets booked as held by services that ended" 0 "$(lost_in_crash node1)"
    all_go_on "after the upgrades"
    # From here on by the file by which the agent was started.
    tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || fail "no upgrade to the file: $(cat "$SCRATCH/upgrade")"
    start_probes
    mixed "$older" "$newer"
    mixed "$newer" "$older"
    install_program "$newer"
    tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || fail "the last upgrade: $(cat "$SCRATCH/upgrade")"
    stop_probes "replaced files, twice $ROUNDS times" "$LARGEST_GAP"
    load_survived
    same "addresses, routes and carrier changes of node1" "$before" "$(kernel_state node1)"
    equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
}

# A service of this release below a keeper of one that knows no upgrade, by a replaced file.
service_alone() {
    local code=0
    run_installed "$PREVIOUS"
    start_load
    start_probes
    # The command is of this release: the one before may have none.
    in_ns node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "exit code of an upgrade of a release before" 1 "$code"
    grep -q 'restart it once' "$SCRATCH/upgrade" || fail "it does not say what to do: $(cat "$SCRATCH/upgrade")"
    install_program "$BIN/tartan"
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do next_service TERM "$BIN/tartan" "$PREVIOUS"; done
    code=0
    tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "exit code of an upgrade below a keeper of a release before" 1 "$code"
    grep -q 'restart the agent once' "$SCRATCH/upgrade" || fail "it does not say what to do: $(cat "$SCRATCH/upgrade")"
    stop_probes "replaced file, $ROUNDS times" "$LARGEST_GAP"
    load_survived
}

# Processes of the agent of node1, of whatever program.
agent_processes() {
    pgrep -f -- "--root $LAB_STATE/node1 run" || true
}

has_no_agent() {
    [ -z "$(agent_processes)" ]
}

# What an agent has open, and has put into its directories.
holds() {
    descriptors
    # Ports to send from are the kernel's choice.
    in_ns node1 ss -Hlun | awk '{ sub(/:[0-9]+$/, "", $4); print $4 }' | sort
    find "$LAB_STATE/node1/run" "$LAB_STATE/node1/var" -printf '%P %y\n' 2>/dev/null | sort
}

holds_as_before() {
    [ "$(holds)" = "$HELD" ]
}

# kill_keeper STEP: nothing of the agent is left but what a start adopts, and one forwards.
kill_keeper() {
    local keeper
    keeper=$(keeper_pid)
    kill -KILL "$keeper"
    until_true 5 "both services end with their keeper, $1" has_no_agent || agent_processes
    "$SCRIPTS/lab" start --prefix "$PREFIX" node1 >/dev/null || fail "node1 does not start after SIGKILL $1"
    all_go_on "after SIGKILL $1"
    # A start may still open sockets.
    until_true 5 "the agent holds what was held" holds_as_before || true
    same "what the agent holds, after SIGKILL $1 and a start" "$HELD" "$(holds)"
    equal "restarts, and problems" '0 []' "$(agent_json node1 status | jq -c '"\(.restarts) \([.problems[].code])"' -r)"
}

# waiting NAME: a program that comes to this step, says so in a file, and waits for the end of its keeper.
waiting() {
    {
        cat
        echo "open('$SCRATCH/$1', 'w')"
        echo 'while keeper.recv(65536): pass'
    } | bad "$1"
}

# killed_at STEP PROGRAM NAME
killed_at() {
    local keeper_upgrades
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade --program "$2" >"$SCRATCH/upgrade" 2>&1
    keeper_upgrades=$PID
    until_true 10 "the new service is there, $1" test -e "$SCRATCH/$3"
    kill_keeper "$1"
    # It had no last word.
    if wait "$keeper_upgrades"; then fail "an upgrade whose keeper was killed $1 succeeded: $(cat "$SCRATCH/upgrade")"; fi
}

# After go: as soon as the command says that the new service forwards.
killed_after_go() {
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade --program "$1" >"$SCRATCH/upgrade" 2>&1
    until grep -q 'it forwards' "$SCRATCH/upgrade"; do kill -0 "$PID" || break; done
    kill_keeper "after go"
    wait "$PID" || true
    grep -q 'it forwards' "$SCRATCH/upgrade" || fail "the upgrade did not come to forward: $(cat "$SCRATCH/upgrade")"
}

killed() {
    local before next whole since delay
    # Connections alone: probes are refused while nothing serves.
    start_load
    before=$(device_and_routes node1)
    HELD=$(holds)
    next=$(program killed)
    killed_at "before the pause" "$(echo 'keeper = socket.socket(fileno=0)' | waiting before-pause)" before-pause
    killed_at "in the pause" "$(echo "$TO_GO" | waiting in-pause)" in-pause
    killed_after_go "$next"
    since=$(date +%s%3N)
    tartan node1 upgrade --program "$next" >/dev/null || fail "tartan upgrade ended with $?"
    whole=$(($(date +%s%3N) - since))
    say "an upgrade takes $whole ms"
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
        delay=$((whole * ROUND / ROUNDS))
        start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade --program "$next" >"$SCRATCH/upgrade" 2>&1
        sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
        kill_keeper "$delay ms after an upgrade began"
        wait "$PID" || true
        say "the command had said: $(paste -sd ';' "$SCRATCH/upgrade")"
    done
    load_survived
    same "device, addresses and routes of node1" "$before" "$(device_and_routes node1)"
}

say "upgrade: backend $BACKEND, families $FAMILIES, rounds $ROUNDS${PREVIOUS:+, from $PREVIOUS}"
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2
lab services >/dev/null
SERVED=()
PAUSES=()
for FAMILY in $(families "$FAMILIES"); do SERVED+=("$(address_of pod3 "$FAMILY")"); done
start_in pod3 python3 "$TOOLS/held.py" serve "$PORT" "${SERVED[@]}"
until_true 10 "pod3 serves" serves_all
if [ -n "$PREVIOUS" ]; then
    if cmp -s "$PREVIOUS" "$BIN/tartan"; then die "$PREVIOUS is this release: name a build of the one before"; fi
    if upgradable "$PREVIOUS"; then both_ways; else service_alone; fi
elif [ "$WAY" = killed ]; then
    killed
else
    BEFORE=$(kernel_state node1)
    start_load
    start_probes
    KEEPER=$(keeper_pid)
    for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
        upgrade "$(program "$((ROUND % 2))-program")"
        sleep 0.2
    done
    say "packets waited for, µs: ${PAUSES[*]}"
    stop_probes "$ROUNDS upgrades" "$LARGEST_GAP"
    # A worker finishes what it has in its hands.
    equal "packets booked as held by services that ended" 0 "$(lost_in_crash node1)"
    equal "process id of the keeper" "$KEEPER" "$(keeper_pid)"
    equal "restarts" 0 "$(agent_json node1 status | jq .restarts)"
    equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
    equal "upgraded from" "$("$BIN/tartan" version -o json | jq -r .version)" "$(agent_json node1 status | jq -r .upgraded.from)"
    start_probes
    failing
    stop_probes "upgrades that fail" "$LARGEST_GAP_OF_FAILURE"
    load_survived
    same "addresses, routes and carrier changes of node1" "$BEFORE" "$(kernel_state node1)"
    equal "repairs on node1" 0 "$(agent_json node1 status | jq .repairs)"
    # The keeper of the new program goes on after a death, and after a hang.
    kill_service node1
    stuck "$(program stuck)"
fi
law_one node1
law_one node2
