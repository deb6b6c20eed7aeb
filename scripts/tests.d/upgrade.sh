#!/usr/bin/env bash
# The agent of a node is upgraded under load: no TCP connection ends, no datagram is lost, the device and the host stay
# as they are, and keeper and service are of the new program. A program that is none, or does not come to forward,
# changes nothing. A keeper that is killed on the way leaves nothing behind, and the next start forwards.
#
#   mallory (no node) ─────────────┐
#   pod1 ── node1: keeper, service (upgraded) ══ underlay ══ node2 ── pod3
#
# upgrade.sh [--from PROGRAM|COMMIT] BACKEND FAMILIES UPGRADES KILLS: FAMILIES is v4, v6 or dual, inside and outside;
# SIGKILL meets the keeper at KILLS moments, evenly over an upgrade. With --from, the agent is that program first, or a
# build of that commit (tools/build_of.sh), where `previous` is the last tag: it is upgraded to this release and taken
# back, and services of each run below keepers of the other, by replaced files.
# case: vxlan dual 2 2 workers=2
# full: udp dual 20 20 workers=2
# full: vxlan v4 10 5 kernel-path=auto
# seconds --from: 3600: it builds another commit first
# full: --from previous vxlan dual 10 0 workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

PREVIOUS=
if [ "$1" = --from ]; then
    PREVIOUS=$("$TOOLS/build_of.sh" "$2")
    shift 2
fi
BACKEND=$1
OUTSIDE=$2
UPGRADES=$3
KILLS=$4
read -ra FAMILIES < <(families "$OUTSIDE")
INSTALLED=$SCRATCH/installed/tartan

# install PROGRAM: in the place of the file by which the agent of node1 is started.
install_program() {
    cp "$1" "$INSTALLED.new"
    mv "$INSTALLED.new" "$INSTALLED"
}

# run_installed PROGRAM: node1 runs it from there.
run_installed() {
    mkdir -p "$SCRATCH/installed"
    cp "$BIN/tartan-cni" "$SCRATCH/installed/"
    install_program "$1"
    lab stop node1
    # The lab starts the programs that it was set up with.
    echo "declare -g -- LAB_BIN=\"$SCRATCH/installed\"" >>"$LAB_STATE/settings"
    lab start node1
}

# are_of PROGRAM [PROGRAM]: keeper and service are of the bytes of these, whatever the file is called.
are_of() {
    cmp "/proc/$(keeper_of node1)/exe" "$1" || fail "the keeper is not of $1"
    cmp "/proc/$(service_of node1)/exe" "${2:-$1}" || fail "the service is not of ${2:-$1}"
}

# upgrade_to PROGRAM
upgrade_to() {
    local service
    service=$(service_of node1)
    tartan node1 upgrade --program "$1" -o json >"$SCRATCH/upgrade" 2>&1 ||
        fail "upgrade to $1: $(cat "$SCRATCH/upgrade")"
    are_of "$1"
    if [ "$(service_of node1)" = "$service" ]; then fail "the service is the same process"; fi
}

# refused OUTCOME PROGRAM: nothing changes.
refused() {
    local code=0 before
    before="$(service_of node1) $(open_in "$(keeper_of node1)")"
    tartan node1 upgrade --program "$2" -o json >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "exit code and outcome of an upgrade to $2" "1 $1" "$code $(jq -r .outcome "$SCRATCH/upgrade")"
    same "service, and descriptors of the keeper" "$before" "$(service_of node1) $(open_in "$(keeper_of node1)")"
}

# A service that ends once it was told to go on in the place of the other.
ends_after_go() {
    cat >"$SCRATCH/ends-after-go" <<TEXT
#!/usr/bin/env python3
import os, socket, sys
if sys.argv[1] == "version":
    os.execv("$BIN/tartan", ["tartan", "version", "-o", "json"])
keeper = socket.socket(fileno=0)
while b'"last":true' not in keeper.recv(65536):
    pass
keeper.send(b'"ready"')
keeper.recv(65536)
TEXT
    chmod 755 "$SCRATCH/ends-after-go"
    echo "$SCRATCH/ends-after-go"
}

has_no_agent() {
    ! pgrep -f -- "--root $LAB_STATE/node1 run"
}

# killed MILLISECONDS PROGRAM: the keeper is, so long after an upgrade to the program began.
killed() {
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade --program "$2" >"$SCRATCH/upgrade" 2>&1
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
    kill -KILL "$(keeper_of node1)"
    wait "$PID" || true
    say "SIGKILL $1 ms after an upgrade began; the command had said: $(paste -sd ';' "$SCRATCH/upgrade")"
    until_true 5 "both services end with their keeper" has_no_agent || pgrep -af -- "--root $LAB_STATE/node1 run"
    lab start node1
    all_go_on "after it"
    still_held node1
}

kills() {
    local before round whole since
    before=$(device_and_routes node1)
    note_held node1
    since=$(date +%s%3N)
    upgrade_to "$1"
    whole=$(($(date +%s%3N) - since))
    for ((round = 1; round <= KILLS; round++)); do killed $((whole * round / (KILLS + 1))) "$1"; done
    same "device, addresses and routes of node1" "$before" "$(device_and_routes node1)"
}

# next_service SIGNAL PROGRAM OTHER: the service ends by the signal, and the next is of the installed program, below a
# keeper of the other.
next_service() {
    local pid
    pid=$(service_of node1)
    kill "-$1" "$pid"
    until_true 5 "another service" another_service node1 "$pid"
    are_of "$3" "$2"
}

# mixed PROGRAM OTHER: services of OTHER below a keeper of PROGRAM, which is reloaded and upgraded to OTHER as a whole.
mixed() {
    install_program "$2"
    next_service TERM "$2" "$1"
    kill -HUP "$(keeper_of node1)"
    next_service KILL "$2" "$1"
    tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || fail "no upgrade of keeper and service: $(cat "$SCRATCH/upgrade")"
    are_of "$2"
}

say "upgrade: backend $BACKEND, families $OUTSIDE${PREVIOUS:+, from $PREVIOUS}"
lab_up --backend "$BACKEND" --inside "$OUTSIDE" --outside "$OUTSIDE" --pods 2
PROGRAMS=("$SCRATCH/first" "$SCRATCH/second")
cp "${PREVIOUS:-$BIN/tartan}" "${PROGRAMS[0]}"
cp "$BIN/tartan" "${PROGRAMS[1]}"
if [ -n "$PREVIOUS" ]; then
    if cmp -s "${PROGRAMS[@]}"; then die "$PREVIOUS is this release: name a build of the one before"; fi
    run_installed "$PREVIOUS"
fi
start_load
BEFORE=$(kernel_state node1)
KEEPER=$(keeper_of node1)
start_datagrams pod1 pod3
for ((ROUND = 1; ROUND <= UPGRADES; ROUND++)); do upgrade_to "${PROGRAMS[ROUND % 2]}"; done
stop_datagrams
equal "datagrams lost" 0 "$LOST"
equal "packets that services held which ended" 0 "$(lost_in_crash node1)"
equal "process id of the keeper" "$KEEPER" "$(keeper_of node1)"
equal "problems, repairs and restarts" '[[],0,0]' \
    "$(agent_json node1 status | jq -c '[[.problems[].code], .repairs, .restarts]')"
same "addresses, routes and carrier changes of node1" "$BEFORE" "$(kernel_state node1)"
if [ -n "$PREVIOUS" ]; then
    upgrade_to "${PROGRAMS[0]}"
    tartan node1 upgrade
    mixed "${PROGRAMS[@]}"
    mixed "${PROGRAMS[1]}" "${PROGRAMS[0]}"
else
    refused unchanged /bin/true
    refused returned "$(ends_after_go)"
    kill_service node1
    kills "${PROGRAMS[1]}"
fi
all_go_on "after all of it"
load_survived
for NODE in node1 node2; do law_one "$NODE"; done
