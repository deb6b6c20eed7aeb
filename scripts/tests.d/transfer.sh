#!/usr/bin/env bash
# Much over several flows at once arrives as it was sent, one way and the other, and every worker has its share.
#
#   pod1 ── node1 tartan ══ underlay ══ node2: tartan, or the kernel's VXLAN ── pod2
#      └────────────────── eight TCP connections ─────────────────────────────────┘
#
# transfer.sh BACKEND PEER UNDERLAY, where PEER is tartan or kernel-vxlan. 1 GiB each way, with --full 10 GiB.
# alone: eight flows at once fill the kernel's backlog of each core, which all namespaces share
# case: vxlan kernel-vxlan offload workers=2
# full: udp tartan wire workers=2
# full: vxlan kernel-vxlan offload workers=1
# full: vxlan kernel-vxlan no-tunnel workers=2
# full: vxlan kernel-vxlan wire workers=2
# full: vxlan kernel-vxlan wire device=plain
# full: udp tartan offload workers=2
# full: vxlan tartan wire workers=4
# full: vxlan kernel-vxlan offload workers=2 device-type=tap
# full: vxlan tartan wire workers=2 device-type=tap
# full: vxlan tartan offload kernel-path=stateless
# full: vxlan tartan wire kernel-path=stateless
# full: vxlan tartan offload kernel-path=auto
# full: vxlan tartan no-tunnel kernel-path=auto
# full: vxlan tartan wire kernel-path=auto
# full: vxlan kernel-vxlan offload kernel-path=auto
# full: vxlan kernel-vxlan wire kernel-path=stateless
# full: vxlan kernel-vxlan wire kernel-path=auto device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PEER=$2
UNDERLAY=$3
FLOWS=8
BYTES=$((1 << 30))
if [ -n "${FULL:-}" ]; then BYTES=$((10 << 30)); fi
# Datagrams, each of a flow of its own: enough for every worker to get some.
SPREAD=64

# all_flows FROM TO: eight transfers at once.
all_flows() {
    local port address seconds=$SECONDS senders=() receivers=()
    address=$(address_of "$2")
    for ((port = 5100; port < 5100 + FLOWS; port++)); do
        start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
        receivers+=("$PID")
        start_in "$1" python3 "$TOOLS/bulk.py" send "$address" "$port" $((BYTES / FLOWS)) >"$SCRATCH/sent$port"
        senders+=("$PID")
    done
    for PID in "${senders[@]}"; do wait "$PID" || fail "sending from $1"; done
    for PID in "${receivers[@]}"; do wait "$PID" || fail "receiving at $2"; done
    for ((port = 5100; port < 5100 + FLOWS; port++)); do
        equal "bytes and sha256 of flow $((port - 5099)) from $1 to $2" "$(cat "$SCRATCH/sent$port")" "$(cat "$SCRATCH/received$port")"
    done
    equal "bytes of all flows from $1 to $2 ($((SECONDS - seconds)) s)" "$BYTES" \
        "$(cut -d ' ' -f 1 "$SCRATCH"/received* | jq -s add)"
}

# spread FROM TO: a datagram of each of many flows, to a port without a listener.
spread() {
    in_ns "$1" python3 - "$(address_of "$2")" "$SPREAD" <<'PYTHON'
import socket, sys

for _ in range(int(sys.argv[2])):
    flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flow.sendto(b"x", (sys.argv[1], 9))
    flow.close()
PYTHON
}

say "eight flows: backend $BACKEND, peer $PEER, underlay $UNDERLAY"
OPTIONS=()
if [ "$PEER" != tartan ]; then OPTIONS=(--peer "$PEER"); fi
lab_up --backend "$BACKEND" --underlay "$UNDERLAY" "${OPTIONS[@]}"
spread pod1 pod2
spread pod2 pod1
all_flows pod1 pod2
all_flows pod2 pod1
NODES=(node1)
if [ "$PEER" = tartan ]; then NODES+=(node2); fi
for NODE in "${NODES[@]}"; do
    law_one "$NODE"
    # Where the kernel path carries the transfer, its programs are the worker that does.
    WORK=$(agent_json "$NODE" drops | jq -c --arg path "$KERNEL_PATH" '[.workers[]
        | select(($path == "off") != (.name == "kernel-path")) | .outbound.sent, .inbound.delivered | . > 0]')
    [ "$WORK" != '[]' ] || fail "$NODE has no worker that could have carried it"
    equal "each worker of $NODE sent and delivered" "$(jq -c 'map(true)' <<<"$WORK")" "$WORK"
    equal "offloads of $NODE given up" 0 "$(agent_json "$NODE" status | jq .offloads_given_up)"
    say "$NODE: keeper and service take $(resident "$NODE") KiB"
done
