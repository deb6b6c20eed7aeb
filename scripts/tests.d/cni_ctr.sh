#!/usr/bin/env bash
# `ctr run --cni` of containerd on two nodes: containers of both families reach each other whole. One that ends by
# itself, or is killed, is taken away; a detached one is not, nor one whose `ctr` is killed: no program calls DEL for
# it, and the agent has to see by itself that it is gone, while a living one is left alone.
#
#   web1, web3, once ── node1 tartan ══ underlay ══ tartan node2 ── web2
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

# Seconds until the agent takes away what has no interface any more; with --full its default, a minute.
if [ -z "${FULL:-}" ]; then export TARTAN_RECLAIM_AFTER=5; fi

# ctr_in NODE ARG...; a container's cgroup is /NAMESPACE/ID.
ctr_in() {
    in_runtime_host "$1" ctr -n "$PREFIX-runtimes" "${@:2}"
}

# ctr_run NODE OPTION NAME COMMAND: --rm for a container in the foreground, -d for one that ctr leaves to itself.
ctr_run() {
    # shellcheck disable=SC2086
    ctr_in "$1" run "$2" --cni --rootfs "$SCRATCH/$1/rootfs" "$3" $4
}

# sleeper NODE OPTION NAME: one that sleeps, noted as a pod; the process of ctr is in $CTR.
sleeper() {
    ctr_run "$@" '/bin/sleep 600' &
    CTR=$!
    until_true 10 "$3 runs" is "$1" "$3" RUNNING || die "ctr does not start it"
    note_pod "$3" "$1" "$PREFIX-runtimes-$3"
}

# is NODE NAME STATE
is() {
    grep -q "^$2 .*$3" <<<"$(ctr_in "$1" task ls)"
}

# reclaimed POD: ctr ends it and does not detach it; the agent sees that it is gone.
reclaimed() {
    local node=${POD_NODE[$1]}
    ctr_in "$node" task kill -s KILL "$1"
    until_true 5 "the task $1 ends" is "$node" "$1" STOPPED
    ctr_in "$node" task rm "$1" >/dev/null
    ctr_in "$node" container rm "$1"
    if is_detached "$1"; then fail "ctr has detached $1 itself: nothing leaks, and nothing is shown"; fi
    until_true 120 "$1 is reclaimed" is_detached "$1"
    contains "$node" "$(pod_address "$1")" "$(agent_json "$node" status | jq .last_reclaimed)"
    in_runtime_host "$node" rm -f "/var/lib/cni/results/tartan-${POD_ID[$1]}-eth0"
}

runtimes_up containerd_up
sleeper node2 -d web2
sleeper node1 -d web1
exchange web1 web2
ANSWER=$(ctr_run node1 --rm once "/bin/ping -c 3 -W 5 $(pod_address web2)" 2>&1) || true
contains "a container that ends by itself" "3 packets received" "$ANSWER"
equal "records of it" '' "$(record_of node1 "$PREFIX-runtimes-once")"

say "the task is killed: ctr detaches it"
sleeper node1 --rm web3
exchange web3 web2
in_runtime_host node1 kill -KILL "$(ctr_in node1 task ls | awk '$1 == "web3" { print $2 }')"
wait "$CTR" || true
is_detached web3 || fail "a container that was killed is still attached"

say "ctr is killed"
sleeper node1 --rm web4
kill_inside "$CTR" ctr
exchange web4 web2
reclaimed web4
exchange web1 web2
reclaimed web1
reclaimed web2
runtimes_end
