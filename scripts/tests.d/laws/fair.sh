#!/usr/bin/env bash
# One pod floods, and the pod beside it does not notice much: it pings a pod of the other node, while the first sends as
# much as it can to another pod there. Of super-packets with small segments (CAP_NET_RAW), TCP and UDP, more come than
# fit a share: those over it are counted. With --full also datagrams and TCP, and bars on what the pings lose and take.
#
# The bars tell a stalled neighbour from one that shares a core with a flood. On two cores with a load of five to ten,
# without fair shares 5 to 56 of 100 pings were lost beside super-packets and large datagrams, p50 101 to 2,241 ms;
# with them 0 to 2, at 1 to 23 ms and a p99 of 17 to 144. Beside small datagrams and streams they only say that no
# neighbour stalls.
# labs: inside=dual outside=dual underlay=offload kernel-path=off probes=off
# full: kernel-path=off probes=off device!=plain
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=7009
# Of 100 pings.
MOST_LOST=6
# Seconds of a flood of datagrams or streams: longer than the pings.
LASTS=6
PINGS=50
# Of each flood its kind and size, how much it must have sent, and the longest p50 and p99 of the pings beside it, ms.
FLOODS=("tcp 36 1 50 250" "udp 36 1 50 250")
if [ -n "${FULL:-}" ]; then
    PINGS=400
    FLOODS=("tcp 36 5000 50 250" "udp 36 5000 50 250" "tcp 400 5000 50 200" "udp 400 5000 50 200"
        "tcp 1300 5000 50 200"
        "datagrams 18 100000 25 150" "datagrams 400 50000 25 150" "datagrams 1400 50000 25 150"
        "datagrams 8000 10000 50 150" "streams 8 100000000 8 100")
fi

# flood KIND SIZE: from pod1, in the background; it prints what it sent.
flood() {
    local to from gateway
    to=$(address_of pod3 "$FAMILY") from=$(address_of pod1 "$FAMILY")
    case $1 in
    tcp | udp)
        gateway=$(ip -n "$PREFIX-pod1" -j neigh show dev eth0 | jq -r '.[0].lladdr')
        start_in pod1 python3 "$TOOLS/super_packets.py" "$gateway" "$from" "$to" "$1" "$2"
        ;;
    datagrams)
        start_in pod1 "$LOAD" flood --to "$(socket_address "$to" "$PORT")" --size "$2" --flows 4 --seconds "$LASTS"
        ;;
    streams)
        start_in pod3 iperf3 --server --one-off --bind "$to" >/dev/null
        until_true 5 "iperf3 listens" is_bound pod3 tcp 5201
        start_in pod1 iperf3 --client "$to" --parallel "$2" --time "$LASTS" --json
        ;;
    esac
}

# What node1 dropped of the flood because it was over its share.
over_share() {
    agent_json node1 drops | jq '[.workers[].outbound.dropped.OverShare // 0] | add'
}

# pings_beside OVER: another pod sends, for one that is alone has many shares; whether more than OVER is counted then.
pings_beside() {
    in_ns pod2 ping -n -i 0.01 -c "$PINGS" -W 2 "$(address_of pod4 "$FAMILY")" >"$SCRATCH/pings" || true
    [ "$(over_share)" -gt "$1" ]
}

is_at_rest() {
    balances node1 | jq -e 'all(. == 0)'
}

# beside KIND SIZE LEAST MEDIAN P99: the pings beside that flood.
beside() {
    local over sent lost median p99 what="$1 of $2 bytes"
    over=$(over_share)
    flood "$1" "$2" >"$SCRATCH/flood"
    if [[ $1 == @(tcp|udp) ]]; then
        until_true 10 "some of $what are over their share" pings_beside "$over" || true
        kill -TERM "$PID"
    else
        pings_beside "$over" || true
    fi
    wait "$PID" || fail "the flood of $what ended with an error"
    until_true 10 "node1 is at rest" is_at_rest || true
    sent=$(jq 'if type == "number" then . else .sent // .end.sum_received.bytes end' "$SCRATCH/flood")
    [ "$sent" -ge "$3" ] || fail "the flood of $what sent only $sent, which is none"
    read -r lost median p99 < <(sed -n 's/.* time=\([0-9]*\).* ms.*/\1/p' "$SCRATCH/pings" | sort -n |
        awk -v sent="$PINGS" '{ time[NR] = $1 }
        END { print int((sent - NR) * 100 / sent), time[int(NR / 2) + 1] + 0, time[int(NR * 0.99) + 1] + 0 }')
    say "beside $what ($sent sent): over the share $(($(over_share) - over))"
    measured_at_most "lost beside $what, in 100" "$MOST_LOST" "$lost"
    measured_at_most "p50 beside $what, ms" "$4" "$median"
    measured_at_most "p99 beside $what, ms" "$5" "$p99"
}

if [ -z "${FULL:-}" ]; then FAMILIES=("${FAMILIES[0]}"); fi
for FAMILY in "${FAMILIES[@]}"; do
    # shellcheck disable=SC2086
    for ONE in "${FLOODS[@]}"; do beside $ONE; done
done
