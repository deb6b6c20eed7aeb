#!/usr/bin/env bash
# Every packet is accounted for, to the packet, from the program that sends to the one that receives,
# under overload and while a service stands still so that the kernel's queues in front of it overflow.
#
#   flood ─ pod1 ─ veth ─ node1: tartan0 queue ─ tartan ─ socket ══ eth0 ══ socket ─ tartan ─ tartan0 :node2 ─ veth ─ pod2 ─ sink
#      S       P            V        T                O                        I                D                  W        R
#
# accounting.sh BACKEND [INSIDE OUTSIDE], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the
# underlay. What the nodes' kernels say by themselves (group reports) is over when the counting begins.
# case: udp
# case: vxlan
# case: vxlan v6 v6
# full: udp v6 v6
# full: vxlan v6 v4
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
PORT=7000
OVERLOAD=${FULL:+1000000}
OVERLOAD=${OVERLOAD:-200000}
SENT=0
# Bytes: no datagram may be cut on the way.
SMALL=64
LARGE=1300

host_end() {
    ip -n "$PREFIX-$1" -j "-$FAMILY" route show "$2" | jq -r '.[0].dev'
}

# One count of every station on the way.
stations() {
    local drops1 drops2
    drops1=$(told node1 drops)
    drops2=$(told node2 drops)
    jq -nc --argjson one "$drops1" --argjson two "$drops2" \
        --argjson pod_out "$(device_count pod1 eth0 tx_packets)" \
        --argjson pod_lost "$(device_count pod1 eth0 tx_dropped)" \
        --argjson veth_in "$(device_count node1 "$VETH1" rx_packets)" \
        --argjson tun_read "$(device_count node1 tartan0 tx_packets)" \
        --argjson tun_lost "$(device_count node1 tartan0 tx_dropped)" \
        --argjson queue_lost "$(queue_drops)" \
        --argjson wire_lost "$(wire_drops)" \
        --argjson tun_written "$(device_count node2 tartan0 rx_packets)" \
        --argjson veth_out "$(device_count node2 "$VETH2" tx_packets)" \
        --argjson veth_lost "$(device_count node2 "$VETH2" tx_dropped)" \
        --argjson pod_in "$(device_count pod2 eth0 rx_packets)" '
        def flow($d; $way; $field): [$d.workers[][$way][$field]] | add;
        def lost($d; $way): [$d.workers[][$way].dropped | add // 0] | add;
        {pod_out: $pod_out, pod_lost: $pod_lost, veth_in: $veth_in, tun_read: $tun_read, tun_lost: $tun_lost, queue_lost: $queue_lost,
         out_received: flow($one; "outbound"; "received"), out_dropped: lost($one; "outbound"),
         out_sent: flow($one; "outbound"; "sent"), wire_lost: $wire_lost,
         socket_lost: ([$two.kernel[] | select(.place | startswith("receive-")) | .count] | add),
         in_received: flow($two; "inbound"; "received"), in_dropped: lost($two; "inbound"),
         delivered: flow($two; "inbound"; "delivered"), tun_written: $tun_written,
         veth_out: $veth_out, veth_lost: $veth_lost, pod_in: $pod_in}'
}

# Packets that the queue in front of the device dropped before the device saw them.
queue_drops() {
    ip netns exec "$PREFIX-node1" tc -s -j qdisc show dev tartan0 | jq '[.[].drops] | add // 0'
}

# What the underlay's veths dropped: node1 towards the bridge, the bridge towards node2.
wire_drops() {
    echo $(($(device_count node1 eth0 tx_dropped) + $(device_count net node2 tx_dropped)))
}

flood() {
    local report
    report=$(in_ns pod1 python3 "$TOOLS/flood.py" "$(address_of pod2 "$FAMILY")" "$PORT" "$@") || fail "the flood"
    SENT=$((SENT + $(jq .sent <<<"$report")))
    say "flood of IPv$FAMILY, $*: $report"
}

# Stops the service of a node for less than the keeper's patience while a burst arrives.
flood_against_standstill() {
    local pid
    pid=$(service_pid "$1")
    kill -STOP "$pid"
    flood "$2" "$3"
    sleep 0.2
    kill -CONT "$pid"
    sleep 0.5
    equal "the service of $1 lives" "$pid" "$(service_pid "$1")"
}

# At rest: two looks, half a second apart, see the same.
quiet() {
    local before='' wait
    for ((wait = 0; wait < 40; wait++)); do
        AFTER=$(stations)
        [ "$AFTER" != "$before" ] || return 0
        before=$AFTER
        sleep 0.5
    done
    fail "the counters do not come to rest"
}

# The growth of a station since the start.
grown() {
    jq -n --argjson before "$BEFORE" --argjson after "$AFTER" "\$after.$1 - \$before.$1"
}

say "every packet accounted for: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
read -ra FAMILIES < <(families "$INSIDE")
FAMILY=${FAMILIES[0]}
VETH1=$(host_end node1 "$(address_of pod1)") VETH2=$(host_end node2 "$(address_of pod2)")
start_in pod2 python3 "$TOOLS/sink.py" "$PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" in_ns pod2 sh -c "ss -Hlun | grep -q :$PORT"
quiet
BEFORE=$AFTER
for FAMILY in "${FAMILIES[@]}"; do
    flood "$SMALL" "$OVERLOAD"
    flood "$LARGE" "$OVERLOAD"
    flood_against_standstill node1 "$SMALL" 5000
    flood_against_standstill node2 "$LARGE" 30000
done
quiet
stop "$SINK"
law_one node1
law_one node2
say "stations: $(jq -nc --argjson before "$BEFORE" --argjson after "$AFTER" '$after | with_entries(.value -= $before[.key])')"
equal "pod1 put on its veth what the program sent" "$SENT" $(($(grown pod_out) + $(grown pod_lost)))
equal "node1 took from the veth what pod1 put there" "$(grown pod_out)" "$(grown veth_in)"
equal "tartan0 and its queue account for it" "$(grown veth_in)" $(($(grown tun_read) + $(grown tun_lost) + $(grown queue_lost)))
equal "node1 received what left tartan0" "$(grown tun_read)" "$(grown out_received)"
equal "node1 sent it or dropped it" "$(grown out_received)" $(($(grown out_sent) + $(grown out_dropped)))
equal "what node1 sent reached node2's socket or was dropped there" "$(grown out_sent)" \
    $(($(grown in_received) + $(grown socket_lost) + $(grown wire_lost)))
equal "node2 delivered it or dropped it" "$(grown in_received)" $(($(grown delivered) + $(grown in_dropped)))
equal "tartan0 of node2 took what was delivered" "$(grown delivered)" "$(grown tun_written)"
equal "the veth of pod2 took what tartan0 brought" "$(grown tun_written)" $(($(grown veth_out) + $(grown veth_lost)))
equal "pod2 received it" "$(grown veth_out)" "$(grown pod_in)"
equal "the sink counted it" "$(grown pod_in)" "$(jq ".\"$PORT\" | .count + .lost" "$SCRATCH/sink")"
equal "datagrams that came twice" 0 "$(jq ".\"$PORT\".twice" "$SCRATCH/sink")"
equal "datagrams that came behind a later one" 0 "$(jq ".\"$PORT\".late" "$SCRATCH/sink")"
# A flood that lost nothing would not show that losses are counted.
[ "$(grown tun_lost)" -gt 1000 ] || fail "the device's queue did not overflow: $(grown tun_lost)"
[ "$(grown socket_lost)" -gt 100 ] || fail "the socket's buffer did not overflow: $(grown socket_lost)"
