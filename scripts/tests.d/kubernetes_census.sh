#!/usr/bin/env bash
# What scripts/kubernetes brings up goes down without a trace: half way up, with pods, with every process killed.
#
# `kubernetes down` compares links, addresses, routes, nftables, sysctls, control groups, mounts, processes and files of
# the machine with those before `up`. Here it must do so after every kind of end, beside what this test sees itself.
# needs: scripts/kubernetes
# alone: a kubelet on a busy machine misses what it has to do in time
# full:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/cluster.sh"

# Processes that are the cluster's, found by what a container runtime and the programs are given: another way than the
# script's.
traces() {
    find /sys/fs/cgroup -type d -name "$PREFIX-kubernetes*"
    ip netns list | grep "^$PREFIX-" || true
    { grep -lF "$LAB_STATE" /proc/[0-9]*/{mountinfo,environ} 2>/dev/null || true; } | grep -v "^/proc/$$/" || true
    grep -lE "/$PREFIX-kubernetes" /proc/[0-9]*/cgroup 2>/dev/null || true
}

down_leaves_nothing() {
    [ -n "$(traces)" ] || fail "the cluster had no trace: nothing is shown by its end"
    cluster down || fail "the census after $1"
    equal "traces after $1" '' "$(traces)"
}

# half_way FILE: `up` is killed as soon as it has made FILE.
half_way() {
    local pid
    setsid "$SCRIPTS/kubernetes" up --prefix "$PREFIX" >"$SCRATCH/up" 2>&1 &
    pid=$!
    STARTED+=("$pid")
    until_true 120 "up makes $1" test -e "$LAB_STATE/$1" || cat "$SCRATCH/up"
    kill -KILL -- "-$pid"
    wait "$pid" || true
    down_leaves_nothing "half way up, as far as $1"
}

# with_pods: pods of the nodes' network, which need no other.
with_pods() {
    cluster up
    sed -e 's/Deployment/DaemonSet/; /replicas:/d; /topologySpread/,/labelSelector/d' \
        -e 's/^    spec:/&\n      hostNetwork: true\n      tolerations: [{operator: Exists}]/' "$TOOLS/web.yaml" |
        kubectl apply -f - >/dev/null
    # shellcheck disable=SC2153 # cluster.sh sets it.
    kubectl rollout status daemonset/web --timeout "${PATIENCE}s" --request-timeout 0 >/dev/null || fail "no pods"
}

cluster down
for FILE in control/{ca.crt,kube-apiserver.pid} host-node1/{base,kubelet.pid} host-node2/catatonit.pid; do
    half_way "$FILE"
done
with_pods
down_leaves_nothing "an end with pods"
with_pods
for NAME in control node1 node2; do
    # One may end with another.
    # shellcheck disable=SC2046
    kill -KILL $(ip netns pids "$PREFIX-$NAME") 2>/dev/null || true
done
down_leaves_nothing "every process was killed"
