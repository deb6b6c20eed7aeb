#!/usr/bin/env bash
# What the page of `tartan top --web` looks like in Chromium, light and dark, wide and narrow. On an empty node, on a
# busy one that drops, with 201 peers, and with a problem: the parts are there, no word is cut, nothing lies on another,
# and text stands out from its ground. The page works with keys and for screen readers, says when the agent is gone, and
# goes on after. (The screen in a terminal: the law top.)
#
#   pod1 ─ node1: tartan top --web ─ Chromium
#            ╚ node2 ─ pod2, and 200 nodes that only the list knows
# full:
# alone: a browser takes all cores
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

command -v chromedriver >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -qq chromium-driver >/dev/null

serve() {
    in_ns node1 ip link set lo up
    start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" top --web 127.0.0.1:9892 >"$SCRATCH/web"
    WEB=$PID
    until_true 10 "the page is announced" grep -q '^http://127.0.0.1:9892/' "$SCRATCH/web"
}

page() {
    start_in node1 chromedriver --port=9515 --silent >/dev/null
    until_true 10 "a browser can be had" is_bound node1 tcp 9515
    in_ns node1 python3 "$TOOLS/top_page.py" "$SCRIPTS/lab" "$PREFIX" "$1" || fail "the page: $1"
    stop "$PID"
}

lab_up --nodes 2 --pods 1
serve
page empty
start_in pod1 ping -q -i 0.02 -s 972 "$(address_of pod2)" >/dev/null
start_in pod1 ping -q -i 0.1 10.244.77.7 >/dev/null
page busy
page used
# It ends with its terminal.
stop "$WEB" HUP
if is_bound node1 tcp 9892; then fail "the page outlives its terminal"; fi

lab_up --nodes 2 --pods 1 --listed 200
start_in pod1 ping -q -i 0.02 -s 972 "$(address_of pod2)" >/dev/null
serve
page peers
ip -n "$PREFIX-node1" link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
ip -n "$PREFIX-node1" address add 10.244.1.0/32 dev flannel.1
page problem
stop "$WEB" HUP
