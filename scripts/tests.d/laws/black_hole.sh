#!/usr/bin/env bash
# A path whose MTU changes without a word, 1500 -> 1400 -> 1360 -> 1500, is measured anew within 5 s, and TCP goes on by
# the retransmission that follows. What pods are told when they send UDP with DF is the size, to the byte.
#
#   pod1 ── node1 ══ underlay, whose bridge drops outer packets above N bytes from and to node1 ══ node2 ── pod3
# full: probes=on underlay=wire|offload
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

WIDE=1500
RATE=8000000
# Milliseconds. TCP sends again after one timeout, 200 ms or a little more, and then after twice that. The size is to be
# known by the first time; that it is only by the second is forgiven, and so are 100 ms of a busy machine.
LONGEST=700

# the_path_carries BYTES: from now on, both ways, and reports nothing.
the_path_carries() {
    local node rules=''
    in_ns net nft delete table netdev hole 2>/dev/null || true
    [ "$1" -lt "$WIDE" ] || return 0
    for node in node1 node2; do
        rules+="chain $node { type filter hook ingress device \"$node\" priority 0
            ip length > $1 drop; ip6 length > $(($1 - 40)) drop; }
        "
    done
    in_ns net nft "table netdev hole { $rules }"
}

# has_found NODE OTHER BYTES: the least of the MTUs that probes of node NODE have found of the paths to the other.
has_found() {
    [ "$(agent_json "node$1" peers | jq --arg other "244[.:]$2[.:]" \
        '[.peers[] | select(.subnets[0] | test($other)).paths[].mtu_measured] | map(. // 0) | min')" = "$3" ]
}

# found BYTES WITHIN: both nodes find it.
found() {
    until_true "$2" "node1 finds $1 bytes" has_found 1 2 "$1" || true
    until_true "$2" "node2 finds $1 bytes" has_found 2 1 "$1" || true
}

# told BYTES: what a sender with DF in pod1 is told of a byte more, and nothing of these.
told() {
    local family mtu headers error far counts
    for family in "${FAMILIES[@]}"; do
        mtu=$(($1 - $(overhead "$family"))) far=$(address_of pod3 "$family")
        headers=28 error="EMSGSIZE icmp 3/4 mtu $mtu"
        if [ "$family" = 6 ]; then headers=48 error="EMSGSIZE icmp6 2/0 mtu $mtu"; fi
        counts='{"received":1,"originated":1,"delivered":1,"TooBig":1}'
        echo "IPv$family, $mtu bytes|pod1||$far|$((mtu - headers))|1|df|pod3|{\"received\":1,\"sent\":1}|"
        [ "$1" = "$WIDE" ] || echo "IPv$family, a byte more|pod1||$far|$((mtu - headers + 1))|1|df||$counts|$error"
    done | python3 "$TOOLS/datagrams.py" node1 || fail "what senders are told of a path of $1 bytes"
}

# start_flow FROM TO FAMILY
start_flow() {
    local address
    address=$(address_of "$2" "$3")
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" 5201 pause >"$SCRATCH/received-$1"
    RECEIVERS+=("$PID")
    start_in "$1" python3 "$TOOLS/bulk.py" send "$address" 5201 $((RATE * 60)) "$RATE" >"$SCRATCH/sent-$1"
    SENDERS+=("$PID")
}

# changes BYTES WITHIN: the path carries so much from now on, and TCP goes on each way, over the first family and the
# last.
changes() {
    local from flow received
    SENDERS=() RECEIVERS=()
    start_flow pod1 pod3 "${FAMILIES[0]}"
    start_flow pod3 pod1 "${FAMILIES[-1]}"
    sleep 2
    the_path_carries "$1"
    found "$1" "$2"
    # What is under way when it is found is given one timeout more.
    sleep 2
    kill -TERM "${SENDERS[@]}"
    for flow in "${SENDERS[@]}" "${RECEIVERS[@]}"; do wait "$flow" || fail "a flow over $1 bytes"; done
    for from in pod1 pod3; do
        mapfile -t received <"$SCRATCH/received-$from"
        equal "$1 bytes: bytes and sha256 from $from" "$(cat "$SCRATCH/sent-$from")" "${received[0]}"
        measured_at_most "$1 bytes: milliseconds that TCP from $from paused" "$LONGEST" "${received[1]}"
    done
    told "$1"
}

undo found "$WIDE" 10
undo the_path_carries "$WIDE"
# A message of several packets would be dropped as a whole.
as_wire node1:eth0 node2:eth0
found "$WIDE" 10
changes 1400 5
# IPv6 over IPv6 still has its least MTU, 1,280.
changes 1360 5
changes "$WIDE" 10
