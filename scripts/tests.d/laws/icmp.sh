#!/usr/bin/env bash
# Tartan itself reports errors to senders, pods and processes of the node, as they read them from their sockets' error
# queues: no node owns the destination, or the packet is too large for the path to one peer, of which a router's reports
# were believed. What may be cut crosses that path in pieces of the inner packet, and TCP goes on. Other peers and other
# senders notice nothing.
#
#   pod1, process ── node1 ══ mallory, a router with MTU 1400 ══ node2 ── pod3
#                       ╚═════════════════ 1500 ════════════════ node3 ── pod5
# labs: inside=dual probes=off
# full: probes=off
# last: its end starts the agents anew, which forget the path
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

BULK=$((8 << 20))
# Bytes of outer packet that the underlay carries to node3, and to node2.
WIDE=1500
NARROW=1400
# A datagram of 1,472 bytes is an IPv4 packet of 1,500.
LARGE=1472
# What a node counts of a datagram that it answers with an error.
ANSWERED='"received":1,"originated":1,"delivered":1'
declare -A KNOWN SENDER

# The errors that senders of a family get, and sizes.
setting() {
    FAMILY=$1
    CARRIER=$(carrier "$1" "$OUTSIDE")
    # The largest packets of the family for both paths.
    MTU=$((WIDE - $(overhead "$1")))
    NARROW_MTU=$((NARROW - $(overhead "$1")))
    NEAR=$(address_of pod1 "$1")
    FAR=$(address_of pod3 "$1")
    WIDE_FAR=$(address_of pod5 "$1")
    # From where, and from which address.
    SENDER=(["a pod"]="pod1|" ["a far pod"]="pod3|" ["a process"]="node1|")
    if [[ $OUTSIDE == @(dual|v$1) ]]; then
        SENDER["a process with the node's address"]="node1|$(underlay_of node1 "$1")"
    fi
    case $1 in
    4)
        UNOWNED=10.244.77.2 TUNNEL=10.244.1.0 UNREACHABLE="ENETUNREACH icmp 3/0" TOO_BIG="EMSGSIZE icmp 3/4"
        # IP and UDP headers, bytes. An error has at most 576 (RFC 1812 section 4.3.2.3), of them 28 its own.
        HEADERS=28 QUOTE=$((576 - 28 - 28))
        # The sender's kernel cuts the packet for the device, and Tartan its first piece again, for the path.
        PIECES='{"originated":1,"received":2,"sent":3}'
        ;;
    6)
        UNOWNED=fd00:10:244:77::2 TUNNEL=fd00:10:244:1::
        UNREACHABLE="ENETUNREACH icmp6 1/0" TOO_BIG="EMSGSIZE icmp6 2/0"
        # An error has at most 1,280 bytes (RFC 4443 section 2.4), of them 48 its own.
        HEADERS=48 QUOTE=$((1280 - 48 - 48))
        # The sender's kernel cuts it for the path.
        PIECES='{"received":2,"sent":2}'
        ;;
    esac
}

# narrow_path add|delete 0|1: the routes of node1 and node2 to each other lead through mallory, where they are narrow.
narrow_path() {
    local family node near far
    in_ns mallory sysctl -qw net.ipv4.ip_forward="$2" net.ipv4.conf.{all,eth0}.send_redirects="$((1 - $2))"
    in_ns mallory sysctl -qw net.ipv6.conf.all.forwarding="$2"
    for family in $(families "$OUTSIDE"); do
        for node in 1 2; do
            near=$(underlay_of "node$node" "$family")
            far=$(underlay_of "node$((3 - node))" "$family")
            ip -n "$PREFIX-mallory" route "$1" "$far" dev eth0 mtu lock "$NARROW"
            ip -n "$PREFIX-node$node" route "$1" "$far" dev eth0 src "$near" via "${near%"$node"}250"
        done
    done
    in_ns mallory nft "$1" table inet fragments
}

# Packets of the underlay that come in fragments are counted at mallory.
count_fragments() {
    in_ns mallory nft -f - <<'RULES'
table inet fragments {
    chain forward {
        type filter hook forward priority 0
        ip frag-off & 0x3fff != 0 counter
        exthdr frag exists counter
        counter
    }
}
RULES
}

# steps NODE: runs the steps of the input, of which NODE is the one that counts.
steps() {
    python3 "$TOOLS/datagrams.py" "$1" || fail "the steps of IPv$FAMILY at $1"
}

# step WHO ADDRESS SIZE COUNT HOW POD COUNTS [ERROR]: as datagrams.py takes it; WHO is `a pod` or another of `senders`.
step() {
    echo "$1 to ${6:-$2}, $3 bytes of IPv$FAMILY|${SENDER[$1]}|$2|$3|$4|$5|$6|$7|${8:-}"
}

# paths NODE OTHER: what the node knows of the paths to the other and to node3.
paths() {
    echo "$(path_mtu "$1" "$2" "$FAMILY") $(path_mtu "$1" node3 "$FAMILY")"
}

# Reports that a busy machine delivers too late are not believed: those of a ping may be.
knows_path() {
    [ "$(paths node1 node2)" != "$NARROW $WIDE" ] || return 0
    in_ns pod1 ping -c 1 -W 1 -M "dont" -s "$LARGE" "$FAR" || true
    return 1
}

# The first two datagrams over an unknown path are lost at the router, whose second report confirms the first. The next
# is cut by Tartan; over IPv6, where none but the sender may cut, it is reported to its sender, and what follows is cut
# by the sender's kernel.
unknown_path() {
    if [ -z "${KNOWN[$CARRIER]:-}" ]; then
        step "a pod" "$FAR" "$LARGE" 2 cut "" '{"received":4,"sent":4}' | steps node1
        KNOWN[$CARRIER]=1
    fi
    until_true 5 "node1 learns of the path" knows_path
    forget_paths pod1
    {
        [ "$FAMILY" = 4 ] || step "a pod" "$FAR" "$LARGE" 1 cut "" "{\"TooBig\":1,\"sent\":1,${ANSWERED/:1/:2}}" \
            "$TOO_BIG mtu $NARROW_MTU from $TUNNEL"
        step "a pod" "$FAR" "$LARGE" 1 cut pod3 "$PIECES"
    } | steps node1
}

# learns FROM TO: TCP of pods that do not know the path. node1 does by now, and node2 by the loss of the first large
# segments.
learns() {
    forget_paths pod1 pod3
    transfer "$1" "$2" "$FAMILY" "$BULK"
    equal "path MTU that $1 learned" "$NARROW_MTU" \
        "$(ip -n "$PREFIX-$1" -j "-$FAMILY" route get "$(address_of "$2" "$FAMILY")" | jq '.[0].metrics[0].mtu // 0')"
}

# What each sender of node1 is told, with DF; the largest that fit each path arrive.
of_all_senders() {
    local who passed='{"received":1,"sent":1}'
    for who in "${!SENDER[@]}"; do
        [ "$who" != "a far pod" ] || continue
        to_no_node "$who"
        step "$who" "$FAR" $((MTU - HEADERS)) 1 df "" "{\"TooBig\":1,$ANSWERED}" \
            "$TOO_BIG mtu $NARROW_MTU from $TUNNEL about $FAR, quotes $QUOTE right"
        step "$who" "$FAR" $((NARROW_MTU - HEADERS)) 1 df pod3 "$passed"
        step "$who" "$WIDE_FAR" $((MTU - HEADERS)) 1 df pod5 "$passed"
    done
    step "a process" "$FAR" "$LARGE" 1 cut pod3 "$PIECES"
    echo "flood|pod1|$UNOWNED"
    to_no_node "a process"
}

to_no_node() {
    step "$1" "$UNOWNED" 100 1 df "" "{\"NoRoute\":1,$ANSWERED}" \
        "$UNREACHABLE mtu 0 from $TUNNEL about $UNOWNED, quotes 100 right"
}

prove() {
    setting "$1"
    unknown_path
    learns pod1 pod3
    learns pod3 pod1
    equal "path MTU of node1 and node2" "$NARROW $WIDE $NARROW $WIDE" "$(paths node1 node2) $(paths node2 node1)"
    of_all_senders | steps node1
    step "a far pod" "$NEAR" "$LARGE" 1 cut pod1 "$PIECES" | steps node2
}

undo restart_agents
undo narrow_path delete 0
narrow_path add 1
count_fragments
REPAIRS="$(agent_json node1 status | jq .repairs) $(agent_json node2 status | jq .repairs)"
for ONE in "${FAMILIES[@]}"; do prove "$ONE"; done
equal "fragments on the underlay, and whether it was looked at" "0 0 true" \
    "$(in_ns mallory nft -j list table inet fragments |
        jq -r '[.nftables[].rule.expr | select(.)[] | .counter.packets | select(.)] | "\(.[0]) \(.[1]) \(.[2] > 0)"')"
equal "repairs meanwhile" "$REPAIRS" "$(agent_json node1 status | jq .repairs) $(agent_json node2 status | jq .repairs)"
