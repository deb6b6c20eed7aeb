#!/usr/bin/env bash
# The page of `tartan top --web` in a headless Chromium: it shows the traffic that there is, in light and dark, wide and
# narrow, with keys and for screen readers; it loads nothing from elsewhere, says when the agent is gone, and goes on after.
#
#   pod1 ─ node1: tartan top --web ─ Chromium
#            ║
#          node2 ─ pod2
#
# top_page.sh
# full:
# alone: a browser takes all cores
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BIN=$(realpath "${LAB_BIN:-$SCRIPTS/../target/fast}")
command -v chromium >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null

lab_up --nodes 2 --pods 1
in_ns node1 ip link set lo up
start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" top --web 127.0.0.1:9892 >"$SCRATCH/web"
WEB=$PID
until_true 10 "the page is announced" grep -q '^http://127.0.0.1:9892/' "$SCRATCH/web"
start_in pod1 ping -q -i 0.02 -s 972 "$(address_of pod2)" >/dev/null
in_ns node1 python3 "$TOOLS/top_page.py" "$SCRIPTS/lab" "$PREFIX" "$SCRATCH" || fail "the page"
# It ends with its terminal.
stop "$WEB" HUP
if in_ns node1 ss -Hltn 'sport = :9892' | grep -q .; then fail "the page outlives its terminal"; fi
law_one node1
