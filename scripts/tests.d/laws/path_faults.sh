#!/usr/bin/env bash
# Every fault of the path to a peer is shown by `tartan status`, `tartan doctor` and `tartan peers` of the nodes that it
# concerns, with exit code 1, within 10 s, and is gone from all of them within 10 s of its end. On a path that becomes
# narrow without a word TCP goes on, and a sender of UDP with DF is told the size. A peer that is dead when an agent
# starts is silent, where it answered before. Three faults at once: each path has one of its own.
# (Two of the underlay's families would be two paths to a peer: what is heard by one is a sign of life.)
# labs: probes=on third=tartan outside!=dual
# seconds: 400
# last: it starts agents anew
. "$TOOLS/faults.sh"

FAMILY=4 IP=ip ICMP=icmp HEADER=0 PORT=8472
if [ "$OUTSIDE" = v6 ]; then FAMILY=6 IP=ip6 ICMP=icmpv6 HEADER=40; fi
if [ "$BACKEND" = udp ]; then PORT=8285; fi
# Bytes, from node1 to node3; an IPv6 header's length does not count itself.
NARROW=1405
THREE=$(underlay_of node3 "$FAMILY")
LIST=$LAB_STATE/node2/nodes.toml

# on_the_way NODE MATCH: the switch drops this of what a node sends, until the way is free.
on_the_way() {
    in_ns net nft "table netdev way-$1 { chain from { type filter hook ingress device $1 priority 0;
        $IP daddr $2 drop; }; }"
}

# refuse NODE HOOK VERDICT: what the node's packet filter does with what node2 sends to node3.
refuse() {
    in_ns "$1" nft "table inet refusing { chain port { type filter hook $2 priority 0;
        $IP daddr $THREE udp dport $PORT $3; }; }"
}

# wrong_macs: node2's list has other MACs for node3, whose pods' packets show it the real one.
wrong_macs() {
    sed '/^name = "node3"/a vtep-mac = "0a:74:00:00:00:01"\nvtep-mac-v6 = "0a:74:00:00:00:02"' \
        "$SCRATCH/nodes.toml" >"$LIST"
    start_in pod5 ping -q -i 0.2 "$(address_of pod3)" >/dev/null
}

# show NODE...: each shows what is expected; `tartan peers` has the states of "NODE is STATE for", or all is well.
show() {
    local node
    found "$@"
    for node; do
        until_true 10 "'tartan peers' of $node says the same" peers_say "$node" ||
            jq -c '.peers[] | {name, state, reason}' "$SCRATCH/peers" >&2
    done
}

peers_say() {
    local code=0 rows
    tartan "$1" peers -o json >"$SCRATCH/peers" || code=$?
    rows=$(printf '%s\n' "${EXPECTED[@]}" | sed -nE "s/^$1 [a-z-]+ (node[0-9]) is ([a-z-]+) for\|?/\1|\2|/p")
    jq -e --arg rows "$rows" --argjson code "$code" '($rows / "\n" | map(. / "|")) as $rows
        | $code == ([1, ($rows | length)] | min) and all($rows[] as [$name, $state, $words] | any(.peers[];
            .name == $name and .state == $state and (.reason | contains($words))); .)' "$SCRATCH/peers"
}

all_measured() {
    agent_json "$1" peers | jq -e 'all(.peers[].paths[]; .state == "up" and .mtu_measured == 1500)'
}

# A million bytes more have come to pod5.
more_arrives() {
    local before
    before=$(device_count pod5 eth0 rx_bytes)
    until_true 10 "TCP goes on" eval "[ \$(device_count pod5 eth0 rx_bytes) -gt $((before + 1000000)) ]"
}

cp "$LIST" "$SCRATCH"
# The switch would lose super-packets of small packets too.
as_wire node1:eth0
if [ "$UNDERLAY" = no-tunnel ]; then
    undo in_ns node1 ethtool -K eth0 tx-udp-segmentation on
    in_ns node1 ethtool -K eth0 tx-udp-segmentation off
fi
for NODE in "${TARTAN[@]}"; do until_true 10 "the paths of $NODE are measured" all_measured "$NODE"; done
FAR=$(address_of pod5 4) MTU=$((NARROW - $(overhead 4)))
start_in pod5 python3 "$TOOLS/bulk.py" receive "$FAR" 5201 >"$SCRATCH/received"
RECEIVER=$PID
start_in pod1 python3 "$TOOLS/bulk.py" send "$FAR" 5201 $((1 << 32)) 4000000 >"$SCRATCH/sent"
more_arrives

# Lost one way, a narrow path, and what this node itself drops or has no route for.
fault "on_the_way node2 $(underlay_of node1 "$FAMILY")" "in_ns net nft delete table netdev way-node2" \
    "node1 peer-silent node2 is silent for" "node2 peer-one-way node1 is one-way for"
fault "on_the_way node1 '$THREE $IP length > $((NARROW - HEADER))'" "in_ns net nft delete table netdev way-node1" \
    "node1 peer-narrow node3 is narrow for|$NARROW"
if [ "$BACKEND" = vxlan ]; then
    fault "refuse node2 output drop" "in_ns node2 nft delete table inet refusing" \
        "node2 peer-unreachable node3 is unreachable for|EPERM" "node3 peer-silent node2 is silent for"
else
    fault "in_ns node2 ip route add unreachable $THREE" "in_ns node2 ip route del unreachable $THREE" \
        "node2 peer-unreachable node3 is unreachable for|EHOSTUNREACH" "node3 peer-silent node2 is silent for"
fi
show "${TARTAN[@]}"
more_arrives
stop "$PID"
wait "$RECEIVER" || true
equal "TCP's bytes and their sum" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
python3 "$TOOLS/datagrams.py" node1 <<STEPS || fail "what a sender with DF is told of the narrow path"
what it takes|pod1||$FAR|$((MTU - 28))|1|df|pod5|{"received":1,"sent":1}|
more|pod1||$FAR|$((MTU - 27))|1|df||{"received":1,"originated":1,"delivered":1,"TooBig":1}|EMSGSIZE icmp 3/4 mtu $MTU
STEPS

if [ "$BACKEND" = udp ] || [ -n "${FULL:-}" ]; then
    say "an agent that starts while a peer is dead"
    lab stop node1
    BEGAN=$SECONDS
    lab start node1
    show node1
fi
if [ "$BACKEND" = vxlan ]; then
    say "another network, and wrong MACs"
    no_more
    fault wrong_macs "cp $SCRATCH/nodes.toml $LIST" \
        "node2 vtep-mac-changed node3 is wrong-mac for" "node3 peer-wrong-mac node2 is wrong-mac for"
    fault "net_conf node1 '.Backend.VNI = 7'" "net_conf node1" \
        node{2,3}" peer-other-vni node1 is wrong-vni for|network 7" \
        "node1 peer-other-vni "node{2,3}" is wrong-vni for|network 1"
    show "${TARTAN[@]}"
fi
if [ "$KERNEL_PATH" = off ]; then
    say "a peer whose agent is stopped, and one whose host rejects"
    no_more
    fault "refuse node3 input 'reject with $ICMP admin-prohibited'" "in_ns node3 nft delete table inet refusing" \
        "node2 peer-unreachable node3 is unreachable for|prohibited by a firewall or router" \
        "node3 peer-silent node2 is silent for"
    fault "lab stop node1" "lab start node1" node{2,3}" peer-refused node1 is refused for"
    show node2 node3
fi

no_more
show "${TARTAN[@]}"
