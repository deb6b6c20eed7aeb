#!/usr/bin/env bash
# A second interface of a pod, as Multus adds it to what containerd's CRI has made: by the same plugin for another
# network, with the results kept in a place of its own. Answers leave where requests came in; each interface goes for
# itself; one whose DEL never comes is reclaimed.
#
# cni_second.sh PART: both, or lost
# case: both
# full: lost
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

# Multus keeps results in /var/lib/cni/multus; containerd has /var/lib/cni/results.
CACHE=$SCRATCH/multus

# multus ADD|CHECK|DEL POD: for net1; the result of ADD is handed to what comes later.
multus() {
    local pod=$2 conf answer
    conf=$(jq -n --arg root "$LAB_STATE/node1" '{cniVersion: "1.0.0", name: "second", type: "tartan-cni", $root}')
    if [ "$1" != ADD ]; then conf=$(jq --slurpfile prev "$CACHE/$pod" '.prevResult = $prev[0]' <<<"$conf"); fi
    answer=$(in_runtime_host node1 env CNI_COMMAND="$1" CNI_CONTAINERID="${POD_ID[$pod]}" CNI_IFNAME=net1 CNI_PATH=/opt/cni/bin \
        CNI_NETNS="$(jq -r .netns <<<"${POD_RECORD[$pod]}")" CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=$pod" \
        /opt/cni/bin/tartan-cni <<<"$conf") || {
        fail "$1 of net1 for $pod: $answer"
        return 1
    }
    if [ "$1" = ADD ]; then echo "$answer" >"$CACHE/$pod"; fi
}

second_address() {
    jq -r '.ips[0].address | split("/")[0]' "$CACHE/$1"
}

# What left a pod by an interface so far.
sent_by() {
    in_pod "$1" ip -s -j link show dev "$2" | jq '.[0].stats64.tx.packets'
}

both() {
    local before
    multus CHECK pod1
    reaches pod1 "$(pod_address pod2)"
    before=$(sent_by pod1 net1)
    reaches pod2 "$SECOND"
    equal "answers that left by net1" "$PINGS" "$(($(sent_by pod1 net1) - before))"
    before=$(sent_by pod1 eth0)
    reaches pod2 "$(pod_address pod1)"
    equal "answers that left by eth0" "$PINGS" "$(($(sent_by pod1 eth0) - before))"
    in_pod pod1 ping -n -q -c 1 -W 5 -I "$SECOND" "$(pod_address pod2)" >/dev/null || fail "pod1 does not reach pod2 from net1"

    say "the second goes, the first stays"
    multus DEL pod1
    multus DEL pod1
    exchange pod1 pod2
    reaches pod2 "$SECOND" 0
    cri node1 stop "${POD_ID[pod1]}"
}

# Multus that is killed, or whose DEL is lost, asks for nothing; the namespace goes with the pod.
lost() {
    cri node1 stop "${POD_ID[pod1]}"
    record_of node1 "${POD_ID[pod1]}" net1 >/dev/null || fail "nothing is left of net1, so nothing is shown"
    reclaimed node1 "${POD_ID[pod1]}" net1
}

mkdir "$CACHE"
lab_up --pods 0
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node"
    containerd_up "$node"
    remember "$node"
done
cri_run node1 pod1
cri_run node2 pod2
multus ADD pod1
SECOND=$(second_address pod1)
say "net1 of pod1: $SECOND"
"${1:-both}"
cri node1 rm "${POD_ID[pod1]}"
cri node2 stop "${POD_ID[pod2]}"
cri node2 rm "${POD_ID[pod2]}"
for node in node1 node2; do
    forgotten "$node"
    law_one "$node"
done
