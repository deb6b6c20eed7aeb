#!/usr/bin/env bash
# With kernel-path = auto packets of an established connection pass the host's stack by on every node that has it, and
# the pods' counts have them; a translated one passes the stack where it is translated. Each change of the host, a rule,
# a route, a policy rule, an address, a link, a filter, sends all flows through the stack: a new rule that drops stops
# an installed flow. A forgotten connection and a deleted pod end theirs: who has the address next gets the packets, and
# nothing else passes. A TCP transfer under kube-proxy's rule against INVALID packets changes its way again and again:
# no connection is reset, each byte arrives.
# labs: kernel-path=auto
# seconds: 600
. "$TOOLS/kernel_path.sh"
. "$TOOLS/cni.sh"

# Changes of a transfer's way.
TURNS=3
if [ -n "${FULL:-}" ]; then TURNS=200; fi
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

# in_kernel: packets that the programs carried from pod1, and to it, as its node counts them.
in_kernel() {
    agent_json node1 pods | jq --arg address "$(address_of pod1 4)/" \
        '.pods[] | select(any(.addresses[]; startswith($address))).in_kernel | .sent_packets, .received_packets'
}

installed() {
    local before after node
    until_true 10 "the flow leaves the stack of ${SIDES[*]} out" is_short
    mapfile -t before < <(in_kernel)
    a_while pod1 In 200
    mapfile -t after < <(in_kernel)
    at_least "packets sent that the programs count, of 200" 200 $((after[0] - before[0]))
    at_least "packets received that they count" 200 $((after[1] - before[1]))
    for node in "${SIDES[@]}"; do at_least "flows that $node counts as installed" 2 "$(flows "$node" installed)"; done
}

# One direction is known to connection tracking by the Service's address alone.
refused_either() {
    echo $(($(flows node1 refused translated) + $(flows node1 refused no-connection)))
}

translated() {
    local before each found long=$SENDER virtual=203.0.113.7
    before=$(refused_either)
    in_ns node1 nft "add table ip turn; add chain ip turn nat { type nat hook prerouting priority -100; }
        add rule ip turn nat ip daddr $virtual udp dport 80 dnat to $(address_of "$FAR" 4):9000"
    talk pod1 "$virtual" translated 9002 80
    until_true 10 "translated flows are refused" more_than "$before" refused_either
    until_true 10 "the other flow leaves the stack out beside it" flow_beside
    stop "$SENDER"
    equal "datagrams lost to the Service" 0 "$(lost translated)"
    each=$(sed -n 's/ sent, .*//p' "$SCRATCH/translated")
    found=$(watched node1 translated)
    # Of 900 one may be joined to the one before.
    at_least "packets of it that passed the stack of the client's node" $((2 * (each - each / 900))) "$found"
    at_most "these packets" $((2 * each)) "$found"
    in_ns node1 nft delete table ip turn
    SENDER=$long
}

# Of 50 datagrams each way the stack of node1 sees only the translated ones, and the server's none.
flow_beside() {
    local before translated others=("${SIDES[@]:1}")
    before=$(watched node1)
    translated=$(watched node1 translated)
    local SIDES=("${others[@]}")
    is_short || return 1
    [ $(($(watched node1) - before)) -le $(($(watched node1 translated) - translated)) ]
}

changes() {
    local change cause command back before passed
    for change in "${CHANGES[@]}"; do
        IFS='|' read -r cause command back <<<"${change//FAR_NODE/$(underlay_of "$(node_of_pod "$FAR")" 4)}"
        before=$(flows node1 revoked "$cause")
        # For a moment the kernel takes the device's queues out of service.
        if [ "$cause" = traffic-control ]; then mark; fi
        passed=$(watched node1)
        in_ns node1 bash -c "$command"
        until_true 2 "the flow passes the stack again ($command)" more_than $((passed + 10)) watched node1
        in_ns node1 bash -c "$back"
        until_true 10 "it leaves the stack out again" is_short
        at_least "changes ($cause) that revoked flows" 2 $(($(flows node1 revoked "$cause") - before))
    done
}

# drops NODE: a rule there that drops. Once flows are revoked for it, at the second mark, nothing passes; until then, of
# the 10 ms from the rule to its effect.
drops() {
    local before
    talk pod1 "$FAR" dropped 9001 9000 0.3
    in_ns "$1" nft "add table ip turn; add chain ip turn forward { type filter hook forward priority 0; }"
    until_true 10 "the flow leaves the stack of $1 out" is_short
    before=$(flows "$1" revoked rules)
    in_ns "$1" nft add rule ip turn forward ip daddr "$(address_of "$FAR" 4)" udp dport 9000 drop
    mark
    until_true 2 "flows of $1 are revoked for the rule" more_than "$before" flows "$1" revoked rules
    mark
    a_while pod1
    mark
    stop "$SENDER"
    in_ns "$1" nft delete table ip turn
    measured_at_most "datagrams that passed after a rule to drop them" $((RATE / 100)) "$(answered dropped 1)"
    equal "datagrams answered once the flow was revoked for it" 0 "$(answered dropped 2)"
}

forgotten() {
    local before
    until_true 10 "the flow leaves the stack out" is_short
    before=$(flows node1 ended)
    in_ns node1 conntrack -D -p udp --dport 9000 >"$SCRATCH/conntrack" 2>&1 || cat "$SCRATCH/conntrack"
    until_true 10 "flows of a forgotten connection are removed" more_than "$before" flows node1 ended
}

# The pod of node1 that FAR talks to is deleted, and its address becomes another's.
deleted() {
    local before address
    new_pods old next
    attach node1 old
    address=$(jq -r '.ips[0].address | split("/")[0]' "$SCRATCH/attached")
    before=$(flows node1 installed)
    serve old
    talk "$FAR" "$address" to-deleted 9003 9000 0.5
    until_true 10 "flows both ways with the new pod are installed" more_than $((before + 1)) flows node1 installed
    call DEL node1 old
    CNI_ARGS="IgnoreUnknown=1;IP=$address" attach node1 next
    serve next
    a_while next In
    stop "$SENDER"
}

# Every turn takes the transfer to the stack and back on each node.
switches() {
    local turn=0 node before resets
    for node in "${SIDES[@]}"; do
        in_ns "$node" nft "add chain ip watch invalid { type filter hook forward priority 0; }
            add rule ip watch invalid ct state invalid drop"
    done
    resets=$(resets pod1 "$FAR")
    begin_transfer pod1 "$FAR" 4 $((1 << 40)) 50000000
    for ((turn = 0; turn < TURNS; turn++)); do
        for node in "${SIDES[@]}"; do
            before=$(flows "$node" installed)
            in_ns "$node" nft "add table ip turn; delete table ip turn"
            until_true 20 "turn $turn: on the short way at $node" more_than "$before" flows "$node" installed || break 2
        done
        kill -0 "${SENDING[$FAR]}" || break
    done
    kill "${SENDING[$FAR]}"
    end_transfer pod1 "$FAR"
    equal "changes of its way" "$TURNS" "$turn"
    same "connections that were reset" "$resets" "$(resets pod1 "$FAR")"
}

choose_far
watch_stack "${SIDES[@]}"
start_datagrams pod1 "$FAR"
installed
translated
# The rest of what costs time is one lab's each, but with --full.
if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then changes; fi
forgotten
stop_datagrams
equal "datagrams lost before the change of a queue discipline" 0 "$(lost sent 0)"
for NODE in "${SIDES[@]}"; do drops "$NODE"; done
if [ "${#SIDES[@]}" = 1 ] || [ -n "${FULL:-}" ]; then deleted; fi
if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then switches; fi
