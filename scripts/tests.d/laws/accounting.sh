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

PORT=7000
OVERLOAD=20000
if [ -n "${FULL:-}" ]; then OVERLOAD=1000000; fi
# Bytes: no datagram may be cut on the way.
SMALL=64 LARGE=1300

# One count of every station on the way.
stations() {
    local name links=()
    for name in pod1 node1 net node2 pod3; do
        links+=(--argjson "$name" "$(ip -n "$PREFIX-$name" -s -j link show)")
    done
    jq -nc --argjson one "$(agent_json node1 drops)" --argjson two "$(agent_json node2 drops)" "${links[@]}" \
        --arg veth1 "$VETH1" --arg veth3 "$VETH3" --argjson queue "$(in_ns node1 tc -s -j qdisc show dev tartan0)" '
        def flow($d; $way; $field): [$d.workers[][$way][$field]] | add;
        def kernel($d; $way; $field): [$d.workers[] | select(.name == "kernel-path")[$way][$field]] | add // 0;
        def at($links; $device): $links[] | select(.ifname == $device).stats64;
        {pod_out: at($pod1; "eth0").tx, pod_lost: at($pod1; "eth0").tx.dropped, veth_in: at($node1; $veth1).rx,
         tun_read: at($node1; "tartan0").tx, tun_lost: (at($node1; "tartan0").tx.dropped + ([$queue[].drops] | add)),
         out_received: flow($one; "outbound"; "received"), out_sent: flow($one; "outbound"; "sent"),
         kernel_out: kernel($one; "outbound"; "received"), kernel_in: kernel($two; "inbound"; "delivered"),
         lost: (at($node1; "eth0").tx.dropped + at($net; "node2").tx.dropped
            + ([$two.kernel[] | select(.place | startswith("receive-")) | .count] | add)),
         in_received: (flow($two; "inbound"; "received") - flow($two; "inbound"; "probes")),
         delivered: flow($two; "inbound"; "delivered"), tun_written: at($node2; "tartan0").rx,
         backlog_lost: at($node2; "tartan0").rx.dropped, pod_in: at($pod3; "eth0").rx,
         veth_out: at($node2; $veth3).tx, veth_lost: at($node2; $veth3).tx.dropped}'
}

# balanced SIZE: what every station saw since BEFORE, as what must be equal, a sentence and two numbers each. (That a
# node sent or dropped what it received is law 1.) A device counts a super-packet as one packet; with its bytes it tells
# how many datagrams it was.
balanced() {
    jq -nc --argjson before "$BEFORE" --argjson after "$(stations)" --argjson size "$1" --arg type "$TYPE" \
        --argjson header $((FAMILY == 4 ? 28 : 48)) --argjson sent "$SENT" \
        --argjson kernel_path "$(kernel_path_carries && echo true || echo false)" '
        def bytes($name): .bytes - .packets * ($header
            + if ($name | startswith("tun")) and $type == "tun" then 0 else 14 end);
        $after | with_entries(.key as $name | $before[$name] as $was
            | .value |= if type == "object" then (bytes($name) - ($was | bytes($name))) / $size else . - $was end)
        | {counts: ., equations: [
            ["pod1 put on its veth what the program sent", $sent, .pod_out + .pod_lost],
            ["node1 took from the veth what pod1 put there", .pod_out, .veth_in],
            ["tartan0, its queue and the kernel path account for it", .veth_in, .tun_read + .tun_lost + .kernel_out],
            ["node1 received what left tartan0 and what the kernel path took", .tun_read + .kernel_out, .out_received],
            ["what node2 did not receive was dropped on the way or at the socket", .out_sent - .in_received, .lost],
            ["tartan0 of node2 or the kernel path took what was delivered", .delivered, .tun_written + .kernel_in],
            (if $kernel_path then ["pod3 received what was delivered", .delivered, .pod_in + .veth_lost + .backlog_lost]
             else (["the veth of pod3 took what tartan0 brought", .tun_written, .veth_out + .veth_lost],
                   ["pod3 received it", .veth_out, .pod_in]) end)]}' >"$SCRATCH/balance"
    jq -e '.equations | all(.[1] == .[2])' "$SCRATCH/balance"
}

# account SIZE NODE COUNT MOST: an overload of datagrams of that size, and COUNT more while the service of NODE stands
# still. MOST was lost, for a flood that lost nothing would not show that losses are counted; or the kernel path has
# carried it, in whose way the services were not.
account() {
    local service keeper what left right most=$4
    if kernel_path_carries && [ "$FAMILY" = 4 ]; then
        most='.kernel_out > .out_received * 0.9 and .kernel_in > .in_received * 0.9'
    fi
    sink pod3 "$PORT"
    BEFORE=$(stations) SENT=0
    flood "$OVERLOAD" "$1"
    # The keeper, which would kill it, stands still until it has seen its packets.
    service=$(service_pid "$2") keeper=$(cat "$LAB_STATE/$2/pid")
    undo eval "kill -CONT $keeper 2>/dev/null || true"
    kill -STOP "$keeper" "$service"
    flood "$3" "$1"
    kill -CONT "$service"
    until_true 10 "all packets of IPv$FAMILY, $1 bytes, are accounted for" balanced "$1" || true
    kill -CONT "$keeper"
    equal "the service of $2 lives" "$service" "$(service_pid "$2")"
    while IFS=$'\t' read -r what left right; do
        equal "$what" "$left" "$right"
    done < <(jq -r '.equations[] | @tsv' "$SCRATCH/balance")
    equal "the sink counted it; none came twice, or behind a later one" \
        "[$(jq .counts.pod_in "$SCRATCH/balance"),0,0]" "$(sunk pod3 '[.count + .lost, .twice, .late]')"
    jq -e ".counts | $most" "$SCRATCH/balance" >/dev/null || fail "not $most: $(jq -c .counts "$SCRATCH/balance")"
}

# flood COUNT SIZE
flood() {
    local report
    report=$(in_ns pod1 taskset -c 0 "$LOAD" send --to "$(socket_address "$(address_of pod3 "$FAMILY")" "$PORT")" \
        --size "$2" --count "$1") || fail "the flood"
    SENT=$((SENT + $(jq .sent <<<"$report")))
}

# Of super-packets the kernel counts one where it drops, however many datagrams it joined (docs/operate.md, gathering),
# and a veth with NAPI counts no Ethernet header. A veth puts what it carries into the backlog of the core that sends: a
# thread that changes cores overtakes itself in the kernel, with no overlay at all. Sender and workers stay where they
# are.
OPTIONS=(TARTAN_GATHER=false TARTAN_CORES="$(seq -s , 0 $((WORKERS - 1)))")
# A probe that finds a socket full is a loss too.
kernel_path_carries || OPTIONS+=(TARTAN_PROBE=false)
# Each datagram travels alone, so that what a socket dropped is a number of datagrams.
undo in_ns node1 ethtool -K eth0 tx-udp-segmentation "$([ "$UNDERLAY" = wire ] && echo off || echo on)"
undo in_ns node2 ethtool -K eth0 gro "$(in_ns node2 ethtool -k eth0 | sed -n 's/^generic-receive-offload: //p')"
in_ns node1 ethtool -K eth0 tx-udp-segmentation off >/dev/null
in_ns node2 ethtool -K eth0 gro off >/dev/null
agents_with "${OPTIONS[@]}"
TYPE=$(agent_json node1 status | jq -r .device_type)
VETH1=$(ip -n "$PREFIX-node1" -j route get "$(address_of pod1)" | jq -r '.[0].dev')
VETH3=$(ip -n "$PREFIX-node2" -j route get "$(address_of pod3)" | jq -r '.[0].dev')
# What the kernel path does not carry is the same without it.
if [ -z "${FULL:-}" ] && kernel_path_carries; then FAMILIES=(4); fi
for FAMILY in "${FAMILIES[@]}"; do
    account "$SMALL" node1 5000 '.tun_lost > 1000'
    account "$LARGE" node2 25000 '.lost > 100'
done
law_one node1
law_one node2
