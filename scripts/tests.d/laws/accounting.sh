#!/usr/bin/env bash
# Every packet is accounted for, to the packet, from the program that sends to the one that receives, under overload and
# while a service stands still so that the kernel's queues in front of it overflow.
#
#   flood ─ pod1 ─ veth ─ tartan0 queue ─ node1 ─ socket ══ eth0 ══ socket ─ node2 ─ tartan0 ─ veth ─ pod3 ─ sink
#
# The kernel path's programs on tartan0 and eth0 carry IPv4: what they take does not count as the device's, and what
# they bring neither there nor, where they give it to the pod directly, at its veth. Their own counts stand there.
# labs: inside=dual outside=dual
# labs: inside=v6
# labs: inside=dual kernel-path=auto
# full: kernel-path=off
# full: registry=file probes=off
# full: kernel-path=stateless inside=v4 probes=on
# seconds: 900
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=7000
OVERLOAD=${FULL:+1000000}
OVERLOAD=${OVERLOAD:-20000}
# Bytes: no datagram may be cut on the way.
SMALL=64
LARGE=1300
# The longest GSO batch of datagrams (the kernel's UDP_MAX_SEGMENTS, before 6.9).
GSO_BATCH=64

host_end() {
    ip -n "$PREFIX-$1" -j "-${FAMILIES[0]}" route show "$(address_of "$2" "${FAMILIES[0]}")" | jq -r '.[0].dev'
}

devices() {
    ip -n "$PREFIX-$1" -s -j link show
}

# One count of every station on the way.
stations() {
    jq -nc --argjson one "$(agent_json node1 drops)" --argjson two "$(agent_json node2 drops)" \
        --argjson pod1 "$(devices pod1)" --argjson node1 "$(devices node1)" --argjson net "$(devices net)" \
        --argjson node2 "$(devices node2)" --argjson pod3 "$(devices pod3)" --arg veth1 "$VETH1" --arg veth3 "$VETH3" \
        --argjson queue "$(in_ns node1 tc -s -j qdisc show dev tartan0)" '
        def flow($d; $way; $field): [$d.workers[][$way][$field]] | add;
        def lost($d; $way): [$d.workers[][$way].dropped | add // 0] | add;
        def kernel($d; $way; $field): [$d.workers[] | select(.name == "kernel-path")[$way][$field]] | add // 0;
        def named: map({(.ifname): .stats64}) | add;
        ($pod1 | named) as $pod1 | ($node1 | named) as $node1 | ($net | named) as $net | ($node2 | named) as $node2
        | ($pod3 | named) as $pod3
        | {pod_out: $pod1.eth0.tx, pod_lost: $pod1.eth0.tx.dropped, veth_in: $node1[$veth1].rx,
         tun_read: $node1.tartan0.tx, tun_lost: ($node1.tartan0.tx.dropped + ([$queue[].drops] | add // 0)),
         out_received: flow($one; "outbound"; "received"), out_dropped: lost($one; "outbound"),
         out_sent: flow($one; "outbound"; "sent"),
         lost: ($node1.eth0.tx.dropped + $net.node2.tx.dropped
            + ([$two.kernel[] | select(.place | startswith("receive-")) | .count] | add)),
         in_received: (flow($two; "inbound"; "received") - flow($two; "inbound"; "probes")),
         in_dropped: lost($two; "inbound"),
         kernel_out: kernel($one; "outbound"; "received"), kernel_in: kernel($two; "inbound"; "delivered"),
         delivered: flow($two; "inbound"; "delivered"), tun_written: $node2.tartan0.rx,
         backlog_lost: $node2.tartan0.rx.dropped,
         veth_out: $node2[$veth3].tx, veth_lost: $node2[$veth3].tx.dropped, pod_in: $pod3.eth0.rx}'
}

# What every station saw since BEFORE, as what must be equal: a sentence and two numbers each. A device counts a
# super-packet as one packet; with its bytes it tells how many datagrams it was.
# shellcheck disable=SC2016
EQUATIONS='
    def datagrams($name): ($header + if ($name | startswith("tun")) and $type == "tun" then 0 else 14 end) as $headers
        | (.bytes - .packets * $headers) / $size;
    $after | with_entries(.key as $name | $before[$name] as $was | .value |=
        if type == "object" then {bytes: (.bytes - $was.bytes), packets: (.packets - $was.packets)} | datagrams($name)
        else . - $was end)
    | . + {unseen: (.out_sent - .in_received)}
    | {counts: ., equations: [
        ["pod1 put on its veth what the program sent", $sent, .pod_out + .pod_lost],
        ["node1 took from the veth what pod1 put there", .pod_out, .veth_in],
        ["tartan0, its queue and the kernel path account for it", .veth_in, .tun_read + .tun_lost + .kernel_out],
        ["node1 received what left tartan0 and what the kernel path took", .tun_read + .kernel_out, .out_received],
        ["node1 sent it or dropped it", .out_received, .out_sent + .out_dropped],
        (if $batch == 1 then ["what node2 did not receive was dropped on the way or at the socket", .unseen, .lost]
         else ["dropped GSO batches hold what node2 did not receive", true,
               (.lost <= .unseen and .unseen <= .lost * $batch)] end),
        ["node2 delivered it or dropped it", .in_received, .delivered + .in_dropped],
        ["tartan0 of node2 or the kernel path took what was delivered", .delivered, .tun_written + .kernel_in],
        (if $kernel_path then ["pod3 received what was delivered", .delivered, .pod_in + .veth_lost + .backlog_lost]
         else (["the veth of pod3 took what tartan0 brought", .tun_written, .veth_out + .veth_lost],
               ["pod3 received it", .veth_out, .pod_in]) end)]}'

balanced() {
    local header=28 kernel_path=false
    [ "$FAMILY" = 4 ] || header=48
    ! kernel_path_carries || kernel_path=true
    jq -nc --argjson before "$BEFORE" --argjson after "$(stations)" --argjson size "$1" --argjson header "$header" \
        --arg type "$TYPE" --argjson sent "$SENT" --argjson batch "$BATCH" --argjson kernel_path "$kernel_path" \
        "$EQUATIONS" >"$SCRATCH/balance"
    jq -e '.equations | all(.[1] == .[2])' "$SCRATCH/balance"
}

count() {
    jq ".counts.$1" "$SCRATCH/balance"
}

# account SIZE NODE COUNT: an overload of datagrams of that size, and COUNT more while the service of NODE stands still.
account() {
    local what left right
    sink pod3 "$PORT"
    BEFORE=$(stations) SENT=0
    flood "$OVERLOAD" "$1"
    flood_against_standstill "$2" "$3" "$1"
    until_true 10 "all packets of IPv$FAMILY, $1 bytes, are accounted for" balanced "$1" || true
    while IFS=$'\t' read -r what left right; do
        equal "$what" "$left" "$right"
    done < <(jq -r '.equations[] | @tsv' "$SCRATCH/balance")
    equal "the sink counted it; none came twice, or behind a later one" "[$(count pod_in),0,0]" \
        "$(sunk pod3 '[.count + .lost, .twice, .late]')"
}

# flood COUNT SIZE
flood() {
    local to report
    to=$(socket_address "$(address_of pod3 "$FAMILY")" "$PORT")
    report=$(in_ns pod1 taskset -c 0 "$LOAD" send --to "$to" --size "$2" --count "$1") || fail "the flood"
    SENT=$((SENT + $(jq .sent <<<"$report")))
}

# Stops the service of node $1 for less than the keeper's patience, which is 2 s, while a burst arrives.
flood_against_standstill() {
    local pid timer
    pid=$(service_pid "$1")
    kill -STOP "$pid"
    (sleep 1.2 && kill -CONT "$pid") &
    timer=$!
    flood "$2" "$3"
    kill -CONT "$pid"
    kill "$timer" 2>/dev/null || true
    equal "the service of $1 lives" "$pid" "$(service_pid "$1")"
}

# The services that stood still were in nothing's way.
most_by_kernel_path() {
    local least='.counts | .kernel_out > .out_received * 0.9 and .kernel_in > .in_received * 0.9'
    jq -e "$least" "$SCRATCH/balance" >/dev/null ||
        fail "the kernel path carried little: $(jq -c .counts "$SCRATCH/balance")"
}

# overflows COUNT LEAST: a flood that lost nothing would not show that losses are counted.
overflows() {
    [ "$(count "$1")" -gt "$2" ] || fail "no queue overflowed: $1 is $(count "$1")"
}

# Of super-packets the kernel counts one where it drops, however many datagrams it joined (docs/operate.md, gathering),
# and a veth with NAPI counts no Ethernet header. A veth puts what it carries into the backlog of the core that sends: a
# thread that changes cores overtakes itself in the kernel, with no overlay at all. Sender and workers stay where they
# are.
OPTIONS=(TARTAN_GATHER=false TARTAN_CORES="$(seq -s , 0 $((WORKERS - 1)))")
# A probe that finds a socket full is a loss too.
kernel_path_carries || OPTIONS+=(TARTAN_PROBE=false)
# Each datagram travels alone, so that what a socket dropped is a number of datagrams.
BATCH=1
if [ "$UNDERLAY" = wire ] || [ -z "${FULL:-}" ]; then
    undo in_ns node1 ethtool -K eth0 tx-udp-segmentation "$([ "$UNDERLAY" = wire ] && echo off || echo on)"
    undo in_ns node2 ethtool -K eth0 gro "$(in_ns node2 ethtool -k eth0 | sed -n 's/^generic-receive-offload: //p')"
    in_ns node1 ethtool -K eth0 tx-udp-segmentation off >/dev/null
    in_ns node2 ethtool -K eth0 gro off >/dev/null
else
    BATCH=$GSO_BATCH
fi
agents_with "${OPTIONS[@]}"
TYPE=$(agent_json node1 status | jq -r .device_type)
VETH1=$(host_end node1 pod1) VETH3=$(host_end node2 pod3)
for FAMILY in "${FAMILIES[@]}"; do
    CHECKS=("overflows tun_lost 1000" "overflows lost 100")
    if kernel_path_carries && [ "$FAMILY" = 4 ]; then CHECKS=(most_by_kernel_path most_by_kernel_path); fi
    account "$SMALL" node1 5000
    ${CHECKS[0]}
    account "$LARGE" node2 25000
    ${CHECKS[1]}
done
law_one node1
law_one node2
