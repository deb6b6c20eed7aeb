#!/usr/bin/env bash
# Small packets of pods are gathered at the host's ends of their veths, at those of tartan-cni and at those of another
# plugin's bridge: the features are on there and nowhere else, are put back when another program changes them, and are
# restored by a clean-up. A flood of small datagrams loses nothing in its pod (where the kernel lets pods have a queue), no more is
# lost elsewhere than what is counted there, what arrives is in order, and there is a NAPI thread for as long as it lasts, also where
# the service is killed meanwhile. A light flow of the same pod loses nothing beside it.
#
#   pod1 ── tt… node1 tartan ══ underlay ══ tartan node2 tt… ── pod2, or cni0 ── veth… ── pod2 (stock bridge plugin)
#
# gathering.sh KIND: pods (of tartan-cni) or bridge (of another plugin)
# alone: it floods and measures
# full: pods
# case: bridge
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

KIND=$1
PORT=7011
SECONDS_OF_FLOOD=4
PINGS=200
# Of 100 pings beside the flood.
MOST_LOST=1
TRIES=3
# Datagrams that GRO joins at most (net/ipv4/udp_offload.c, UDP_GRO_CNT_MAX): a queue or a socket counts them as one.
GATHERED=64

# end_of NODE ADDRESS: the host's end that a pod's route leads to.
end_of() {
    ip -n "$PREFIX-$1" -j route get "$2" | jq -r '.[0].dev'
}

# features NODE DEVICE: of the two, those that are on, in one line.
features() {
    in_ns "$1" ethtool -k "$2" | sed -nE 's/^(generic-receive-offload|rx-udp-gro-forwarding): on.*/\1/p' | sort | paste -sd ' '
}

BOTH="generic-receive-offload rx-udp-gro-forwarding"

gathers() {
    [ "$(features "$1" "$2")" = "$BOTH" ]
}

gathers_not() {
    [ -z "$(features "$1" "$2")" ]
}

# threaded NODE DEVICE: 1 while its NAPI has a thread.
threaded() {
    in_ns "$1" cat "/sys/class/net/$2/threaded"
}

is_threaded() {
    [ "$(threaded "$1" "$2")" = "$3" ]
}

gathering() {
    agent_json "$1" status | jq ".gathering.$2"
}

# is NODE FIELD VALUE: whether the status says so.
is() {
    [ "$(gathering "$1" "$2")" = "$3" ]
}

repaired() {
    [ "$(agent_json "$1" status | jq .repairs)" -gt "$2" ]
}

own_pods() {
    local before end address old
    address=$(address_of pod1)
    end=$(end_of node1 "$address")
    lab_facts "$end"
    flood_arrives "$end"
    in_order
    light_beside_flood

    say "a service that is killed during a flood leaves no thread"
    flood_to "$(address_of pod2)"
    until_true 3 "a NAPI thread for $end" is_threaded node1 "$end" 1
    old=$(service_pid node1)
    kill -KILL "$old"
    wait "$FLOODER" || true
    until_true 5 "the thread of $end goes" is_threaded node1 "$end" 0
    until_true 5 "no pod floods" is node1 flooding 0

    say "what another program changes is put back, and counted"
    before=$(agent_json node1 status | jq .repairs)
    in_ns node1 ethtool -K "$end" rx-udp-gro-forwarding off gro off
    until_true 12 "$end gathers again" gathers node1 "$end"
    until_true 2 "the repair is counted" repaired node1 "$before"

    say "gather = false"
    lab stop node1
    mkdir -p "$LAB_STATE/node1/etc/tartan"
    echo 'gather = false' >>"$LAB_STATE/node1/etc/tartan/tartan.toml"
    lab start node1
    until_true 3 "$end gathers no more" gathers_not node1 "$end"
    equal "gathering is off" false "$(gathering node1 on)"
    reached
    law_one node1
    law_one node2
}

# What is set right after ADD, $1 the host's end.
lab_facts() {
    equal "features of $1" "$BOTH" "$(features node1 "$1")"
    equal "features of the underlay are not touched" "$(in_ns node1 ethtool -k eth0 | grep -c 'rx-udp-gro-forwarding: on')" 0
    until_true 3 "the status counts the ends" is node1 interfaces 1
    equal "NAPI thread at rest" 0 "$(threaded node1 "$1")"
    if [ "$(gathering node1 queues)" = true ]; then
        equal "queue of the pod's end" pfifo "$(ip netns exec "$PREFIX-pod1" tc -j qdisc show dev eth0 | jq -r '.[0].kind')"
    else
        say "no queues in pods: $(gathering node1 no_queues)"
        equal "queue of the pod's end" noqueue "$(ip netns exec "$PREFIX-pod1" tc -j qdisc show dev eth0 | jq -r '.[0].kind')"
    fi
    equal "repairs at the start" 0 "$(agent_json node1 status | jq .repairs)"
}

reached() {
    in_ns pod1 ping -n -q -c 3 -i 0.05 -W 1 "$(address_of pod2)" >"$SCRATCH/ping" || fail "ping"
}

# flood_to ADDRESS: from pod1, in the background.
flood_to() {
    start_in pod1 "$LOAD" flood --to "$(socket_address "$1" "$PORT")" --size 64 --flows 2 --seconds "$SECONDS_OF_FLOOD" >"$SCRATCH/flood"
    FLOODER=$PID
}

# What the sockets of pod2 had no room for: it had arrived, and says how busy the sink is and not how good the network.
overflowed() {
    in_ns pod2 nstat -asz UdpRcvbufErrors | awk '/^Udp/ { print $2 }'
}

# lost_in_pod END: datagrams of pod1 that did not come as far as the host: dropped by the queueing discipline of eth0, by eth0,
# or by the host's end.
lost_in_pod() {
    local queue device end
    queue=$(ip netns exec "$PREFIX-pod1" tc -s -j qdisc show dev eth0 | jq '.[0].drops')
    device=$(ip -n "$PREFIX-pod1" -s -j link show eth0 | jq '.[0].stats64.tx.dropped')
    end=$(ip -n "$PREFIX-node1" -s -j link show "$1" | jq '.[0].stats64.rx.dropped')
    echo $((queue + device + end))
}

# named_losses: what both nodes count as dropped, by whatever reason and at whatever place. Some places count what was gathered as
# one.
named_losses() {
    local node
    for node in node1 node2; do
        agent_json "$node" drops | jq '[.kernel[] | select(.counter | test("drop")).count] + [.reasons[].count] | add'
    done | jq -s add
}

# flood_arrives END: through the host's end of pod1. How much of it arrives is a matter of how many cores there are for how many
# threads (scripts/bench measures it); that none of it is lost in the pod, and none without a name, is not.
flood_arrives() {
    local sink sent arrived full in_pod named
    full=$(overflowed)
    in_pod=$(lost_in_pod "$1")
    named=$(named_losses)
    say "a flood arrives"
    start_in pod2 "$LOAD" sink --listen "$(socket_address "$(address_of pod2)" "$PORT")" --seconds $((SECONDS_OF_FLOOD + 2)) >"$SCRATCH/sink"
    sink=$PID
    until_true 5 "the sink listens" is_bound pod2 udp "$PORT"
    flood_to "$(address_of pod2)"
    until_true 3 "a NAPI thread for $1" is_threaded node1 "$1" 1
    until_true 2 "the status tells of the flood" is node1 flooding 1
    wait "$FLOODER" || fail "the flood ended with an error"
    until_true 3 "the thread of $1 goes" is_threaded node1 "$1" 0
    wait "$sink" || fail "the sink ended with an error"
    sent=$(jq .sent "$SCRATCH/flood")
    full=$(($(overflowed) - full))
    arrived=$(($(jq .received "$SCRATCH/sink") + full))
    in_pod=$(($(lost_in_pod "$1") - in_pod))
    named=$(($(named_losses) - named))
    say "flood of 64 bytes: $sent sent, $arrived arrived, $full of them at a full socket; counted as lost: $named times"
    [ "$sent" -gt 200000 ] || fail "the flood sent only $sent, which is none"
    at_most "datagrams that arrived" "$sent" "$arrived"
    measured_at_most "of 100 datagrams of the flood lost" 50 $(((sent - arrived) * 100 / sent))
    if [ "$(gathering node1 queues)" = true ]; then equal "datagrams lost in the pod" 0 "$in_pod"; fi
    at_most "datagrams lost outside the pod" $((named * GATHERED)) $((sent - arrived - in_pod))
}

# keep_cores LIST: the threads of both nodes' services run there alone. One that changes cores overtakes itself in the kernel
# (accounting.sh).
keep_cores() {
    local node
    for node in node1 node2; do
        taskset -a -p -c "$1" "$(service_pid "$node")" >/dev/null || fail "the cores of $node's service"
    done
}

in_order() {
    local count
    say "datagrams that are gathered keep their order"
    start_in pod2 "$LOAD" count "$PORT" >"$SCRATCH/count"
    count=$PID
    until_true 5 "the counter listens" is_bound pod2 udp "$PORT"
    keep_cores 0
    in_ns pod1 taskset -c 0 "$LOAD" send --to "$(socket_address "$(address_of pod2)" "$PORT")" --size 64 --count 200000 >/dev/null || fail "sending"
    sleep 0.5
    stop "$count"
    keep_cores "0-$(($(nproc) - 1))"
    equal "datagrams that came behind a later one" 0 "$(jq ".\"$PORT\".late" "$SCRATCH/count")"
    equal "datagrams that came twice" 0 "$(jq ".\"$PORT\".twice" "$SCRATCH/count")"
    [ "$(jq ".\"$PORT\".count" "$SCRATCH/count")" -gt 100000 ] || fail "too few arrived: $(cat "$SCRATCH/count")"
}

# A service that gets no processor for tens of milliseconds loses packets of whatever flow, so where the machine is busy it
# is tried again: what gathering costs a light flow it costs at each try.
light_beside_flood() {
    local lost turn least=100
    for ((turn = 1; turn <= TRIES && least > MOST_LOST; turn++)); do
        say "a light flow of the pod that floods, try $turn"
        flood_to "$(address_of pod2)"
        sleep 0.5
        in_ns pod1 ping -n -i 0.01 -c "$PINGS" -W 2 "$(address_of pod2)" >"$SCRATCH/pings" || true
        wait "$FLOODER" || fail "the flood ended with an error"
        tail -n 2 "$SCRATCH/pings"
        lost=$(((PINGS - $(grep -c ' time=' "$SCRATCH/pings")) * 100 / PINGS))
        if [ "$lost" -lt "$least" ]; then least=$lost; fi
    done
    if [ "$(gathering node1 queues)" = true ]; then
        measured_at_most "pings lost of 100, at the best try" "$MOST_LOST" "$least"
    fi
}

# Node 2's pod hangs on a bridge that a plugin of flannel's makes; docker0 is another program's.
bridge_pods() {
    local env=$LAB_STATE/node2/run/flannel/subnet.env result address
    lab detach node2
    result=$(stock ADD node2 pod2) || die "the stock plugin says: $result"
    address=$(jq -r '[.ips[].address | split("/")[0]][0]' <<<"$result")
    ip -n "$PREFIX-node2" link add docker0 type bridge
    ip -n "$PREFIX-node2" address add 172.17.0.1/16 dev docker0
    ip -n "$PREFIX-node2" link set docker0 up
    make_namespace docker
    ip -n "$PREFIX-node2" link add vethdocker type veth peer name eth0 netns "$PREFIX-docker"
    ip -n "$PREFIX-node2" link set vethdocker master docker0 up
    END=$(ip -n "$PREFIX-node2" -j link show master cni0 | jq -r '.[0].ifname')
    until_true 12 "$END on cni0 gathers" gathers node2 "$END"
    gathers_not node2 vethdocker || fail "vethdocker gathers, which is no pod's"
    until_true 3 "the status counts it" is node2 interfaces 1
    equal "repairs, of what is set up" 0 "$(agent_json node2 status | jq .repairs)"
    in_ns pod1 ping -n -q -c 3 -i 0.05 -W 1 "$address" >/dev/null || fail "ping to the pod on the bridge"
    say "gather = false restores, gather = true sets it again"
    with_gather false
    until_true 3 "$END gathers no more" gathers_not node2 "$END"
    with_gather true
    until_true 3 "$END gathers" gathers node2 "$END"
    say "a clean-up restores what no other program has changed"
    lab stop node2
    in_ns node2 ethtool -K "$END" gro off
    tartan node2 cleanup >"$SCRATCH/cleanup" || fail "cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    gathers_not node2 "$END" || fail "features after the clean-up: $(features node2 "$END")"
    grep -q "rx-udp-gro-forwarding of $END" "$SCRATCH/cleanup" || fail "cleanup does not tell: $(cat "$SCRATCH/cleanup")"
    lab start node2
    until_true 3 "$END gathers, after a new start" gathers node2 "$END"
    law_one node1
}

with_gather() {
    lab stop node2
    mkdir -p "$LAB_STATE/node2/etc/tartan"
    echo "gather = $1" >"$LAB_STATE/node2/etc/tartan/tartan.toml"
    lab start node2
}

say "gathering at the ends of pods: $KIND"
lab_up --nodes 2 --pods 1
case $KIND in
pods) own_pods ;;
bridge) bridge_pods ;;
*) die "there is no kind '$KIND'" ;;
esac
