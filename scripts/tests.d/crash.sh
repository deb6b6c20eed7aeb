#!/usr/bin/env bash
# A killed service takes nothing down with it: the device keeps its carrier, addresses and routes stay,
# the pause is short, a TCP transfer goes on, and the packets it held are booked.
#
#   pod1 ── node1: keeper, service (killed) ══ underlay ══ node2: keeper, service (killed) ── pod2
#     └ ping 100 times a second, and a large TCP transfer
#
# case: udp
# case: vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"

BACKEND=$1
BYTES=$((1 << 30))
PINGS=800
# Milliseconds.
LARGEST_GAP=1000

# What the host shows and must not change; the underlay's IPv6 is still settling by itself.
standing() {
    ip -n "$PREFIX-$1" -j address show |
        jq -r '.[] | select(.ifname != "eth0") | "\(.ifindex) \(.ifname) \(.mtu) \(.flags)", (.addr_info[] | "  \(.local)/\(.prefixlen) \(.scope)")'
    ip -n "$PREFIX-$1" -4 address show dev eth0 | grep -w inet
    ip -n "$PREFIX-$1" -4 route show table all
    ip -n "$PREFIX-$1" -6 route show table all | grep -v 'dev eth0'
    echo "carrier changes of tartan0: $(in_ns "$1" cat /sys/class/net/tartan0/carrier_changes)"
}

# Kills the service of a node and waits for the next one to forward.
kill_service() {
    local pid restarts
    pid=$(service_pid "$1")
    restarts=$(told "$1" status | jq .restarts)
    say "SIGKILL of the service of $1, process $pid"
    kill -KILL "$pid"
    until_true 5 "a new service on $1" another_service "$1" "$pid"
    equal "restarts on $1" $((restarts + 1)) "$(told "$1" status | jq .restarts)"
}

another_service() {
    [ "$(service_pid "$1")" != "$2" ] && tartan "$1" status
}

# The longest pause between two answers, in milliseconds, and how many came.
gaps() {
    awk -F'[][ ]' '/bytes from/ { if (last) { gap = $2 - last; if (gap > longest) longest = gap }; last = $2; count++ }
        END { printf "%d %d\n", longest * 1000 + 0.5, count }' "$1"
}

say "SIGKILL of the service: backend $BACKEND"
lab_up --backend "$BACKEND"
POD2=$(address_of pod2)
in_ns pod1 ping -c 2 -i 0.1 "$POD2" >"$SCRATCH/warm" || fail "ping before"
BEFORE1=$(standing node1)
BEFORE2=$(standing node2)
start_in pod1 ping -n -D -i 0.01 -c "$PINGS" -W 1 "$POD2" >"$SCRATCH/ping"
PINGER=$PID
start_in pod2 python3 "$TOOLS/bulk.py" receive "$POD2" 5003 >"$SCRATCH/received"
RECEIVER=$PID
start_in pod1 python3 "$TOOLS/bulk.py" send "$POD2" 5003 "$BYTES" >"$SCRATCH/sent"
SENDER=$PID
sleep 0.5
for node in node1 node2 node1; do
    kill -0 "$SENDER" 2>/dev/null || fail "the TCP transfer ended before the last kill: it proves nothing"
    kill_service "$node"
    sleep 1
done
wait "$PINGER" || true
wait "$SENDER" || fail "the TCP transfer did not survive at the sender"
wait "$RECEIVER" || fail "the TCP transfer did not survive at the receiver"
equal "bytes and sha256 across the kills" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
read -r GAP ANSWERS < <(gaps "$SCRATCH/ping")
at_most "longest pause of the ping, ms" "$LARGEST_GAP" "$GAP"
[ "$ANSWERS" -gt $((PINGS * 3 / 4)) ] || fail "only $ANSWERS of $PINGS pings were answered"
say "$ANSWERS of $PINGS pings were answered"
LAST=$(sed -nE 's/.*icmp_seq=([0-9]+).*/\1/p' "$SCRATCH/ping" | tail -n 1)
[ "$LAST" -gt $((PINGS - 100)) ] || fail "the path was dead at the end: the last answer was to ping $LAST of $PINGS"
same "addresses, routes and carrier changes of node1" "$BEFORE1" "$(standing node1)"
same "addresses, routes and carrier changes of node2" "$BEFORE2" "$(standing node2)"
for node in node1 node2; do
    law_one "$node"
    say "$node lost in the crash: $(told "$node" drops |
        jq -c '[.reasons[] | select(.reason == "LostInCrash") | {(.direction): .count}] | add')"
done
