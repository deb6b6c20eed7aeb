#!/usr/bin/env bash
# What scripts/kubernetes brings up goes down without a trace: with pods running, half way up, with every process killed;
# and what another process left is told.
#
# `kubernetes down` compares links, addresses, routes, nftables, sysctls, control groups, mounts, processes and files of the
# machine with those before `up`. Here it must do so after every kind of end, and what this test sees by itself is added.
# needs: scripts/kubernetes
# alone: a kubelet on a busy machine misses what it has to do in time
# full: ends
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/cluster.sh
. "$TOOLS/cluster.sh"

# Processes that are the cluster's, found by what a container runtime and the programs are given: another way than the
# script's.
traces() {
    find /sys/fs/cgroup -type d -name "$PREFIX-kubernetes*"
    ip netns list | grep "^$PREFIX-" || true
    { grep -lF "$LAB_STATE" /proc/[0-9]*/mountinfo /proc/[0-9]*/environ 2>/dev/null || true; } | grep -v "^/proc/$$/" || true
    { grep -lE "/$PREFIX-kubernetes" /proc/[0-9]*/cgroup 2>/dev/null || true; }
}

down_leaves_nothing() {
    [ -n "$(traces)" ] || fail "the cluster had no trace: nothing is shown by its end"
    cluster down || fail "the census after $1"
    equal "traces after $1" '' "$(traces)"
}

# half_way FILE: `up` is killed as soon as it has made FILE.
half_way() {
    local pid
    setsid "$SCRIPTS/kubernetes" up --prefix "$PREFIX" --tartan >"$SCRATCH/up" 2>&1 &
    pid=$!
    STARTED+=("$pid")
    until_true 120 "up makes $1" test -e "$LAB_STATE/$1" || cat "$SCRATCH/up"
    kill -KILL -- "-$pid"
    wait "$pid" || true
    down_leaves_nothing "half way up, as far as $1"
}

cluster down
for FILE in control/ca.crt control/kube-apiserver.pid host-node1/base host-node1/kubelet.pid host-node2/catatonit.pid node2/pid; do
    half_way "$FILE"
done

say "with pods"
cluster up --tartan
web
down_leaves_nothing "an end with pods"

say "every process killed"
cluster up --tartan
web
for NAME in control node1 node2; do
    # One may end with another.
    # shellcheck disable=SC2046
    kill -KILL $(ip netns pids "$PREFIX-$NAME") 2>/dev/null || true
done
down_leaves_nothing "every process was killed"

say "another program's process in a control group of the cluster"
cluster up --nodes 1
sleep 1000 &
THEIRS=$!
STARTED+=("$THEIRS")
echo "$THEIRS" >"$(find /sys/fs/cgroup -type d -path "*/$PREFIX-kubernetes/node1" | head -n 1)/cgroup.procs"
if cluster down 2>"$SCRATCH/refused"; then fail "down has not noticed process $THEIRS"; fi
grep -q "control groups of the cluster are not empty" "$SCRATCH/refused" || fail "down says: $(cat "$SCRATCH/refused")"
kill -0 "$THEIRS" || fail "down has ended process $THEIRS"
stop "$THEIRS" KILL
down_leaves_nothing "that process ended"
