#!/usr/bin/env bash
# containerd's CRI, which a kubelet speaks, on two nodes: sandboxes reach each other whole, also over a kill of
# containerd; they are stopped twice and removed, as a kubelet does, and nothing is left.
#
#   pod1 ── node1 tartan ══ underlay ══ tartan node2 ── pod2
#
# cni_cri.sh PART [INSIDE]: run, or refusals; pods of v4, or dual
# case: run
# full: run dual
# full: refusals
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

PORTMAP='{"type": "portmap", "capabilities": {"portMappings": true}}'
CONF=/etc/cni/net.d/10-tartan.conflist

# Stopped twice, as after a restart of a kubelet: the second time without a namespace.
end_pod() {
    local node=${POD_NODE[$1]}
    cri "$node" stop "${POD_ID[$1]}" || fail "StopPodSandbox of $1"
    equal "$1 once stopped" 'notready ' "$(cri "$node" podstatus "${POD_ID[$1]}")"
    cri "$node" stop "${POD_ID[$1]}" || fail "the second StopPodSandbox of $1"
    cri "$node" rm "${POD_ID[$1]}" || fail "RemovePodSandbox of $1"
}

network() {
    cri "$1" status
}

network_is() {
    [[ $(network node1) == "NetworkReady $1"* ]]
}

run() {
    equal "node1" 'NetworkReady true ' "$(network node1)"
    cri_run node1 pod1 port=8081:5003
    cri_run node2 pod2
    equal "what the CRI says of pod1" "ready $(jq -r '[.addresses[] | split("/")[0]] | join(" ")' <<<"${POD_RECORD[pod1]}")" \
        "$(cri node1 podstatus "${POD_ID[pod1]}")"
    equal "what the agent says of pod1" 'default/pod1 attached' "$(agent_json node1 pods |
        jq -r --arg container "${POD_ID[pod1]}" '.pods[] | select(.container == $container) | "\(.pod) \(.state)"')"
    exchange pod1 pod2
    hairpin pod1
    transfer pod2 pod1 "$(underlay_of node1 4)" 8081
    say "containerd is killed"
    containerd_stop node1 KILL
    reaches pod1 "$(pod_address pod2)"
    containerd_start node1
    exchange pod1 pod2
    end_pod pod1
    end_pod pod2
}

# A sandbox that cannot have a network: the kubelet is told why, and nothing is left of it.
refused() {
    local answer
    if answer=$(cri node1 run "$1" "/$PREFIX-runtimes" "${@:3}" 2>&1); then
        fail "$1 has a network that it should not have"
        return
    fi
    contains "RunPodSandbox of $1" "$2" "$answer"
}

refusals() {
    cri_run node1 pod1

    say "no agent: it is waited for, and named"
    lab stop node1
    refused pod2 'the Tartan agent does not answer on'
    lab start node1
    reaches pod1 10.244.2.0

    say "a broken configuration sorts first"
    in_runtime_host node1 sh -c 'echo "{broken" >/etc/cni/net.d/05-broken.conflist'
    until_true 5 "node1 is not ready" network_is false || true
    in_runtime_host node1 rm /etc/cni/net.d/05-broken.conflist
    until_true 5 "node1 is ready" network_is true || true

    say "configuration and program gone, one after the other: a pod cannot be stopped, until they are back"
    in_runtime_host node1 mv "$CONF" /tmp/
    until_true 5 "node1 is not ready" network_is false || true
    contains "StopPodSandbox" 'cni plugin not initialized' "$(cri node1 stop "${POD_ID[pod1]}" 2>&1 || true)"
    conflist node1 "$PORTMAP"
    until_true 5 "node1 is ready" network_is true || true
    in_runtime_host node1 mv /opt/cni/bin/tartan-cni /opt/cni/bin/away
    contains "StopPodSandbox" 'failed to find plugin "tartan-cni"' "$(cri node1 stop "${POD_ID[pod1]}" 2>&1 || true)"
    in_runtime_host node1 mv /opt/cni/bin/away /opt/cni/bin/tartan-cni
    end_pod pod1
}

lab_up --pods 0 --inside "${2:-v4}"
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node" "$PORTMAP"
    containerd_up "$node"
    remember "$node"
done
"${1:-run}"
for node in node1 node2; do
    forgotten "$node"
    nothing_dropped "$node"
done
