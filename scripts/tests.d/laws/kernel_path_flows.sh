#!/usr/bin/env bash
# With kernel-path = auto the packets of an established connection pass the host's stack by on every node that has it,
# and the pods' counts have them. A translated connection passes the stack where it is translated. Each change of the
# host, a rule, a route, a policy rule, an address, a link, a filter, sends all flows through the stack again: a new
# rule that drops stops an installed flow. A forgotten connection and a deleted pod end theirs, and the pod that has the
# address next gets its packets. A TCP transfer under kube-proxy's rule against INVALID packets changes its way again
# and again: no connection is reset, every byte arrives.
# labs: kernel-path=auto
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

# Changes of a transfer's way.
TURNS=3
if [ -n "${FULL:-}" ]; then TURNS=200; fi
# Datagrams in the 10 ms from a change to its effect.
LATEST=$((RATE / 100))
CLUSTER_IP=203.0.113.7
# What is done to a node and undone, and which cause it counts as. The route is one to the peer.
CHANGES=(
    "rules|nft add table ip turn|nft delete table ip turn"
    "route|ip route add 10.244.77.0/24 dev eth0|ip route delete 10.244.77.0/24 dev eth0"
    "route|ip route add FAR_NODE dev eth0|ip route delete FAR_NODE dev eth0"
    "policy-rule|ip rule add from 198.51.100.1 lookup main|ip rule delete from 198.51.100.1 lookup main"
    "address|ip address add 192.0.2.77/32 dev eth0|ip address delete 192.0.2.77/32 dev eth0"
    "link|ip link set eth0 promisc on|ip link set eth0 promisc off"
    "traffic-control|tc qdisc add dev eth0 root pfifo limit 1000|tc qdisc delete dev eth0 root"
)

choose_far
FAR_NODE=$(node_of_pod "$FAR")

# in_kernel NODE POD sent|received: packets of the pod that the programs carried.
in_kernel() {
    agent_json "$1" pods | jq --arg address "$(address_of "$2" 4)" --arg way "$3" \
        '[.pods[] | select(any(.addresses[]; startswith($address + "/"))).in_kernel[$way + "_packets"]] | add // 0'
}

installed() {
    local sent received
    until_true 10 "the flow leaves the stack of ${SIDES[*]} out" is_short "${SIDES[@]}"
    sent=$(in_kernel node1 pod1 sent)
    received=$(in_kernel node1 pod1 received)
    a_while pod1 In 200
    at_least "packets sent that the programs count, of 200" 200 $(($(in_kernel node1 pod1 sent) - sent))
    at_least "packets received that they count" 200 $(($(in_kernel node1 pod1 received) - received))
    for NODE in "${SIDES[@]}"; do at_least "flows that $NODE counts as installed" 2 "$(flows "$NODE" installed)"; done
}

# One direction is known to connection tracking by the Service's address alone.
refused_either() {
    echo $(($(flows node1 refused translated) + $(flows node1 refused no-connection)))
}

translated() {
    local server=$SERVER client sent answered before
    before=$(refused_either)
    nft_in node1 "add table ip turn; add chain ip turn nat { type nat hook prerouting priority -100; }
        add rule ip turn nat ip daddr $CLUSTER_IP udp dport 80 dnat to $(address_of "$FAR" 4):9000"
    talk pod1 "$CLUSTER_IP" translated 9002 80
    client=$SENDER
    until_true 10 "translated flows are refused" more_than "$before" refused_either
    until_true 10 "the other flow leaves the stack out beside it" flow_beside
    stop "$client"
    read -r sent _ answered _ <"$SCRATCH/translated"
    equal "answers of the Service" "$sent" "$answered"
    equal "packets of it that passed the stack of the client's node" $((2 * sent)) "$(watched node1 translated)"
    nft_in node1 delete table ip turn
    SERVER=$server
}

# Of 50 datagrams each way the stack of node1 sees only the translated ones, and the server's none.
flow_beside() {
    local before translated
    before=$(watched node1)
    translated=$(watched node1 translated)
    if [ "${#SIDES[@]}" = 2 ]; then is_short node2 || return 1; else sleep 0.1; fi
    [ $(($(watched node1) - before)) -le $(($(watched node1 translated) - translated)) ]
}

# through_the_stack COMMAND: the flow passes the stack of node1 once it is done.
through_the_stack() {
    local before
    before=$(watched node1)
    in_ns node1 bash -c "$1"
    until_true 2 "the flow passes the stack again ($1)" more_than $((before + 10)) watched node1
}

changes() {
    local change cause command back
    local -A before due=()
    for change in "${CHANGES[@]}"; do due[${change%%|*}]=0; done
    for cause in "${!due[@]}"; do before[$cause]=$(flows node1 revoked "$cause"); done
    for change in "${CHANGES[@]}"; do
        IFS='|' read -r cause command back <<<"${change//FAR_NODE/$(underlay_of "$FAR_NODE" 4)}"
        due[$cause]=$((due[$cause] + 2))
        # For a moment the kernel takes the device's queues out of service.
        if [ "$cause" = traffic-control ]; then mark "$SENDER"; fi
        through_the_stack "$command"
        in_ns node1 bash -c "$back"
        until_true 10 "it leaves the stack out again" is_short "${SIDES[@]}"
    done
    for cause in "${!due[@]}"; do
        change=$(($(flows node1 revoked "$cause") - before[$cause]))
        at_least "changes ($cause) that revoked flows" "${due[$cause]}" "$change"
    done
}

# drops NODE: a rule there that drops. Two marks are of the time in which it is known to have had its effect.
drops() {
    local before
    nft_in "$1" "add table ip turn; add chain ip turn forward { type filter hook forward priority 0; }"
    until_true 10 "the flow leaves the stack of $1 out" is_short "${SIDES[@]}"
    before=$(flows "$1" revoked rules)
    nft_in "$1" add rule ip turn forward ip daddr "$(address_of "$FAR" 4)" udp dport 9000 drop
    mark "$SENDER"
    until_true 2 "flows of $1 are revoked for the rule" more_than "$before" flows "$1" revoked rules
    mark "$SENDER"
    a_while pod1
    mark "$SENDER"
    nft_in "$1" delete table ip turn
}

forgotten() {
    local before
    until_true 10 "the flow leaves the stack out" is_short "${SIDES[@]}"
    before=$(flows node1 ended)
    in_ns node1 conntrack -D -p udp --dport 9000 >"$SCRATCH/conntrack" 2>&1 || cat "$SCRATCH/conntrack"
    until_true 10 "flows of a forgotten connection are removed" more_than "$before" flows node1 ended
}

# The pod of node1 that FAR talks to is deleted, and its address becomes another's.
deleted() {
    local address before
    another_pod node1 pod91
    address=$(address_of pod91 4)
    before=$(flows node1 installed)
    serve pod91 deleted
    talk "$FAR" pod91 to-deleted 9003 9000 patience=0.5
    until_true 10 "flows both ways with the new pod are installed" more_than $((before + 1)) flows node1 installed
    before=$(flows node1 pods_revoked)
    cni_in node1 DEL pod91 ''
    until_true 10 "flows of the deleted pod are revoked" more_than "$before" flows node1 pods_revoked
    stop "$SERVER"
    another_pod node1 pod92 "$address"
    serve pod92 next
    a_while pod92 In
    stop "$SENDER"
    stop "$SERVER"
}

# Every turn takes the transfer to the stack and back on each node.
switches() {
    local turn=0 node before resets
    for node in "${SIDES[@]}"; do
        nft_in "$node" "add chain ip watch invalid { type filter hook forward priority 0; }
            add rule ip watch invalid ct state invalid drop"
    done
    resets=$(resets pod1 "$FAR")
    FROM=$FAR
    transfer pod1 "$FAR" 5003 $((1 << 40)) 50000000
    for ((turn = 0; turn < TURNS; turn++)); do
        for node in "${SIDES[@]}"; do
            before=$(flows "$node" installed)
            nft_in "$node" "add table ip turn; delete table ip turn"
            until_true 20 "turn $turn: on the short way at $node" more_than "$before" flows "$node" installed || break 2
        done
        kill -0 "$BULK" || break
    done
    kill "$BULK"
    end_transfer "across $turn changes of its way"
    equal "changes" "$TURNS" "$turn"
    equal "resets at pod1 and $FAR" "$resets" "$(resets pod1 "$FAR")"
}

for NODE in "${SIDES[@]}"; do watch_stack "$NODE"; done
serve "$FAR"
talk pod1 "$FAR"
LONG=$SENDER
RECEIVES=$SERVER
installed
translated
SENDER=$LONG
# The rest of what costs time is one lab's each, but with --full.
if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then changes; else mark "$SENDER"; fi
for NODE in "${SIDES[@]}"; do drops "$NODE"; done
forgotten
stop "$LONG"
stop "$RECEIVES"
for ((CUT = 2; CUT <= 3 * ${#SIDES[@]}; CUT += 3)); do
    measured_at_most "datagrams that passed after a rule to drop them" "$LATEST" \
        $(($(number sent $((CUT + 1))) - $(number sent "$CUT") - $(missing sent "$CUT" $((CUT + 1)))))
    equal "datagrams not answered once the flow was revoked for it" \
        $(($(number sent $((CUT + 2))) - $(number sent $((CUT + 1))))) "$(missing sent $((CUT + 1)) $((CUT + 2)))"
done
equal "datagrams lost before the changes of a queue discipline and of rules to drop" 0 "$(missing sent =0 1)"
if [ "${#SIDES[@]}" = 1 ] || [ -n "${FULL:-}" ]; then deleted; fi
if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then switches; fi
