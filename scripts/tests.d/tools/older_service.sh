#!/usr/bin/env bash
# A service of an older release below a keeper of this one: `tartan upgrade` refuses to make that, and a file that is replaced by
# the older program makes it once the service ends. It forwards, is reloaded, and goes with the next change of the file.
#
#   client (no node) ─────────────┐
#   pod1 ── node1: keeper of this release, service of the one before ══ underlay ══ node2 ── pod3, which serves
#     └ ping 500 times a second
#
# older_service.sh PROGRAM BACKEND FAMILIES ROUNDS, where PROGRAM is a build of a release without upgrades (protocol below 3, or another
# format of the keeper's state), and FAMILIES is v4, v6 or dual.
# scripts/test has no such program: this is run by hand, and so no case.
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"
# shellcheck source=scripts/tests.d/tools/replaced_file.sh
. "$TOOLS/replaced_file.sh"

OLDER=$(readlink -f "$1")
BACKEND=$2
FAMILIES=$3
ROUNDS=$4
PORT=8080
BIN=$(readlink -f "${LAB_BIN:-$SCRIPTS/../target/fast}")
# Milliseconds; of how many probes one may be lost.
LARGEST_GAP=1000
OF_PROBES=10000

# refused WHAT TEXT ARGUMENT...: an upgrade is refused with the remedy.
refused() {
    local code=0
    in_ns node1 "$BIN/tartan" --root "$LAB_STATE/node1" upgrade "${@:3}" >"$SCRATCH/upgrade" 2>&1 || code=$?
    equal "$1: exit code" 1 "$code"
    grep -q "$2" "$SCRATCH/upgrade" || fail "$1: it does not say what to do: $(cat "$SCRATCH/upgrade")"
}

say "a service of $OLDER below this keeper: backend $BACKEND, families $FAMILIES, rounds $ROUNDS"
if cmp -s "$OLDER" "$BIN/tartan"; then die "$OLDER is this release: name a build of the one before"; fi
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2
lab services >/dev/null
SERVED=()
for FAMILY in $(families "$FAMILIES"); do SERVED+=("$(address_of pod3 "$FAMILY")"); done
start_in pod3 python3 "$TOOLS/held.py" serve "$PORT" "${SERVED[@]}"
until_true 10 "pod3 serves" serves_all
run_installed "$BIN/tartan"
KEEPER=$(cat "$LAB_STATE/node1/pid")
start_load
start_in pod1 ping -n -D -i 0.002 "${SERVED[0]}" >"$SCRATCH/ping"
PING=$PID
refused "an upgrade to the older program" 'systemctl restart tartan' --program "$OLDER"
is_of "the service" "$(service_pid node1)" "$BIN/tartan"
install_program "$OLDER"
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do next_service TERM "$OLDER" "$BIN/tartan"; done
equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
SERVICE=$(service_pid node1)
kill -HUP "$KEEPER"
sleep 1
equal "service after a reload" "$SERVICE" "$(service_pid node1)"
refused "an upgrade of the older service" 'restart it once'
install_program "$BIN/tartan"
next_service TERM "$BIN/tartan" "$BIN/tartan"
tartan node1 upgrade >"$SCRATCH/upgrade" 2>&1 || fail "no upgrade after it: $(cat "$SCRATCH/upgrade")"
sleep 1
stop "$PING" INT
read -r GAP ANSWERS < <(gaps "$SCRATCH/ping")
SENT=$(sed -nE 's/^([0-9]+) packets transmitted.*/\1/p' "$SCRATCH/ping")
say "$ANSWERS of $SENT probes were answered"
measured_at_most "longest pause of the probes, ms" "$LARGEST_GAP" "$GAP"
# The last may be on its way.
at_most "probes lost, times $OF_PROBES, against those sent" "$SENT" $(((SENT - ANSWERS > 0 ? SENT - ANSWERS - 1 : 0) * OF_PROBES))
load_survived
law_one node1
law_one node2
