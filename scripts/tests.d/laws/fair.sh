#!/usr/bin/env bash
# One pod floods, and the pod beside it does not notice much: it pings a pod of the other node, while the first sends as
# many super-packets with small segments (CAP_NET_RAW) as it can, TCP and UDP, to another pod there. More come than fit
# a share: those over it are counted. With --full also large segments, and bars on what the pings lose and take.
#
# The bars tell a stalled neighbour from one that shares a core with a flood. On two busy cores 5 to 56 of 100 pings
# were lost without fair shares, p50 101 to 2,241 ms; with them 0 to 2, at 1 to 23 ms and a p99 of 17 to 144.
# labs: inside=dual outside=dual underlay=offload kernel-path=off probes=off
# full: kernel-path=off probes=off device!=plain
# seconds: 600

PINGS=50 LEAST=1
FLOODS=("tcp 36" "udp 36")
if [ -n "${FULL:-}" ]; then
    PINGS=400 LEAST=5000
    FLOODS+=("tcp 1300" "udp 400")
else
    FAMILIES=("${FAMILIES[0]}")
fi

# What node1 dropped of the flood because it was over its share.
over_share() {
    agent_json node1 drops | jq '[.workers[].outbound.dropped.OverShare // 0] | add'
}

# pings_beside OVER: another pod sends, for one that is alone has many shares; whether more than OVER is counted then.
pings_beside() {
    in_ns pod2 ping -n -i 0.01 -c "$PINGS" -W 2 "$(address_of pod4 "$FAMILY")" >"$SCRATCH/pings" || true
    [ "$(over_share)" -gt "$1" ]
}

# beside KIND SIZE: the pings beside a flood of super-packets with such segments.
beside() {
    local over sent lost median p99 gateway what="$1 of $2 bytes"
    gateway=$(ip -n "$PREFIX-pod1" -j neigh show dev eth0 | jq -r '.[0].lladdr')
    over=$(over_share)
    start_in pod1 python3 "$TOOLS/super_packets.py" "$gateway" "$(address_of pod1 "$FAMILY")" \
        "$(address_of pod3 "$FAMILY")" "$1" "$2" >"$SCRATCH/flood"
    until_true 10 "some of $what are over their share" pings_beside "$over" || true
    kill -TERM "$PID"
    wait "$PID" || fail "the flood of $what ended with an error"
    until_true 10 "node1 is at rest" eval 'balances node1 | jq -e "all(. == 0)"' || true
    sent=$(cat "$SCRATCH/flood")
    [ "$sent" -ge "$LEAST" ] || fail "the flood of $what sent only $sent"
    read -r lost median p99 < <(sed -n 's/.* time=\([0-9]*\).* ms.*/\1/p' "$SCRATCH/pings" | sort -n |
        awk -v sent="$PINGS" '{ time[NR] = $1 }
        END { print int((sent - NR) * 100 / sent), time[int(NR / 2) + 1] + 0, time[int(NR * 0.99) + 1] + 0 }')
    measured_at_most "lost beside $what, in 100" 6 "$lost"
    measured_at_most "p50 beside $what, ms" 50 "$median"
    measured_at_most "p99 beside $what, ms" 250 "$p99"
}

for FAMILY in "${FAMILIES[@]}"; do
    # shellcheck disable=SC2086
    for ONE in "${FLOODS[@]}"; do beside $ONE; done
done
