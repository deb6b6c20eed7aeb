#!/usr/bin/env bash
# scripts/demo, as a reader runs it: each of its five acts comes, each problem that it shows has its code, appears and goes
# away by itself, and nothing is left.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

CODES="underlay-down underlay-address-missing leases-refused route-bypasses"

"$SCRIPTS/lab" down --prefix "$PREFIX" >/dev/null
if "$SCRIPTS/demo" --prefix "$PREFIX" </dev/null >"$SCRATCH/said" 2>"$SCRATCH/wrong"; then code=0; else code=$?; fi
equal "the demo's exit code" 0 "$code"
[ "$code" = 0 ] || cat "$SCRATCH/said" "$SCRATCH/wrong"
equal "acts" "1 2 3 4 5" "$(sed -nE 's/^([0-9])\. .*/\1/p' "$SCRATCH/said" | paste -sd ' ')"
equal "codes of the problems that came" "$CODES" "$(sed -nE 's/^   code ([a-z-]+)$/\1/p' "$SCRATCH/said" | paste -sd ' ')"
equal "problems that went away" "$CODES" "$(sed -nE 's/.*: ([a-z-]+) went away.*/\1/p' "$SCRATCH/said" | paste -sd ' ')"
equal "sentences that begin with PROBLEM" 4 "$(grep -c 'PROBLEM: ' "$SCRATCH/said")"
grep -q '^   repairs ' "$SCRATCH/said" || fail "the fifth act shows no repair"
if grep -q $'\e' "$SCRATCH/said"; then fail "a pipe gets colours"; fi
[ ! -e "$LAB_STATE" ] || fail "the demo leaves $LAB_STATE"
