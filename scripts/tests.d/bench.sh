#!/usr/bin/env bash
# scripts/bench judges what it measures, and a short run of it comes to its end with table, values and chart.
#
# bench.sh WHAT: report, or run: every path and figure once, for a moment; no figure of such a run means anything
# alone run: it floods and measures
# case: report
# full: run
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

LAST=$SCRIPTS/../target/bench/last
if [ "$1" = report ]; then
    python3 "$TOOLS/bench_report.py" || fail "the bench's report"
    exit
fi
"$SCRIPTS/bench" --rounds 1 --seconds 0.5 --underlay wire --bin "$(dirname "$LOAD")" >"$SCRATCH/log" 2>&1 ||
    die "scripts/bench: $(tail -n 20 "$SCRATCH/log")"
# Each figure is a rate or a time, none of them 0.
equal "paths, and figures of all" '["auto","direct","kernel","kernel-gathered","stateless","udp","vxlan"] 56' "$(jq -r '
    "\(.values.wire | keys | tojson) \([.values.wire[] | .tcp1, ."tcp1-back", .tcp8, ."tcp8-back", .udp64, .udp1400,
        .latency, .connect | select(.[0] > 0)] | length)"' "$LAST.json")"
equal "paths with tables in the kernel" '["stateless","auto"]' \
    "$(jq -c '[.values.wire | to_entries[] | select(.value.tables[0] > 0).key]' "$LAST.json")"
grep -q '^### goals' "$LAST.md" || fail "the table has no goals: $(tail -n 20 "$LAST.md")"
[ -s "$LAST-wire.svg" ] || fail "no chart"
