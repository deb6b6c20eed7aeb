#!/usr/bin/env bash
# What `tartan top` looks like: its screen in a terminal of 80 x 24 and of 200 x 60, and its page (`--web`) in a headless
# Chromium, light and dark, wide and narrow. On an empty node, on a busy one that drops, with 201 peers, and with a problem:
# the parts are there, no word is cut, nothing lies on something else, and text stands out from its ground. The page works
# with keys and for screen readers; it loads nothing from elsewhere, says when the agent is gone, and goes on after.
#
#   pod1 ─ node1: tartan top, tartan top --web ─ Chromium
#            ║
#          node2 ─ pod2             and 200 nodes that only the list knows
#
# top_page.sh
# PICTURES_IN=DIRECTORY keeps the pictures and the screens.
# full:
# alone: a browser takes all cores
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BIN=$(realpath "${LAB_BIN:-$SCRIPTS/../target/fast}")
PICTURES=${PICTURES_IN:-$SCRATCH}
for TOOL in chromium tmux; do
    command -v "$TOOL" >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$TOOL" >/dev/null
done

serve() {
    in_ns node1 ip link set lo up
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" top --web 127.0.0.1:9892 >"$SCRATCH/web"
    WEB=$PID
    until_true 10 "the page is announced" grep -q '^http://127.0.0.1:9892/' "$SCRATCH/web"
}

# looks STATE: of the screen and of the page.
looks() {
    say "looks: $1"
    LC_ALL=C.UTF-8 python3 "$TOOLS/top_looks.py" "$1" "$PICTURES" "tartan-$PREFIX" \
        ip netns exec "$PREFIX-node1" "$BIN/tartan" --root "$LAB_STATE/node1" top || fail "the screen: $1"
    in_ns node1 python3 "$TOOLS/top_page.py" "$SCRIPTS/lab" "$PREFIX" "$PICTURES" "$1" || fail "the page: $1"
}

problem_is() {
    [ "$(agent_json node1 status | jq -r '[.problems[].code] | join(" ")')" = "$1" ]
}

mkdir -p "$PICTURES"
lab_up --nodes 2 --pods 1
serve
looks empty
start_in pod1 ping -q -i 0.02 -s 972 "$(address_of pod2)" >/dev/null
start_in pod1 ping -q -i 0.1 10.244.77.7 >/dev/null
looks busy
in_ns node1 python3 "$TOOLS/top_page.py" "$SCRIPTS/lab" "$PREFIX" "$PICTURES" used || fail "the page in use"
# It ends with its terminal.
stop "$WEB" HUP
if is_bound node1 tcp 9892; then fail "the page outlives its terminal"; fi
law_one node1

lab_up --nodes 2 --pods 1 --listed 200
serve
start_in pod1 ping -q -i 0.02 -s 972 "$(address_of pod2)" >/dev/null
looks peers
ip -n "$PREFIX-node1" link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
ip -n "$PREFIX-node1" address add 10.244.1.0/32 dev flannel.1
until_true 10 "node1 has a problem" problem_is flannel-left-over
looks problem
stop "$WEB" HUP
law_one node1
