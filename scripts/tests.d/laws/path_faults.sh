#!/usr/bin/env bash
# Every fault of the path to a peer is shown by `tartan status`, `tartan doctor` and `tartan peers` of the nodes that it
# concerns, with exit code 1, within 10 s, and is gone from all of them within 10 s of its end; TCP goes on through a path that
# becomes narrow. A peer that is dead when an agent starts is silent, where it answered before. Three faults at once: each path
# has one of its own.
# labs: probes=on third=tartan outside!=dual
# seconds: 400
# last: it starts agents anew
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

# Two of the underlay's families would be two paths to a peer: what is heard by one is a sign of life.
case $OUTSIDE in
v6) FAMILY=6 IP=ip6 ICMP=icmpv6 HEADER=40 ;;
*) FAMILY=4 IP=ip ICMP=icmp HEADER=0 ;;
esac
case $BACKEND in
vxlan) PORT=8472 ;;
udp) PORT=8285 ;;
esac
# Bytes, on the path from node1 to node3; in bytes of an IPv6 header's length the header itself is not counted.
NARROW=1405
THREE=$(underlay_of node3 "$FAMILY")
LIST=$LAB_STATE/node2/nodes.toml

# on_the_way NODE RULE: what the switch does with what a node sends.
on_the_way() {
    ip netns exec "$PREFIX-net" nft -f - <<RULES
table netdev way-$1 { chain from { type filter hook ingress device "$1" priority 0; $IP daddr $2 drop; }; }
RULES
}

the_way_is_free() {
    ip netns exec "$PREFIX-net" nft delete table netdev "way-$1"
}

# refuse NODE HOOK VERDICT: what the node's packet filter does with what node2 sends to node3.
refuse() {
    in_ns "$1" nft -f - <<RULES
table inet refusing { chain port { type filter hook $2 priority 0; $IP daddr $THREE udp dport $PORT $3; }; }
RULES
}

# wrong_macs: node2's list has other MACs for node3, whose pods' packets show it the real one.
wrong_macs() {
    awk '{ print } /^name = "node3"/ { print "vtep-mac = \"0a:74:00:00:00:01\"\nvtep-mac-v6 = \"0a:74:00:00:00:02\"" }' \
        "$SCRATCH/nodes.toml" >"$LIST"
    start_in pod5 ping -q -i 0.2 "$(address_of pod3)" >/dev/null
}

right_macs() {
    cat "$SCRATCH/nodes.toml" >"$LIST"
}

# peers_too NODE...: `tartan peers` of each shows the states that are expected as "NODE is STATE for", or that all is well.
peers_too() {
    local node
    for node; do
        until_true 10 "'tartan peers' of $node says the same" peers_say "$node" ||
            jq -c '.peers[] | {name, state, reason}' "$SCRATCH/peers" >&2
    done
}

peers_say() {
    local code=0 row bad=0
    tartan "$1" peers -o json >"$SCRATCH/peers" || code=$?
    for row in "${EXPECTED[@]}"; do
        [[ $row =~ ^$1\ [a-z-]+\ (node[0-9])\ is\ ([a-z-]+)\ for(\|(.*))?$ ]] || continue
        bad=1
        jq -e --arg peer "${BASH_REMATCH[1]}" --arg state "${BASH_REMATCH[2]}" --arg words "${BASH_REMATCH[4]}" \
            'any(.peers[]; .name == $peer and .state == $state and (.reason | contains($words)))' "$SCRATCH/peers" || return 1
    done
    [ "$code" = "$bad" ]
}

# super_packets on|off: what node1 gives its interface. The switch would lose those of small packets too.
super_packets() {
    local features=(tx-udp-segmentation "$1")
    if [ "$UNDERLAY" = offload ]; then features+=(tx-udp_tnl-segmentation "$1"); fi
    in_ns node1 ethtool -K eth0 "${features[@]}" >/dev/null
}

all_measured() {
    agent_json "$1" peers | jq -e '[.peers[].paths[]] | all(.state == "up" and .mtu_measured == 1500)'
}

# Bytes that pod5 has got.
arrived() {
    in_ns pod5 nstat -asz IpExtInOctets | awk '/InOctets/ { print $2 }'
}

has_got() {
    [ "$(arrived)" -gt "$1" ]
}

cp "$LIST" "$SCRATCH"
undo super_packets on
super_packets off
for NODE in "${TARTAN[@]}"; do until_true 10 "the paths of $NODE are measured" all_measured "$NODE"; done
start_in pod5 python3 "$TOOLS/bulk.py" receive "$(address_of pod5 4)" 5201 >"$SCRATCH/received"
RECEIVER=$PID
start_in pod1 python3 "$TOOLS/bulk.py" send "$(address_of pod5 4)" 5201 $((1 << 32)) 4000000 >"$SCRATCH/sent"
SENDER=$PID
until_true 10 "bytes arrive" has_got $(($(arrived) + 1000000))

say "lost one way, a narrow path, and what this node itself drops or has no route for"
fault "on_the_way node2 $(underlay_of node1 "$FAMILY")" "the_way_is_free node2" \
    "node1 peer-silent node2 is silent for" "node2 peer-one-way node1 is one-way for"
fault "on_the_way node1 '$THREE $IP length > $((NARROW - HEADER))'" "the_way_is_free node1" \
    "node1 peer-narrow node3 is narrow for|$NARROW"
if [ "$BACKEND" = vxlan ]; then
    fault "refuse node2 output drop" "in_ns node2 nft delete table inet refusing" \
        "node2 peer-unreachable node3 is unreachable for|EPERM" "node3 peer-silent node2 is silent for"
else
    fault "ip -n $PREFIX-node2 -$FAMILY route add unreachable $THREE" "ip -n $PREFIX-node2 -$FAMILY route del unreachable $THREE" \
        "node2 peer-unreachable node3 is unreachable for|EHOSTUNREACH" "node3 peer-silent node2 is silent for"
fi
found
peers_too "${TARTAN[@]}"
until_true 10 "TCP goes on over the narrow path" has_got $(($(arrived) + 1000000))
stop "$SENDER"
wait "$RECEIVER" || true
equal "TCP's bytes and their sum" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"

if [ "$BACKEND" = udp ] || [ -n "${FULL:-}" ]; then
    say "an agent that starts while a peer is dead"
    lab stop node1
    BEGAN=$SECONDS
    lab start node1
    found node1
    peers_too node1
fi
if [ "$BACKEND" = vxlan ]; then
    say "another network, and wrong MACs"
    no_more
    fault wrong_macs right_macs \
        "node2 vtep-mac-changed node3 is wrong-mac for" "node3 peer-wrong-mac node2 is wrong-mac for"
    fault "net_conf node1 '.Backend.VNI = 7'" "net_conf node1" \
        "node2 peer-other-vni node1 is wrong-vni for|network 7" "node3 peer-other-vni node1 is wrong-vni for|network 7" \
        "node1 peer-other-vni node2 is wrong-vni for|network 1" "node1 peer-other-vni node3 is wrong-vni for|network 1"
    found
    peers_too "${TARTAN[@]}"
fi
if [ "$KERNEL_PATH" = off ]; then
    say "a peer whose agent is stopped, and one whose host rejects"
    no_more
    fault "refuse node3 input 'reject with $ICMP admin-prohibited'" "in_ns node3 nft delete table inet refusing" \
        "node2 peer-unreachable node3 is unreachable for|prohibited by a firewall or router" "node3 peer-silent node2 is silent for"
    fault "lab stop node1" "lab start node1" "node2 peer-refused node1 is refused for" "node3 peer-refused node1 is refused for"
    found node2 node3
    peers_too node2 node3
fi

say "all faults end"
no_more
found
peers_too "${TARTAN[@]}"
