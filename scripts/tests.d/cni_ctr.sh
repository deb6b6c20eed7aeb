#!/usr/bin/env bash
# `ctr run --cni` of containerd on two nodes: containers reach each other whole. One that ends by itself is taken
# away; a detached one is not, `ctr` never calls DEL for it, and the agent has to see by itself that it is gone.
#
#   web1, once ── node1 tartan ══ underlay ══ tartan node2 ── web2
#
# cni_ctr.sh PART: run; dual, pods of both families; killed, of the container and of ctr; or leak
# full: run
# case: killed
# full: dual
# full: leak
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

# A container that ends by itself: DEL comes without a network namespace, which is gone by then.
run_and_end() {
    local answer
    answer=$(ctr_in node1 run --rm --cni --rootfs "$SCRATCH/node1/rootfs" once /bin/ping -c 3 -W 1 "$(pod_address web2)" 2>&1) || true
    equal "packets that a container of node1 got back from web2" "3 packets received" "$(grep -o '[0-9]* packets received' <<<"$answer")"
    if recorded once; then fail "a container that ended is still attached"; fi
}

# What a runtime would call for a container: no namespace, no prevResult.
detach() {
    jq -n --arg root "$LAB_STATE/$1" '{cniVersion: "1.0.0", name: "tartan", type: "tartan-cni", $root}' |
        in_runtime_host "$1" env CNI_COMMAND=DEL CNI_CONTAINERID="$PREFIX-runtimes-$2" CNI_NETNS= CNI_IFNAME=eth0 \
            CNI_PATH=/opt/cni/bin /opt/cni/bin/tartan-cni || fail "DEL of $2 on $1"
    in_runtime_host "$1" rm -f "/var/lib/cni/results/tartan-$PREFIX-runtimes-$2-eth0"
}

recorded() {
    record_of node1 "$PREFIX-runtimes-$1" >/dev/null
}

# The agent lives outside of the runtime's mount and process namespaces: a path in a record tells it nothing.
leak() {
    ctr_kill node1 web1
    recorded web1 || fail "ctr has detached web1 itself: nothing leaks, and nothing is shown"
    reclaimed node1 "$PREFIX-runtimes-web1"
    until_true 5 "no link of web1" no_link "$(jq -r .host_ifname <<<"${POD_RECORD[web1]}")" || true
    say "the living pod is left alone"
    recorded web3 || fail "the record of web3, which lives, is gone"
    exchange web3 web2
    in_runtime_host node1 rm -f "/var/lib/cni/results/tartan-$PREFIX-runtimes-web1-eth0"
    ctr_kill node1 web3
    detach node1 web3
}

no_link() {
    ! ip -n "$PREFIX-node1" link show dev "$1"
}

# In the foreground, so that ctr waits for its end and detaches it: noted as a pod. What runs it is in $CTR.
ctr_wait_for() {
    ctr_in node1 run --rm --cni --rootfs "$SCRATCH/node1/rootfs" "$1" /bin/sleep 600 &
    CTR=$!
    until_true 10 "$1 runs" runs "$1" || die "ctr does not start it"
    note_pod "$1" node1 "$PREFIX-runtimes-$1"
}

runs() {
    grep -q "^$1 .*RUNNING" <<<"$(ctr_in node1 task ls)" && recorded "$1"
}

killed() {
    say "the task: ctr detaches it"
    ctr_wait_for web3
    exchange web3 web2
    in_runtime_host node1 kill -KILL "$(ctr_in node1 task ls | awk '$1 == "web3" { print $2 }')"
    wait "$CTR" || true
    if recorded web3; then fail "a container that was killed is still attached"; fi
    forgotten node1

    say "ctr: no program detaches it, and the agent sees that it is gone"
    ctr_wait_for web3
    kill_inside "$CTR" ctr
    exchange web3 web2
    ctr_kill node1 web3
    reclaimed node1 "$PREFIX-runtimes-web3"
    in_runtime_host node1 rm -f "/var/lib/cni/results/tartan-$PREFIX-runtimes-web3-eth0"
    forgotten node1
}

PART=${1:-run}
INSIDE=v4
case $PART in
dual) INSIDE=dual ;;
# Seconds until the agent takes away what has no interface any more; its default is a minute.
killed) export TARTAN_RECLAIM_AFTER=5 ;;
esac
lab_up --pods 0 --inside "$INSIDE"
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node"
    containerd_up "$node"
    remember "$node"
done
ctr_run node2 web2
case $PART in
run)
    ctr_run node1 web1
    exchange web1 web2
    hairpin web1
    run_and_end
    ctr_kill node1 web1
    recorded web1 || fail "ctr has detached web1 itself"
    detach node1 web1
    ;;
dual)
    ctr_run node1 web1
    contains "an address of web1" fd00:10:244:1: "$(pod_address web1 6)"
    exchange web1 web2
    ctr_kill node1 web1
    detach node1 web1
    ;;
killed)
    killed
    ;;
leak)
    ctr_run node1 web1
    ctr_run node1 web3
    leak
    ;;
esac
ctr_kill node2 web2
detach node2 web2
for node in node1 node2; do
    forgotten "$node"
    nothing_dropped "$node"
done
