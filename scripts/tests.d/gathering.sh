#!/usr/bin/env bash
# Small packets of pods are gathered at the host's ends of their veths, at those of tartan-cni and at those of another
# plugin's bridge: the features are on there and nowhere else, are put back when another program changes them, are off
# with gather = false, and are restored by a clean-up. With --full: a flood of small datagrams loses nothing in its pod
# (where the kernel lets pods have a queue), and there is a NAPI thread for as long as it lasts. A light flow of that
# pod loses nothing beside it.
#
#   pod1, pod2 ── tt… node1 tartan ══ underlay ══ tartan node2 tt… ── pod4, cni0 ── veth… ── pod3 (stock bridge plugin)
# alone: it floods and measures
# case:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/stock.sh"

# features NODE DEVICE: of the two, those that are on, in one line.
features() {
    in_ns "$1" ethtool -k "$2" | sed -nE 's/^(generic-receive-offload|rx-udp-gro-forwarding): on.*/\1/p' | sort |
        paste -sd ' '
}

# gathers NODE DEVICE yes|no
gathers() {
    local wanted=
    if [ "$3" = yes ]; then wanted="generic-receive-offload rx-udp-gro-forwarding"; fi
    until_true 12 "$2 of $1 gathers: $3" eval "[ \"\$(features $1 $2)\" = '$wanted' ]"
}

# says NODE CONDITION: the status does.
says() {
    agent_json "$1" status | jq -e "$2"
}

threaded() {
    grep -qx "$1" <<<"$(in_ns node1 cat "/sys/class/net/$END/threaded")"
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
    until_true 3 "the status counts the ends, and no repair" says node1 ".gathering.interfaces == 2 and .repairs == 0"
    threaded 0 || fail "a NAPI thread at rest"
    if says node1 .gathering.queues >/dev/null; then queue=pfifo; fi
    equal "queue of the pod's end" "$queue" "$(in_ns pod1 tc -j qdisc show dev eth0 | jq -r '.[0].kind')"
    in_ns node1 ethtool -K "$END" rx-udp-gro-forwarding off gro off
    gathers node1 "$END" yes
    until_true 2 "the repair is counted" says node1 ".repairs > 0"
}

# pod3 hangs on a bridge that a plugin of flannel's makes; docker0 is another program's.
bridge_pods() {
    local result end
    lab detach node2
    result=$(stock ADD node2 pod3) || die "the stock plugin says: $result"
    FAR=$(jq -r '[.ips[].address | split("/")[0]][0]' <<<"$result")
    make_namespace docker
    ip -n "$PREFIX-node2" -b - <<COMMANDS
link add docker0 type bridge
address add 172.17.0.1/16 dev docker0
link set docker0 up
link add vethdocker type veth peer name eth0 netns $PREFIX-docker
link set vethdocker master docker0 up
COMMANDS
    end=$(ip -n "$PREFIX-node2" -j link show master cni0 | jq -r '.[0].ifname')
    gathers node2 "$end" yes
    equal "features of what is no pod's" "" "$(features node2 vethdocker)"
    until_true 3 "the status counts it, and no repair" says node2 ".gathering.interfaces == 1 and .repairs == 0"
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

# How much of it arrives is a matter of how many cores there are for how many threads (scripts/bench measures it).
flood() {
    local flooder light
    sink pod3 7011
    start_in pod1 "$LOAD" flood --to "$FAR:7011" --size 64 --flows 2 --seconds 4 >"$SCRATCH/flood"
    flooder=$PID
    until_true 3 "a NAPI thread for $END" threaded 1
    until_true 2 "the status tells of the flood" says node1 ".gathering.flooding == 1"
    light=$(in_ns pod1 python3 "$TOOLS/pings.py" "$FAR" 100 0.01 2)
    wait "$flooder" || fail "the flood ended with an error"
    until_true 3 "the thread of $END goes" threaded 0
    says node1 .gathering.queues >/dev/null || return 0
    equal "datagrams of the flood behind a later one, or twice" '[0,0]' "$(sunk pod3 '[.late, .twice]')"
    equal "datagrams lost in the pod" 0 "$(in_ns pod1 tc -s -j qdisc show dev eth0 | jq '.[0].drops')"
    at_most "pings of the same pod lost, of 100" 4 $((100 - ${light%% *}))
}

lab_up --nodes 2 --pods 2
END=$(ip -n "$PREFIX-node1" -j route get "$(address_of pod1)" | jq -r '.[0].dev')
own_pods
bridge_pods
if [ -n "${FULL:-}" ]; then flood; fi
with_gather node1 false
gathers node1 "$END" no
law_one node1
law_one node2
