#!/usr/bin/env bash
# The tunnel device where the kernel offers less, and where it takes back what it offered: pods talk all the same, the
# status says what is used and why, and what cannot be had as it was asked for is refused with the reason.
#
#   pod1 ── node1 tartan ══ underlay ══ node2 tartan ── pod2
#
# refused BACKEND: device and underlay refuse super-packets (TARTAN_FAULTS); at least one worker gives TCP and
#     sends up, and every flow goes on. Which worker, and whether UDP is given up too, depends on where flows come.
# type: device-type changes by a reload while TCP runs; a TAP has the VTEP MAC and no ARP of its own, answers for pods
#     of other nodes alone, and an address or a flag that another program changes is repaired.
# less: no writes through a detached queue leave one worker; without a device with offloads "offload" is refused.
# switched BACKEND: an administrator switches every offload off and on while flows run.
# case: refused vxlan workers=2
# case: type
# full: less
# full: refused udp workers=2 device-type=tap
# full: switched udp workers=2
# full: switched vxlan workers=2
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

# The agent that has hooks of tests; without TARTAN_FAULTS it is any other.
export LAB_AGENT=$BIN/faults/tartan

# device WHAT EXPECTED: what the status says.
device() {
    equal "device, workers and why, $1" "$2" \
        "$(agent_json node1 status | jq -c '[.device_kind, .workers, .fewer_workers]')"
    ping_far
}

# transfers RATE: two flows each way at once, of so many bytes a second each, until `arrived`.
transfers() {
    local port from to address
    SENDERS=() RECEIVERS=()
    for port in 5100 5101 5200 5201; do
        from=pod1 to=pod2
        if [ "$port" -ge 5200 ]; then from=pod2 to=pod1; fi
        address=$(address_of "$to")
        start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
        RECEIVERS+=("$PID")
        start_in "$from" python3 "$TOOLS/bulk.py" send "$address" "$port" $((1 << 40)) "$1" >"$SCRATCH/sent$port"
        SENDERS+=("$PID")
    done
    until_true 10 "the flows began" prints 4 in_ns pod1 sh -c 'ss -Htn state established | grep -cE ":5[12]0[01]\b"'
}

# What was sent has arrived whole.
arrived() {
    local port
    kill -TERM "${SENDERS[@]}"
    for PID in "${SENDERS[@]}" "${RECEIVERS[@]}"; do wait "$PID" || fail "a transfer has ended early"; done
    for port in 5100 5101 5200 5201; do
        equal "bytes and sha256 of flow $port" "$(cat "$SCRATCH/sent$port")" "$(cat "$SCRATCH/received$port")"
    done
}

# configured LINE: what the configuration of node1 says.
configured() {
    mkdir -p "$LAB_STATE/node1/etc/tartan"
    echo "$1" >"$LAB_STATE/node1/etc/tartan/tartan.toml"
}

ping_far() {
    equal "ping" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" 5 0.05 5)"
}

offloads() {
    agent_json "$1" status | jq -c '[.offloads, .offloads_given_up]'
}

case_refused() {
    local node
    TARTAN_FAULTS=gso-writes,gso-sends lab_up --backend "$2"
    transfers 10000000
    # UDP super-packets, so that their offload is tried too.
    python3 "$TOOLS/segments.py" pod1 "$(address_of pod1)" pod2 "$(address_of pod2)" \
        "$(vtep_mac_of node1 4)" "$(vtep_mac_of node2 4)" || fail "segments"
    arrived
    for node in node1 node2; do
        equal "offloads of TCP and sends that no worker of $node has given up, and whether any was" '[[],true]' \
            "$(offloads "$node" | jq -c '[.[0] - ["checksum", "udp"], .[1] > 0]')"
    done
}

# is_of_type TYPE: to ip(8), and in the status.
is_of_type() {
    { ip -n "$PREFIX-node1" -d -j link show tartan0 | jq '.[0].linkinfo.info_data.type'; agent_json node1 status |
        jq .device_type; } | jq -es --arg type "$1" '. == [$type, $type]'
}

is_whole_tap() {
    ip -n "$PREFIX-node1" -j link show tartan0 |
        jq -e --arg mac "$(vtep_mac_of node1 4)" '.[0] | .address == $mac and (.flags | index("NOARP"))'
}

case_type() {
    local type mac four six
    lab_up --inside dual --outside dual
    mac=$(vtep_mac_of node1 4) four=$(address_of pod2 4) six=$(address_of pod2 6)
    transfers 1000000
    for type in tap tun tap; do
        configured "device-type = \"$type\""
        kill -HUP "$(cat "$LAB_STATE/node1/pid")"
        until_true 10 "the device is made anew as a $type" is_of_type "$type"
        ping_far
    done
    arrived
    is_whole_tap >/dev/null || fail "tartan0 is not as a TAP is to be: $(ip -n "$PREFIX-node1" -j link show tartan0)"
    same "answers to requests on tartan0" "arp $four $mac"$'\n'"ndp $six $mac"$'\nnothing else' \
        "$(in_ns node1 python3 "$TOOLS/neighbours.py" tartan0 10.244.1.0 "$four" fd00:10:244:1:: "$six")"
    ip -n "$PREFIX-node1" link set tartan0 arp on
    ip -n "$PREFIX-node1" link set tartan0 address 02:00:00:00:00:77
    until_true 5 "the TAP is repaired" is_whole_tap
    ping_far
}

case_less() {
    local part
    TARTAN_FAULTS=detached-writes lab_up --workers 4
    device "of 4" '["offload",1,"this kernel refuses writes through a detached queue of the device"]'
    TARTAN_FAULTS=fast-device lab_up --workers 3
    device "of 3" '["plain",1,"the plain device has one queue"]'
    lab stop node1
    configured 'device = "offload"'
    if TARTAN_FAULTS=fast-device lab start node1 >"$SCRATCH/refused" 2>&1; then fail "device = \"offload\" starts"; fi
    for part in "tun-queue-0: this kernel offers no TUN device with offloads" 'set device to "auto" or "plain"'; do
        grep -qF "$part" "$SCRATCH/refused" || fail "the refusal does not say '$part': $(cat "$SCRATCH/refused")"
    done
    lab start node1
}

case_switched() {
    local before how place feature
    lab_up --backend "$2"
    before=$(offloads node1)
    transfers 2000000
    for how in off on off on; do
        sleep 1
        for place in node1:tartan0 node2:tartan0 node1:eth0 node2:eth0 pod1:eth0 pod2:eth0; do
            for feature in tx rx tso gso gro sg tx-udp-segmentation tx-udp_tnl-segmentation \
                tx-udp_tnl-csum-segmentation tx-gso-partial rx-gro-list rx-udp-gro-forwarding; do
                in_ns "${place%:*}" ethtool -K "${place#*:}" "$feature" "$how" >/dev/null 2>&1 || true
            done
        done
        equal "TSO of tartan0" "$how" \
            "$(in_ns node1 ethtool -k tartan0 | awk '/^tcp-segmentation-offload/ { print $2 }')"
    done
    arrived
    # What the administrator switches is what we read; what we write is between the kernel and us.
    equal "offloads of node1, and how many were given up" "$(jq -c '[.[0], 0]' <<<"$before")" "$(offloads node1)"
}

"case_$1" "$@"
for NODE in node1 node2; do law_one "$NODE"; done
