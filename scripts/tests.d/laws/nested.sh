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
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

PORT=7000
COUNT=7

# inside NODE NUMBER: an address of its subnet.
inside() {
    if [ "$FAMILY" = 4 ]; then echo "10.244.$1.$2"; else echo "fd00:10:244:$1::$2"; fi
}

# nests WHAT FROM NODE TO VICTIM [KEY=VALUE...]: a case of forgeries.py. FROM sends to TO what a node would take for a
# packet to the pod VICTIM, of a pod of node3 if the keys do not say otherwise. It is counted at NODE.
nests() {
    printf '%s\tnode%s\tforged_encapsulation\t%s\t%s\n' "$2" "$3" "$1, to $4" "to=$4 formats=udp,vxlan
        count=$COUNT port=$PORT
        source=$(inside 3 9) destination=$(address_of "$5" "$FAMILY") source_mac=$(vtep_mac_of node1 "$FAMILY")
        destination_mac=$(vtep_mac_of "$(node_of_pod "$5")" "$FAMILY") ${*:6}" | paste -sd ' '
}

# everyone_else FROM NODE TO VICTIM: with every inner source that a pod of the node may like to be.
everyone_else() {
    local who node
    node=$(underlay_of "node$2" "$FAMILY")
    for who in "neighbour $(inside "$2" 7)" "node $node" "tunnel address $(inside "$2" 0)"; do
        [[ $who == *- ]] || nests "as its $who" "$@" "source=${who##* }"
    done
    nests "in fragments" "$@" "source=$(inside "$2" 7)" data=3000
}

# Of a family, by the underlay's that carries it, and by the other if there is one. A kernel device hears at each
# address of its node; a Service's endpoint may be a node's port, at the pod's node or at its peer, which takes what was
# masqueraded.
cases() {
    local near far third other
    near=$(underlay_of node1 "$OUTER") far=$(underlay_of node2 "$OUTER") third=$(underlay_of node3 "$OUTER")
    other=$(underlay_of node2 $((10 - OUTER)))
    everyone_else pod1 1 "$far" bridged
    everyone_else bridged 2 "$near" pod1
    everyone_else pod1 1 "$third" pod5
    nests "to its own node" pod1 1 "$near" pod2
    nests "to its own node" bridged 2 "$far" bridged
    nests "to a bridge" pod1 1 "$(inside 2 1)" bridged
    nests "to a tunnel address" pod1 1 "$(inside 3 0)" pod5
    to_node node1 "${SERVICE[OUTER]}" 9472 node2
    to_node node2 "$far" 9472 node2
    to_node node2 "$far" 9473 node3
    nests "by a Service" pod1 1 "${SERVICE[OUTER]}" bridged formats=vxlan outer_port=9472
    nests "by a Service of its peer" pod1 2 "$far" bridged formats=vxlan outer_port=9472
    nests "by a Service of its peer, to a third node" pod1 2 "$far" pod5 formats=vxlan outer_port=9473
    [ "$other" = - ] || nests "by the other family" pod1 1 "$other" bridged
    # Raw sockets forge outer addresses of nodes, which a translation leaves alone: of a pod on a bridge, and, towards
    # its own node, of a container of another program.
    [ "$OUTER" = 4 ] || return 0
    forges bridged "$near"
    forges bridged "$far"
    forges box "$far"
}

# forges FROM TO
forges() {
    printf '%s\tnode2\tforged_encapsulation\twith the outer address of a node, to %s\t%s\n' "$1" "$2" \
        "sources=$(underlay_of node1 4),$(underlay_of node3 4) destinations=$2 port=8472 count=$COUNT"
}

# to_node NODE ADDRESS PORT TARGET: that Service on NODE has a node's port as its endpoint.
to_node() {
    local family=ip endpoint
    [ "$OUTER" = 4 ] || family=ip6
    endpoint=$(socket_address "$(underlay_of "$4" "$OUTER")" 8472)
    in_ns "$1" nft -f - <<RULES
table inet services { chain to_node { type nat hook prerouting priority dstnat; }; }
add rule inet services to_node $family daddr $2 udp dport $3 dnat $family to $endpoint
RULES
}

# A container of another program, on a bridge that is no pod's.
container() {
    local space=$PREFIX-node2
    undo ip netns delete "$PREFIX-box"
    undo ip -n "$space" link delete docker0
    make_namespace box
    ip -n "$space" link add docker0 type bridge
    ip -n "$space" link add box master docker0 type veth peer name eth0 netns "$PREFIX-box"
    ip -n "$space" address add 172.17.0.1/24 dev docker0
    ip -n "$PREFIX-box" address add 172.17.0.2/24 dev eth0
    for DEVICE in docker0 box; do ip -n "$space" link set "$DEVICE" up; done
    ip -n "$PREFIX-box" link set eth0 up
    ip -n "$PREFIX-box" route add default via 172.17.0.1
}

# rightful FROM TO: a plain datagram, and one that looks like an overlay between pods, which pods may have.
rightful() {
    local to
    to=/dev/udp/$(address_of "$2" "$FAMILY")
    in_ns "$1" setpriv --bounding-set=-all --inh-caps=-all bash -c "echo rightful >$to/$PORT; echo rightful >$to/8472"
}

guard_knows() {
    [[ $(in_ns node1 nft list table inet tartan) == *"$1"* ]]
}

# node3 gets another address in the list of nodes: what pods of node1 send there is dropped within a second.
followed() {
    local list=$LAB_STATE/node1/nodes.toml new=192.0.2.250
    [ "$OUTER" = 4 ] || new=2001:db8:192::250
    cp "$list" "$SCRATCH/nodes.toml"
    undo cp "$SCRATCH/nodes.toml" "$list"
    sed "/^name = \"node3\"/a underlay-sources = [\"$new\"]" "$SCRATCH/nodes.toml" >"$list.new"
    mv "$list.new" "$list"
    until_true 1 "the guard knows $new" guard_knows "$new"
    forgeries "$(nests "to a new address" pod1 1 "$new" bridged)"
}

# What the rules' own counters of node1 say that it dropped.
dropped_by_rules() {
    in_ns node1 nft -j list table inet tartan | jq '[.nftables[].rule?
        | select(.chain == "guard" or .chain == "translated").expr
        | select(any(.[]; has("drop"))) | .[].counter?.packets // 0] | add'
}

# The rules stand without a service, and a killed one's successor finds them, by their numbers.
outlives() {
    local keeper service handles before case
    keeper=$(cat "$LAB_STATE/node1/pid") service=$(service_pid node1)
    handles=$(in_ns node1 nft -s -a list table inet tartan | grep '# handle')
    case=$(nests "after a crash" pod1 1 "$(underlay_of node2 "$OUTER")" bridged)
    # The keeper, stopped, starts no other service.
    undo goes_on "$keeper"
    kill -STOP "$keeper"
    kill -KILL "$service"
    until_true 5 "the service is dead" has_no_program "$service"
    before=$(dropped_by_rules)
    forgeries "${case/node1/-}"
    equal "dropped while the service is dead" $((2 * COUNT)) $(($(dropped_by_rules) - before))
    kill -CONT "$keeper"
    until_true 10 "the next service answers" tartan node1 status
    agents_are_ready
    forgeries "$case"
    same "rules before and after a crash" "$handles" "$(in_ns node1 nft -s -a list table inet tartan | grep '# handle')"
}

goes_on() {
    kill -CONT "$1" 2>/dev/null || true
}

# One that its parent has not asked for its exit code has no program either.
has_no_program() {
    ! readlink "/proc/$1/exe"
}

# The table stays when the agent stops. A kernel VXLAN device that takes over, as flanneld's, is not held up by it:
# node2 gets, and drops, what it sends.
taken_over() {
    local space=$PREFIX-node1 by_rules arrived
    undo lab start node1
    lab stop node1
    by_rules=$(dropped_by_rules) arrived=$(dropped node2 inbound)
    undo ip -n "$space" link delete overlay
    ip -n "$space" link add overlay type vxlan id 1 dstport 8472 nolearning \
        local "$(underlay_of node1 "$OUTER")" remote "$(underlay_of node2 "$OUTER")"
    in_ns node1 sysctl -qw net.ipv6.conf.overlay.disable_ipv6=1
    ip -n "$space" address add 10.77.0.1/24 dev overlay
    ip -n "$space" link set overlay up
    ip -n "$space" neighbour add 10.77.0.2 lladdr "$(vtep_mac_of node2 "$FAMILY")" dev overlay
    in_ns node1 ping -q -c "$COUNT" -i 0.01 -W 0.1 10.77.0.2 >/dev/null || true
    until_true 2 "all of it has arrived at node2" has_dropped node2 $((arrived + COUNT))
    equal "dropped of what a kernel VXLAN device sends" 0 $(($(dropped_by_rules) - by_rules))
}

has_dropped() {
    [ "$(dropped "$1" inbound)" -ge "$2" ]
}

SERVICE=([4]=10.96.0.9 [6]=fd00:10:96::9)
bridged_pod node2
container
for POD in pod1 bridged pod5; do sink "$POD" "$PORT"; done
for NODE in node1 node2; do undo in_ns "$NODE" nft delete table inet services; done
for FAMILY in "${FAMILIES[@]}"; do
    OUTER=$(carrier "$FAMILY" "$OUTSIDE")
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
