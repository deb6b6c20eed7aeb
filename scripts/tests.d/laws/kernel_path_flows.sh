#!/usr/bin/env bash
# With kernel-path = auto the packets of an established connection pass the host's stack by on every node that has it,
# and the pods' counts have them. A translated connection passes the stack where it is translated. Each change of the
# host, a rule, a route, a policy rule, an address, a link, a filter, sends all flows through the stack again: a new
# rule that drops stops an installed flow. A forgotten connection and a deleted pod end theirs, and the pod that has the
# address next gets its packets. A TCP transfer under kube-proxy's rule against INVALID packets changes its way again
# and again: no connection is reset, every byte arrives.
#
# And, also in a lab without it: the underlay address of a running node moves in the list of nodes. It follows without
# a restart, a TCP connection lives on, nothing passes at the old address. With --full its interface is deleted and made
# again, or down, or without its address: drops have a name, and traffic goes on by itself.
# labs: kernel-path=auto
# labs: lab=udp-over-v6
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

# Changes of a transfer's way.
TURNS=3
if [ -n "${FULL:-}" ]; then TURNS=200; fi
VIRTUAL=203.0.113.7
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

# in_kernel NODE POD sent|received: packets of the pod that the programs carried.
in_kernel() {
    agent_json "$1" pods | jq --arg address "$(address_of "$2" 4)" --arg way "$3" \
        '[.pods[] | select(any(.addresses[]; startswith($address + "/"))).in_kernel[$way + "_packets"]] | add // 0'
}

installed() {
    local sent received node
    until_true 10 "the flow leaves the stack of ${SIDES[*]} out" is_short
    sent=$(in_kernel node1 pod1 sent)
    received=$(in_kernel node1 pod1 received)
    a_while pod1 In 200
    at_least "packets sent that the programs count, of 200" 200 $(($(in_kernel node1 pod1 sent) - sent))
    at_least "packets received that they count" 200 $(($(in_kernel node1 pod1 received) - received))
    for node in "${SIDES[@]}"; do at_least "flows that $node counts as installed" 2 "$(flows "$node" installed)"; done
}

# One direction is known to connection tracking by the Service's address alone.
refused_either() {
    echo $(($(flows node1 refused translated) + $(flows node1 refused no-connection)))
}

translated() {
    local before long=$SENDER
    before=$(refused_either)
    nft_in node1 "add table ip turn; add chain ip turn nat { type nat hook prerouting priority -100; }
        add rule ip turn nat ip daddr $VIRTUAL udp dport 80 dnat to $(address_of "$FAR" 4):9000"
    talk pod1 "$VIRTUAL" translated 9002 80
    until_true 10 "translated flows are refused" more_than "$before" refused_either
    until_true 10 "the other flow leaves the stack out beside it" flow_beside
    stop "$SENDER"
    equal "datagrams lost to the Service" 0 "$(missing translated)"
    equal "packets of it that passed the stack of the client's node" \
        $((2 * $(sed -n 's/ sent, .*//p' "$SCRATCH/translated"))) "$(watched node1 translated)"
    nft_in node1 delete table ip turn
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
    nft_in "$1" "add table ip turn; add chain ip turn forward { type filter hook forward priority 0; }"
    until_true 10 "the flow leaves the stack of $1 out" is_short
    before=$(flows "$1" revoked rules)
    nft_in "$1" add rule ip turn forward ip daddr "$(address_of "$FAR" 4)" udp dport 9000 drop
    mark
    until_true 2 "flows of $1 are revoked for the rule" more_than "$before" flows "$1" revoked rules
    mark
    a_while pod1
    mark
    stop "$SENDER"
    nft_in "$1" delete table ip turn
    measured_at_most "datagrams that passed after a rule to drop them" $((RATE / 100)) "$(answered dropped 1 2)"
    equal "datagrams answered once the flow was revoked for it" 0 "$(answered dropped 2 3)"
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
        nft_in "$node" "add chain ip watch invalid { type filter hook forward priority 0; }
            add rule ip watch invalid ct state invalid drop"
    done
    resets=$(resets pod1 "$FAR")
    begin_transfer pod1 "$FAR" 4 $((1 << 40)) 50000000
    for ((turn = 0; turn < TURNS; turn++)); do
        for node in "${SIDES[@]}"; do
            before=$(flows "$node" installed)
            nft_in "$node" "add table ip turn; delete table ip turn"
            until_true 20 "turn $turn: on the short way at $node" more_than "$before" flows "$node" installed || break 2
        done
        kill -0 "${SENDING[$FAR]}" || break
    done
    kill "${SENDING[$FAR]}"
    end_transfer pod1 "$FAR"
    equal "changes of its way" "$TURNS" "$turn"
    same "connections that were reset" "$resets" "$(resets pod1 "$FAR")"
}

# bound_to ADDRESS: alone, all sockets of node1.
bound_to() {
    [ "$(in_ns node1 ss -Hlun "sport = :$BOUND" | awk '{ print $4 }' | sort -u)" = "$(socket_address "$1" "$BOUND")" ]
}

# goes_on_by_itself WHAT: datagrams are answered again, and of a hundred none is lost.
goes_on_by_itself() {
    a_while pod1 In 20
    mark
    a_while pod1 In 100
    mark
    kill -0 "${SENDING[pod3]}" 2>/dev/null || fail "the TCP connection did not survive: $1"
    until_true 3 "node1 is well" no_problem node1
    STEPS+=("$1")
}

# address VERB ADDRESS: of node1.
address() {
    in_ns node1 ip address "$1" "$2" dev eth0
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
    until_true 3 "the sockets of node1 are at $2 alone" bound_to "${2%/*}"
    goes_on_by_itself "the address moves from $1 to $2"
}

# count NODE DIRECTION REASON: of what it has dropped.
count() {
    agent_json "$1" drops | jq "[.workers[].$2.dropped.$3 // 0] | add"
}

# node3 believes in the old address, $1, which the host still has.
the_old_address_is_refused() {
    local capture before way check=equal
    # Probes are refused too.
    [ "${TARTAN_PROBE:-}" = false ] || check=at_least
    before=$(count node3 inbound UnknownPeer)
    capture net node1 "$SCRATCH/old.pcap" udp and inbound and "(" src host "${1%/*}" ")"
    capture=$PID
    for way in "pod5 pod1" "pod1 pod5"; do
        if in_ns "${way% *}" ping -n -q -c 10 -i 0.02 -W 0.3 "$(address_of "${way#* }")" >"$SCRATCH/ping"; then
            fail "${way% *} reaches ${way#* }"
        fi
    done
    stop "$capture" INT
    equal "datagrams from the old address" 0 "$(tcpdump -nr "$SCRATCH/old.pcap" 2>/dev/null | wc -l)"
    "$check" "datagrams from the new address that node3 refuses" 10 $(($(count node3 inbound UnknownPeer) - before))
}

# gone WORD CMD...: the command takes the underlay away. The status says so, and packets of pods are dropped by name.
gone() {
    local refused
    in_ns node1 ip "${@:2}"
    until_true 3 "the status reports it" status_has node1 ".problems | any((.sentence + .remedy) | contains(\"$1\"))"
    refused=$(count node1 outbound UnderlayRefused)
    until_true 3 "packets are dropped as UnderlayRefused" more_than "$refused" count node1 outbound UnderlayRefused
    mark
}

# node1's interface is deleted and made again with its MAC and address, $1, of before; is down; and has no address.
interface_gone_and_back() {
    local mac
    mac=$(in_ns node1 cat /sys/class/net/eth0/address)
    gone "${1%/*}" link delete eth0
    ip -n "$PREFIX-net" link add node1 mtu 1500 type veth peer name eth0 mtu 1500 address "$mac" netns "$PREFIX-node1"
    ip -n "$PREFIX-net" link set node1 master br0 up
    in_ns node1 ip link set eth0 up
    address add "$1"
    goes_on_by_itself "a new interface"
    gone eth0 link set eth0 down
    in_ns node1 ip link set eth0 up
    goes_on_by_itself "an interface that is up again"
    gone "${1%/*}" address delete "$1" dev eth0
    address add "$1"
    goes_on_by_itself "the address is there again"
}

moved() {
    local outer old new service step promote=net.ipv4.conf.all.promote_secondaries
    outer=$(carrier "${FAMILIES[0]}" "$OUTSIDE")
    old=$(underlay_of node1 "$outer")/24 new=192.0.2.101/24 BOUND=$FORMAT_PORT STEPS=()
    if [ "$outer" = 6 ]; then old=${old%/*}/64 new=2001:db8:192::101/64; fi
    if kernel_path_carries; then BOUND=$PRIVATE_PORT; fi
    # Without this the kernel takes the second address of a subnet away with the first.
    undo in_ns node1 sysctl -q -w "$promote=$(in_ns node1 sysctl -n "$promote")"
    in_ns node1 sysctl -q -w "$promote=1"
    service=$(service_pid node1)
    start_datagrams pod1 pod3
    begin_transfer pod1 pod3 "${FAMILIES[0]}" $((1 << 40)) $((4 << 20))
    a_while pod1 In 20
    move "$old" "$new"
    the_old_address_is_refused "$old"
    address delete "$old"
    if [ -n "${FULL:-}" ] && [ "$UNDERLAY" = offload ]; then interface_gone_and_back "$new"; fi
    move "$new" "$old"
    address delete "$new"
    stop_datagrams
    kill "${SENDING[pod3]}"
    end_transfer pod1 pod3
    for step in "${!STEPS[@]}"; do
        measured_at_most "${STEPS[step]}: datagrams lost" "$RATE" "$(missing sent $((3 * step + 1)) $((3 * step + 2)))"
        equal "${STEPS[step]}: datagrams lost behind it" 0 "$(missing sent $((3 * step + 2)) $((3 * step + 3)))"
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
    if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then changes; else mark; fi
    forgotten
    stop_datagrams
    equal "datagrams lost before the change of a queue discipline" 0 "$(missing sent 0 1)"
    for node in "${SIDES[@]}"; do drops "$node"; done
    if [ "${#SIDES[@]}" = 1 ] || [ -n "${FULL:-}" ]; then deleted; fi
    if [ "${#SIDES[@]}" = 2 ] || [ -n "${FULL:-}" ]; then switches; fi
}

if kernel_path_carries; then flows_of_the_kernel_path; fi
if [ "$REGISTRY$PEER" = file ]; then moved; fi
