#!/usr/bin/env bash
# Tartan itself reports errors to senders, pods and processes of the node, as they read them from their sockets' error
# queues: no node owns the destination, or the packet is too large for the path to one peer, of which a router's reports
# were believed. What may be cut crosses that path in pieces of the inner packet, and TCP goes on. Other peers and other
# senders notice nothing. In a cluster of both families each has an MTU of its own, as with flannel: what its outer
# headers leave. Pods' interfaces and the tunnel device have the larger one, routes of the other family the smaller.
#
#   pod1, process ── node1 ══ mallory, a router with MTU 1400 ══ node2 ── pod3
#                       ╚═════════════════ 1500 ════════════════ node3 ── pod5
# labs: inside=dual probes=off
# full: probes=off
# last: its end starts the agents anew, which forget the path

# Bytes of outer packet that the underlay carries to node3, and to node2.
WIDE=1500 NARROW=1400
# A datagram of 1,472 bytes is an IPv4 packet of 1,500.
LARGE=1472
# What a node counts of a datagram that it answers with an error.
ANSWERED='"received":1,"originated":1,"delivered":1'
PASSED='{"received":1,"sent":1}'

# The addresses of a family, the errors that its senders get, and sizes.
setting() {
    FAMILY=$1 NEAR=$(address_of pod1 "$1") FAR=$(address_of pod3 "$1") WIDE_FAR=$(address_of pod5 "$1")
    # The largest packets of the family for both paths.
    MTU=$((WIDE - $(overhead "$1"))) NARROW_MTU=$((NARROW - $(overhead "$1")))
    UNOWNED=10.244.77.2 TUNNEL=10.244.1.0 UNREACHABLE="ENETUNREACH icmp 3/0" TOO_BIG="EMSGSIZE icmp 3/4"
    # IP and UDP headers, bytes. An error has at most 576 (RFC 1812 section 4.3.2.3), of them 28 its own.
    HEADERS=28 QUOTE=$((576 - 28 - 28))
    # The sender's kernel cuts the packet for the device, and Tartan its first piece again, for the path.
    PIECES='{"originated":1,"received":2,"sent":3}'
    [ "$1" = 6 ] || return 0
    UNOWNED=fd00:10:244:77::2 TUNNEL=fd00:10:244:1:: UNREACHABLE="ENETUNREACH icmp6 1/0" TOO_BIG="EMSGSIZE icmp6 2/0"
    # An error has at most 1,280 bytes (RFC 4443 section 2.4), of them 48 its own. The sender's kernel cuts the packet.
    HEADERS=48 QUOTE=$((1280 - 48 - 48)) PIECES='{"received":2,"sent":2}'
}

# narrow_path add|delete 0|1: the routes of node1 and node2 to each other lead through mallory, where they are narrow.
narrow_path() {
    local family node near far
    in_ns mallory sysctl -qw net.ipv4.ip_forward="$2" net.ipv4.conf.{all,eth0}.send_redirects="$((1 - $2))" \
        net.ipv6.conf.all.forwarding="$2"
    for family in $(families "$OUTSIDE"); do
        for node in 1 2; do
            near=$(underlay_of "node$node" "$family") far=$(underlay_of "node$((3 - node))" "$family")
            ip -n "$PREFIX-mallory" route "$1" "$far" dev eth0 mtu lock "$NARROW"
            ip -n "$PREFIX-node$node" route "$1" "$far" dev eth0 src "$near" via "${near%"$node"}250"
        done
    done
    in_ns mallory nft "$1" table inet fragments
}

# steps NODE CMD...: what the command says, of which NODE is the one that counts.
steps() {
    python3 "$TOOLS/datagrams.py" "$1" <<<"$("${@:2}")" || fail "the steps of IPv$FAMILY at $1"
}

# step FROM ADDRESS SIZE COUNT HOW POD COUNTS [ERROR]: as datagrams.py takes it; FROM may have a source behind a |.
step() {
    local from=$1
    [[ $1 == *"|"* ]] || from+="|"
    echo "${1/|/ as } to ${6:-$2}, $3 bytes of IPv$FAMILY|$from|$2|$3|$4|$5|$6|$7|${8:-}"
}

# paths NODE OTHER: what the node knows of the paths to the other and to node3.
paths() {
    echo "$(path_mtu "$1" "$2" "$FAMILY") $(path_mtu "$1" node3 "$FAMILY")"
}

# Whether node1 does. Reports that a busy machine delivers too late are not believed: those of a ping may be.
knows_path() {
    [ "$(paths node1 node2)" != "$NARROW $WIDE" ] || return 0
    in_ns pod1 ping -c 1 -W 1 -M "dont" -s "$LARGE" "$FAR" || true
    return 1
}

# The next datagram is cut by Tartan; over IPv6, where none but the sender may cut, it is reported to its sender, and
# what follows is cut by the sender's kernel.
first_datagrams() {
    [ "$FAMILY" = 4 ] || step pod1 "$FAR" "$LARGE" 1 cut "" "{\"TooBig\":1,\"sent\":1,${ANSWERED/:1/:2}}" \
        "$TOO_BIG mtu $NARROW_MTU from $TUNNEL"
    step pod1 "$FAR" "$LARGE" 1 cut pod3 "$PIECES"
}

# What each sender of node1 is told, with DF; the largest that fit each path arrive.
of_all_senders() {
    local from senders=(pod1 node1)
    # A process with the node's address.
    if [[ $OUTSIDE == @(dual|v$FAMILY) ]]; then senders+=("node1|$(underlay_of node1 "$FAMILY")"); fi
    for from in "${senders[@]}"; do
        step "$from" "$UNOWNED" 100 1 df "" "{\"NoRoute\":1,$ANSWERED}" \
            "$UNREACHABLE mtu 0 from $TUNNEL about $UNOWNED, quotes 100 right"
        step "$from" "$FAR" $((MTU - HEADERS)) 1 df "" "{\"TooBig\":1,$ANSWERED}" \
            "$TOO_BIG mtu $NARROW_MTU from $TUNNEL about $FAR, quotes $QUOTE right"
        step "$from" "$FAR" $((NARROW_MTU - HEADERS)) 1 df pod3 "$PASSED"
        step "$from" "$WIDE_FAR" $((MTU - HEADERS)) 1 df pod5 "$PASSED"
    done
    step node1 "$FAR" "$LARGE" 1 cut pod3 "$PIECES"
    step pod5 "$NEAR" $((MTU - HEADERS)) 1 df pod1 '{}'
    # A byte more, where the device takes it. The kernel looks at the route for what it forwards.
    if [ "$MTU" -lt $((WIDE - $(overhead 4))) ]; then
        step pod1 "$WIDE_FAR" $((MTU - HEADERS + 1)) 1 df "" '{}' "$TOO_BIG mtu $MTU"
        step node1 "$WIDE_FAR" $((MTU - HEADERS + 1)) 1 df "" "{\"TooBig\":1,$ANSWERED}" "$TOO_BIG mtu $MTU"
    fi
}

# largest: the largest packets between Tartan's nodes, before their path is narrow.
largest() {
    step pod1 "$FAR" $((MTU - HEADERS)) 1 df pod3 "$PASSED"
    step pod3 "$NEAR" $((MTU - HEADERS)) 1 df pod1 '{}'
}

# mtu_of NAME DEVICE
mtu_of() {
    ip -n "$PREFIX-$1" -j link show dev "$2" | jq '.[0].mtu'
}

equal "MTU of the tunnel device and of the pod's" "$((WIDE - $(overhead 4))) $((WIDE - $(overhead 4)))" \
    "$(mtu_of node1 tartan0) $(mtu_of pod1 eth0)"
for ONE in "${FAMILIES[@]}"; do
    setting "$ONE"
    steps node1 largest
done
undo restart_agents
undo narrow_path delete 0
narrow_path add 1
# Packets of the underlay that come in fragments, and all.
in_ns mallory nft 'table inet fragments { chain forward { type filter hook forward priority 0
    ip frag-off & 0x3fff != 0 counter; exthdr frag exists counter; counter; }; }'
REPAIRS="$(agent_json node1 status | jq .repairs) $(agent_json node2 status | jq .repairs)"
for ONE in "${FAMILIES[@]}"; do
    setting "$ONE"
    # The first two datagrams over an unknown path are lost at the router, whose second report confirms the first.
    [ "$(paths node1 node2)" = "$NARROW $WIDE" ] ||
        steps node1 step pod1 "$FAR" "$LARGE" 2 cut "" '{"received":4,"sent":4}'
    until_true 5 "node1 learns of the path" knows_path
    forget_paths pod1
    steps node1 first_datagrams
    # TCP of pods that do not know the path. node1 does by now, and node2 by the loss of the first large segments.
    for WAY in "pod1,pod3,$FAR" "pod3,pod1,$NEAR"; do
        forget_paths pod1 pod3
        python3 "$TOOLS/bulk.py" flows 1 $((8 << 20)) "$WAY" || fail "TCP of $WAY"
        equal "path MTU that ${WAY%%,*} learned" "$NARROW_MTU" \
            "$(ip -n "$PREFIX-${WAY%%,*}" -j "-$FAMILY" route get "${WAY##*,}" | jq '.[0].metrics[0].mtu // 0')"
    done
    equal "path MTU of node1 and node2" "$NARROW $WIDE $NARROW $WIDE" "$(paths node1 node2) $(paths node2 node1)"
    steps node1 of_all_senders
    steps node2 step pod3 "$NEAR" "$LARGE" 1 cut pod1 "$PIECES"
done
equal "fragments on the underlay, and whether it was looked at" "0 0 true" \
    "$(in_ns mallory nft -j list table inet fragments |
        jq -r '[.nftables[].rule.expr | select(.)[] | .counter.packets | select(.)] | "\(.[0]) \(.[1]) \(.[2] > 0)"')"
equal "repairs meanwhile" "$REPAIRS" "$(agent_json node1 status | jq .repairs) $(agent_json node2 status | jq .repairs)"
