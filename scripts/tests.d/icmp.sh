#!/usr/bin/env bash
# Tartan itself, not a kernel on the way, reports errors to senders: no node owns the destination, or the packet is too
# large for the path to this one peer. Read from the sockets' error queues, by pods and by processes of the node.
#
#   pod1, process ── node1 ══ underlay ═══ router, MTU 1400 ═══ node2 ── pod2
#                          ║      ╚══════════════════════ 1500 ═══ node3 ── pod3
#                          ╚═ at the end: a second link, MTU 1360 ═══╝
#
# icmp.sh BACKEND INSIDE OUTSIDE, the last two as in scripts/lab up
# alone: it measures the rate of ICMP errors
# full: udp v4 v4
# full: vxlan dual dual
# full: vxlan v4 v4
# full: vxlan dual v4
# full: vxlan dual v6
# full: udp dual dual
# full: vxlan dual dual device-type=tap
# full: vxlan v4 v4 kernel-path=stateless
# case: vxlan dual v4 kernel-path=stateless
# full: vxlan v4 v4 kernel-path=auto
# full: vxlan dual v4 kernel-path=auto
# full: vxlan v4 v4 kernel-path=auto device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/router.sh
. "$TOOLS/router.sh"

BACKEND=$1
INSIDE=$2
OUTSIDE=$3
BULK=$((32 << 20))
# What the underlay carries to node3, to node2, and to node3 over the second link: bytes of outer packet.
WIDE=1500
NARROW=1400
NARROWER=1360
# A datagram of 1,472 bytes is an IPv4 packet of 1,500.
LARGE=1472
declare -A RECEIVER EXPECTED KNOWN

# The errors that senders of a family get, and sizes.
setting() {
    local family
    FAMILY=$1
    case $FAMILY in
    4)
        UNOWNED=10.244.77.2 TUNNEL=10.244.1.0
        UNREACHABLE="ENETUNREACH icmp 3/0" TOO_BIG="EMSGSIZE icmp 3/4"
        # IP and UDP headers, bytes. An error has at most 576 (RFC 1812 section 4.3.2.3), of them 28 its own.
        HEADERS=28 QUOTE=$((576 - 28 - 28))
        ;;
    6)
        UNOWNED=fd00:10:244:77::2 TUNNEL=fd00:10:244:1::
        UNREACHABLE="ENETUNREACH icmp6 1/0" TOO_BIG="EMSGSIZE icmp6 2/0"
        # An error has at most 1,280 bytes (RFC 4443 section 2.4), of them 48 its own.
        HEADERS=48 QUOTE=$((1280 - 48 - 48))
        ;;
    esac
    OVERHEAD=$(overhead "$(carrier "$FAMILY" "$OUTSIDE")")
    NODE_ADDRESS=$(underlay_of node1 "$FAMILY")
    # The largest packet of the family where the path is wide: the tunnel device's MTU, or that of the route.
    DEVICE=$((WIDE - OVERHEAD))
}

# IP 20 or 40 bytes, UDP 8, and in vxlan 22 more.
overhead() {
    local bytes=28
    if [ "$1" = 6 ]; then bytes=48; fi
    if [ "$BACKEND" = vxlan ]; then bytes=$((bytes + 22)); fi
    echo "$bytes"
}

# growth BEFORE AFTER: by how much each count of the outbound direction grew between two answers of `tartan drops`.
growth() {
    # shellcheck disable=SC2016
    jq -ncS --argjson before "$1" --argjson after "$2" '
        def counts: [.workers[].outbound]
            | {received: (map(.received) | add), originated: (map(.originated) | add),
               sent: (map(.sent) | add), delivered: (map(.delivered) | add)}
            + (reduce (.[].dropped | to_entries[]) as $drop ({}; .[$drop.key] += $drop.value));
        ($before | counts) as $old
        | $after | counts | with_entries(.value -= ($old[.key] // 0)) | with_entries(select(.value != 0))'
}

# counted WHAT NODE EXPECTED CMD...: runs the command; just what is expected must be counted at the node meanwhile.
counted() {
    local what=$1 node=$2 expected=$3 before found wait
    before=$(agent_json "$node" drops)
    "${@:4}"
    for ((wait = 0; wait < 20; wait++)); do
        found=$(growth "$before" "$(agent_json "$node" drops)")
        [ "$found" != "$expected" ] || break
        sleep 0.1
    done
    equal "$what: counts of $node" "$expected" "$found"
}

# sends FROM ADDRESS SIZE [OPTION...]: keeps in ERRORS what was reported to the sender, and in SEND_MS the milliseconds
# until the last of it came.
sends() {
    ERRORS=$(in_ns "$1" python3 "$TOOLS/icmp_errors.py" send "${@:2}") || fail "sending from $1 to $2"
    SEND_MS=${ERRORS%% *}
    ERRORS=$(tail -n +2 <<<"$ERRORS")
}

# unreachable WHO FROM [OPTION...]: a datagram to an address of the cluster that no node owns.
unreachable() {
    local what="$1 to an address of no node" from=$2
    counted "$what" node1 '{"NoRoute":1,"delivered":1,"originated":1,"received":1}' sends "$from" "$UNOWNED" 100 "${@:3}"
    equal "$what: reported to the sender" "$UNREACHABLE mtu 0 from $TUNNEL about $UNOWNED, quotes 100 right" "$ERRORS"
}

# too_big POD PATH WHO FROM [OPTION...]: the largest datagram that the device takes, with DF, to a pod behind a path
# of that many bytes.
too_big() {
    local what="$3 to $1, too large" path=$2 from=$4 to
    to=$(address_of "$1" "$FAMILY")
    counted "$what" node1 '{"TooBig":1,"delivered":1,"originated":1,"received":1}' \
        sends "$from" "$to" $((DEVICE - HEADERS)) "${@:5}"
    equal "$what: reported to the sender" \
        "$TOO_BIG mtu $((path - OVERHEAD)) from $TUNNEL about $to, quotes $QUOTE right" "$ERRORS"
}

# fits POD INNER WHO FROM [OPTION...]: a datagram, a packet of INNER bytes with DF, crosses, and no error comes back.
fits() {
    local pod=$1 size=$(($2 - HEADERS)) what="$3 to $1, a packet of $2 bytes" from=$4
    counted "$what" node1 '{"received":1,"sent":1}' sends "$from" "$(address_of "$pod" "$FAMILY")" "$size" --wait 0.2 "${@:5}"
    equal "$what: reported to the sender" "" "$ERRORS"
    EXPECTED[$pod]+="$size right"$'\n'
}

# Runs a check for a pod, for a process of the node, and for one that is bound to the node's address if it has one.
all_senders() {
    "$@" "a pod" pod1
    "$@" "a process" node1
    if [ "$NODE_ADDRESS" != - ]; then "$@" "a process with the node's address" node1 --from "$NODE_ADDRESS"; fi
}

# The first two datagrams over an unknown path are lost at the router, whose second report confirms the first. The next
# is cut by Tartan; over IPv6, where none but the sender may cut, it is reported to its sender, and what follows is cut by the sender's kernel.
unknown_path() {
    local what="a pod to pod2, $LARGE bytes without DF" to carrier
    to=$(address_of pod2 "$FAMILY")
    carrier=$(carrier "$FAMILY" "$OUTSIDE")
    if [ -z "${KNOWN[$carrier]:-}" ]; then
        counted "$what, too large for the router" node1 '{"received":4,"sent":4}' \
            sends pod1 "$to" "$LARGE" --cut --count 2 --wait 0.2
        KNOWN[$carrier]=1
    fi
    if [ "$FAMILY" = 6 ]; then
        counted "$what, too large for the path" node1 '{"TooBig":1,"delivered":1,"originated":1,"received":2,"sent":1}' \
            sends pod1 "$to" "$LARGE" --cut
    fi
    in_pieces "a pod" node1 pod1 pod2
}

# Neither pod knows the path (a receiver that did would announce smaller segments); node1 does by now, node2 does not
# until its first large segments are lost at the router.
bulk() {
    local from=$1 to=$2 address receiver sent seconds=$SECONDS
    address=$(address_of "$to" "$FAMILY")
    forget_paths "$from"
    forget_paths "$to"
    start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    sent=$(in_ns "$from" python3 "$TOOLS/bulk.py" send "$address" 5003 "$BULK") || fail "sending from $from to $to"
    wait "$receiver" || fail "receiving at $to"
    equal "bytes and sha256 from $from to $to ($((SECONDS - seconds)) s)" "$sent" "$(cat "$SCRATCH/received")"
    equal "path MTU that $from learned towards $to" $((NARROW - OVERHEAD)) \
        "$(ip -n "$PREFIX-$from" -j "-$FAMILY" route get "$address" | jq '.[0].metrics[0].mtu // 0')"
}

forget_paths() {
    ip -n "$PREFIX-$1" "-$FAMILY" route flush cache
}

# path_mtu NODE PEER: what the node knows of the path that packets of the family take.
path_mtu() {
    local field=path_mtu
    if [ "$OUTSIDE$FAMILY" = dual6 ]; then field=path_mtu_v6; fi
    agent_json "$1" peers | jq --arg peer "$2" --arg field "$field" '.peers[] | select(.name == $peer) | .[$field]'
}

receive_at() {
    local pod=$1
    start_in "$pod" python3 "$TOOLS/icmp_errors.py" receive "$(address_of "$pod" "$FAMILY")" >"$SCRATCH/$pod"
    RECEIVER[$pod]=$PID
    EXPECTED[$pod]=
    until_true 5 "the receiver in $pod" is_bound "$pod" udp 5004
}

# What came to a pod is what was to come, in order, and right to the byte.
received_at() {
    stop "${RECEIVER[$1]}"
    same "datagrams that came to $1" "${EXPECTED[$1]%$'\n'}" "$(cat "$SCRATCH/$1")"
}

# in_pieces WHO NODE FROM POD: a large datagram without DF arrives, in fragments of the inner packet.
in_pieces() {
    local what="$1 to $4, $LARGE bytes without DF" node=$2 from=$3 pod=$4 far wire device
    far=node$((3 - ${node#node}))
    capture router inside "$SCRATCH/wire.pcap" not arp and not icmp and not icmp6
    wire=$PID
    capture "$far" tartan0 "$SCRATCH/device.pcap" -Q in
    device=$PID
    counted "$what" "$node" "$(piece_counts)" sends "$from" "$(address_of "$pod" "$FAMILY")" "$LARGE" --cut --wait 0.2
    equal "$what: reported to the sender" "" "$ERRORS"
    EXPECTED[$pod]+="$LARGE right"$'\n'
    until_true 5 "$what: the pieces are captured" has_packets "$SCRATCH/device.pcap" "$(wc -w <<<"$(pieces)")" || true
    until_true 5 "$what: the wire is captured" has_packets "$SCRATCH/wire.pcap" 1 || true
    stop "$wire" INT
    stop "$device" INT
    equal "$what: what came out of the tunnel" "$(pieces)" "$(python3 "$TOOLS/icmp_errors.py" fragments "$SCRATCH/device.pcap" | xargs)"
    equal "$what: fragments on the underlay" 0 "$(frames 'ip[6:2] & 0x3fff != 0 or ip6[6] = 44')"
    [ "$(frames udp)" -gt 0 ] || fail "$what: nothing was captured on the underlay"
}

# has_packets FILE NUMBER: of a capture that goes on.
has_packets() {
    [ "$(tcpdump --count -nr "$1" 2>/dev/null | cut -d ' ' -f 1)" -ge "$2" ]
}

piece_counts() {
    case $FAMILY in
    4) echo '{"originated":1,"received":2,"sent":3}' ;;
    6) echo '{"received":2,"sent":2}' ;;
    esac
}

# Payload of fragments comes in units of 8 bytes (RFC 791, RFC 8200 section 4.5). The sender's kernel cuts an IPv4
# packet for the device and Tartan cuts the first piece again, for the path; it cuts an IPv6 packet for the path.
pieces() {
    local path=$((NARROW - OVERHEAD - HEADERS + 8)) device=$((DEVICE - HEADERS + 8)) all=$((LARGE + 8))
    path=$((path / 8 * 8)) device=$((device / 8 * 8))
    case $FAMILY in
    4) echo "$((20 + path))@0+ $((20 + device - path))@$path+ $((20 + all - device))@$device" ;;
    6) path=$((path - 8)) && echo "$((48 + path))@0+ $((48 + all - path))@$path" ;;
    esac
}

frames() {
    tcpdump --count -nr "$SCRATCH/wire.pcap" "$@" 2>/dev/null | cut -d ' ' -f 1
}

# 300 datagrams draw a burst of 32 answers and one more every 10 ms. Another sender is answered all the same.
flood() {
    local before after answers
    sleep 0.4
    before=$(agent_json node1 drops)
    sends pod1 "$UNOWNED" 100 --count 300 --wait 2
    after=$(agent_json node1 drops)
    answers=$(grep -c "^$UNREACHABLE" <<<"$ERRORS")
    at_most "answers to a flood" $((33 + SEND_MS / 10)) "$answers"
    [ "$answers" -ge 32 ] || fail "a flood draws 32 answers at once, not $answers"
    equal "a flood: counts of node1" \
        "{\"NoRoute\":300,\"delivered\":$answers,\"originated\":$answers,\"received\":300}" "$(growth "$before" "$after")"
    equal "a flood: answers not sent" $((300 - answers)) $(($(unanswered "$after") - $(unanswered "$before")))
    unreachable "a process beside a flood" node1
}

unanswered() {
    jq '[.workers[].unanswered] | add' <<<"$1"
}

# Between node1 and node3 only; the kernel of node1 itself refuses what is larger.
second_link() {
    local node far family
    ip -n "$PREFIX-node1" link add eth1 mtu "$NARROWER" type veth peer name eth1 mtu "$NARROWER" netns "$PREFIX-node3"
    for node in node1 node3; do
        ip -n "$PREFIX-$node" link set eth1 up
    done
    for node in node1 node3; do
        far=node$((4 - ${node#node}))
        for family in $(families "$OUTSIDE"); do
            ip -n "$PREFIX-$node" neighbour add "$(underlay_of "$far" "$family")" dev eth1 nud permanent \
                lladdr "$(ip -n "$PREFIX-$far" -j link show eth1 | jq -r '.[0].address')"
            ip -n "$PREFIX-$node" route add "$(underlay_of "$far" "$family")" dev eth1 src "$(underlay_of "$node" "$family")"
        done
    done
}

# One family's pods and processes.
prove() {
    local pod
    say "IPv$1 inside"
    setting "$1"
    for pod in pod1 pod2 pod3; do receive_at "$pod"; done
    unknown_path
    bulk pod1 pod2
    bulk pod2 pod1
    equal "path MTU of node1 to node2 and node3" "$NARROW $WIDE" "$(path_mtu node1 node2) $(path_mtu node1 node3)"
    equal "path MTU of node2 to node1 and node3" "$NARROW $WIDE" "$(path_mtu node2 node1) $(path_mtu node2 node3)"
    all_senders unreachable
    all_senders too_big pod2 "$NARROW"
    all_senders fits pod2 $((NARROW - OVERHEAD))
    all_senders fits pod3 "$DEVICE"
    in_pieces "a pod" node2 pod2 pod1
    in_pieces "a process" node1 node1 pod2
    flood
    for pod in pod1 pod2 pod3; do received_at "$pod"; done
}

# Over the second link, whose MTU no router needs to tell.
prove_second_link() {
    local pod
    setting "$1"
    for pod in pod2 pod3; do receive_at "$pod"; done
    too_big pod3 "$NARROWER" "a pod" pod1
    fits pod3 $((NARROWER - OVERHEAD)) "a process" node1
    fits pod2 $((NARROW - OVERHEAD)) "a pod" pod1
    for pod in pod2 pod3; do received_at "$pod"; done
}

say "what is reported to senders: backend $BACKEND, $INSIDE inside, $OUTSIDE outside"
# What leaves as one message is cut before it is captured.
lab_up --nodes 3 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" --underlay wire
# shellcheck disable=SC2046
router_before node2 "$NARROW" $(families "$OUTSIDE")
for family in $(families "$INSIDE"); do prove "$family"; done
second_link
for family in $(families "$INSIDE"); do prove_second_link "$family"; done
for node in node1 node2 node3; do
    law_one "$node"
    # What the kernels learned of the paths is nothing to be repaired.
    equal "repairs on $node" 0 "$(agent_json "$node" status | jq .repairs)"
done
