#!/usr/bin/env bash
# Whether a peer has the kernel path is known from its probes, whatever registry there is: programs send to it from the
# moment that it says so, and not to one that says that it has none; a service of it that is killed goes on saying so.
# `tartan status` and `tartan peers` say why user space sends. A kernel VXLAN device is sent to at once. Whatever mode
# each node has, what any pod sends any other arrives as it was sent. With the format udp no node uses the kernel path,
# and each says why.
# labs: kernel-path=auto third=kernel-vxlan
# labs: kernel-path=stateless
# full: kernel-path!=off
# full: format=udp device=tap
# last: it restarts agents and kills a service
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

BYTES=$((8 << 20))
if [ -n "${FULL:-}" ]; then BYTES=$((256 << 20)); else FAMILIES=(4); fi
PODS=(pod1 pod3 pod5)
WHY="its probes say that its kernel path is not in use"
# node2 has the other mode in the end.
OTHER=stateless
if [ "$KERNEL_PATH" = stateless ]; then OTHER=auto; fi

# every_pair WHAT: of pods of different nodes, at once; each compares what was sent with what was received.
every_pair() {
    local from to family port=5200 address senders=() receivers=()
    rm -f "$SCRATCH"/sent5* "$SCRATCH"/received5*
    for family in "${FAMILIES[@]}"; do
        for from in "${PODS[@]}"; do
            for to in "${PODS[@]}"; do
                [ "$from" != "$to" ] || continue
                port=$((port + 1))
                address=$(address_of "$to" "$family")
                start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" "$port" >"$SCRATCH/received$port"
                receivers+=("$PID")
                start_in "$from" python3 "$TOOLS/bulk.py" send "$address" "$port" "$BYTES" >"$SCRATCH/sent$port"
                senders+=("$PID")
            done
        done
    done
    for PID in "${senders[@]}" "${receivers[@]}"; do wait "$PID" || fail "a transfer, $1"; done
    same "bytes and sha256 of each pair, $1" "$(cat "$SCRATCH"/sent5*)" "$(cat "$SCRATCH"/received5*)"
}

# sent_by_programs: of 100 datagrams of pod1, how many node1's programs send.
sent_by_programs() {
    local before
    before=$(kernel_path_flow node1 outbound sent)
    a_while pod1 Out 100
    echo $(($(kernel_path_flow node1 outbound sent) - before))
}

user_space_sends() {
    [ -n "$(in_user_space node1 node2)" ]
}

# node1_knows: that node2 has none; and the programs of node1 send nothing to it.
node1_knows() {
    until_true 5 "node1 knows that node2 has none" user_space_sends
    until_true 5 "its probes say so" is_announced
    equal "packets of node1's programs to node2, which is off, of 100" 0 "$(sent_by_programs | tail -n 1)"
    grep -qF "($WHY)" <<<"$(tartan node1 status)" || fail "tartan status: $(tartan node1 status | grep -i 'kernel path')"
    tartan node1 peers --wide >"$SCRATCH/peers"
    grep -qF "$WHY" <<<"$(grep -wF "$(underlay_of node2 4)" "$SCRATCH/peers")" || fail "tartan peers: $(cat "$SCRATCH/peers")"
}

is_announced() {
    [ "$(in_user_space node1 node2)" = "$WHY" ]
}

carry() {
    [ "$(sent_by_programs | tail -n 1)" -ge 90 ]
}

in_udp() {
    for NODE in "${TARTAN[@]}"; do
        undo rm -f "$LAB_STATE/$NODE/etc/tartan/tartan.toml"
        write_mode "$NODE" auto
    done
    restart_agents
    for NODE in "${TARTAN[@]}"; do
        [ -n "$(agent_json "$NODE" status | jq -r '.kernel_path.reason // empty')" ] || fail "$NODE does not say why"
    done
    every_pair "where no node may use the kernel path"
}

undo restart_agents
if [ "$BACKEND" = udp ]; then
    in_udp
    exit
fi
undo rm -f "$LAB_STATE/node2/etc/tartan/tartan.toml"
write_mode node2 "$KERNEL_PATH"
restart_agents TARTAN_PROBE=true
set_mode node2 off
serve pod3
talk pod1 pod3
node1_knows
if [ "$PEER" = kernel-vxlan ]; then
    equal "why user space sends to the kernel VXLAN device" "" "$(in_user_space node1 node3)"
    in_ns pod1 ping -q -c 20 -i 0.01 "$(address_of pod5 4)" >"$SCRATCH/ping" || fail "ping of node3's pod"
fi
every_pair "node2 is off"

say "node2 comes to have it"
set_mode node2 "$OTHER"
until_true 5 "node1's programs send to node2" programs_send node1 node2
until_true 5 "they carry what goes to node2" carry
every_pair "node2 is $OTHER"
SERVICE=$(service_pid node2)
kill -KILL "$SERVICE"
until_true 5 "a new service on node2" restarted node2 "$SERVICE"
equal "why user space sends to node2 whose service was killed" "" "$(in_user_space node1 node2)"
for NODE in "${TARTAN[@]}"; do kernel_path_carried "$NODE"; done

say "node2 has it no more"
set_mode node2 off
node1_knows
stop "$SENDER"
stop "$SERVER"
