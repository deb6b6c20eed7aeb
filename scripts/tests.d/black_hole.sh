#!/usr/bin/env bash
# A path whose MTU changes without a word, 9000 -> 1500 -> 1400 -> 9000, is measured anew within 5 s, and TCP goes on by the
# retransmission that follows: no pause is longer than until the size was found and the retransmission timeout that was in
# force then. One TCP connection each way is looked at, and what pods are told when they send UDP with DF.
#
#   pod1 ── node1 ══ underlay, MTU 9000, a switch that drops outer packets above N bytes ══ node2 ── pod2
#
# black_hole.sh BACKEND INSIDE OUTSIDE, the last two as in scripts/lab up
# alone: it measures how soon a size is found, and how long TCP pauses
# full: vxlan dual v4
# full: udp v4 v4
# full: vxlan dual v6
# full: vxlan dual dual
# full: udp dual v4
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=$2
OUTSIDE=$3
WIDE=9000
RATE=8000000
# Milliseconds. TCP sends again after one timeout, 200 ms or a little more, and then after twice that. The size is to be known
# by the first time; that it is only by the second is forgiven, and so are 100 ms of a busy machine.
LONGEST=700
# Within which a path is found to carry more, seconds: it is tried every 5 s, and then one round of a search.
WIDER=10
read -ra FAMILIES <<<"$(families "$INSIDE")"
# Of the connection of pod2 the last family is looked at, of that of pod1 the first.
declare -A RECEIVER SENDER
CONNECTIONS=("pod1 pod2 ${FAMILIES[0]}" "pod2 pod1 ${FAMILIES[-1]}")

hole() {
    in_ns "$1" python3 "$TOOLS/black_hole.py" "${@:2}"
}

now_ms() {
    python3 "$TOOLS/black_hole.py" now
}

# the_path_carries BYTES: from now on, both ways, and reports nothing.
the_path_carries() {
    local node
    ip netns exec "$PREFIX-net" nft delete table netdev hole 2>/dev/null || true
    [ "$1" -lt "$WIDE" ] || return 0
    {
        echo "table netdev hole {"
        for node in node1 node2; do
            echo "chain $node { type filter hook ingress device \"$node\" priority 0"
            echo "ip length > $1 drop; ip6 length > $(($1 - 40)) drop; }"
        done
        echo "}"
    } | ip netns exec "$PREFIX-net" nft -f -
}

# The largest inner packet of a family where the path carries BYTES: inner_mtu FAMILY BYTES.
inner_mtu() {
    local headers=28
    if [ "$(carrier "$1" "$OUTSIDE")" = 6 ]; then headers=48; fi
    if [ "$BACKEND" = vxlan ]; then headers=$((headers + 22)); fi
    echo $(($2 - headers))
}

# found_at NODE BYTES SINCE: when the paths of the node were found to carry that much, ms.
found_at() {
    awk -v size="$2" -v since="$3" '$1 >= since && $2 == size { print $1; is_there = 1; exit } END { exit !is_there }' \
        "$SCRATCH/found-$1"
}

# longest_pause SENDER SINCE: of what was received of it since, ms.
longest_pause() {
    awk -v since="$2" '$1 + $2 >= since && $2 > longest { longest = $2 } END { print longest + 0 }' "$SCRATCH/pauses-$1"
}

# timeout_at SENDER MS: the retransmission timeout of its connection that was in force then, ms.
timeout_at() {
    awk -v at="$2" '$1 <= at { timeout = $2 } END { print timeout + 0 }' "$SCRATCH/timeouts-$1"
}

start_connection() {
    local from=$1 to=$2 address
    address=$(address_of "$to" "$3")
    start_in "$to" python3 "$TOOLS/black_hole.py" receive "$address" 5201 "$SCRATCH/pauses-$from" >"$SCRATCH/received-$from"
    RECEIVER[$from]=$PID
    until_true 5 "the receiver in $to listens" is_bound "$to" tcp 5201
    start_in "$from" python3 "$TOOLS/black_hole.py" send "$address" 5201 "$RATE" "$SCRATCH/timeouts-$from" >"$SCRATCH/sent-$from"
    SENDER[$from]=$PID
}

# narrows BYTES: the path carries so much from now on, and TCP goes on.
narrows() {
    local size=$1 began node from to family pause found latest timeout at
    began=$(now_ms)
    the_path_carries "$size"
    latest=$began
    for node in node1 node2; do
        until_true 8 "$node finds $size bytes" found_at "$node" "$size" "$began" || continue
        found=$(found_at "$node" "$size" "$began")
        measured_at_most "$size bytes: milliseconds until $node has found that" 5000 $((found - began))
        if [ "$found" -gt "$latest" ]; then latest=$found; fi
    done
    # What is under way when it is found is given one timeout more.
    sleep 2
    for at in "${CONNECTIONS[@]}"; do
        read -r from to family <<<"$at"
        found=$(found_at "${from/pod/node}" "$size" "$began") || continue
        pause=$(longest_pause "$from" "$began")
        timeout=$(timeout_at "$from" "$found")
        say "$size bytes, TCP from $from to $to: paused for $pause ms, found after $((found - began)) ms, timeout then $timeout ms"
        # 50 ms of grace: a scheduler's tick on either side, and what is under way when the pause begins.
        measured_at_most "$size bytes: milliseconds that TCP from $from paused, until found and one timeout" \
            $((found - began + timeout + 50)) "$pause"
        measured_at_most "$size bytes: milliseconds that TCP from $from paused" "$LONGEST" "$pause"
    done
    for family in "${FAMILIES[@]}"; do
        equal "$size bytes: what a sender of IPv$family with DF is told" "EMSGSIZE $(inner_mtu "$family" "$size")" \
            "$(hole pod1 told "$(address_of pod2 "$family")" "$(inner_mtu "$family" $((size + 1)))")"
    done
}

say "black holes: backend $BACKEND, $INSIDE inside, $OUTSIDE outside"
lab_up --nodes 2 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" --underlay wire --underlay-mtu "$WIDE"
for node in node1 node2; do
    peer=node1
    if [ "$node" = node1 ]; then peer=node2; fi
    STATE_OF=$LAB_STATE/$node
    PATH=${LAB_BIN:-$SCRIPTS/../target/fast}:$PATH start_in "$node" env TARTAN_ROOT="$STATE_OF" \
        python3 "$TOOLS/black_hole.py" watch "$peer" >"$SCRATCH/found-$node"
    until_true 10 "$node has measured its paths" found_at "$node" "$WIDE" 0
done
for at in "${CONNECTIONS[@]}"; do
    # shellcheck disable=SC2086
    start_connection $at
done
sleep 2
for from in pod1 pod2; do
    say "before: TCP from $from paused for $(longest_pause "$from" 0) ms, timeout $(timeout_at "$from" "$(now_ms)") ms"
done

for size in 1500 1400; do narrows "$size"; done

began=$(now_ms)
the_path_carries "$WIDE"
for node in node1 node2; do
    until_true $((WIDER + 5)) "$node finds $WIDE bytes" found_at "$node" "$WIDE" "$began" || continue
    measured_at_most "$WIDE bytes: milliseconds until $node has found that" $((WIDER * 1000)) \
        $(($(found_at "$node" "$WIDE" "$began") - began))
done
for from in pod1 pod2; do
    measured_at_most "$WIDE bytes: milliseconds that TCP from $from paused" 500 "$(longest_pause "$from" "$began")"
done
# Pods' kernels remember for ten minutes what they were told.
for pod in pod1 pod2; do
    ip -n "$PREFIX-$pod" route flush cache
    ip -n "$PREFIX-$pod" -6 route flush cache
done
for family in "${FAMILIES[@]}"; do
    equal "$WIDE bytes: what a sender of IPv$family with DF is told" none \
        "$(hole pod1 told "$(address_of pod2 "$family")" "$(inner_mtu "$family" "$WIDE")")"
done
for from in pod1 pod2; do
    stop "${SENDER[$from]}"
    wait "${RECEIVER[$from]}" || fail "the receiver of $from"
    equal "TCP of $from: bytes and their sum" "$(cat "$SCRATCH/sent-$from")" "$(cat "$SCRATCH/received-$from")"
done
for node in node1 node2; do law_one "$node"; done
