#!/usr/bin/env bash
# Workers do what they may: each thread of a running service has no capability, no way to gain one and a filter of
# system calls; and under traffic both ways, with errors of every kind and changes of the configuration, up to the end
# of the service, its workers make no call that the filter's list (dataplane/src/engine/confinement.rs) does not have.
# strace sees a call before the filter answers. Of the service's other threads no call is refused. Workers that try what
# an attacker inside them would (TARTAN_FAULTS=escape) are refused all of it.
# labs: inside=dual third=kernel-vxlan
# full: registry=etcd
# full: device=plain
# last: it kills the agents of two nodes
. "$TOOLS/kill_service.sh"
. "$TOOLS/cni.sh"

LIST=$SCRIPTS/../dataplane/src/engine/confinement.rs
# Built with assertions, Rust's library asks whether a descriptor that it is to close is open; unanswered it closes it.
ASSERTED='^fcntl\([0-9]+, F_GETFD( <unfinished|\) += -1 EPERM )'

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

# trace NAME OPTIONS PROCESS...: strace of these in the background; its lines go to a file of that name.
trace() {
    # shellcheck disable=SC2046,SC2086
    strace -q -o "$SCRATCH/$1" $2 $(printf -- '-p %s ' "${@:3}") 2>"$SCRATCH/$1.strace" &
    PID=$!
    STARTED+=("$PID")
    until_true 10 "strace watches for $1" grep -q "^TracerPid:.*\s$PID\$" "/proc/$3/status"
}

# Threads that have renounced files do so when they start: strace watches the keeper, whose service is killed, and the
# next one.
renounced() {
    local wanted=(peer-health) number
    trace landlock "-f -e trace=landlock_restrict_self" "$(keeper_of node1)"
    kill_service node1
    SERVICE=$(service_pid node1)
    [ "$REGISTRY" = file ] || wanted+=(registry)
    [ "$KERNEL_PATH" != auto ] || wanted+=(flows)
    for number in "${wanted[@]}" $(seq -f 'worker-%g' 0 $((WORKERS - 1))); do
        until_true 5 "the thread $number has renounced files" has_renounced "$number"
    done
    stop "$PID" INT
}

has_renounced() {
    grep -qE "^$(threads "^$1\$") +(<\.\.\. )?landlock_restrict_self(\(| resumed>).*= 0\$" "$SCRATCH/landlock"
}

# unanswered ARGUMENT...: pings of pod1 that bring back errors alone.
unanswered() {
    if in_ns pod1 ping -i 0.05 -W 0.5 "$@" >"$SCRATCH/unanswered" 2>&1; then fail "pings are answered: $*"; fi
}

# errors FAMILY: what a pod can have of its node but packets: fragments, answers, errors; and an interface for which
# node1's kernel refuses what the underlay takes.
errors() {
    local address beyond=([4]=10.244.99.2 [6]=fd00:10:244:99::2) outer
    address=$(address_of pod3 "$1") outer=$(carrier "$1" "$OUTSIDE")
    in_ns pod1 ping -c 3 -i 0.05 -s 4000 "$address" >/dev/null || fail "large pings of IPv$1"
    unanswered -c 2 "${beyond[$1]}"
    # A port that no process has.
    in_ns pod1 bash -c "echo x >/dev/udp/$address/9; echo x >/dev/udp/$address/9" 2>/dev/null || true
    in_ns node1 ip link add narrow mtu 1350 up type bridge
    in_ns node1 ip route add "$(underlay_of node2 "$outer")" dev narrow src "$(underlay_of node1 "$outer")"
    unanswered -c 3 -M "do" -s 1350 "$address"
    in_ns node1 ip link delete narrow
    grep -qi 'too long\|too big\|frag needed' "$SCRATCH/unanswered" ||
        fail "no error of IPv$1 says how much the path takes: $(cat "$SCRATCH/unanswered")"
}

# Tables, captures and flows are changed under the workers' feet.
control_changes() {
    local pids=() words
    kill -HUP "$(keeper_of node1)"
    new_pods another
    attach node1 another
    pings another "$(address_of pod3)"
    for words in "capture --count 20" "top --once flows" "trace $(address_of pod1) $(address_of pod3)"; do
        # shellcheck disable=SC2086
        start_in node1 "$BIN/tartan" --root "$LAB_STATE/node1" $words -o json >"$SCRATCH/${words%% *}" 2>&1
        pids+=("$PID")
    done
    # top samples for a second.
    in_ns pod1 ping -q -c 50 -i 0.02 "$(address_of pod3)" >/dev/null || fail "pings beside a capture"
    for PID in "${pids[@]}"; do wait "$PID" || fail "they say: $(tail -n 3 "$SCRATCH"/{capture,top,trace})"; done
}

workers_keep_to_the_list() {
    local calls called allowed
    # With several strace writes whose call it is.
    calls=$(sed -nE 's/^([0-9]+ +)?([a-z_0-9]+\(.*)/\2/p' "$SCRATCH/calls" | grep -vE "$ASSERTED")
    called=$(cut -d '(' -f 1 <<<"$calls" | sort -u)
    allowed=$(sed -nE '/^const (SYSTEM_CALLS|BOUND):/,/^];/s/.*SYS_([a-z0-9_]*).*/\1/p' "$LIST")
    [ "$(wc -l <<<"$allowed")" -ge 12 ] || die "the lists in $LIST are not where they were"
    [ "$(wc -l <<<"$called")" -gt 5 ] || fail "strace has seen only: $called; $(cat "$SCRATCH/calls.strace")"
    equal "calls that are not listed" '' "$(grep -vxF "$allowed" <<<"$called" | paste -sd ' ')"
    equal "calls that were refused" 0 \
        "$(grep ' EPERM ' "$SCRATCH/calls" | grep -cvE 'fcntl(\([0-9]+, F_GETFD\)| resumed>)' || true)"
    equal "memory that may be executed" 0 "$(grep -cE '^(mmap|mprotect)\(.*PROT_EXEC' <<<"$calls" || true)"
    equal "signals but SIGABRT" 0 "$(grep -E '^t(g)?kill\(' <<<"$calls" | grep -cv SIGABRT || true)"
}

LOGGED=$(wc -l <"$LAB_STATE/node1/log")
# The agent with hooks of tests (scripts/build --faults); with probes, whose thread is one of those that are watched.
agents_with LAB_AGENT="$BIN/faults/tartan" TARTAN_FAULTS=escape TARTAN_PROBE=true
renounced
mapfile -t WATCHED < <(threads '^worker-[0-9]*$')
equal "worker threads of the service" "$WORKERS" "${#WATCHED[@]}"
are_confined
# Each worker tried to open a file, to execute a program, to make a socket, to have itself traced, and to regain its
# capabilities. The filter answers EPERM, and capset(2) too.
TRIED=$(tail -n "+$LOGGED" "$LAB_STATE/node1/log" | grep -o '^worker-[0-9]*, tried to .*' | sort -u)
equal "workers that tried to escape, attempts, and those that were refused" \
    "$WORKERS $((5 * WORKERS)) $((5 * WORKERS))" "$(wc -l <<<"$TRIED") $(grep -o 'tried to ' <<<"$TRIED" |
        wc -l) $(grep -o 'Err(Os { code: 1,' <<<"$TRIED" | wc -l)"
equal "problems of confinement" '[]' \
    "$(agent_json node1 status | jq -c '[.problems[].code | select(. == "workers-not-confined")]')"
# Of the service's other threads what they are refused is noted alone.
# shellcheck disable=SC2046
trace refused "-s 0 -e status=failed" $(threads . | grep -vxF "$(printf '%s\n' "${WATCHED[@]}")")
STRACES=("$PID")
trace calls "-s 0" "${WATCHED[@]}"
STRACES+=("$PID")
for FAMILY in "${FAMILIES[@]}"; do
    transfer pod1 pod3 "$FAMILY" $((4 << 20))
    transfer pod3 pod1 "$FAMILY" $((4 << 20))
    errors "$FAMILY"
done
# The peer's program ends at once, and its kernel answers every datagram by an ICMP error, which the workers read.
kill -KILL "$(keeper_of node2)" "$(service_pid node2)"
unanswered -c 10 "$(address_of pod3)"
lab start node2
until_true 5 "node2 is back" in_ns pod1 ping -c 1 -W 1 "$(address_of pod3)"
control_changes
# Their end is theirs too.
lab stop node1
wait "${STRACES[@]}" || true
[ -s "$SCRATCH/refused" ] || fail "strace has seen no call of other threads fail: $(cat "$SCRATCH/refused.strace")"
# A filter answers EPERM, and Landlock EACCES or EXDEV to what opens or changes a file.
equal "calls of other threads that were refused" '' "$(grep -v readlink "$SCRATCH/refused" |
    grep -E ' EPERM |(open|creat|mkdir|mknod|unlink|rmdir|rename|link|truncate)[a-z0-9]*\(.* (EACCES|EXDEV) ' |
    sed -nE 's/^([0-9]+ +)?([a-z_0-9]+)\(.*/\2/p' | sort | uniq -c)"
workers_keep_to_the_list
