#!/usr/bin/env bash
# The tunnel device where the kernel offers less, and where it takes back what it offered: pods talk all the same, the
# status says what is used and why, and what cannot be had as it was asked for is refused with the reason.
#
#   pod1 ── node1 tartan ══ underlay ══ node2: tartan, or the kernel's VXLAN ── pod2
#     └──────────── TCP transfers in both directions ──────────────────────────┘
#
# device.sh none: no device with offloads (TARTAN_FAULTS): "offload" is refused, "auto" goes on as "plain".
# device.sh writers: no writes through a detached queue: one worker.
# device.sh refused BACKEND PEER: super-packets are refused by the device and the underlay; TCP and sends are given up by
#   at least one worker, and every flow goes on. Which worker, and whether UDP was, depends on where the flows come.
# device.sh switched BACKEND PEER: an administrator switches every offload off and on while flows run.
# device.sh provoked: a peer sends broken super-packets; that turns no offload off. What reaches the kernel has a header
#   that Tartan made itself from a packet that it has read through, and no packet is known that passes this and that the
#   kernel refuses: the case proves what becomes of broken packets, not what becomes of a refusal ("refused" does).
# device.sh type: device-type changes by a reload while TCP runs, and the device is made anew as the other type; a TAP has
#   the VTEP MAC and no ARP of its own, answers ARP requests and neighbour solicitations for pods of other nodes alone, and
#   an address or a flag that another program changes is repaired.
# PEER is tartan or kernel-vxlan.
# alone provoked: 2,000 datagrams at once have to fit the buffers of one socket
# full: none
# full: writers
# case: refused vxlan tartan workers=2
# full: switched vxlan kernel-vxlan workers=2
# full: provoked vxlan kernel-vxlan workers=2
# full: refused vxlan kernel-vxlan
# full: refused udp tartan workers=2
# full: switched udp tartan workers=2
# full: switched vxlan tartan workers=1
# full: switched vxlan tartan device=plain
# full: refused vxlan tartan workers=2 device-type=tap
# case: type
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

CASE=$1
BACKEND=${2:-vxlan}
PEER=${3:-tartan}
BYTES=$((1 << 26))
# Seconds of a transfer, at least.
LASTS=6
OPTIONS=()
NODES=(node1 node2)
if [ "$PEER" != tartan ]; then
    OPTIONS=(--peer "$PEER")
    NODES=(node1)
fi

# What the status says of the device, as JSON.
device() {
    agent_json "$1" status | jq -c '[.device_kind, .workers, .fewer_workers]'
}

# transfers RATE: two flows each way at once; in the background with their ends in PIDS.
transfers() {
    local port from to address
    PIDS=()
    for port in 5100 5101 5200 5201; do
        case $port in
        51*) from=pod1 to=pod2 ;;
        52*) from=pod2 to=pod1 ;;
        esac
        address=$(address_of "$to")
        start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
        PIDS+=("$PID")
        start_in "$from" python3 "$TOOLS/bulk.py" send "$address" "$port" "$BYTES" "$@" >"$SCRATCH/sent$port"
        PIDS+=("$PID")
    done
}

arrived() {
    local port
    for PID in "${PIDS[@]}"; do wait "$PID" || fail "a transfer has ended early"; done
    for port in 5100 5101 5200 5201; do
        equal "bytes and sha256 of flow $port" "$(cat "$SCRATCH/sent$port")" "$(cat "$SCRATCH/received$port")"
    done
}

# UDP super-packets, so that their offload is tried too.
segments() {
    in_ns "$1" python3 "$TOOLS/segments.py" "$(address_of "$2")" 7000 1200 10
}

no_fast_device() {
    export TARTAN_FAULTS=fast-device
    lab_up
    equal "device and workers" '["plain",1]' "$(device node1 | jq -c '.[:2]')"
    lab stop node1
    # Asked for more workers: as many as there are queues, and the reason.
    mkdir -p "$LAB_STATE/node1/etc/tartan"
    echo 'workers = 3' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
    lab start node1
    equal "device, workers and why" '["plain",1,"the plain device has one queue"]' "$(device node1)"
    equal "ping" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" 5 0.05 2)"
    lab stop node1
    echo 'device = "offload"' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
    if lab start node1 >"$SCRATCH/refused" 2>&1; then fail "a node with device = \"offload\" starts"; fi
    for PART in "tun-queue-0: this kernel offers no TUN device with offloads" 'set device to "auto" or "plain"'; do
        grep -qF "$PART" "$SCRATCH/refused" || fail "the refusal does not say '$PART': $(cat "$SCRATCH/refused")"
    done
    unset TARTAN_FAULTS
    lab start node1
    equal "device, workers and why, of a kernel that has it" '["offload",'"$(agent_json node1 status | jq .workers)"',null]' "$(device node1)"
}

no_writers() {
    TARTAN_FAULTS=detached-writes lab_up --workers 4
    equal "device, workers and why" \
        '["offload",1,"this kernel refuses writes through a detached queue of the device"]' "$(device node1)"
    equal "queues and what is left of writers" "numqueues 1 numdisabled 0" \
        "$(ip -n "$PREFIX-node1" -d link show tartan0 | grep -oE 'numqueues [0-9]+( numdisabled [0-9]+)?')"
    transfers
    arrived
}

refused() {
    local node
    TARTAN_FAULTS=gso-writes,gso-sends lab_up --backend "$BACKEND" "${OPTIONS[@]}"
    transfers
    segments pod1 pod2
    segments pod2 pod1
    arrived
    for node in "${NODES[@]}"; do
        [ "$(agent_json "$node" status | jq .offloads_given_up)" -gt 0 ] || fail "$node gave nothing up"
        equal "offloads of TCP and of sends that no worker of $node has given up" '[]' \
            "$(agent_json "$node" status | jq -c '.offloads - ["checksum", "udp"]')"
    done
}

# switch on|off: every offload of the tunnel, the underlay and the pods.
switch() {
    local place feature
    for place in node1:tartan0 node2:tartan0 node1:eth0 node2:eth0 pod1:eth0 pod2:eth0; do
        for feature in tx rx tso gso gro sg tx-udp-segmentation tx-udp_tnl-segmentation tx-udp_tnl-csum-segmentation \
            tx-gso-partial rx-gro-list rx-udp-gro-forwarding; do
            ip netns exec "$PREFIX-${place%:*}" ethtool -K "${place#*:}" "$feature" "$1" >/dev/null 2>&1 || true
        done
    done
}

switched() {
    local before node
    lab_up --backend "$BACKEND" "${OPTIONS[@]}"
    before=$(agent_json node1 status | jq -c .offloads)
    transfers $((BYTES / LASTS))
    sleep 1
    for _ in 1 2; do
        switch off
        equal "TSO of tartan0" off "$(in_ns node1 ethtool -k tartan0 | awk '/^tcp-segmentation-offload/ { print $2 }')"
        sleep 1
        switch on
        sleep 1
    done
    arrived
    # What the administrator switches is what we read; what we write is between the kernel and us.
    equal "offloads of node1" "$before" "$(agent_json node1 status | jq -c .offloads)"
    for node in "${NODES[@]}"; do
        equal "offloads of $node given up" 0 "$(agent_json "$node" status | jq .offloads_given_up)"
    done
}

provoked() {
    local before pid order seed=${FULL:+$RANDOM} count=2000
    lab_up --backend "$BACKEND" "${OPTIONS[@]}"
    before=$(agent_json node1 status | jq -c .offloads)
    pid=$(service_pid node1)
    # From the peer's own address: packets of any other host are dropped first.
    order=$(jq -nc --arg to "$(underlay_of node1 4)" --arg source "$(address_of pod2)" --arg destination "$(address_of pod1)" \
        --arg from "$(vtep_mac_of node2 4)" --arg mine "$(vtep_mac_of node1 4)" --argjson seed "${seed:-1}" --argjson count "$count" \
        '{$to, $source, $destination, source_mac: $from, destination_mac: $mine, $count, $seed}')
    say "$order"
    equal "datagrams sent" "$count" "$(in_ns node2 python3 "$TOOLS/provoke.py" <<<"$order")"
    say "what became of them: $(agent_json node1 drops | jq -c '[.workers[].inbound] | {received: (map(.received) | add), delivered: (map(.delivered) | add)}
        + (reduce (.[].dropped | to_entries[]) as $drop ({}; .[$drop.key] += $drop.value))')"
    [ "$(flow node1 inbound received)" -ge "$count" ] || fail "not all were received"
    equal "offloads of node1" "$before" "$(agent_json node1 status | jq -c .offloads)"
    equal "offloads of node1 given up" 0 "$(agent_json node1 status | jq .offloads_given_up)"
    equal "the service of node1" "$pid" "$(service_pid node1)"
    transfers
    arrived
}

is_of_type() {
    [ "$(agent_json node1 status 2>/dev/null | jq -r .device_type)" = "$1" ]
}

# as_type TYPE: what a device of that type is to ip(8): its link type, flags and address.
as_type() {
    equal "device type in the status" "$1" "$(agent_json node1 status | jq -r .device_type)"
    equal "type of tartan0" "tun type $1" "$(ip -n "$PREFIX-node1" -d link show tartan0 | grep -oE 'tun type [a-z]+')"
    equal "ping" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" 5 0.05 2)"
}

is_whole_tap() {
    [ "$(ip -n "$PREFIX-node1" -j link show tartan0 | jq -r '.[0] | [.address, (.flags | index("NOARP") != null)] | @csv')" = \
        "\"$(vtep_mac_of node1 4)\",true" ]
}

types() {
    local type
    lab_up --inside dual --outside dual
    mkdir -p "$LAB_STATE/node1/etc/tartan"
    transfers $((BYTES / LASTS))
    for type in tap tun; do
        sleep 1
        echo "device-type = \"$type\"" >"$LAB_STATE/node1/etc/tartan/tartan.toml"
        kill -HUP "$(cat "$LAB_STATE/node1/pid")"
        until_true 10 "the device is made anew as a $type" is_of_type "$type"
        as_type "$type"
    done
    arrived
    lab stop node1
    echo 'device-type = "tap"' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
    lab start node1
    as_type tap
    is_whole_tap || fail "tartan0 is not as a TAP is to be: $(ip -n "$PREFIX-node1" -j link show tartan0)"
    equal "answers to requests on tartan0" "arp $(vtep_mac_of node1 4) ndp $(vtep_mac_of node1 4) nothing else" \
        "$(in_ns node1 python3 "$TOOLS/neighbours.py" tartan0 10.244.1.0 "$(address_of pod2 4)" fd00:10:244:1:: "$(address_of pod2 6)" | xargs)"
    ip -n "$PREFIX-node1" link set tartan0 arp on
    ip -n "$PREFIX-node1" link set tartan0 address 02:00:00:00:00:77
    until_true 5 "the TAP is repaired" is_whole_tap
    as_type tap
}

say "device: $CASE, backend $BACKEND, peer $PEER"
case $CASE in
none) no_fast_device ;;
writers) no_writers ;;
refused) refused ;;
switched) switched ;;
provoked) provoked ;;
type) types ;;
esac
for NODE in "${NODES[@]}"; do law_one "$NODE"; done
