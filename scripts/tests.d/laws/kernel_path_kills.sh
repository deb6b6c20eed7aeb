#!/usr/bin/env bash
# Installed flows go on while a service is killed, and while keeper and service are, or the keeper alone, of which the
# service learns: no datagram is lost, no connection is reset, nothing forged is delivered, and the next service goes on
# with them. A rule that is set while no process of Tartan runs meets them once the next one runs: one of nf_tables at
# once, one of iptables-legacy, of which the kernel says nothing, in 3 s.
# labs: kernel-path=auto
# last: it kills agents
# seconds: 900
. "$TOOLS/kernel_path.sh"

# Of a service, and then of both; each other time of the keeper alone.
KILLS=2
if [ -n "${FULL:-}" ]; then KILLS=50; fi

choose_far

# has_open NODE: how many descriptors of each kind keeper and service have, and which programs hang there.
has_open() {
    local pid
    for pid in $(keeper_of "$1") $(service_of "$1"); do open_in "$pid" | grep -i bpf; done
    programs_of "$1"
}

# The datagrams and the transfer go on while agents are killed, those of each node in turn.
kills() {
    local turn node
    for ((turn = 0; turn < KILLS; turn++)); do
        node=${SIDES[turn % ${#SIDES[@]}]}
        kill_service "$node"
        until_true 5 "the kernel path of $node is in use again" kernel_path_in_use "$node"
        if ((turn % 2)); then kill_agent "$node" keeper; else kill_agent "$node"; fi
        # They are answered while nothing runs.
        a_while pod1 In
        start_node "$node"
        until_true 20 "turn $turn: the stack is left out again" is_short || break
        kill -0 "${SENDING[$FAR]}" 2>/dev/null || fail "turn $turn: the transfer has ended" || break
    done
    equal "kills of keepers" "$KILLS" "$turn"
}

flows_go_on() {
    local resets node
    local -A OPENED
    start_datagrams pod1 "$FAR"
    start_forging pod2
    begin_transfer pod1 "$FAR" 4 $((1 << 40)) 20000000
    until_true 10 "datagrams and a transfer leave the stack out" is_short
    for node in "${SIDES[@]}"; do OPENED[$node]=$(has_open "$node"); done
    resets=$(resets pod1 "$FAR")
    kills
    stop "$SENDER"
    kill "${SENDING[$FAR]}"
    end_transfer pod1 "$FAR"
    same "connections that were reset" "$resets" "$(resets pod1 "$FAR")"
    equal "datagrams lost across the kills" 0 "$(lost sent)"
    equal "duplicates" 0 "$(awk '$1 == "duplicate" { print $2 }' "$SCRATCH/sent")"
    end_forging pod2
    at_least "datagrams that were forged" "$((2 * KILLS))" "$FORGED"
    for node in "${SIDES[@]}"; do
        # A refresh holds a descriptor more for a moment.
        until_true 5 "as many descriptors on $node as before" prints "${OPENED[$node]}" has_open "$node" ||
            same "programs, and descriptors of programs and tables, on $node" "${OPENED[$node]}" "$(has_open "$node")"
    done
}

# cut_while_dead WHAT LATEST COMMAND...: COMMAND drops what goes to FAR in node1 while nothing of Tartan runs there.
# Four marks: the flow goes on between the first two, the kernel path is in use again at the third, and nothing passes
# behind the fourth. LATEST datagrams may pass until then.
cut_while_dead() {
    talk pod1 "$FAR" cut 9001 9000 0.3
    until_true 10 "the flow leaves the stack of node1 out" is_short
    kill_agent node1
    "${@:3}"
    mark
    a_while pod1 In
    mark
    start_node node1
    mark
    until_true 5 "$1 meets the flow" is_cut
    mark
    stop "$SENDER"
    equal "$1: datagrams lost while node1 was dead" 0 "$(lost cut 1)"
    measured_at_most "$1: datagrams that passed once the kernel path was in use again" "$2" "$(answered cut 3)"
}

# Nothing is answered for a quarter of a second's datagrams.
is_cut() {
    local before
    before=$(udp pod1 In)
    a_while pod1
    [ "$(udp pod1 In)" = "$before" ]
}

watch_stack "${SIDES[@]}"
flows_go_on
RULE=(FORWARD -d "$(address_of "$FAR" 4)" -p udp --dport 9000 -j DROP)
in_ns node1 nft "add table ip cut; add chain ip cut forward { type filter hook forward priority 0; }"
cut_while_dead "a rule" $((RATE / 100)) \
    in_ns node1 nft add rule ip cut forward ip daddr "$(address_of "$FAR" 4)" udp dport 9000 drop
in_ns node1 nft delete table ip cut
# What costs time is one lab's, but with --full.
if [ "${#SIDES[@]}" = 1 ] || [ -n "${FULL:-}" ]; then
    cut_while_dead "a rule of iptables-legacy" $((RATE * 3)) in_ns node1 iptables-legacy -t mangle -A "${RULE[@]}"
    in_ns node1 iptables-legacy -t mangle -D "${RULE[@]}"
fi
