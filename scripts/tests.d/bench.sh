#!/usr/bin/env bash
# scripts/bench judges what it measures, and a short run of it comes to its end with table, values and chart.
#
# bench.sh WHAT: report, or run
# alone run: it floods and measures
# case: report
# full: run
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# Every path and figure once, for a moment; no figure of such a run means anything.
short_run() {
    local log=$SCRATCH/log last=$SCRIPTS/../target/bench/last path
    "$SCRIPTS/bench" --rounds 1 --seconds 0.5 --underlay wire --bin "$(dirname "$LOAD")" >"$log" 2>&1 || die "scripts/bench: $(tail -n 20 "$log")"
    for path in vxlan udp stateless auto kernel kernel-gathered direct; do
        # Each figure: a rate or a time, none of them 0.
        equal "figures of $path" '[true,true,true,true,true,true,true,true]' "$(jq -c --arg path "$path" \
            '[.values.wire[$path] | .tcp1, ."tcp1-back", .tcp8, ."tcp8-back", .udp64, .udp1400, .latency, .connect | .[0] > 0]' "$last.json")"
    done
    equal "paths with tables in the kernel" '["stateless","auto"]' "$(jq -c '[.values.wire | to_entries[] | select(.value.tables[0] > 0).key]' "$last.json")"
    grep -q '^### goals' "$last.md" || fail "the table has no goals: $(tail -n 20 "$last.md")"
    [ -s "$last-wire.svg" ] || fail "no chart"
}

case $1 in
report) python3 "$TOOLS/bench_report.py" || fail "the bench's report" ;;
run) short_run ;;
esac
