#!/usr/bin/env bash
# What packet workers may do is what they do: each thread of a running service has no capability, no way to gain one and
# a filter of system calls; and under traffic both ways, with errors of every kind and changes of the configuration, up
# to the end of the service, its workers make no call that the filter's list (dataplane/src/engine/confinement.rs) does
# not have. A call that is refused would show too: strace sees it before the filter answers. The service's other threads
# may make most calls: none that they make is refused. Workers that try what an attacker inside them would
# (TARTAN_FAULTS=escape) are refused all of it.
# labs: inside=dual third=kernel-vxlan
# full: registry=etcd
# full: device=plain
# last: it kills the agents of two nodes
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

LIST=$SCRIPTS/../dataplane/src/engine/confinement.rs
PORT=5003
# In a program that is built with assertions Rust's library asks whether a descriptor that it is to close is open: with
# no answer it closes it.
ASSERTED='^fcntl\([0-9]+, F_GETFD( <unfinished|\) += -1 EPERM )'

# listed CONSTANT: the calls of one of the lists, a line each.
listed() {
    sed -n "/^const $1:/,/^];/p" "$LIST" | grep -o 'SYS_[a-z0-9_]*' | sed 's/^SYS_//' | sort -u
}

# threads [PATTERN]: those of the service whose name the pattern matches.
threads() {
    grep -lE "$1" "/proc/$SERVICE/task"/*/comm | cut -d / -f 5
}

# Every thread of the service has a filter and no new privileges; workers have no capability either.
are_confined() {
    local thread found=''
    for thread in "/proc/$SERVICE/task"/*; do
        [ "$(grep -cE '^(NoNewPrivs:\s1|Seccomp:\s2)$' "$thread/status")" = 2 ] || found+=" $(cat "$thread/comm")"
    done
    equal "threads of the service without a filter, or with new privileges" '' "$found"
    for thread in "${WATCHED[@]}"; do
        equal "capabilities of worker thread $thread" "4 0000000000000000" \
            "$(sed -nE 's/^Cap(Inh|Prm|Eff|Amb):\s*//p' "/proc/$thread/status" | sort | uniq -c | xargs)"
    done
}

# Each worker tried to open a file, to execute a program, to make a socket, to have itself traced, and to regain its
# capabilities.
workers_tried() {
    local tried
    # As the filter answers (EPERM), and capset(2).
    tried=$(tail -n "+$LOGGED" "$LAB_STATE/node1/log" | grep -o '^worker-[0-9]*, tried to .*' | sort -u)
    equal "workers that tried to escape" "$WORKERS" "$(wc -l <<<"$tried")"
    equal "attempts, and those that were refused" "$((5 * WORKERS)) $((5 * WORKERS))" \
        "$(grep -o 'tried to ' <<<"$tried" | wc -l) $(grep -o 'Err(Os { code: 1,' <<<"$tried" | wc -l)"
}

# trace NAME OPTION...: strace in the background; its lines go to a file of that name.
trace() {
    strace -q -o "$SCRATCH/$1" "${@:2}" 2>"$SCRATCH/$1.strace" &
    PID=$!
    STARTED+=("$PID")
}

# traces PROCESS...: whether each is traced by PID.
traces() {
    local process
    for process; do grep -q "^TracerPid:.*\s$PID\$" "/proc/$process/status" || return 1; done
}

# Threads that have renounced files do so when they start: strace watches the keeper, whose service is killed, and the
# next one.
renounced() {
    local wanted=(peer-health) number
    trace landlock -f -e trace=landlock_restrict_self -p "$(keeper_of node1)"
    until_true 10 "strace watches the keeper" traces "$(keeper_of node1)"
    kill_service node1
    SERVICE=$(service_pid node1)
    [ "$REGISTRY" = file ] || wanted+=(registry)
    [ "$KERNEL_PATH" != auto ] || wanted+=(flows)
    for ((number = 0; number < WORKERS; number++)); do wanted+=("worker-$number"); done
    for number in "${wanted[@]}"; do until_true 5 "the thread $number has renounced files" has_renounced "$number"; done
    stop "$PID" INT
}

has_renounced() {
    grep -qE "^$(threads "^$1\$") +(<\.\.\. )?landlock_restrict_self(\(| resumed>).*= 0\$" "$SCRATCH/landlock"
}

# Of the service's other threads what they are refused is noted alone.
watch() {
    local options
    mapfile -t options < <(threads . | grep -vxF "$(printf '%s\n' "${WATCHED[@]}")" | xargs -n 1 printf -- '-p\n%s\n')
    [ ${#options[@]} -gt 2 ] || die "the service has no threads beside its workers"
    trace refused -s 0 -e status=failed "${options[@]}"
    OTHERS=$PID
    mapfile -t options < <(printf -- '-p\n%s\n' "${WATCHED[@]}")
    trace calls -s 0 "${options[@]}"
    STRACE=$PID
    until_true 10 "strace watches all workers" traces "${WATCHED[@]}" || die "strace: $(cat "$SCRATCH/calls.strace")"
}

# transfer FROM TO ADDRESS: 4 MiB by TCP.
transfer() {
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$3" "$PORT" >"$SCRATCH/received"
    in_ns "$1" python3 "$TOOLS/bulk.py" send "$3" "$PORT" $((4 << 20)) >"$SCRATCH/sent" || fail "$1 sends to $2"
    wait "$PID" || fail "$2 receives from $1"
    same "TCP from $1 to $2" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

# unanswered WHAT ARGUMENT...: pings of pod1 that bring back errors alone.
unanswered() {
    if in_ns pod1 ping -i 0.05 -W 0.5 "${@:2}" >"$SCRATCH/unanswered" 2>&1; then fail "pings are answered: $1"; fi
}

# Whatever a pod can have of its node but packets: fragments, answers of the node, errors.
errors() {
    local family address beyond=([4]=10.244.99.2 [6]=fd00:10:244:99::2)
    for family in "${FAMILIES[@]}"; do
        address=$(address_of pod3 "$family")
        in_ns pod1 ping -c 3 -i 0.05 -s 4000 "$address" >/dev/null || fail "large pings of IPv$family"
        unanswered "no node has ${beyond[family]}" -c 2 "${beyond[family]}"
        # A port that no process has.
        in_ns pod1 bash -c "echo x >/dev/udp/$address/9; echo x >/dev/udp/$address/9" 2>/dev/null || true
    done
    narrow_path
}

# A second link between the nodes, for which node1's kernel refuses what the first one takes.
narrow_path() {
    local family node space far mac=02:00:00:00:01:0
    undo no_narrow_path
    ip -n "$PREFIX-node1" link add eth1 address "${mac}1" mtu 1350 type veth \
        peer name eth1 address "${mac}2" mtu 1350 netns "$PREFIX-node2"
    for node in 1 2; do
        space=$PREFIX-node$node
        ip -n "$space" link set eth1 up
        for family in $(families "$OUTSIDE"); do
            far=$(underlay_of node$((3 - node)) "$family")
            ip -n "$space" neighbour add "$far" dev eth1 nud permanent lladdr "$mac$((3 - node))"
            ip -n "$space" route add "$far" dev eth1 src "$(underlay_of "node$node" "$family")"
        done
    done
    for family in "${FAMILIES[@]}"; do
        unanswered "IPv$family, whole, over a path of 1,350 bytes" -c 3 -M "do" -s 1350 "$(address_of pod3 "$family")"
        grep -qi 'too long\|too big\|frag needed' "$SCRATCH/unanswered" ||
            fail "no error of IPv$family says how much the path takes: $(cat "$SCRATCH/unanswered")"
    done
    no_narrow_path
}

no_narrow_path() {
    ip -n "$PREFIX-node1" link delete eth1 2>/dev/null || true
}

# The peer's program ends at once, and its kernel answers every datagram by an ICMP error, which the workers read.
peer_dies() {
    kill -KILL "$(keeper_of node2)" "$(service_pid node2)"
    unanswered "node2 is dead" -c 10 "$(address_of pod3)"
    lab start node2
    until_true 5 "node2 is back" in_ns pod1 ping -c 1 -W 1 "$(address_of pod3)"
}

# Tables, captures and flows are changed under the workers' feet.
control_changes() {
    local commands=("capture --count 20" "top --once flows") pids=() command words said=("$SCRATCH"/{capture,top,trace})
    kill -HUP "$(keeper_of node1)"
    new_pods another
    attach node1 another
    pings another "$(address_of pod3)"
    for command in "${commands[@]}"; do
        read -ra words <<<"$command"
        start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" "${words[@]}" -o json >"$SCRATCH/${words[0]}" 2>&1
        pids+=("$PID")
    done
    # top samples for a second.
    in_ns pod1 ping -q -c 50 -i 0.02 "$(address_of pod3)" >/dev/null || fail "pings beside a capture"
    tartan node1 trace "$(address_of pod1)" "$(address_of pod3)" >"$SCRATCH/trace" 2>&1 || fail "trace"
    for PID in "${pids[@]}"; do wait "$PID" || fail "capture, top and trace say: $(tail -n 3 "${said[@]}")"; done
}

# What the workers called, a line each. With several strace writes whose call it is.
calls() {
    sed -nE 's/^([0-9]+ +)?([a-z_0-9]+\(.*)/\2/p' "$SCRATCH/calls" | grep -vE "$ASSERTED"
}

# A filter answers EPERM, and Landlock EACCES or EXDEV to what opens or changes a file.
others_are_refused_nothing() {
    [ -s "$SCRATCH/refused" ] || fail "strace has seen no call of them fail: $(cat "$SCRATCH/refused.strace")"
    equal "calls of other threads that were refused" '' "$(grep -v readlink "$SCRATCH/refused" |
        grep -E ' EPERM |(open|creat|mkdir|mknod|unlink|rmdir|rename|link|truncate)[a-z0-9]*\(.* (EACCES|EXDEV) ' |
        sed -nE 's/^([0-9]+ +)?([a-z_0-9]+)\(.*/\2/p' | sort | uniq -c)"
}

workers_keep_to_the_list() {
    local called allowed
    called=$(calls | cut -d '(' -f 1 | sort -u)
    allowed=$(listed SYSTEM_CALLS && listed BOUND)
    [ "$(wc -l <<<"$allowed")" -ge 12 ] || die "the lists in $LIST are not where they were"
    [ "$(wc -l <<<"$called")" -gt 5 ] || fail "strace has seen only: $called; $(cat "$SCRATCH/calls.strace")"
    say "$(calls | wc -l) calls: $(paste -sd ' ' <<<"$called")"
    equal "calls that are not listed" '' "$(grep -vxF "$allowed" <<<"$called" | paste -sd ' ')"
    equal "calls that were refused" 0 \
        "$(grep ' EPERM ' "$SCRATCH/calls" | grep -cvE 'fcntl(\([0-9]+, F_GETFD\)| resumed>)' || true)"
    equal "memory that may be executed" 0 "$(calls | grep -cE '^(mmap|mprotect)\(.*PROT_EXEC' || true)"
    equal "signals but SIGABRT" 0 "$(calls | grep -E '^t(g)?kill\(' | grep -cv SIGABRT || true)"
}

LOGGED=$(wc -l <"$LAB_STATE/node1/log")
# The agent with hooks of tests (scripts/build --faults); with probes, whose thread is one of those that are watched.
agents_with LAB_AGENT="$BIN/faults/tartan" TARTAN_FAULTS=escape TARTAN_PROBE=true
renounced
mapfile -t WATCHED < <(threads '^worker-[0-9]*$')
equal "worker threads of the service" "$WORKERS" "${#WATCHED[@]}"
are_confined
workers_tried
equal "problems of confinement" '[]' \
    "$(agent_json node1 status | jq -c '[.problems[].code | select(. == "workers-not-confined")]')"
watch
for FAMILY in "${FAMILIES[@]}"; do
    transfer pod1 pod3 "$(address_of pod3 "$FAMILY")"
    transfer pod3 pod1 "$(address_of pod1 "$FAMILY")"
done
errors
peer_dies
control_changes
# Their end is theirs too.
lab stop node1
wait "$STRACE" "$OTHERS" || true
others_are_refused_nothing
workers_keep_to_the_list
