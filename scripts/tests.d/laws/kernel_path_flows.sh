#!/usr/bin/env bash
# With kernel-path = auto packets of an established connection pass the host's stack by on every node that has it, and
# the pods' counts have them; a translated one passes the stack where it is translated. Each change of the host, a rule,
# a route, a policy rule, an address, a link, a filter, sends all flows through the stack: a new rule that drops stops
# an installed flow. A forgotten connection, a deleted pod, and a peer that is gone, or whose address or pods' addresses
# become another's, end theirs: who has the address next gets the packets, and nothing else passes. A TCP transfer under
# kube-proxy's rule against INVALID packets changes its way again and again: no connection is reset, each byte arrives.
#
# And, also in a lab without it: the underlay address of a running node moves in the list of nodes. It follows without
# a restart, a TCP connection lives on, and nothing passes at the old address.
# labs: kernel-path=auto
# labs: lab=udp-over-v6
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

# Of an entry of a list.
MOVED='/"node2"/ { sub(/10\.244\.2\.0/, "10.244.44.0") }
    /"node3"/ { sub(/subnets = \[/, "&\"10.244.2.0/24\", ") }
    { print }'
OTHER='/"node2"/ {
        sub(/"node2"/, "\"other\"")
        sub(/10\.244\.2\.0/, "10.244.33.0")
        sub(/$/, "\nvtep-mac = \"02:00:00:00:00:33\"")
    }
    { print }'

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
    local before long=$SENDER virtual=203.0.113.7
    before=$(refused_either)
    in_ns node1 nft "add table ip turn; add chain ip turn nat { type nat hook prerouting priority -100; }
        add rule ip turn nat ip daddr $virtual udp dport 80 dnat to $(address_of "$FAR" 4):9000"
    talk pod1 "$virtual" translated 9002 80
    until_true 10 "translated flows are refused" more_than "$before" refused_either
    until_true 10 "the other flow leaves the stack out beside it" flow_beside
    stop "$SENDER"
    equal "datagrams lost to the Service" 0 "$(lost translated)"
    equal "packets of it that passed the stack of the client's node" \
        $((2 * $(sed -n 's/ sent, .*//p' "$SCRATCH/translated"))) "$(watched node1 translated)"
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
    before=$(flows node1 pods_revoked)
    call DEL node1 old
    until_true 10 "flows of the deleted pod are revoked" more_than "$before" flows node1 pods_revoked
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

# list_of NODE PROGRAM: an awk program changes the entries of the node's list, as a whole, as an editor does; until
# list_back NODE.
list_of() {
    local list=$LAB_STATE/$1/nodes.toml
    cp "$list" "$SCRATCH/list-$1"
    awk -v RS= -v ORS='\n\n' "$2" "$list" >"$list.new"
    mv "$list.new" "$list"
}

list_back() {
    cp "$SCRATCH/list-$1" "$LAB_STATE/$1/nodes.toml.new"
    mv "$LAB_STATE/$1/nodes.toml.new" "$LAB_STATE/$1/nodes.toml"
}

# arrived: datagrams that have come to the servers of pod3 and pod1.
arrived() {
    local pod
    for pod in pod3 pod1; do
        in_ns "$pod" nft -j list counter ip arrived came | jq '.nftables[].counter | values | .packets'
    done
}

# changed WHAT PROGRAM [POD]: node1's list changes. From the moment on that it has published its tables none of two
# hundred datagrams passes between pod1 and pod3, and they reach the pod. Then the list is as before.
changed() {
    local version installed before
    version=$(agent_json node1 status | jq .kernel_path.tables)
    list_of node1 "$2"
    until_true 5 "$1: node1's programs follow" status_has node1 ".kernel_path.tables > $version"
    before=$(arrived)
    a_while pod1 Out 400
    if [ -n "${3:-}" ]; then a_while "$3" In; fi
    equal "$1: datagrams that pod3 and pod1 have, as before" "$before" "$(arrived)"
    installed=$(flows node1 installed)
    list_back node1
    until_true 10 "flows both ways are installed again" more_than $((installed + 1)) flows node1 installed
    until_true 10 "the stack is left out" is_short
}

# A peer is gone, or its address or its pods' addresses are another's.
reused() {
    local pod
    for pod in pod1 pod3; do
        in_ns "$pod" nft "add table ip arrived; add counter ip arrived came
            add chain ip arrived input { type filter hook input priority 0; }
            add rule ip arrived input udp dport 9000 counter name came"
        undo in_ns "$pod" nft delete table ip arrived
    done
    start_datagrams pod1 pod3
    start_datagrams pod3 pod1
    until_true 10 "flows both ways leave the stack out" is_short
    changed "node2 is no peer any more" '!/"node2"/'
    changed "node2's address is another node's" "$OTHER"
    undo list_back node3
    list_of node3 "$MOVED"
    until_true 10 "node3 has the subnet of node2" status_has node3 '.subnets | index("10.244.2.0/24")'
    new_pods elsewhere
    CNI_ARGS="IgnoreUnknown=1;IP=$(address_of pod3 4)" attach node3 elsewhere
    serve elsewhere
    changed "pod3's address is another pod's, on node3" "$MOVED" elsewhere
}

# bound: what the sockets of node1 are bound to.
bound() {
    in_ns node1 ss -Hlun "sport = :$BOUND" | awk '{ print $4 }' | sort -u
}

# address VERB ADDRESS: of node1.
address() {
    in_ns node1 ip address "$1" "$2" dev eth0 "${NODAD[@]}"
}

# move FROM TO: by the lists of node1 and node2, each replaced as a whole, as an editor does.
move() {
    local list
    address add "$2"
    mark
    for list in "$LAB_STATE"/node[12]/nodes.toml; do
        sed "s|\"${1%/*}\"|\"${2%/*}\"|" "$list" >"$list.new"
        mv "$list.new" "$list"
    done
    until_true 3 "the sockets of node1 are at $2 alone" prints "$(socket_address "${2%/*}" "$BOUND")" bound
    a_while pod1 In 20
    mark
    a_while pod1 In 100
    mark
    kill -0 "${SENDING[pod3]}" 2>/dev/null || fail "the TCP connection did not survive"
    until_true 3 "node1 is well" no_problem node1
}

# How many datagrams node3 has refused as those of no peer.
refused() {
    agent_json node3 drops | jq '[.workers[].inbound.dropped.UnknownPeer // 0] | add'
}

# node3 believes in the old address, which the host still has.
the_old_address_is_refused() {
    local before way check=equal
    # Probes are refused too.
    [ "${TARTAN_PROBE:-}" = false ] || check=at_least
    before=$(refused)
    for way in "pod5 pod1" "pod1 pod5"; do
        if in_ns "${way% *}" ping -n -q -c 10 -i 0.02 -W 0.3 "$(address_of "${way#* }")" >"$SCRATCH/ping"; then
            fail "${way% *} reaches ${way#* }"
        fi
    done
    "$check" "datagrams from the new address that node3 refuses" 10 $(($(refused) - before))
}

moved() {
    local outer old new service step promote=net.ipv4.conf.all.promote_secondaries
    outer=$(carrier "${FAMILIES[0]}" "$OUTSIDE")
    old=$(underlay_of node1 "$outer")/24 new=192.0.2.101/24 BOUND=$FORMAT_PORT NODAD=()
    if [ "$outer" = 6 ]; then old=${old%/*}/64 new=2001:db8:192::101/64 NODAD=(nodad); fi
    if kernel_path_carries; then BOUND=$PRIVATE_PORT; fi
    # Without this the kernel takes the second address of a subnet away with the first.
    undo in_ns node1 sysctl -q -w "$promote=$(in_ns node1 sysctl -n "$promote")"
    in_ns node1 sysctl -q -w "$promote=1"
    service=$(service_pid node1)
    start_datagrams pod1 pod3
    begin_transfer pod1 pod3 "${FAMILIES[0]}" $((1 << 40)) $((4 << 20))
    a_while pod1 In 20
    move "$old" "$new"
    the_old_address_is_refused
    address delete "$old"
    move "$new" "$old"
    address delete "$new"
    stop_datagrams
    kill "${SENDING[pod3]}"
    end_transfer pod1 pod3
    for step in 0 3; do
        measured_at_most "datagrams lost in a move" "$RATE" "$(lost sent $((step + 1)))"
        equal "datagrams lost behind it" 0 "$(lost sent $((step + 2)))"
    done
    equal "the service of node1, never restarted" "$service" "$(service_pid node1)"
}

flows_of_the_kernel_path() {
    local node
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
    for node in "${SIDES[@]}"; do drops "$node"; done
    if [ "${#SIDES[@]}" = 1 ] || [ -n "${FULL:-}" ]; then deleted; fi
    if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then switches; fi
}

if kernel_path_carries; then flows_of_the_kernel_path; fi
if [ "$REGISTRY$PEER" = file ]; then
    moved
    if kernel_path_carries; then reused; fi
fi
