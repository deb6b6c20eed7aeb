#!/usr/bin/env bash
# The tunnel device where the kernel offers less, and where it takes back what it offered: pods talk all the same, the
# status says what is used and why, and what cannot be had as it was asked for is refused with the reason.
#
#   pod1 ── node1 tartan ══ underlay ══ node2: tartan, or the kernel's VXLAN ── pod2
#
# refused BACKEND PEER: super-packets are refused by device and underlay (TARTAN_FAULTS); TCP and sends are given
#     up by at least one worker, and every flow goes on. Which worker, and whether UDP was, depends on where flows come.
# type: device-type changes by a reload while TCP runs, and the device is made anew as the other type; a TAP has the
#     VTEP MAC and no ARP of its own, answers ARP requests and neighbour solicitations for pods of other nodes alone,
#     and an address or a flag that another program changes is repaired.
# none: no device with offloads: "offload" is refused, "auto" goes on as "plain".
# writers: no writes through a detached queue: one worker.
# switched BACKEND PEER: an administrator switches every offload off and on while flows run.
# provoked BACKEND PEER: a peer sends broken super-packets; that turns no offload off. What reaches the kernel has a
#     header that Tartan made itself from a packet that it has read through, and no packet is known that passes this and
#     that the kernel refuses: it proves what becomes of broken packets, not what becomes of a refusal ("refused" does).
# PEER is tartan or kernel-vxlan.
# alone provoked: 2,000 datagrams at once have to fit the buffers of one socket
# case: refused vxlan tartan workers=2
# case: type
# full: none
# full: writers
# full: provoked vxlan kernel-vxlan workers=2
# full: refused udp tartan workers=2 device-type=tap
# full: switched udp tartan workers=2
# full: switched vxlan kernel-vxlan workers=1
# full: switched vxlan tartan device=plain
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# The agent that has hooks of tests; without TARTAN_FAULTS it is any other.
export LAB_AGENT=$BIN/faults/tartan

CASE=$1
BACKEND=${2:-vxlan}
BYTES=$((1 << 24))
# Seconds of a transfer that is to last.
LASTS=6
OPTIONS=(--backend "$BACKEND")
NODES=(node1 node2)
if [ "${3:-tartan}" != tartan ]; then
    OPTIONS+=(--peer "$3")
    NODES=(node1)
fi

# What the status says of the device, as JSON.
device() {
    agent_json "$1" status | jq -c '[.device_kind, .workers, .fewer_workers]'
}

# transfers [RATE]: two flows each way at once, in the background; with a rate, bytes a second of each, until `arrived`.
transfers() {
    local port from to address bytes=$BYTES
    if [ $# -gt 0 ]; then bytes=$((1 << 40)); fi
    SENDERS=() RECEIVERS=()
    for port in 5100 5101 5200 5201; do
        from=pod1 to=pod2
        if [ "$port" -ge 5200 ]; then from=pod2 to=pod1; fi
        address=$(address_of "$to")
        start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
        RECEIVERS+=("$PID")
        start_in "$from" python3 "$TOOLS/bulk.py" send "$address" "$port" "$bytes" "$@" >"$SCRATCH/sent$port"
        SENDERS+=("$PID")
        if [ $# -gt 0 ]; then until_true 5 "flow $port has begun" is_connected "$from" "$port"; fi
    done
}

is_connected() {
    [ -n "$(ip netns exec "$PREFIX-$1" ss -Htn state established "dport = :$2")" ]
}

# arrived [early]: whole and the same; with `early` the senders are told to end.
arrived() {
    local port
    if [ $# -gt 0 ]; then kill -TERM "${SENDERS[@]}"; fi
    for PID in "${SENDERS[@]}" "${RECEIVERS[@]}"; do wait "$PID" || fail "a transfer has ended early"; done
    for port in 5100 5101 5200 5201; do
        equal "bytes and sha256 of flow $port" "$(cat "$SCRATCH/sent$port")" "$(cat "$SCRATCH/received$port")"
    done
}

# configured NODE LINE: what its configuration says.
configured() {
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "$2" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
}

ping_far() {
    equal "ping" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" 5 0.05 5)"
}

offloads() {
    agent_json "$1" status | jq -c '[.offloads, .offloads_given_up]'
}

refused() {
    local node
    TARTAN_FAULTS=gso-writes,gso-sends lab_up "${OPTIONS[@]}"
    transfers
    # UDP super-packets, so that their offload is tried too.
    python3 "$TOOLS/segments.py" pod1 "$(address_of pod1)" pod2 "$(address_of pod2)" \
        "$(vtep_mac_of node1 4)" "$(vtep_mac_of node2 4)" || fail "segments"
    arrived
    for node in "${NODES[@]}"; do
        equal "offloads of TCP and sends that no worker of $node has given up, and whether any was" '[[],true]' \
            "$(offloads "$node" | jq -c '[.[0] - ["checksum", "udp"], .[1] > 0]')"
    done
}

# as_type TYPE: what a device of that type is to ip(8).
as_type() {
    equal "type of tartan0, and in the status" "tun type $1 $1" \
        "$(ip -n "$PREFIX-node1" -d link show tartan0 | grep -oE 'tun type [a-z]+') $(device_type)"
    ping_far
}

device_type() {
    agent_json node1 status | jq -r .device_type
}

is_of_type() {
    [ "$(device_type 2>/dev/null)" = "$1" ]
}

is_whole_tap() {
    ip -n "$PREFIX-node1" -j link show tartan0 |
        jq -e --arg mac "$(vtep_mac_of node1 4)" '.[0] | .address == $mac and (.flags | index("NOARP"))'
}

types() {
    local type mac four six
    lab_up --inside dual --outside dual
    mac=$(vtep_mac_of node1 4) four=$(address_of pod2 4) six=$(address_of pod2 6)
    transfers 1000000
    for type in tap tun tap; do
        configured node1 "device-type = \"$type\""
        kill -HUP "$(cat "$LAB_STATE/node1/pid")"
        until_true 10 "the device is made anew as a $type" is_of_type "$type"
        as_type "$type"
    done
    arrived early
    is_whole_tap >/dev/null || fail "tartan0 is not as a TAP is to be: $(ip -n "$PREFIX-node1" -j link show tartan0)"
    same "answers to requests on tartan0" "arp $four $mac"$'\n'"ndp $six $mac"$'\nnothing else' \
        "$(in_ns node1 python3 "$TOOLS/neighbours.py" tartan0 10.244.1.0 "$four" fd00:10:244:1:: "$six")"
    ip -n "$PREFIX-node1" link set tartan0 arp on
    ip -n "$PREFIX-node1" link set tartan0 address 02:00:00:00:00:77
    until_true 5 "the TAP is repaired" is_whole_tap
    as_type tap
}

no_fast_device() {
    export TARTAN_FAULTS=fast-device
    lab_up
    equal "device, workers and why" '["plain",1,null]' "$(device node1)"
    lab stop node1
    configured node1 'workers = 3'
    lab start node1
    equal "device, workers and why, of more workers" '["plain",1,"the plain device has one queue"]' "$(device node1)"
    ping_far
    lab stop node1
    configured node1 'device = "offload"'
    if lab start node1 >"$SCRATCH/refused" 2>&1; then fail "a node with device = \"offload\" starts"; fi
    for PART in "tun-queue-0: this kernel offers no TUN device with offloads" 'set device to "auto" or "plain"'; do
        grep -qF "$PART" "$SCRATCH/refused" || fail "the refusal does not say '$PART': $(cat "$SCRATCH/refused")"
    done
    unset TARTAN_FAULTS
    lab start node1
    equal "device and why, of a kernel that has it" '["offload",null]' "$(device node1 | jq -c '[.[0], .[2]]')"
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
    local before how
    lab_up "${OPTIONS[@]}"
    before=$(offloads node1)
    transfers $((BYTES / LASTS))
    for how in off on off on; do
        sleep 1
        switch "$how"
        equal "TSO of tartan0" "$how" \
            "$(in_ns node1 ethtool -k tartan0 | awk '/^tcp-segmentation-offload/ { print $2 }')"
    done
    arrived early
    # What the administrator switches is what we read; what we write is between the kernel and us.
    equal "offloads of node1, and how many were given up" "$(jq -c '[.[0], 0]' <<<"$before")" "$(offloads node1)"
}

provoked() {
    local before pid count=2000
    lab_up "${OPTIONS[@]}"
    before="$(service_pid node1) $(offloads node1)"
    # From the peer's own address: packets of any other host are dropped first.
    equal "datagrams sent" "$count" "$(in_ns node2 python3 "$TOOLS/provoke.py" "$(underlay_of node1 4)" \
        "$(address_of pod2)" "$(address_of pod1)" "$(vtep_mac_of node2 4)" "$(vtep_mac_of node1 4)" "$count" "$RANDOM")"
    say "what became of them: $(agent_json node1 drops | jq -c '[.workers[].inbound | {received, delivered, dropped}]')"
    [ "$(flow node1 inbound received)" -ge "$count" ] || fail "not all were received"
    equal "service and offloads of node1" "$before" "$(service_pid node1) $(offloads node1)"
    transfers
    arrived
}

say "device: $*"
case $CASE in
none) no_fast_device ;;
writers) no_writers ;;
type) types ;;
refused | switched | provoked) "$CASE" ;;
esac
for NODE in "${NODES[@]}"; do law_one "$NODE"; done
