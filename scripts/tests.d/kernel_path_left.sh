#!/usr/bin/env bash
# A service and a keeper that use the kernel path are killed, and the next ones are not to use it: from the moment that their
# sockets are open nothing that comes is lost, and in the end nothing of the kernel path is left.
#
#   pod1, which answers ── node1: stateless, killed, then off ══ underlay ══ node2, off ── pod2
#                                                                                           └ datagrams that no program carries
#
# kernel_path_left.sh WHAT
#   off        the private port is free, and programs may be loaded
#   forbidden  no program may be loaded any more (CAP_BPF), and those of before are not pinned
#   taken      another process has the private port
# alone: it measures loss
# case: off
# full: forbidden
# full: taken
# full: off workers=2
# full: off device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

WHAT=$1
# Datagrams a second.
RATE=500
# Seconds in which no process serves node1.
DEAD=0.7
FORMAT_PORT=8472
PRIVATE_PORT=18472

# start_off: node1 starts again, without the kernel path.
start_off() {
    echo 'kernel-path = "off"' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
    case $WHAT in
    forbidden)
        rm -r "$LAB_STATE/node1/sys/fs/bpf/tartan"
        setpriv --bounding-set=-bpf "$SCRIPTS/lab" start --prefix "$PREFIX" node1
        ;;
    *) lab start node1 ;;
    esac
}

is_out_of_use() {
    [ -z "$(programs_of node1)" ] && ! ip -n "$PREFIX-node1" link show tartan0-gro && is_bound node1 udp "$FORMAT_PORT"
}

# log_of_start: what node1's log has since the start.
log_of_start() {
    tail -n "+$((LOGGED + 1))" "$LAB_STATE/node1/log"
}

# unanswered FROM TO: how many of the datagrams that were sent in that time had no answer.
unanswered() {
    awk -v from="$1" -v to="$2" 'FNR > 1 && $1 > from && $1 < to { count++ } END { print count + 0 }' "$SCRATCH/sent"
}

say "the kernel path is left behind: $WHAT"
lab_up --pods 1
set_mode node1 stateless
is_pinned node1 || fail "programs and tables are not pinned"
serve pod1
start_in pod2 python3 "$TOOLS/steady.py" send "$(address_of pod2 4)" 9001 "$(address_of pod1 4)" 9000 "$RATE" options >"$SCRATCH/sent"
SENDER=$PID
sleep 1
LOGGED=$(wc -l <"$LAB_STATE/node1/log")
KEEPER=$(cat "$LAB_STATE/node1/pid")
SERVICE=$(pgrep -P "$KEEPER")
kill -KILL "$KEEPER" "$SERVICE"
DIED=$(now)
if [ "$WHAT" = taken ]; then
    take_port node1 "$PRIVATE_PORT"
    until_true 5 "another process has the private port" is_taken
fi
sleep "$DEAD"
STARTED_AT=$(now)
start_off
until_true 10 "nothing of the kernel path is left on node1" is_out_of_use || programs_of node1
sleep 1
ENDED=$(now)
sleep 0.5
stop "$SENDER"
stop "$SERVER"

OPENED=$(log_of_start | sed -nE '/receive-vxlan-v4-0/s/^([^ ]+) .*opened.*/\1/p' | head -n 1)
[ -n "$OPENED" ] || die "node1's log does not say when its sockets were opened"
OPENED=$(date -d "$OPENED" +%s.%6N)
read -r SENT _ ANSWERED _ <"$SCRATCH/sent"
say "$SENT datagrams, $ANSWERED answered"
# Otherwise the programs carry them, and nothing is shown.
LEAST=$(awk -v from="$DIED" -v to="$STARTED_AT" -v rate="$RATE" 'BEGIN { printf "%d", (to - from) * rate * 0.5 }')
[ "$(unanswered "$DIED" "$STARTED_AT")" -ge "$LEAST" ] ||
    fail "while nothing served node1, $(unanswered "$DIED" "$STARTED_AT") datagrams had no answer, and $LEAST are half of them"
equal "datagrams without an answer that were sent once the sockets were open" 0 "$(unanswered "$OPENED" "$ENDED")"
case $WHAT in
off) ;;
forbidden) [[ $(log_of_start) == *'the programs of the service before stay'* ]] || fail "programs could be loaded without CAP_BPF" ;;
taken) stop "$TAKER" ;;
esac
equal "mode" '"off"' "$(agent_json node1 status | jq .kernel_path.mode)"
equal "problems" '[]' "$(agent_json node1 status | jq -c '[.problems[].code]')"
if is_pinned node1; then fail "programs and tables are pinned"; fi
if is_bound node1 udp "$PRIVATE_PORT"; then fail "a socket has the private port"; fi
law_one node1
