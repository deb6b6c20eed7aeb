#!/usr/bin/env bash
# `tartan top` shows the traffic that there is: path, peers, pods and flows agree with what a pod sends. On a terminal it says
# that the agent is gone, goes on when one answers, and gives the terminal back whatever ends it.
# labs: kernel-path=off inside!=v6 workers=2 third=kernel-vxlan
# labs: device=plain format=udp
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

FAR=$(address_of pod3 4)
# Packets of so many bytes, 200 a second: a busy machine sends them later, but never more of them.
COUNT=2000
SIZE=1000

# shown WHAT FILTER: what top must show; in the filter `some` is a rate of what is sent. Bars of time are with --full alone.
shown() {
    local some=". > 0 and . * \$picture.interval < $COUNT"
    if [ -n "${FULL:-}" ]; then some='. > 50 and . < 260'; fi
    if jq -e ". as \$picture | def some: .per_second | $some; $2" <<<"$PICTURE" >/dev/null; then
        say "top shows $1"
    else
        fail "top does not show $1: $(jq -c '{interval, path, peers, flows: .flows[:4]}' <<<"$PICTURE")"
    fi
}

PICTURE=$(tartan node1 top -o json)
shown "no traffic of an idle node" '.path.outbound.sent.per_second == 0 and .peers[0].traffic.sent_bytes.per_second == 0'
start_in pod1 ping -q -c "$COUNT" -i 0.005 -s $((SIZE - 28)) "$FAR"
PING=$PID
has_sent() { [ "$(device_count pod1 eth0 tx_packets)" -gt "$1" ]; }
until_true 5 "requests are sent" has_sent $(($(device_count pod1 eth0 tx_packets) + 50))
PICTURE=$(tartan node1 top --interval 2 -o json)
shown "requests on the path" '.path.outbound.sent | some'
shown "and their answers" '.path.inbound.delivered | some'
shown "both at the peer" '.peers[] | select(.name == "node2").traffic | [.sent_packets, .received_packets] | all(some)'
shown "the pod's" '.pods | map(.traffic.sent_packets) | max_by(.per_second) | some'
shown "the flow to the pod, and no others" ".flows | map(select(.destination == \"$FAR\" and .direction == \"outbound\"))
    | length == 1 and (.[0] | .protocol == \"icmp\" and .peer == \"node2\" and (.packets | some))"
shown "the flow back" ".flows | map(select(.source == \"$FAR\" and .direction == \"inbound\"))
    | length == 1 and (.[0].packets | some)"
shown "the bytes of each flow" ".flows | all(.bytes.total == .packets.total * $SIZE)"
shown "batches" '[.workers[] | .outbound_batches.packets_of_one // 0] | max >= 1'
shown "workers that are somewhat busy" '[.workers[] | .busy // 0] | max > 0 and max < 1'
tartan node1 top --once flows >"$SCRATCH/text"
grep -q "> $FAR .*icmp" "$SCRATCH/text" || fail "the text has no such flow: $(cat "$SCRATCH/text")"
stop "$PING"
python3 "$TOOLS/top_screen.py" "$LAB_STATE/node1" ip netns exec "$PREFIX-node1" "$BIN/tartan" || fail "the screen"
