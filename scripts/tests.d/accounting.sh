#!/usr/bin/env bash
# Every packet is accounted for, to the packet, from the program that sends to the one that receives,
# under overload and while a service stands still so that the kernel's queues in front of it overflow.
#
#   flood ─ pod1 ─ veth ─ node1: tartan0 queue ─ tartan ─ socket ══ eth0 ══ socket ─ tartan ─ tartan0 :node2 ─ veth ─ pod2 ─ sink
#      S       P            V        T                O                        I                D                  W        R
#
# accounting.sh BACKEND [INSIDE OUTSIDE UNDERLAY], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and
# of the underlay. UNDERLAY is `wire`, where each datagram travels alone, so that what a socket dropped is a number of
# datagrams; with `offload` it is a number of GSO batches of them (UDP_SEGMENT), and tells only between what bounds.
#
# With kernel-path= the programs on tartan0 and eth0 carry IPv4: what they take at T does not count as the device's, and
# what they bring does not at W, nor, where they give it to the pod directly, at its veth. Their own counts stand there.
# alone: its floods fill the kernel's backlog of each core, which all namespaces share
# case: udp
# full: vxlan v4 v4 offload
# case: vxlan dual dual workers=2
# full: vxlan v6 v6 workers=2
# full: vxlan dual dual
# full: udp workers=2
# full: udp v4 v4 offload workers=2
# full: vxlan v4 v4 offload workers=2
# full: vxlan v4 v4 wire device=plain
# full: udp v4 v4 wire device=plain
# full: vxlan
# full: udp v6 v6
# full: udp v6 v6 offload
# full: vxlan v6 v4
# full: vxlan dual dual workers=2 device-type=tap
# case: vxlan kernel-path=auto
# full: vxlan kernel-path=stateless
# full: vxlan v4 v4 offload kernel-path=auto
# full: vxlan v4 v4 offload kernel-path=stateless
# full: vxlan dual v4 workers=2 kernel-path=auto
# full: vxlan v4 v4 wire kernel-path=auto device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
UNDERLAY=${4:-wire}
PORT=7000
OVERLOAD=${FULL:+1000000}
OVERLOAD=${OVERLOAD:-200000}
# Bytes: no datagram may be cut on the way.
SMALL=64
LARGE=1300
# The longest GSO batch of datagrams (the kernel's UDP_MAX_SEGMENTS, before 6.9).
GSO_BATCH=64
SENT=0
TOTAL='{}'

host_end() {
    ip -n "$PREFIX-$1" -j "-$FAMILY" route show "$2" | jq -r '.[0].dev'
}

devices() {
    ip -n "$PREFIX-$1" -s -j link show | jq -c 'map({(.ifname): .stats64}) | add'
}

# One count of every station on the way. A device counts a super-packet as one packet; with its bytes it tells how
# many datagrams it was.
stations() {
    jq -nc --argjson one "$(agent_json node1 drops)" --argjson two "$(agent_json node2 drops)" \
        --argjson pod1 "$(devices pod1)" --argjson node1 "$(devices node1)" --argjson net "$(devices net)" \
        --argjson node2 "$(devices node2)" --argjson pod2 "$(devices pod2)" --argjson queue_lost "$(queue_drops)" \
        --arg veth1 "$VETH1" --arg veth2 "$VETH2" '
        def flow($d; $way; $field): [$d.workers[][$way][$field]] | add;
        def lost($d; $way): [$d.workers[][$way].dropped | add // 0] | add;
        def kernel($d; $way; $field): [$d.workers[] | select(.name == "kernel-path")[$way][$field]] | add // 0;
        {pod_out: $pod1.eth0.tx, pod_lost: $pod1.eth0.tx.dropped, veth_in: $node1[$veth1].rx,
         tun_read: $node1.tartan0.tx, tun_lost: $node1.tartan0.tx.dropped, queue_lost: $queue_lost,
         out_received: flow($one; "outbound"; "received"), out_dropped: lost($one; "outbound"),
         out_sent: flow($one; "outbound"; "sent"), wire_lost: ($node1.eth0.tx.dropped + $net.node2.tx.dropped),
         socket_lost: ([$two.kernel[] | select(.place | startswith("receive-")) | .count] | add),
         in_received: flow($two; "inbound"; "received"), in_dropped: lost($two; "inbound"),
         kernel_out: kernel($one; "outbound"; "received"), kernel_in: kernel($two; "inbound"; "delivered"),
         delivered: flow($two; "inbound"; "delivered"), tun_written: $node2.tartan0.rx,
         backlog_lost: $node2.tartan0.rx.dropped,
         veth_out: $node2[$veth2].tx, veth_lost: $node2[$veth2].tx.dropped, pod_in: $pod2.eth0.rx}'
}

# Packets that the queue in front of the device dropped before the device saw them.
queue_drops() {
    ip netns exec "$PREFIX-node1" tc -s -j qdisc show dev tartan0 | jq '[.[].drops] | add // 0'
}

# account SIZE CMD...: the command sends datagrams of that size and no others; TOTAL grows by what every station saw.
account() {
    local before=$AFTER header=28
    if [ "$FAMILY" = 6 ]; then header=48; fi
    "${@:2}" "$1"
    quiet
    TOTAL=$(jq -nc --argjson total "$TOTAL" --argjson before "$before" --argjson after "$AFTER" \
        --argjson size "$1" --argjson header "$header" --arg type "$TYPE" '
        # A veth and a TAP count the Ethernet header too, a TUN has none.
        def datagrams($name): (if ($name | startswith("tun")) and $type == "tun" then $header else $header + 14 end) as $headers
            | (.bytes - .packets * $headers) / $size;
        $after | with_entries(.key as $name | $before[$name] as $was | .value |=
            if type == "object" then {bytes: (.bytes - $was.bytes), packets: (.packets - $was.packets)} | datagrams($name)
            else . - $was end + ($total[$name] // 0))')
}

# flood COUNT SIZE
flood() {
    local report
    report=$(in_ns pod1 taskset -c 0 "$LOAD" send --to "$(socket_address "$(address_of pod2 "$FAMILY")" "$PORT")" --size "$2" --count "$1") || fail "the flood"
    SENT=$((SENT + $(jq .sent <<<"$report")))
    say "flood of IPv$FAMILY, $1 of $2 bytes: $report"
}

# Stops the service of node $1 for less than the keeper's patience while a burst arrives.
flood_against_standstill() {
    local pid timer
    pid=$(service_pid "$1")
    kill -STOP "$pid"
    # Where the burst takes long, the service goes on before its end: the keeper waits 2 s.
    (sleep 1.2 && kill -CONT "$pid") &
    timer=$!
    flood "$2" "$3"
    sleep 0.2
    kill -CONT "$pid"
    kill "$timer" 2>/dev/null || true
    wait "$timer" 2>/dev/null || true
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

total() {
    jq ".$1" <<<"$TOTAL"
}

say "every packet accounted for: backend $BACKEND, inside $INSIDE, outside $OUTSIDE, underlay $UNDERLAY"
# Of super-packets the kernel counts one where it drops, however many datagrams it joined (docs/operate.md, gathering), and
# a veth with NAPI counts no Ethernet header. `gathering` has what arrives with it.
export TARTAN_GATHER=false
# A veth puts what it carries into the backlog of the core that sends. A thread that changes cores while the backlog of its old
# core still waits overtakes itself in the kernel, as it does with no overlay at all: the sender and the workers stay where they
# are, and what then comes behind a later one is Tartan's.
WORKERS=$(agents_option workers)
TARTAN_CORES=$(seq -s , 0 $((${WORKERS:-1} - 1)))
export TARTAN_CORES
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" --underlay "$UNDERLAY"
# The receiver's card would join what travels alone.
if [ "$UNDERLAY" = wire ]; then in_ns node2 ethtool -K eth0 gro off >/dev/null; fi
read -ra FAMILIES < <(families "$INSIDE")
FAMILY=${FAMILIES[0]}
TYPE=$(agent_json node1 status | jq -r .device_type)
VETH1=$(host_end node1 "$(address_of pod1)") VETH2=$(host_end node2 "$(address_of pod2)")
start_in pod2 "$LOAD" count "$PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" is_bound pod2 udp "$PORT"
quiet
for FAMILY in "${FAMILIES[@]}"; do
    account "$SMALL" flood "$OVERLOAD"
    account "$LARGE" flood "$OVERLOAD"
    account "$SMALL" flood_against_standstill node1 5000
    account "$LARGE" flood_against_standstill node2 30000
done
stop "$SINK"
law_one node1
law_one node2
say "stations: $TOTAL"
equal "pod1 put on its veth what the program sent" "$SENT" $(($(total pod_out) + $(total pod_lost)))
equal "node1 took from the veth what pod1 put there" "$(total pod_out)" "$(total veth_in)"
equal "tartan0, its queue and the kernel path account for it" "$(total veth_in)" \
    $(($(total tun_read) + $(total tun_lost) + $(total queue_lost) + $(total kernel_out)))
equal "node1 received what left tartan0 and what the kernel path took" $(($(total tun_read) + $(total kernel_out))) "$(total out_received)"
equal "node1 sent it or dropped it" "$(total out_received)" $(($(total out_sent) + $(total out_dropped)))
UNSEEN=$(($(total out_sent) - $(total in_received)))
LOST=$(($(total socket_lost) + $(total wire_lost)))
if [ "$UNDERLAY" = wire ]; then
    equal "what node1 sent and node2 did not receive was dropped on the way or at the socket" "$UNSEEN" "$LOST"
else
    at_most "GSO batches dropped on the way or at the socket, of datagrams sent and not received" "$UNSEEN" "$LOST"
    at_most "datagrams sent and not received, of GSO batches dropped" $((LOST * GSO_BATCH)) "$UNSEEN"
fi
equal "node2 delivered it or dropped it" "$(total in_received)" $(($(total delivered) + $(total in_dropped)))
equal "tartan0 of node2 or the kernel path took what was delivered" "$(total delivered)" $(($(total tun_written) + $(total kernel_in)))
if kernel_path_carries; then
    # A flow of the kernel path goes to the pod directly: its host end does not count it.
    equal "pod2 received what was delivered" "$(total delivered)" $(($(total pod_in) + $(total veth_lost) + $(total backlog_lost)))
else
    equal "the veth of pod2 took what tartan0 brought" "$(total tun_written)" $(($(total veth_out) + $(total veth_lost)))
    equal "pod2 received it" "$(total veth_out)" "$(total pod_in)"
fi
equal "the sink counted it" "$(total pod_in)" "$(jq ".\"$PORT\" | .count + .lost" "$SCRATCH/sink")"
equal "datagrams that came twice" 0 "$(jq ".\"$PORT\".twice" "$SCRATCH/sink")"
equal "datagrams that came behind a later one" 0 "$(jq ".\"$PORT\".late" "$SCRATCH/sink")"
if kernel_path_carries && [ "$INSIDE" = v4 ]; then
    # The services that stood still were in nothing's way.
    [ $(($(total kernel_out) * 10)) -ge $(($(total out_received) * 9)) ] || fail "the kernel path took only $(total kernel_out) of $(total out_received) packets"
    [ $(($(total kernel_in) * 10)) -ge $(($(total in_received) * 9)) ] || fail "the kernel path brought only $(total kernel_in) of $(total in_received) packets"
else
    # A flood that lost nothing would not show that losses are counted.
    [ "$(total tun_lost)" -gt 1000 ] || fail "the device's queue did not overflow: $(total tun_lost)"
    [ "$LOST" -gt 100 ] || fail "the socket's buffer did not overflow: $LOST"
fi
