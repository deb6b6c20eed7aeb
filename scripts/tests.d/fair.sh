#!/usr/bin/env bash
# One pod floods, and the pod beside it does not notice much: it pings a pod of the other node 100 times a second, while
# the first sends as much as it can to another pod there.
#
#   pod1, floods ─┐                                        ┌─ pod3
#                 ├─ node1 tartan ══ underlay ══ node2 ────┤
#   pod2, pings ──┘                                        └─ pod4, answers
#
# fair.sh BACKEND FLOOD [FAMILY], where FLOOD is super, small, sizes or bulk, and FAMILY 4 or 6. BACKEND control is no
# Tartan: what the kernel's own VXLAN device does under the same floods.
#
#   super   super-packets of 60 kB with segments of 36 bytes, by a packet socket (CAP_NET_RAW), TCP and UDP
#   small   UDP datagrams of 18 bytes, as fast as they go
#   sizes   UDP datagrams of 400, 1,400 and 8,000 bytes; super-packets with segments of 400 and 1,300 bytes
#   bulk    TCP, 8 flows
#
# The bars tell a stalled neighbour from one that shares a core with a flood: without fair shares a pod beside
# super-packets loses 18 to 56 of 100 pings, and half of the others take longer than 150 ms.
# alone: it floods and measures
# case: vxlan super
# case: udp super
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
# Of 100 pings; milliseconds.
MOST_LOST=3
LONGEST_MEDIAN=50
LONGEST_P99=250

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
        until_true 5 "iperf3 listens" in_ns pod3 sh -c 'ss -Hltn | grep -q :5201'
        start_in pod1 iperf3 --client "$to" --parallel "$2" --time "$SECONDS_OF_FLOOD" --json >"$SCRATCH/flood"
        ;;
    esac
    FLOODER=$PID
}

# What the flood says that it sent.
sent() {
    jq 'if type == "number" then . else .sent // .end.sum_received.bytes end' "$SCRATCH/flood"
}

# beside LEAST WORDS...: the pings beside that flood, which must have sent LEAST at least.
beside() {
    local least=$1 lost median p99
    shift
    flood "$@"
    sleep 0.7
    in_ns pod2 ping -n -i 0.01 -c "$PINGS" -W 2 "$(address_of pod4 "$FAMILY")" >"$SCRATCH/pings" || true
    wait "$FLOODER" || fail "the flood $* ended with an error"
    [ "$(sent)" -ge "$least" ] || fail "the flood $* sent only $(sent), which is none"
    read -r lost median p99 < <(sed -n 's/.* time=\([0-9.]*\) ms.*/\1/p' "$SCRATCH/pings" | sort -n | awk -v sent="$PINGS" '
        { time[NR] = $1 }
        END { print int((sent - NR) * 1000 / sent + 0.5) / 10, time[int(NR / 2) + 1] + 0, time[int(NR * 0.99) + 1] + 0 }')
    say "beside $* ($(sent) sent): lost $lost %, round trips p50 $median ms, p99 $p99 ms"
    at_most "lost beside $*, in 100" "$MOST_LOST" "${lost%.*}"
    at_most "p50 beside $*, ms" "$LONGEST_MEDIAN" "${median%.*}"
    at_most "p99 beside $*, ms" "$LONGEST_P99" "${p99%.*}"
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
