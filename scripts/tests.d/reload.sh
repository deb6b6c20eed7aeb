#!/usr/bin/env bash
# The configuration is changed ten times a second, every second time so that it cannot be used, while pods ping each other in
# both directions: no packet is lost, each good change is taken, and each refusal names the key and the reason.
#
#   pod1 ── node1: keeper, service (its files are changed) ══ underlay ══ node2 ── pod2
#     └ ping 200 times a second ┘ and back
#
# reload.sh BACKEND RELOADS
# alone: it asks for ten changes a second
# full: vxlan 60
# full: vxlan 1000
# full: udp 200
# full: vxlan 200 workers=2 device=plain
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
RELOADS=$2
RATE=10
# Pings of one run, each 5 ms: as many runs as the changes take.
PINGS=1000

# ping_until_done POD ADDRESS: what each run sent and got, a line each, until the changes are done.
ping_until_done() {
    while [ ! -e "$SCRATCH/done" ]; do
        ip netns exec "$PREFIX-$1" python3 "$TOOLS/pings.py" "$2" "$PINGS" 0.005 5 || true
    done
}

say "$RELOADS changes, backend $BACKEND"
lab_up --backend "$BACKEND" --nodes 2
ping_until_done pod1 "$(address_of pod2)" >"$SCRATCH/there" &
THERE=$!
ping_until_done pod2 "$(address_of pod1)" >"$SCRATCH/back" &
BACK=$!
STARTED+=("$THERE" "$BACK")
KEEPER=$(cat "$LAB_STATE/node1/pid")
RESTARTS=$(agent_json node1 status | jq .restarts)
BEGUN=$(clock)
CODE=0
python3 "$TOOLS/reloads.py" "$LAB_STATE/node1" "$RELOADS" "$RATE" >"$SCRATCH/reloads" || CODE=$?
SECONDS_TAKEN=$((($(clock) - BEGUN) / 100))
touch "$SCRATCH/done"
wait "$THERE" "$BACK" || true
say "$(jq -c 'del(.wrong)' "$SCRATCH/reloads"), $SECONDS_TAKEN s"
equal "exit code of the campaign" 0 "$CODE"
equal "answers that were not as they should be" '[]' "$(jq -c '.wrong[:3]' "$SCRATCH/reloads")"
equal "half of them were refused" $((RELOADS / 2)) "$(jq .refused "$SCRATCH/reloads")"
for WAY in there back; do
    equal "runs of $PINGS pings $WAY that lost one or got one twice" 0 "$(grep -cvx "$PINGS received" "$SCRATCH/$WAY" || true)"
    [ "$(wc -l <"$SCRATCH/$WAY")" -ge 1 ] || fail "no run of pings $WAY ended"
    say "$(wc -l <"$SCRATCH/$WAY") runs of $PINGS pings $WAY"
done
equal "the keeper" "$KEEPER" "$(cat "$LAB_STATE/node1/pid")"
kill -0 "$KEEPER" || fail "the keeper has ended"
equal "the good configuration is in force, and no problem is left" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
say "service started $(($(agent_json node1 status | jq .restarts) - RESTARTS)) times for a crash"
law_one node1
law_one node2
