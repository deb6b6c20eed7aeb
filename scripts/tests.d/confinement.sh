#!/usr/bin/env bash
# What packet workers may do is what they do: each thread of a running service has no capability, no way to gain one and a filter of
# system calls; and under traffic both ways, with errors of every kind and changes of the configuration, up to the end of the
# service, its workers make no call that the filter's list (dataplane/src/engine/confinement.rs) does not have. A call that is
# refused would show too: strace sees it before the filter answers. The service's other threads may make most calls: none that they
# make is refused. Workers that try what an attacker inside them would (TARTAN_FAULTS=escape) are refused all of it.
#
#   pod1 ── node1: service, whose workers strace watches ══ underlay ══ node2 (killed, started) ── pod2
#
# confinement.sh BACKEND FAMILIES [REGISTRY], where FAMILIES is v4, v6 or dual, inside and outside, and REGISTRY is file or etcd.
# case: vxlan dual workers=2
# full: udp v4 etcd
# full: vxlan v4 device=plain
# full: vxlan v4 workers=2 device-type=tap
# full: vxlan v6 workers=2
# full: vxlan v4 kernel-path=auto
# With probes, whose thread is one of those that are watched.
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"

BACKEND=$1
FAMILIES=$2
REGISTRY=${3:-file}
LIST=$SCRIPTS/../dataplane/src/engine/confinement.rs
WORKERS=$(agents_option workers)
WORKERS=${WORKERS:-1}
TARTAN=$(dirname "$LOAD")/tartan
PORT=5003
ASSERTED='^fcntl\([0-9]+, F_GETFD( <unfinished|\) += -1 EPERM )'

# listed CONSTANT: the calls of one of the lists, a line each.
listed() {
    sed -n "/^const $1:/,/^];/p" "$LIST" | grep -o 'SYS_[a-z0-9_]*' | sed 's/^SYS_//' | sort -u
}

# workers: the threads of the service that are packet workers.
workers() {
    local thread
    for thread in "/proc/$SERVICE/task"/*; do
        if grep -q '^worker-[0-9]*$' "$thread/comm"; then basename "$thread"; fi
    done
}

# confined THREAD
confined() {
    sed -nE 's/^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):\s*/\1 /p' "/proc/$SERVICE/task/$1/status" | paste -sd ' '
}

# Every other thread of the service has a filter too, and no new privileges: none executes a program.
others_are_confined() {
    local thread found=''
    for thread in "/proc/$SERVICE/task"/*; do
        grep -qE '^NoNewPrivs:\s1$' "$thread/status" && grep -qE '^Seccomp:\s2$' "$thread/status" || found+=" $(cat "$thread/comm")"
    done
    equal "threads of the service without a filter, or with new privileges" '' "$found"
}

# Each worker of a running service that tried to open a file, to execute a program, to make a socket, to have itself traced, and to
# regain its capabilities.
workers_tried() {
    local tried
    # As the filter answers (EPERM), and capset(2).
    tried=$(grep -o '^worker-[0-9]*, tried to .*' "$LAB_STATE/node1/log" | sort -u)
    say "$tried"
    equal "workers that tried to escape" "$WORKERS" "$(wc -l <<<"$tried")"
    equal "attempts, and those that were refused" "$((5 * WORKERS)) $((5 * WORKERS))" \
        "$(grep -o 'tried to ' <<<"$tried" | wc -l) $(grep -o 'Err(Os { code: 1,' <<<"$tried" | wc -l)"
    equal "problems of confinement" '[]' "$(agent_json node1 status | jq -c '[.problems[].code | select(. == "workers-not-confined")]')"
}

# Threads that have renounced files do so when they start: strace watches the keeper, whose service is killed, and the next one.
renounced() {
    local keeper tracer wanted=(peer-health) thread found=''
    keeper=$(cat "$LAB_STATE/node1/pid")
    strace -f -q -o "$SCRATCH/landlock" -e trace=landlock_restrict_self -p "$keeper" 2>"$SCRATCH/strace.landlock" &
    tracer=$!
    STARTED+=("$tracer")
    until_true 10 "strace watches the keeper" grep -q "^TracerPid:.*\s$tracer\$" "/proc/$keeper/status"
    kill_service node1
    SERVICE=$(service_pid node1)
    [ "$REGISTRY" = file ] || wanted+=(registry)
    [ "$KERNEL_PATH" != auto ] || wanted+=(flows)
    for ((thread = 0; thread < WORKERS; thread++)); do wanted+=("worker-$thread"); done
    for thread in "${wanted[@]}"; do until_true 5 "the thread $thread has renounced files" has_renounced "$thread" || true; done
    while read -r thread; do
        found+="$(cat "/proc/$SERVICE/task/$thread/comm" 2>/dev/null) "
    done < <(sed -nE 's/^([0-9]+) +(<\.\.\. )?landlock_restrict_self(\(| resumed>).*= 0$/\1/p' "$SCRATCH/landlock")
    say "threads that have renounced files: $found"
    stop "$tracer" INT
}

# has_renounced NAME: the thread of that name.
has_renounced() {
    local thread
    for thread in "/proc/$SERVICE/task"/*; do
        if [ "$(cat "$thread/comm" 2>/dev/null)" = "$1" ]; then
            grep -qE "^$(basename "$thread") +(<\.\.\. )?landlock_restrict_self(\(| resumed>).*= 0\$" "$SCRATCH/landlock"
            return
        fi
    done
    return 1
}

# The service's other threads: what they are refused is noted alone.
watch_others() {
    local thread options=()
    for thread in "/proc/$SERVICE/task"/*; do
        thread=$(basename "$thread")
        if [[ " ${THREADS[*]} " != *" $thread "* ]]; then options+=(-p "$thread"); fi
    done
    [ ${#options[@]} -gt 2 ] || die "the service has no threads beside its workers"
    strace -q -o "$SCRATCH/refused" -s 0 -e status=failed "${options[@]}" 2>"$SCRATCH/strace.others" &
    OTHERS=$!
    STARTED+=("$OTHERS")
}

watch_workers() {
    local thread options=()
    for thread in "${THREADS[@]}"; do options+=(-p "$thread"); done
    # Without -f: with it strace attaches to the other threads too.
    strace -q -o "$SCRATCH/calls" -s 0 "${options[@]}" 2>"$SCRATCH/strace" &
    STRACE=$!
    STARTED+=("$STRACE")
    until_true 10 "strace watches all workers" all_watched || die "strace: $(cat "$SCRATCH/strace")"
}

all_watched() {
    local thread
    for thread in "${THREADS[@]}"; do grep -q "^TracerPid:.*\s$STRACE\$" "/proc/$SERVICE/task/$thread/status" || return 1; done
}

# transfer FROM TO ADDRESS: 4 MiB by TCP.
transfer() {
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$3" "$PORT" >"$SCRATCH/received"
    in_ns "$1" python3 "$TOOLS/bulk.py" send "$3" "$PORT" $((4 << 20)) >"$SCRATCH/sent" || fail "no transfer from $1 to $2"
    wait "$PID" || fail "no transfer from $1 to $2"
    same "TCP from $1 to $2" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

# unanswered WHAT ARGUMENT...: pings of pod1 that bring back errors alone.
unanswered() {
    if in_ns pod1 ping -i 0.05 -W 1 "${@:2}" >"$SCRATCH/unanswered" 2>&1; then fail "pings are answered: $1"; fi
}

# Whatever a pod can have of its node but packets: fragments, answers of the node, errors.
errors() {
    local family address beyond
    for family in $(families "$FAMILIES"); do
        address=$(address_of pod2 "$family")
        case $family in 4) beyond=10.244.99.2 ;; 6) beyond=fd00:10:244:99::2 ;; esac
        in_ns pod1 ping -c 3 -i 0.05 -s 4000 "$address" >/dev/null || fail "large pings of IPv$family"
        unanswered "no node has $beyond" -c 2 "$beyond"
        # A port that no process has.
        in_ns pod1 bash -c "echo nobody >/dev/udp/$address/9; echo nobody >/dev/udp/$address/9" 2>/dev/null || true
    done
    narrow_path
}

# A second link between the nodes, for which node1's kernel refuses what the first one takes.
narrow_path() {
    local family node far
    ip -n "$PREFIX-node1" link add eth1 mtu 1350 type veth peer name eth1 mtu 1350 netns "$PREFIX-node2"
    for node in node1 node2; do ip -n "$PREFIX-$node" link set eth1 up; done
    for node in node1 node2; do
        far=node$((3 - ${node#node}))
        for family in $(families "$FAMILIES"); do
            ip -n "$PREFIX-$node" neighbour add "$(underlay_of "$far" "$family")" dev eth1 nud permanent \
                lladdr "$(ip -n "$PREFIX-$far" -j link show eth1 | jq -r '.[0].address')"
            ip -n "$PREFIX-$node" route add "$(underlay_of "$far" "$family")" dev eth1 src "$(underlay_of "$node" "$family")"
        done
    done
    for family in $(families "$FAMILIES"); do
        unanswered "IPv$family, whole, over a path of 1,350 bytes" -c 3 -M "do" -s 1350 "$(address_of pod2 "$family")"
        grep -qi 'too long\|too big\|frag needed' "$SCRATCH/unanswered" || fail "no error of IPv$family says how much the path takes: $(cat "$SCRATCH/unanswered")"
    done
    ip -n "$PREFIX-node1" link delete eth1
}

# The peer's program ends at once, and its kernel answers every datagram by an ICMP error, which the workers read.
peer_dies() {
    local keeper
    keeper=$(cat "$LAB_STATE/node2/pid")
    kill -KILL "$keeper" "$(service_pid node2)"
    unanswered "node2 is dead" -c 20 "$(address_of pod2)"
    "$SCRIPTS/lab" start --prefix "$PREFIX" node2 >/dev/null
    until_true 5 "node2 is back" in_ns pod1 ping -c 1 -W 1 "$(address_of pod2)"
}

# Tables, captures and flows are changed under the workers' feet.
control_changes() {
    local pod capture top
    kill -HUP "$(cat "$LAB_STATE/node1/pid")"
    lab attach node1 >/dev/null
    pod=$(tail -n 1 "$LAB_STATE/pods" | cut -d ' ' -f 1)
    in_ns "$pod" ping -c 3 -i 0.05 "$(address_of pod2)" >/dev/null || fail "$pod does not reach pod2"
    start_in node1 "$TARTAN" --root "$LAB_STATE/node1" capture --count 50 -o json >"$SCRATCH/capture" 2>&1
    capture=$PID
    # It samples for a second, and then ends.
    start_in node1 "$TARTAN" --root "$LAB_STATE/node1" top --once flows -o json >"$SCRATCH/top" 2>&1
    top=$PID
    in_ns pod1 ping -c 100 -i 0.02 "$(address_of pod2)" >/dev/null || fail "pings beside a capture"
    wait "$capture" || fail "the capture: $(tail -n 3 "$SCRATCH/capture")"
    wait "$top" || fail "tartan top: $(tail -n 3 "$SCRATCH/top")"
    tartan node1 trace "$(address_of pod1)" "$(address_of pod2)" >"$SCRATCH/trace" 2>&1 || fail "tartan trace: $(tail -n 3 "$SCRATCH/trace")"
}

# calls: what the workers called, a line each. With several strace writes whose call it is. In a program that is built with
# assertions Rust's library asks whether a descriptor that it is to close is open: with no answer it closes it.
calls() {
    sed -nE 's/^([0-9]+ +)?([a-z_0-9]+\(.*)/\2/p' "$SCRATCH/calls" | grep -vE "$ASSERTED"
}

export TARTAN_FAULTS=escape
say "workers under strace: backend $BACKEND, families $FAMILIES, workers $WORKERS"
OPTIONS=()
[ "$REGISTRY" = file ] || OPTIONS=(--registry "$REGISTRY")
lab_up --backend "$BACKEND" --inside "$FAMILIES" --outside "$FAMILIES" "${OPTIONS[@]}"
renounced
SERVICE=$(service_pid node1)
mapfile -t THREADS < <(workers)
equal "worker threads of the service" "$WORKERS" "${#THREADS[@]}"
for THREAD in "${THREADS[@]}"; do
    equal "$(cat "/proc/$SERVICE/task/$THREAD/comm")" \
        "CapInh 0000000000000000 CapPrm 0000000000000000 CapEff 0000000000000000 CapAmb 0000000000000000 NoNewPrivs 1 Seccomp 2" "$(confined "$THREAD")"
done
others_are_confined
workers_tried
mapfile -t FREE < <(listed SYSTEM_CALLS)
mapfile -t BOUND < <(listed BOUND)
if [ "${#FREE[@]}" -lt 10 ] || [ "${#BOUND[@]}" -lt 2 ]; then die "the lists in $LIST are not where they were"; fi
watch_workers
watch_others
for FAMILY in $(families "$FAMILIES"); do
    transfer pod1 pod2 "$(address_of pod2 "$FAMILY")"
    transfer pod2 pod1 "$(address_of pod1 "$FAMILY")"
done
errors
peer_dies
control_changes
# Their end is theirs too.
lab stop node1 >/dev/null
wait "$STRACE" || true
wait "$OTHERS" || true
[ -s "$SCRATCH/refused" ] || fail "strace has seen no call of the other threads fail: $(cat "$SCRATCH/strace.others")"
# A filter answers EPERM, and Landlock EACCES or EXDEV to what opens or changes a file.
equal "calls of other threads that were refused" '' "$(grep -E ' EPERM |(open|creat|mkdir|mknod|unlink|rmdir|rename|link|truncate)[a-z0-9]*\(.* (EACCES|EXDEV) ' "$SCRATCH/refused" | grep -v 'readlink' | sed -nE 's/^([0-9]+ +)?([a-z_0-9]+)\(.*/\2/p' | sort | uniq -c)"
mapfile -t CALLED < <(calls | cut -d '(' -f 1 | sort -u)
say "called: ${CALLED[*]}"
[ "${#CALLED[@]}" -gt 5 ] || fail "strace has seen only ${#CALLED[@]} calls: $(cat "$SCRATCH/strace")"
equal "calls that are not listed" '' "$(comm -13 <(printf '%s\n' "${FREE[@]}" "${BOUND[@]}" | sort -u) <(printf '%s\n' "${CALLED[@]}") | paste -sd ' ')"
equal "calls that were refused" 0 "$(grep ' EPERM ' "$SCRATCH/calls" | grep -cvE 'fcntl(\([0-9]+, F_GETFD\)| resumed>)' || true)"
equal "memory that may be executed" 0 "$(calls | grep -cE '^(mmap|mprotect)\(.*PROT_EXEC' || true)"
equal "signals but SIGABRT" 0 "$(calls | grep -E '^t(g)?kill\(' | grep -cv SIGABRT || true)"
say "asked for assertions: $(grep -cE '(^| )fcntl\([0-9]+, F_GETFD' "$SCRATCH/calls" || true)"
say "$(calls | wc -l) calls of ${#CALLED[@]} kinds; never called of those listed: $(comm -23 <(printf '%s\n' "${FREE[@]}" "${BOUND[@]}" | sort -u) <(printf '%s\n' "${CALLED[@]}") | paste -sd ' ')"
