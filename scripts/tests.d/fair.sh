#!/usr/bin/env bash
# One pod floods, and the pod beside it does not notice much: it pings a pod of the other node 100 times a second, while
# the first sends as much as it can to another pod there.
#
#   pod1, floods ─┐                                        ┌─ pod3
#                 ├─ node1 tartan ══ underlay ══ node2 ────┤
#   pod2, pings ──┘                                        └─ pod4, answers
#
# fair.sh BACKEND FLOOD [FAMILY], where FLOOD is super, small, sizes or bulk, and FAMILY 4 or 6. BACKEND control is no
# Tartan: it prints what the kernel's own VXLAN device does under the same floods, for a reader who compares. No bar is
# set for it, and only a flood that is none fails there.
#
#   super   super-packets of 60 kB with segments of 36 bytes, by a packet socket (CAP_NET_RAW), TCP and UDP
#   small   UDP datagrams of 18 bytes, as fast as they go
#   sizes   UDP datagrams of 400, 1,400 and 8,000 bytes; super-packets with segments of 400 and 1,300 bytes
#   bulk    TCP, 8 flows
#
# The bars tell a stalled neighbour from one that shares a core with a flood. Without fair shares, and with them, on two
# cores with a load of five to ten: pings lost of 100, p50 and p99 of the others, ms:
#
#   super-packets, segments of 36      18 to 56   155 to 2,241   260 to 3,929      0 to 2   1 to 23   21 to 144
#   super-packets, 400 and 1,300       13 to 16   245 to 436     348 to 775        0        2 to 7    17 to 67
#   datagrams of 8,000                  5 to 11   101 to 126     158 to 259        0 to 2   3 to 9    21 to 66
#   bulk                                0         10 to 12       40                0        4 to 5    13 to 21
#   datagrams of 18, 400 and 1,400      0         0 to 4         13 to 36          0        0 to 4    6 to 16
#
# The bars on loss and p50 lie between both. Those on p99, which overlap on a busy machine, are judged with --full alone; every
# day it is printed. Of the last row the bars only say that no neighbour stalls. Of super-packets more must come than fit a
# share: those over it are counted.
# alone: it floods and measures
# case: vxlan super
# full: udp super
# full: vxlan super 6
# full: vxlan super workers=2
# full: udp super 6 workers=2
# full: vxlan small
# full: udp small
# full: vxlan small 6
# full: vxlan sizes
# full: udp sizes
# full: vxlan bulk
# full: udp bulk
# These only print what the kernel does:
# full: control super
# full: control small
# full: control sizes
# full: control bulk
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
FLOOD=$2
FAMILY=${3:-4}
PINGS=400
# The flood begins before the pings and ends after them.
SECONDS_OF_FLOOD=6
PORT=7009
# Of 100 pings.
MOST_LOST=6

# flood WORDS...: in the background. It must be one: the super-packets or datagrams that the kernel took are counted.
flood() {
    local to gateway
    to=$(address_of pod3 "$FAMILY")
    case $1 in
    tcp | udp)
        gateway=$(ip -n "$PREFIX-pod1" -j neigh show dev eth0 | jq -r '.[0].lladdr')
        start_in pod1 python3 "$TOOLS/super_packets.py" "$gateway" "$(address_of pod1 "$FAMILY")" "$to" "$1" "$2" \
            "$SECONDS_OF_FLOOD" >"$SCRATCH/flood"
        ;;
    datagrams)
        start_in pod1 "$LOAD" flood --to "$(socket_address "$to" "$PORT")" --size "$2" --flows 4 \
            --seconds "$SECONDS_OF_FLOOD" >"$SCRATCH/flood"
        ;;
    streams)
        start_in pod3 iperf3 --server --one-off --bind "$to" >/dev/null
        until_true 5 "iperf3 listens" is_bound pod3 tcp 5201
        start_in pod1 iperf3 --client "$to" --parallel "$2" --time "$SECONDS_OF_FLOOD" --json >"$SCRATCH/flood"
        ;;
    esac
    FLOODER=$PID
}

# bars WORDS...: the longest median and p99 of the pings beside that flood, milliseconds.
bars() {
    case "$*" in
    'tcp 36' | 'udp 36') echo 50 250 ;;
    tcp* | udp*) echo 50 200 ;;
    'datagrams 8000') echo 50 150 ;;
    datagrams*) echo 25 150 ;;
    streams*) echo 8 100 ;;
    esac
}

# What node1 dropped of the flood because it was over its share.
over_share() {
    agent_json node1 drops | jq '[.workers[].outbound.dropped.OverShare // 0] | add'
}

# What the flood says that it sent.
sent() {
    jq 'if type == "number" then . else .sent // .end.sum_received.bytes end' "$SCRATCH/flood"
}

# beside LEAST WORDS...: the pings beside that flood, which must have sent LEAST at least.
beside() {
    local least=$1 over=0 lost median p99 longest_median longest_p99
    shift
    if [ "$BACKEND" != control ]; then over=$(over_share); fi
    flood "$@"
    sleep 0.7
    in_ns pod2 ping -n -i 0.01 -c "$PINGS" -W 2 "$(address_of pod4 "$FAMILY")" >"$SCRATCH/pings" || true
    wait "$FLOODER" || fail "the flood $* ended with an error"
    [ "$(sent)" -ge "$least" ] || fail "the flood $* sent only $(sent), which is none"
    read -r lost median p99 < <(sed -n 's/.* time=\([0-9.]*\) ms.*/\1/p' "$SCRATCH/pings" | sort -n | awk -v sent="$PINGS" '
        { time[NR] = $1 }
        END { print int((sent - NR) * 1000 / sent + 0.5) / 10, time[int(NR / 2) + 1] + 0, time[int(NR * 0.99) + 1] + 0 }')
    say "beside $* ($(sent) sent): lost $lost %, round trips p50 $median ms, p99 $p99 ms"
    if [ "$BACKEND" = control ]; then return; fi
    over=$(($(over_share) - over))
    say "over the share beside $*: $over packets"
    case $1 in
    tcp | udp) [ "$over" -gt 0 ] || fail "nothing of the flood $* was over its share" ;;
    esac
    read -r longest_median longest_p99 < <(bars "$@")
    measured_at_most "lost beside $*, in 100" "$MOST_LOST" "${lost%.*}"
    measured_at_most "p50 beside $*, ms" "$longest_median" "${median%.*}"
    if [ -n "${FULL:-}" ]; then measured_at_most "p99 beside $*, ms" "$longest_p99" "${p99%.*}"; fi
}

say "beside a flood: backend $BACKEND, $FLOOD, IPv$FAMILY"
OPTIONS=(--backend "$BACKEND")
if [ "$BACKEND" = control ]; then OPTIONS=(--control); fi
if [ "$FAMILY" = 6 ]; then OPTIONS+=(--inside v6 --outside v6); fi
lab_up "${OPTIONS[@]}" --pods 2
case $FLOOD in
super)
    beside 5000 tcp 36
    beside 5000 udp 36
    ;;
small) beside 100000 datagrams 18 ;;
sizes)
    beside 50000 datagrams 400
    beside 50000 datagrams 1400
    beside 10000 datagrams 8000
    beside 5000 tcp 400
    beside 5000 udp 400
    beside 5000 tcp 1300
    ;;
bulk) beside $((100 << 20)) streams 8 ;;
*) die "there is no flood '$FLOOD'" ;;
esac
[ "$BACKEND" != control ] || exit 0
law_one node1
law_one node2
