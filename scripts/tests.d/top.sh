#!/usr/bin/env bash
# `tartan top` shows the traffic that there is, while it is there: rates, peers, pods and flows agree with what a pod
# sends. On a terminal it says that the agent is gone, goes on when one answers, and gives the terminal back whatever ends it.
#
#   pod1 ─ node1: tartan ══ node2: tartan ─ pod2        200 requests a second, each answered
#
# top.sh BACKEND
# alone: it measures rates
# case: vxlan
# full: udp workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
RATE=200
# Bytes of the inner packet.
SIZE=1000

lab_up --nodes 2 --pods 1 --backend "$BACKEND"
POD2=$(address_of pod2)

# shown WHAT JQ: what top must show.
shown() {
    if jq -e --arg pod2 "$POD2" "$2" <<<"$PICTURE" >/dev/null; then
        say "$1"
    else
        fail "$1: $(jq -c '{interval, path, peers, flows: .flows[:4]}' <<<"$PICTURE")"
    fi
}

PICTURE=$(tartan node1 top -o json)
shown "an idle node has no traffic" \
    '.path.outbound.sent.per_second == 0 and .peers[0].traffic.sent_bytes.per_second == 0'
shown "its workers are idle" '[.workers[] | .busy // 0] | all(. < 0.5)'

start_in pod1 ping -q -i 0.005 -s "$((SIZE - 28))" "$POD2"
until_true 5 "requests are sent" sh -c "ip -n $PREFIX-pod1 -s -j link show dev eth0 | jq -e '.[0].stats64.tx.packets > 50'"
PICTURE=$(tartan node1 top --interval 2 -o json)
# A busy machine sends fewer requests than it is asked to; never more.
NEAR=". > $RATE / 4 and . < $RATE * 1.3"
shown "the path shows the requests" ".path.outbound.sent.per_second | $NEAR"
shown "and their answers" ".path.inbound.delivered.per_second | $NEAR"
shown "the peer has them" ".peers | length == 1 and (.[0].traffic | [.sent_packets, .received_packets] | all(.per_second | $NEAR))"
shown "the pod has them" "[.pods[] | .traffic.sent_packets.per_second] | max | $NEAR"
shown "the flow to the pod has them, and no others" \
    ".flows | map(select(.destination == \$pod2 and .protocol == \"icmp\" and .direction == \"outbound\"))
        | length == 1 and (.[0] | .peer == \"node2\" and (.packets.per_second | $NEAR)
            and (.bytes.total == .packets.total * $SIZE))"
shown "so has the flow back" \
    ".flows | map(select(.source == \$pod2 and .direction == \"inbound\")) | length == 1 and (.[0].packets.per_second | $NEAR)"
shown "batches are counted" '[.workers[] | .outbound_batches.packets_of_one // 0] | max >= 1'
shown "workers are somewhat busy" '[.workers[] | .busy // 0] | max > 0 and max < 1'
tartan node1 top --once flows >"$SCRATCH/text"
grep -q "> $POD2 .*icmp" "$SCRATCH/text" || fail "the text has no such flow: $(cat "$SCRATCH/text")"

# In a terminal of its own: what it draws, and what is left of it afterwards.
BIN=$(realpath "${LAB_BIN:-$SCRIPTS/../target/fast}")
python3 "$TOOLS/top_screen.py" "$LAB_STATE/node1" ip netns exec "$PREFIX-node1" "$BIN/tartan" || fail "the screen"
law_one node1
