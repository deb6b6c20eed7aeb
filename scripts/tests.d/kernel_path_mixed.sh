#!/usr/bin/env bash
# A cluster in which each node is of another kind: what any pod sends any other arrives as it was sent, in both families.
#
#   pod1 ── node1, kernel-path = auto ══╗          ╔══ node3, stateless ────────── pod3
#                                    underlay ═════╣
#   pod2 ── node2, off ═════════════════╝          ╚══ node4, a kernel VXLAN device ── pod4, where all is IPv4
#
# kernel_path_mixed.sh BACKEND INSIDE. With udp all nodes are configured for the kernel path, and none may use it.
# alone: transfers fill the kernel's backlog of each core, which all namespaces share
# case: vxlan v4
# full: vxlan dual
# full: udp dual
# Peers learn it from probes.
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

BACKEND=$1
INSIDE=${2:-v4}
BYTES=$((64 << 20))
if [ -n "${FULL:-}" ]; then BYTES=$((1 << 30)); fi
FAMILIES=(4)
if [ "$INSIDE" = dual ]; then FAMILIES+=(6); fi
PODS=(pod1 pod2 pod3)
TARTANS=(node1 node2 node3)
PORT=5200

# transfer FROM TO FAMILY: compares what was sent with what was received.
transfer() {
    local address
    address=$(address_of "$2" "$3")
    PORT=$((PORT + 1))
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" "$PORT" >"$SCRATCH/received"
    in_ns "$1" timeout 60 python3 "$TOOLS/bulk.py" send "$address" "$PORT" "$BYTES" >"$SCRATCH/sent" || fail "sending from $1 to $2"
    wait "$PID" || fail "receiving at $2"
    equal "bytes and sha256 from $1 to $2 over IPv$3" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

every_pair() {
    local from to family
    for family in "${FAMILIES[@]}"; do
        for from in "${PODS[@]}"; do
            for to in "${PODS[@]}"; do
                [ "$from" = "$to" ] || transfer "$from" "$to" "$family"
            done
        done
    done
}

# carried NODE: whether its programs sent and delivered.
carried() {
    agent_json "$1" drops | jq -e '[.workers[] | select(.name == "kernel-path") | .outbound.sent, .inbound.delivered] | length == 2 and all(. > 1000)'
}

say "a cluster of several kinds: backend $BACKEND, inside $INSIDE"
if [ "$BACKEND" = udp ]; then
    lab_up --nodes 3 --backend udp --inside "$INSIDE"
    for NODE in "${TARTANS[@]}"; do set_mode "$NODE" auto false; done
    every_pair
    for NODE in "${TARTANS[@]}"; do
        [ -n "$(agent_json "$NODE" status | jq -r '.kernel_path.reason // empty')" ] || fail "$NODE does not say why"
    done
else
    if [ "$INSIDE" = v4 ]; then
        PODS+=(pod4)
        lab_up --nodes 4 --peer kernel-vxlan
    else
        lab_up --nodes 3 --inside "$INSIDE"
    fi
    set_mode node1 auto
    set_mode node3 stateless
    until_true 5 "node1 sends to node2 by user space" user_space_sends node1 node2
    until_true 5 "node1 sends to node3 by its programs" programs_send node1 node3
    until_true 5 "node3 sends to node1 by its programs" programs_send node3 node1
    every_pair
    for NODE in node1 node3; do carried "$NODE" >/dev/null || fail "the programs of $NODE carried nothing: $(agent_json "$NODE" drops)"; done
    [ "$(flows node1 installed)" -ge 2 ] || fail "$(flows node1 installed) flows were installed on node1"
fi
for NODE in "${TARTANS[@]}"; do law_one "$NODE"; done
