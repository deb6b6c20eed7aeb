#!/usr/bin/env bash
# A pod writes encapsulated packets itself and sends them by UDP from an ordinary socket to the addresses of nodes. Its
# node would translate them, and the receivers would know them for that node's. None arrives, each is counted where it
# leaves the pod, and what else pods say still arrives. The rules follow a node's new address, outlive the service, and
# let a kernel VXLAN device's datagrams pass that takes over from a stopped agent.
# labs: inside=dual outside=dual
# labs: inside=dual registry=file kernel-path=auto
# full: inside=v6
# full: registry=file
# full: format=vxlan inside=v4
# last: it kills the service of a node
. "$TOOLS/stock.sh"

PORT=7000
COUNT=7

# inside NODE NUMBER: an address of its subnet.
inside() {
    if [ "$FAMILY" = 4 ]; then echo "10.244.$1.$2"; else echo "fd00:10:244:$1::$2"; fi
}

# nests WHAT FROM NODE TO VICTIM [KEY=VALUE...]: a case of forge.py. FROM sends to TO what a node would take for a
# packet to the pod VICTIM, of a pod of node3 if the keys do not say otherwise. It is counted at NODE.
nests() {
    printf '%s\tnode%s\tforged_encapsulation\t%s\t%s\n' "$2" "$3" "$1, to $4" "to=$4 formats=udp,vxlan
        count=$COUNT port=$PORT
        source=$(inside 3 9) destination=$(address_of "$5" "$FAMILY") source_mac=$(vtep_mac_of node1 "$FAMILY")
        destination_mac=$(vtep_mac_of "$(node_of_pod "$5")" "$FAMILY") ${*:6}" | paste -sd ' '
}

# everyone_else FROM NODE TO VICTIM: with every inner source that a pod of the node may like to be.
everyone_else() {
    local who
    for who in "neighbour $(inside "$2" 7)" "node $(underlay_of "node$2" "$FAMILY")" "tunnel $(inside "$2" 0)"; do
        [[ $who == *- ]] || nests "as its $who" "$@" "source=${who##* }"
    done
    nests "in fragments" "$@" "source=$(inside "$2" 7)" data=3000
}

# Of a family, by the underlay's that carries it, and by the other if there is one. A kernel device hears at each
# address of its node; a Service's endpoint may be a node's port, at the pod's node or at its peer, which takes what was
# masqueraded.
cases() {
    local near far third other to
    near=$(underlay_of node1 "$OUTER") far=$(underlay_of node2 "$OUTER") third=$(underlay_of node3 "$OUTER")
    other=$(underlay_of node2 $((10 - OUTER)))
    everyone_else pod1 1 "$far" bridged
    everyone_else bridged 2 "$near" pod1
    everyone_else pod1 1 "$third" pod5
    nests "to its own node" pod1 1 "$near" pod2
    nests "to its own node" bridged 2 "$far" bridged
    nests "to a bridge" pod1 1 "$(inside 2 1)" bridged
    nests "to a tunnel address" pod1 1 "$(inside 3 0)" pod5
    leads node1 "$SERVICE" 9472 "$far"
    leads node2 "$far" 9472 "$far"
    leads node2 "$far" 9473 "$third"
    nests "by a Service" pod1 1 "$SERVICE" bridged formats=vxlan outer_port=9472
    nests "by a Service of its peer" pod1 2 "$far" bridged formats=vxlan outer_port=9472
    nests "by a Service of its peer, to a third node" pod1 2 "$far" pod5 formats=vxlan outer_port=9473
    [ "$other" = - ] || nests "by the other family" pod1 1 "$other" bridged
    # Raw sockets forge outer addresses of nodes, which a translation leaves alone: of a pod on a bridge, and, towards
    # its own node, of a container of another program.
    [ "$OUTER" = 4 ] || return 0
    for to in "bridged $near" "bridged $far" "box $far"; do
        printf '%s\tnode2\tforged_encapsulation\t%s\t%s\n' "${to% *}" "with the outer address of a node, to ${to#* }" \
            "sources=$near,$third destinations=${to#* } port=8472 count=$COUNT"
    done
}

# leads NODE ADDRESS PORT TARGET: that Service on NODE has the VXLAN port of the node at TARGET as its endpoint.
leads() {
    local family=ip
    [ "$OUTER" = 4 ] || family=ip6
    in_ns "$1" nft "table inet services { chain to_node { type nat hook prerouting priority dstnat; }; }
        add rule inet services to_node $family daddr $2 udp dport $3 dnat $family to $(socket_address "$4" 8472)"
}

# A container of another program, on a bridge that is no pod's.
container() {
    undo ip netns delete "$PREFIX-box"
    undo ip -n "$PREFIX-node2" link delete docker0
    make_namespace box
    ip -n "$PREFIX-node2" -b - <<COMMANDS
link add docker0 up type bridge
address add 172.17.0.1/24 dev docker0
link add box up master docker0 type veth peer name eth0 netns $PREFIX-box
COMMANDS
    ip -n "$PREFIX-box" -b - <<COMMANDS
address add 172.17.0.2/24 dev eth0
link set eth0 up
route add default via 172.17.0.1
COMMANDS
}

# rightful FROM TO: a plain datagram, and one that looks like an overlay between pods, which pods may have.
rightful() {
    local to
    to=/dev/udp/$(address_of "$2" "$FAMILY")
    in_ns "$1" setpriv --bounding-set=-all --inh-caps=-all bash -c "echo rightful >$to/$PORT; echo rightful >$to/8472"
}

# rules [OPTION...]: those of node1.
rules() {
    in_ns node1 nft "$@" list table inet tartan
}

# node3 gets another address in the list of nodes: what pods of node1 send there is dropped within a second.
followed() {
    local list=$LAB_STATE/node1/nodes.toml new=192.0.2.250
    [ "$OUTER" = 4 ] || new=2001:db8:192::250
    cp "$list" "$SCRATCH/nodes.toml"
    undo cp "$SCRATCH/nodes.toml" "$list"
    sed "/^name = \"node3\"/a underlay-sources = [\"$new\"]" "$SCRATCH/nodes.toml" >"$list.new"
    mv "$list.new" "$list"
    until_true 1 "the guard knows $new" in_ns node1 nft get element inet tartan "nodes$OUTER" "{ $new }"
    forgeries "$(nests "to a new address" pod1 1 "$new" bridged)"
}

# What the rules' own counters of node1 say that it dropped.
dropped_by_rules() {
    rules -j | jq '[.nftables[].rule? | select(.chain == "guard" or .chain == "translated").expr
        | select(any(.[]; has("drop"))) | .[].counter?.packets // 0] | add'
}

# The rules stand without a service, and a killed one's successor finds them, by their numbers.
outlives() {
    local keeper service handles before case
    keeper=$(cat "$LAB_STATE/node1/pid") service=$(service_pid node1)
    handles=$(rules -s -a | grep '# handle')
    case=$(nests "after a crash" pod1 1 "$(underlay_of node2 "$OUTER")" bridged)
    # The keeper, stopped, starts no other service.
    undo eval "kill -CONT $keeper 2>/dev/null || true"
    kill -STOP "$keeper"
    kill -KILL "$service"
    # One that its parent has not asked for its exit code has no program either.
    until_true 5 "the service is dead" eval "! readlink /proc/$service/exe"
    before=$(dropped_by_rules)
    forgeries "${case/node1/-}"
    equal "dropped while the service is dead" $((2 * COUNT)) $(($(dropped_by_rules) - before))
    kill -CONT "$keeper"
    until_true 10 "the next service answers" tartan node1 status
    agents_are_ready
    forgeries "$case"
    same "rules before and after a crash" "$handles" "$(rules -s -a | grep '# handle')"
}

# The table stays when the agent stops. A kernel VXLAN device that takes over, as flanneld's, is not held up by it:
# node2 gets, and drops, what the node itself sends.
taken_over() {
    local by_rules case
    undo lab start node1
    lab stop node1
    by_rules=$(dropped_by_rules)
    case=$(nests "from a stopped node" node1 2 "$(underlay_of node2 "$OUTER")" bridged formats=vxlan)
    forgeries "${case/forged_encapsulation/received+NotPeersSource}"
    equal "dropped by the rules of what node1 sends" 0 $(($(dropped_by_rules) - by_rules))
}

bridged_pod node2
container
for POD in pod1 bridged pod5; do sink "$POD" "$PORT"; done
for NODE in node1 node2; do undo in_ns "$NODE" nft delete table inet services; done
for FAMILY in "${FAMILIES[@]}"; do
    OUTER=$(carrier "$FAMILY" "$OUTSIDE") SERVICE=10.96.0.9
    [ "$OUTER" = 4 ] || SERVICE=fd00:10:96::9
    until_true 5 "the bridged pod answers" in_ns node2 ping -n -q -c 1 -W 1 "$(address_of bridged "$FAMILY")"
    forgeries "$(cases)"
    rightful pod1 bridged
    rightful bridged pod1
    rightful pod1 pod5
done
if [ "$REGISTRY" = file ]; then followed; fi
outlives
for POD in pod1 bridged pod5; do equal "datagrams that reached $POD" "${#FAMILIES[@]}" "$(sunk "$POD" .count)"; done
law_one node1
taken_over
