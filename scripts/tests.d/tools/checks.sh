# shellcheck shell=bash
# What laws and tests share: commands in a lab, programs in the background that surely end, and comparisons that say
# what they found. Sourced by law.sh and test_case.sh.
#
# No comparison of the default run waits for a clock: what is counted decides. A bar of time is a failure with --full
# alone, where such a test runs by itself; else it is printed.
set -euo pipefail

TOOLS=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
SCRIPTS=$(readlink -f "$TOOLS/../..")
BIN=$(realpath -m "${LAB_BIN:-$SCRIPTS/../target/fast}")
# The load that benches and tests share.
LOAD=$BIN/tartan-load
if [ ! -x "$LOAD" ] && [ -z "${LAB_BIN:-}" ]; then "$SCRIPTS/build" --load; fi
PREFIX=${LAB_PREFIX:-test}
LAB_STATE=/run/tartan-lab/$PREFIX
SCRATCH=$(mktemp -d "/tmp/tartan-test-XXXXXX")
STARTED=()
FAILURES=0
# As in scripts/test, for a law that is run by hand.
export PATH=$SCRIPTS/../target/quick:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
# The tools import each other; nothing is to be left beside them.
export PYTHONDONTWRITEBYTECODE=1

lab() {
    "$SCRIPTS/lab" "$1" --prefix "$PREFIX" "${@:2}"
}

kernel_path_in_use() {
    agent_json "$1" status | jq -e .kernel_path.in_use
}

# make_namespace NAME: one more, or again, which goes with the lab: `lab down` takes away what is on its record alone.
make_namespace() {
    ip netns add "$PREFIX-$1"
    echo "$PREFIX-$1 $(stat -L -c %i "/run/netns/$PREFIX-$1")" >>"$LAB_STATE/namespaces"
}

# in_ns NAME CMD...: runs a command in a namespace of the lab and waits for it; in a node `tartan` is its agent's.
in_ns() {
    case $1 in
    node*) ip netns exec "$PREFIX-$1" env "TARTAN_ROOT=$LAB_STATE/$1" "PATH=$BIN:$PATH" "${@:2}" ;;
    registry) lab exec "$1" -- "${@:2}" ;;
    *) ip netns exec "$PREFIX-$1" "${@:2}" ;;
    esac
}

# is_bound NAME udp|tcp PORT: whether a socket in that namespace has this port; one of TCP has to listen.
is_bound() {
    local which=l
    if [ "$2" = udp ]; then which=a; fi
    [ -n "$(ip netns exec "$PREFIX-$1" ss "-H${which}n" "--$2" "sport = :$3")" ]
}

# Starts a command in a namespace; its process id is in $PID. Everything started ends with the test.
start_in() {
    ip netns exec "$PREFIX-$1" "${@:2}" &
    PID=$!
    STARTED+=("$PID")
}

# Ends a started program with a signal and waits until it has written its report.
stop() {
    kill "-${2:-TERM}" "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Captures what passes a device: capture NAME DEVICE FILE [FILTER...]; the process id is in $PID.
capture() {
    local log=$3.log wait
    start_in "$1" tcpdump -Z root -U -i "$2" -s 2048 --immediate-mode -B 131072 -w "$3" "${@:4}" 2>"$log"
    for ((wait = 0; wait < 200; wait++)); do
        if grep -q 'listening on' "$log"; then return 0; fi
        sleep 0.1
    done
    die "tcpdump did not start: $(cat "$log")"
}

# address_of POD [4|6]: its address of a family; without one its first, IPv4 if it has both.
address_of() {
    awk -v pod="$1" -v family="${2:-}" '$1 == pod {
        for (i = 3; i <= NF; i++) if (family == "" || (family == 6) == ($i ~ /:/)) { print $i; exit }
    }' "$LAB_STATE/pods"
}

# node_of_pod POD
node_of_pod() {
    awk -v pod="$1" '$1 == pod { print $2 }' "$LAB_STATE/pods"
}

# socket_address ADDRESS PORT: as one word.
socket_address() {
    case $1 in
    *:*) echo "[$1]:$2" ;;
    *) echo "$1:$2" ;;
    esac
}

# underlay_of NODE FAMILY: its address on the underlay.
underlay_of() {
    awk -v node="$1" -v family="$2" '$1 == node { print family == 6 ? $5 : $3 }' "$LAB_STATE/nodes"
}

# vtep_mac_of NODE FAMILY: the MAC that inner packets of a family are sent to.
vtep_mac_of() {
    awk -v node="$1" -v family="$2" '$1 == node { print family == 6 ? $6 : $4 }' "$LAB_STATE/nodes"
}

# families v4|v6|dual: the families of which a lab has addresses, 4 or 6 a word.
families() {
    case $1 in
    v4) echo 4 ;;
    v6) echo 6 ;;
    dual) echo 4 6 ;;
    esac
}

# carrier FAMILY v4|v6|dual: the underlay's family that carries inner packets of a family: the same if there is one.
carrier() {
    case $2 in
    dual) echo "$1" ;;
    v*) echo "${2#v}" ;;
    esac
}

# learn_path_mtu POD ADDRESS: a kernel node's IPv6 device has a smaller MTU than a pod of both families, as with
# flannel: the pod's first larger packet is answered with packet-too-big, and lost.
learn_path_mtu() {
    [ -n "$PEER" ] && [ "$1" = pod5 ] || return 0
    in_ns pod5 ping -q -c 3 -i 0.2 -s 1400 "$2" >/dev/null || fail "no answer to large pings from pod5 to $2"
}

# transfer FROM TO FAMILY BYTES: over TCP, between pods; what arrives is what was sent.
transfer() {
    begin_transfer "$@"
    end_transfer "$1" "$2"
}

# begin_transfer FROM TO FAMILY BYTES [BYTES_PER_SECOND]: one to each pod, in the background until end_transfer; who
# sends to it is SENDING[TO].
declare -A SENDING RECEIVING
begin_transfer() {
    local address
    address=$(address_of "$2" "$3")
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received.$2"
    RECEIVING[$2]=$PID
    until_true 10 "$2 receives" is_bound "$2" tcp 5003
    start_in "$1" python3 "$TOOLS/bulk.py" send "$address" 5003 "${@:4}" >"$SCRATCH/sent.$2"
    SENDING[$2]=$PID
}

# end_transfer FROM TO
end_transfer() {
    wait "${SENDING[$2]}" || fail "sending from $1 to $2"
    wait "${RECEIVING[$2]}" || fail "receiving at $2"
    equal "bytes and sha256 from $1 to $2" "$(cat "$SCRATCH/sent.$2")" "$(cat "$SCRATCH/received.$2")"
}

# path_mtu NODE OTHER FAMILY: what a node knows of the path that packets of a family take to another.
path_mtu() {
    local field=path_mtu
    if [ "$OUTSIDE$3" = dual6 ]; then field=path_mtu_v6; fi
    agent_json "$1" peers | jq --arg other "244[.:]${2#node}[.:]" --arg field "$field" \
        '.peers[] | select(.subnets[0] | test($other)) | .[$field]'
}

# forget_paths NAME...: what kernels learned of paths, which they remember for ten minutes.
forget_paths() {
    local name
    for name; do
        [ -e "/run/netns/$PREFIX-$name" ] || continue
        ip -n "$PREFIX-$name" route flush cache
        ip -n "$PREFIX-$name" -6 route flush cache
    done
}

# overhead FAMILY: bytes of outer headers on inner packets of a family: IP 20 or 40, UDP 8, and in vxlan 22 more.
overhead() {
    local bytes=28
    if [ "$(carrier "$1" "$OUTSIDE")" = 6 ]; then bytes=48; fi
    if [ "$BACKEND" = vxlan ]; then bytes=$((bytes + 22)); fi
    echo "$bytes"
}

tartan() {
    in_ns "$1" tartan "${@:2}"
}

# until_true SECONDS WHAT CMD...: waits until the command succeeds; what it takes itself counts. SECONDS is a bar of
# time. One that succeeds only after five times as long, and 20 s, has missed altogether.
until_true() {
    local seconds=$1 what=$2 began=$EPOCHREALTIME patience took
    [[ $seconds =~ ^[0-9]+$ ]] || die "until_true: '$seconds' is no number of seconds"
    patience=$((seconds * 5 < 20 ? 20 : seconds * 5))
    shift 2
    while true; do
        if "$@" >/dev/null 2>&1; then
            took=$(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
            measured_at_most "milliseconds until $what" $((seconds * 1000)) "$took"
            return 0
        fi
        took=$(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
        if ((took > patience * 1000)); then break; fi
        sleep 0.1
    done
    fail "$what: not within $patience s"
    return 1
}

# prints TEXT CMD...: whether it does.
prints() {
    [ "$("${@:2}")" = "$1" ]
}

# flow NODE DIRECTION FIELD: a count of all workers together.
flow() {
    agent_json "$1" drops | jq "[.workers[].$2.$3] | add"
}

# dropped NODE DIRECTION: what the dataplane dropped, for whatever reason.
dropped() {
    agent_json "$1" drops | jq "[.workers[].$2.dropped | add // 0] | add"
}

# kernel_path_flow NODE DIRECTION FIELD: a count of the kernel path's programs, which are a worker of their own; 0
# without.
kernel_path_flow() {
    agent_json "$1" drops | jq "[.workers[] | select(.name == \"kernel-path\").$2.$3] | add // 0"
}

# Whether the kernel path is to carry packets in this case: it carries no udp format and no IPv6, and is not in use
# beside sockets of IPv6.
kernel_path_carries() {
    [ "$KERNEL_PATH" != off ] && [ "${BACKEND:-vxlan}" = vxlan ] && [ "${INSIDE:-v4}" != v6 ] &&
        [ "${OUTSIDE:-v4}" = v4 ]
}

# Of what `tartan drops -o json` prints: for each worker and direction what has no fate yet, and what is held.
LAW_ONE='[(.workers[] | .outbound, .inbound
    | .received + .originated - .sent - .delivered - .probes - (.dropped | add // 0) - .held, .held), .in_rings]'

# How far every worker and direction of a node is from law 1, computed here from the parts, what is held, and at the
# end what lies between the workers.
balances() {
    agent_json "$1" drops | jq -c "$LAW_ONE"
}

# A packet has exactly one fate: at rest, all is balanced and nothing is held. The kernel path's programs are in it as a
# worker.
law_one() {
    local wait found
    for ((wait = 0; wait < 20; wait++)); do
        found=$(balances "$1")
        if jq -e 'length > 1 and all(. == 0)' <<<"$found" >/dev/null; then break; fi
        sleep 0.1
    done
    equal "law 1 on $1 (balance and held of each worker and direction)" "$(jq -c 'map(0)' <<<"$found")" "$found"
    # The last is what lies between the workers.
    [ "$(jq length <<<"$found")" -gt 1 ] || fail "law 1 on $1: no worker is counted"
}

# kernel_path_carried NODE: where its kernel path should have carried packets, it has: one that was given up would prove
# nothing.
kernel_path_carried() {
    if kernel_path_carries &&
        [ "$(($(kernel_path_flow "$1" outbound sent) + $(kernel_path_flow "$1" inbound delivered)))" = 0 ]; then
        fail "the kernel path of $1 ($KERNEL_PATH) has carried nothing:" \
            "$(agent_json "$1" status | jq -c '{kernel_path, problems}')"
    fi
}

# forgeries CASES: sends them (forge.py), and each must be counted as it says. RIGHTFUL is how many were delivered.
forgeries() {
    local cases
    python3 "$TOOLS/forge.py" cases <<<"$1" >"$SCRATCH/forgeries" || fail "forged packets are counted otherwise"
    # shellcheck disable=SC2034 # The laws use it.
    read -r cases RIGHTFUL < <(tail -n 1 "$SCRATCH/forgeries")
    equal "cases of forged packets" "$(wc -l <<<"$1")" "$cases"
}

# sink NAME PORT: counts the datagrams that come to that port there, from now on.
declare -A SINKS
sink() {
    start_in "$1" "$LOAD" count "$2" >"$SCRATCH/sink.$1"
    SINKS[$1]=$PID
    until_true 5 "the sink of $1 listens" is_bound "$1" udp "$2"
}

# sunk NAME FILTER: ends it; what jq's filter finds of the count of its port.
sunk() {
    kill -TERM "${SINKS[$1]}"
    # In a command substitution it is no child to wait for. One that has ended has no namespace.
    while readlink "/proc/${SINKS[$1]}/ns/net" >/dev/null; do sleep 0.01; done
    jq -c ".[] | $2" "$SCRATCH/sink.$1"
}

service_pid() {
    agent_json "$1" status | jq .service_pid
}

no_problem() {
    agent_json "$1" status | jq -e '.problems == []'
}

# next_service NODE PID: whether another service than that one forwards.
next_service() {
    agent_json "$1" status | jq -e --argjson before "$2" '.service_pid != $before and .snapshot_adopted'
}

# device_count NAME DEVICE FIELD, as in `ip -s link`: rx_packets is stats64.rx.packets.
device_count() {
    ip -n "$PREFIX-$1" -s -j link show dev "$2" | jq ".[0].stats64.${3%%_*}.${3#*_}"
}

# agent_json NODE COMMAND: what the command prints as JSON; exit code 1, which means that there is a problem, is no
# error.
agent_json() {
    tartan "$1" "$2" -o json || [ $? = 1 ]
}

# no_findings: nothing is wrong yet, and both commands that would say so do not: `tartan doctor` finds nothing on any
# Tartan node of the lab, and `tartan status` ends with exit code 0. It sends nothing to pods, and moves no count of the
# dataplane.
no_findings() {
    local pid node
    for pid in "$LAB_STATE"/node*/pid; do
        node=$(basename "$(dirname "$pid")")
        if until_true 10 "doctor finds nothing on $node" finds_nothing "$node"; then
            say "doctor finds nothing on $node, in $(jq .checks "$SCRATCH/healthy.json") checks"
        else
            cat "$SCRATCH/healthy.json" >&2
        fi
    done
}

# finds_nothing NODE: now; what there is instead, into $SCRATCH/healthy.json.
finds_nothing() {
    local checks=0 status=0
    tartan "$1" doctor -o json >"$SCRATCH/doctor-healthy.json" || checks=$?
    tartan "$1" status -o json >"$SCRATCH/status-healthy.json" || status=$?
    jq -nc --argjson doctor "$checks" --argjson status "$status" --slurpfile examined "$SCRATCH/doctor-healthy.json" \
        --slurpfile told "$SCRATCH/status-healthy.json" \
        '{doctor: $doctor, checks: ($examined[0].checks | length), findings: [$examined[0].checks[].findings[]],
          status: $status, problems: $told[0].problems}' >"$SCRATCH/healthy.json"
    jq -e '.doctor == 0 and .checks > 0 and .findings == [] and .status == 0 and .problems == []' \
        "$SCRATCH/healthy.json"
}

say() {
    printf '%(%T)T  %s\n' -1 "$*"
}

fail() {
    FAILURES=$((FAILURES + 1))
    echo "FAILED: $*" >&2
}

die() {
    fail "$*"
    exit 1
}

# equal WHAT EXPECTED FOUND
equal() {
    if [ "$2" = "$3" ]; then
        say "$1: $3"
    else
        fail "$1: expected $2, found $3"
    fi
}

# same WHAT EXPECTED FOUND, of many lines: shows only the difference.
same() {
    if [ "$2" = "$3" ]; then
        say "$1: the same ($(wc -l <<<"$3") lines)"
    else
        local differing
        mapfile -t differing < <(diff <(echo "$2") <(echo "$3") | grep '^[<>]')
        # The first of them in the line that the summary of all steps repeats.
        fail "$1 ('<' is expected, '>' was found): $(printf '%s; ' "${differing[@]:0:3}")"
        printf '%s\n' "${differing[@]}" >&2
    fi
}

# at_most WHAT LIMIT FOUND (whole numbers)
at_most() {
    if [ "$3" -le "$2" ]; then
        say "$1: $3 (at most $2)"
    else
        fail "$1: at most $2 expected, found $3"
    fi
}

# measured_at_most WHAT LIMIT FOUND: the same of what a clock or a flood decides: a bar of --full alone.
measured_at_most() {
    if [ -n "${FULL:-}" ]; then at_most "$@"; else say "$1: $3 (with --full at most $2)"; fi
}

# show_logs: of the lab's agents, the ends.
show_logs() {
    local log
    for log in "$LAB_STATE"/node*/log; do
        if [ -e "$log" ]; then
            echo "--- the end of $log"
            tail -n 30 "$log"
        fi
    done
}
