#!/usr/bin/env bash
# Whether a peer has the kernel path is known from its probes, whatever registry there is: programs send to it from the
# moment that it says so, and not to one that says that it has none; a service of it that is killed goes on saying so.
# `tartan status` and `tartan peers` say why user space sends. A kernel VXLAN device is sent to at once. Whatever mode
# node2 has, what any pod sends any other arrives as it was sent.
# labs: kernel-path=auto third=kernel-vxlan
# labs: kernel-path=stateless
# full: kernel-path!=off
# last: it restarts agents and kills a service
# seconds: 600
. "$TOOLS/kernel_path.sh"

BYTES=$((8 << 20))
if [ -n "${FULL:-}" ]; then BYTES=$((256 << 20)); else FAMILIES=(4); fi
WHY="its probes say that its kernel path is not in use"
# node2 has the other mode in the end.
OTHER=stateless
if [ "$KERNEL_PATH" = stateless ]; then OTHER=auto; fi

# every_pair WHAT: each pod to each of another node, at once.
every_pair() {
    local from to family ways=()
    for family in "${FAMILIES[@]}"; do
        for from in pod1 pod3 pod5; do
            for to in pod1 pod3 pod5; do
                if [ "$from" != "$to" ]; then ways+=("$from,$to,$(address_of "$to" "$family")"); fi
            done
        done
    done
    python3 "$TOOLS/bulk.py" flows 1 "$BYTES" "${ways[@]}" || fail "transfers where $1"
}

# sent_by_programs LEAST MOST: of 100 datagrams of pod1 node1's programs send so many.
sent_by_programs() {
    local before sent
    before=$(kernel_path_flow node1 outbound sent)
    a_while pod1 Out 100
    sent=$(($(kernel_path_flow node1 outbound sent) - before))
    [ "$sent" -ge "$1" ] && [ "$sent" -le "$2" ]
}

# node1_knows: that node2 has none; and the programs of node1 send nothing to it.
node1_knows() {
    local command
    set_mode node2 off
    until_true 5 "node1 knows from its probes that node2 has none" prints "$WHY" in_user_space node1 node2
    sent_by_programs 0 0 || fail "the programs of node1 send to node2, which is off"
    for command in status "peers --wide"; do
        # shellcheck disable=SC2086
        tartan node1 $command >"$SCRATCH/said"
        grep -qF "$WHY" "$SCRATCH/said" || fail "tartan $command: $(cat "$SCRATCH/said")"
    done
}

write_mode node2 "$KERNEL_PATH"
if [ "${TARTAN_PROBE:-}" = false ]; then
    undo restart_agents
    undo rm "$LAB_STATE/node2/etc/tartan/tartan.toml"
    restart_agents TARTAN_PROBE=true
else
    as_the_lab_says node2
    start_node node2
fi
start_datagrams pod1 pod3
node1_knows
if [ "$PEER" = kernel-vxlan ]; then
    equal "why user space sends to the kernel VXLAN device" "" "$(in_user_space node1 node3)"
    in_ns pod1 ping -q -c 20 -i 0.01 "$(address_of pod5 4)" >"$SCRATCH/ping" || fail "ping of node3's pod"
fi
every_pair "node2 is off"
set_mode node2 "$OTHER"
until_true 5 "node1's programs send to node2" prints "" in_user_space node1 node2
until_true 5 "they carry what goes to node2" sent_by_programs 90 1000000
every_pair "node2 is $OTHER"
kill_service node2
until_true 5 "the kernel path of node2 is in use again" kernel_path_in_use node2
equal "why user space sends to node2 whose service was killed" "" "$(in_user_space node1 node2)"
for NODE in "${TARTAN[@]}"; do kernel_path_carried "$NODE"; done
node1_knows
stop_datagrams
