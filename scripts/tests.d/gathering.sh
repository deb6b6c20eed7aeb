#!/usr/bin/env bash
# Small packets of pods are gathered at the host's ends of their veths, at those of tartan-cni and at those of another
# plugin's bridge: the features are on there and nowhere else, are put back when another program changes them, are off
# with gather = false, and are restored by a clean-up. With --full: a flood of small datagrams loses nothing in its pod
# (where the kernel lets pods have a queue), no more is lost elsewhere than what is counted there, what arrives is in
# order, and there is a NAPI thread for as long as it lasts, also where the service is killed meanwhile. A light flow of
# the same pod loses nothing beside it.
#
#   pod1, pod2 ── tt… node1 tartan ══ underlay ══ tartan node2 tt… ── pod4, cni0 ── veth… ── pod3 (stock bridge plugin)
# alone: it floods and measures
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

PORT=7011
SECONDS_OF_FLOOD=4
# Datagrams that GRO joins at most (net/ipv4/udp_offload.c, UDP_GRO_CNT_MAX): a queue or a socket counts them as one.
GATHERED=64
BOTH="generic-receive-offload rx-udp-gro-forwarding"

# features NODE DEVICE: of the two, those that are on, in one line.
features() {
    in_ns "$1" ethtool -k "$2" | sed -nE 's/^(generic-receive-offload|rx-udp-gro-forwarding): on.*/\1/p' | sort |
        paste -sd ' '
}

has_features() {
    [ "$(features "$1" "$2")" = "$3" ]
}

# gathers NODE DEVICE yes|no
gathers() {
    local wanted=
    if [ "$3" = yes ]; then wanted=$BOTH; fi
    until_true 12 "$2 of $1 gathers: $3" has_features "$1" "$2" "$wanted"
}

# is NODE FIELD VALUE: whether the status says so of gathering.
is() {
    [ "$(agent_json "$1" status | jq ".gathering.$2")" = "$3" ]
}

threaded() {
    [ "$(in_ns node1 cat "/sys/class/net/$END/threaded")" = "$1" ]
}

# with_gather NODE VALUE
with_gather() {
    lab stop "$1"
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "gather = $2" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
    lab start "$1"
}

# What is set after ADD, and what another program changes.
own_pods() {
    local queue=noqueue
    gathers node1 "$END" yes
    equal "features of the underlay" "" "$(features node1 eth0 | grep -o rx-udp-gro-forwarding)"
    until_true 3 "the status counts the ends" is node1 interfaces 2
    threaded 0 || fail "a NAPI thread at rest"
    if is node1 queues true; then queue=pfifo; fi
    equal "queue of the pod's end" "$queue" \
        "$(ip netns exec "$PREFIX-pod1" tc -j qdisc show dev eth0 | jq -r '.[0].kind')"
    equal "repairs at the start" 0 "$(agent_json node1 status | jq .repairs)"
    in_ns node1 ethtool -K "$END" rx-udp-gro-forwarding off gro off
    gathers node1 "$END" yes
    until_true 2 "the repair is counted" is_repaired node1
}

is_repaired() {
    [ "$(agent_json "$1" status | jq .repairs)" -gt 0 ]
}

# pod3 hangs on a bridge that a plugin of flannel's makes; docker0 is another program's.
bridge_pods() {
    local result end
    lab detach node2
    result=$(stock ADD node2 pod3) || die "the stock plugin says: $result"
    FAR=$(jq -r '[.ips[].address | split("/")[0]][0]' <<<"$result")
    ip -n "$PREFIX-node2" link add docker0 type bridge
    ip -n "$PREFIX-node2" address add 172.17.0.1/16 dev docker0
    ip -n "$PREFIX-node2" link set docker0 up
    make_namespace docker
    ip -n "$PREFIX-node2" link add vethdocker type veth peer name eth0 netns "$PREFIX-docker"
    ip -n "$PREFIX-node2" link set vethdocker master docker0 up
    end=$(ip -n "$PREFIX-node2" -j link show master cni0 | jq -r '.[0].ifname')
    gathers node2 "$end" yes
    equal "features of what is no pod's" "" "$(features node2 vethdocker)"
    until_true 3 "the status counts it" is node2 interfaces 1
    equal "repairs, of what is set up" 0 "$(agent_json node2 status | jq .repairs)"
    equal "ping of the pod on the bridge" "3 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$FAR" 3 0.05 5)"
    with_gather node2 false
    gathers node2 "$end" no
    with_gather node2 true
    gathers node2 "$end" yes
    say "a clean-up restores what no other program has changed"
    lab stop node2
    in_ns node2 ethtool -K "$end" gro off
    tartan node2 cleanup >"$SCRATCH/cleanup" || fail "cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    gathers node2 "$end" no
    grep -q "rx-udp-gro-forwarding of $end" "$SCRATCH/cleanup" || fail "the clean-up says: $(cat "$SCRATCH/cleanup")"
    lab start node2
    gathers node2 "$end" yes
}

# A flood from pod1, in the background.
flood() {
    start_in pod1 "$LOAD" flood --to "$FAR:$PORT" --size 64 --flows 2 --seconds "$SECONDS_OF_FLOOD" >"$SCRATCH/flood"
    FLOODER=$PID
    until_true 3 "a NAPI thread for $END" threaded 1
}

# What the sockets of pod3 had no room for: it had arrived, and says how busy the sink is and not how good the network.
overflowed() {
    in_ns pod3 nstat -asz UdpRcvbufErrors | awk '/^Udp/ { print $2 }'
}

# Datagrams of pod1 that did not come as far as the host: dropped by the queueing discipline of eth0, by eth0, or by the
# host's end.
lost_in_pod() {
    local queue
    queue=$(ip netns exec "$PREFIX-pod1" tc -s -j qdisc show dev eth0 | jq '.[0].drops')
    echo $((queue + $(device_count pod1 eth0 tx_dropped) + $(device_count node1 "$END" rx_dropped)))
}

# What both nodes count as dropped, by whatever reason and at whatever place. Some places count what was gathered as
# one.
named_losses() {
    local node
    for node in node1 node2; do
        agent_json "$node" drops | jq '[.kernel[] | select(.counter | test("drop")).count] + [.reasons[].count] | add'
    done | jq -s add
}

# How much of it arrives is a matter of how many cores there are for how many threads (scripts/bench measures it); that
# none of it is lost in the pod, and none without a name, is not.
flood_arrives() {
    local sink light sent arrived full in_pod named
    full=$(overflowed) in_pod=$(lost_in_pod) named=$(named_losses)
    start_in pod3 "$LOAD" sink --listen "$FAR:$PORT" --seconds $((SECONDS_OF_FLOOD + 2)) >"$SCRATCH/sink"
    sink=$PID
    until_true 5 "the sink listens" is_bound pod3 udp "$PORT"
    flood
    until_true 2 "the status tells of the flood" is node1 flooding 1
    light=$(in_ns pod1 python3 "$TOOLS/pings.py" "$FAR" 200 0.01 2)
    wait "$FLOODER" || fail "the flood ended with an error"
    wait "$sink" || fail "the sink ended with an error"
    until_true 3 "the thread of $END goes" threaded 0
    sent=$(jq .sent "$SCRATCH/flood")
    arrived=$(($(jq .received "$SCRATCH/sink") + $(overflowed) - full))
    in_pod=$(($(lost_in_pod) - in_pod)) named=$(($(named_losses) - named))
    [ "$sent" -gt 200000 ] || fail "the flood sent only $sent, which is none"
    at_most "datagrams that arrived" "$sent" "$arrived"
    at_most "of 100 datagrams of the flood lost" 50 $(((sent - arrived) * 100 / sent))
    if is node1 queues true; then
        equal "datagrams lost in the pod" 0 "$in_pod"
        at_most "pings of the same pod lost, of 200" 4 $((200 - ${light%% *}))
    fi
    at_most "datagrams lost outside the pod" $((named * GATHERED)) $((sent - arrived - in_pod))
}

# keep_cores LIST: the threads of both nodes' services run there alone. One that changes cores overtakes itself in the
# kernel.
keep_cores() {
    local node
    for node in node1 node2; do
        taskset -a -p -c "$1" "$(service_pid "$node")" >/dev/null || fail "the cores of $node's service"
    done
}

in_order() {
    local count
    start_in pod3 "$LOAD" count "$PORT" >"$SCRATCH/count"
    count=$PID
    until_true 5 "the counter listens" is_bound pod3 udp "$PORT"
    keep_cores 0
    in_ns pod1 taskset -c 0 "$LOAD" send --to "$FAR:$PORT" --size 64 --count 200000 >/dev/null || fail "sending"
    sleep 0.5
    stop "$count"
    keep_cores "0-$(($(nproc) - 1))"
    equal "datagrams behind a later one, twice, and whether enough came" "[0,0,true]" \
        "$(jq -c ".\"$PORT\" | [.late, .twice, .count > 100000]" "$SCRATCH/count")"
}

killed_in_flood() {
    flood
    kill -KILL "$(service_pid node1)"
    wait "$FLOODER" || true
    until_true 5 "the thread of $END goes" threaded 0
    until_true 5 "no pod floods" is node1 flooding 0
}

lab_up --nodes 2 --pods 2
END=$(ip -n "$PREFIX-node1" -j route get "$(address_of pod1)" | jq -r '.[0].dev')
own_pods
bridge_pods
if [ -n "${FULL:-}" ]; then
    flood_arrives
    in_order
    killed_in_flood
fi
with_gather node1 false
gathers node1 "$END" no
law_one node1
law_one node2
