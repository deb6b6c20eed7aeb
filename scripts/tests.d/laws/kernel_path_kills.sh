#!/usr/bin/env bash
# Installed flows go on while a service is killed, and while keeper and service are, or the keeper alone, of which the
# service learns: no datagram is lost, no connection is reset, nothing forged is delivered, and the next service goes on
# with them. A rule that is set while no process of Tartan runs meets them once the next one runs: one of nf_tables at
# once, one of iptables-legacy, of which the kernel says nothing, in 3 s. With --full a node stays dead for 27 s too.
# labs: kernel-path=auto
# last: it kills agents
# seconds: 900
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

# Of a service, and then of all. Each third of these is of the keeper alone.
KILLS=3
if [ -n "${FULL:-}" ]; then KILLS=50; fi
# Seconds. An entry is renewed when it has 30 s left, so that each lasts for 30 s more at least.
DEAD=27
# Of what is forged; bytes a second of the transfer.
SINK_PORT=7000
BULK_RATE=20000000

choose_far

# forge HOST SOURCE: VXLAN for pod2 that must not be delivered, until it is told to end. The program's process id is in
# $PID.
forge() {
    jq -n --arg to "$(underlay_of node1 4)" --arg source "$2" --arg destination "$(address_of pod2 4)" \
        --arg source_mac "$(vtep_mac_of node2 4)" --arg destination_mac "$(vtep_mac_of node1 4)" \
        --argjson port "$SINK_PORT" '$ARGS.named + {formats: ["vxlan"], rate: 50}' >"$SCRATCH/order-$1"
    # Not start_in, whose programs read nothing.
    ip netns exec "$PREFIX-$1" python3 "$TOOLS/forge.py" <"$SCRATCH/order-$1" >"$SCRATCH/forged-$1" &
    STARTED+=("$!")
    FORGERS+=("$!")
}

# open_in NODE: how many descriptors of each kind keeper and service have, and which programs hang where.
open_in() {
    local keeper pid
    keeper=$(cat "$LAB_STATE/$1/pid")
    for pid in $keeper $(pgrep -P "$keeper"); do
        find "/proc/$pid/fd" -mindepth 1 -printf '%l\n' | sed -E 's/:\[[0-9]+\]//' | grep -i bpf | sort | uniq -c
    done
    programs_of "$1"
}

is_open() {
    [ "$(open_in "$1")" = "$2" ]
}

# start_node NODE: anew; its kernel path is in use then.
start_node() {
    lab start "$1" >/dev/null
    until_true 10 "the kernel path of $1 is in use again" kernel_path_in_use "$1"
}

# The datagrams and the transfer go on while agents are killed, those of each node in turn.
kills() {
    local turn node pid
    for ((turn = 0; turn < KILLS; turn++)); do
        node=${SIDES[turn % ${#SIDES[@]}]}
        pid=$(service_pid "$node")
        kill -KILL "$pid"
        until_true 5 "a new service on $node" restarted "$node" "$pid"
        if ((turn % 3 == 2)); then kill_agent "$node" keeper; else kill_agent "$node"; fi
        # They are answered while nothing runs.
        a_while pod1 In
        start_node "$node"
        until_true 20 "turn $turn: the stack is left out again" is_short "${SIDES[@]}" || break
        kill -0 "$BULK" 2>/dev/null || fail "turn $turn: the transfer has ended" || break
    done
    equal "kills of keepers" "$KILLS" "$turn"
}

flows_go_on() {
    local sent answered resets node pid sink
    local -A opened
    FORGERS=()
    start_in pod2 "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink"
    sink=$PID
    # A source of a pod of a peer would be a problem of tartan status, and no start waits for one.
    forge mallory 203.0.113.9
    forge node2 203.0.113.7
    transfer pod1 "$FAR" 5003 $((1 << 40)) "$BULK_RATE"
    until_true 10 "datagrams and a transfer leave the stack out" is_short "${SIDES[@]}"
    for node in "${SIDES[@]}"; do opened[$node]=$(open_in "$node"); done
    resets=$(resets pod1 "$FAR")
    kills
    for pid in "${FORGERS[@]}" "$SENDER" "$sink"; do stop "$pid"; done
    kill "$BULK"
    end_transfer "across the kills"
    equal "connections that were reset" "$resets" "$(resets pod1 "$FAR")"
    read -r sent _ answered _ <"$SCRATCH/sent"
    equal "answers across the kills" "$sent" "$answered" || grep hole "$SCRATCH/sent"
    equal "duplicates" 0 "$(awk '$1 == "duplicate" { print $2 }' "$SCRATCH/sent")"
    equal "forged datagrams that reached the pod" 0 "$(jq '[.[].count] | add // 0' "$SCRATCH/sink")"
    for node in mallory node2; do
        at_least "datagrams that $node forged" "$KILLS" "$(awk '{ print $1 }' "$SCRATCH/forged-$node")"
    done
    for node in "${SIDES[@]}"; do
        # A refresh holds a descriptor more for a moment.
        until_true 5 "as many descriptors on $node as before" is_open "$node" "${opened[$node]}" ||
            same "programs, and descriptors of programs and tables, on $node" "${opened[$node]}" "$(open_in "$node")"
    done
}

# cut_while_dead WHAT COMMAND...: COMMAND drops what goes to FAR in node1 while nothing of Tartan runs there. Four
# marks: the flow goes on between the first two, the kernel path is in use again at the third, and nothing passes behind
# the fourth.
cut_while_dead() {
    until_true 10 "the flow leaves the stack of node1 out" is_short "${SIDES[@]}"
    kill_agent node1
    "${@:2}"
    mark "$SENDER"
    a_while pod1 In
    mark "$SENDER"
    start_node node1
    mark "$SENDER"
    until_true 5 "$1 meets the flow" is_cut
    mark "$SENDER"
}

# Nothing is answered for a quarter of a second's datagrams.
is_cut() {
    local before
    before=$(udp pod1 In)
    a_while pod1
    [ "$(udp pod1 In)" = "$before" ]
}

legacy() {
    in_ns node1 iptables-legacy -t mangle "$1" FORWARD -d "$(address_of "$FAR" 4)" -p udp --dport 9000 -j DROP
}

rules_of_the_dead() {
    talk pod1 "$FAR" cut
    nft_in node1 "add table ip cut; add chain ip cut forward { type filter hook forward priority 0; }"
    cut_while_dead "a rule" nft_in node1 add rule ip cut forward ip daddr "$(address_of "$FAR" 4)" udp dport 9000 drop
    nft_in node1 delete table ip cut
    cut_while_dead "a rule of iptables-legacy" legacy -A
    legacy -D
    stop "$SENDER"
    was_cut "a rule" 1 $((RATE / 100))
    was_cut "a rule of iptables-legacy" 5 $((RATE * 3))
}

# What cut_while_dead has marked, from the mark $2 on.
was_cut() {
    equal "$1: datagrams lost while node1 was dead" 0 "$(missing cut "$2" $(($2 + 1)))"
    measured_at_most "$1: datagrams that passed once the kernel path was in use again" "$3" \
        $(($(number cut $(($2 + 3))) - $(number cut $(($2 + 2))) - $(missing cut $(($2 + 2)) $(($2 + 3)))))
}

# Several flows, begun one after another, meet the moment of their renewal at different times.
dead() {
    local flow sent answered senders=()
    serve "$FAR" served-dead 9100
    for flow in {0..4}; do
        talk pod1 "$FAR" "dead$flow" $((9101 + flow)) 9100
        senders+=("$SENDER")
        # For connection tracking UDP is a stream after 2 s, and before that it forgets it after 30 s, and so does an
        # entry.
        sleep 4
    done
    until_true 10 "all leave the stack of ${SIDES[*]} out" is_short "${SIDES[@]}"
    kill_agent node1
    sleep "$DEAD"
    for flow in {0..4}; do
        stop "${senders[flow]}"
        read -r sent _ answered _ <"$SCRATCH/dead$flow"
        equal "flow $flow: answers while node1 is dead for $DEAD s" "$sent" "$answered"
    done
    start_node node1
}

for NODE in "${SIDES[@]}"; do watch_stack "$NODE"; done
serve "$FAR"
talk pod1 "$FAR"
flows_go_on
rules_of_the_dead
if [ -n "${FULL:-}" ]; then dead; fi
