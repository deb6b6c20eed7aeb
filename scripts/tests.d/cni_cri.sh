#!/usr/bin/env bash
# containerd's CRI, which a kubelet speaks, on two nodes: sandboxes of both families reach each other whole, also over
# a kill of containerd; they are stopped twice and removed, as a kubelet does, and nothing is left. Debian's portmap,
# bandwidth, tuning and firewall chained behind us find in our result what they need, work on our interfaces, and take
# it back before we take them. A sandbox that cannot have a network says why, and nothing is left of it.
#
#   pod1, pod3 ── node1 tartan ══ underlay ══ tartan node2 ── pod2
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

CHAIN=('{"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "77"}}'
    '{"type": "bandwidth", "capabilities": {"bandwidth": true}}' "$PORTMAP" '{"type": "firewall"}')
CONF=/etc/cni/net.d/10-tartan.conflist

# The rates of the token buckets of node1 in bytes a second: towards a pod on its veth, from it on an IFB.
buckets() {
    tc -n "$PREFIX-node1" -j qdisc show | jq -r '[.[] | select(.kind == "tbf") |
        (if .dev | startswith("tt") then "towards" else "from" end) + " \(.options.rate)"] | sort | join(", ")'
}

# rules TABLE CHAIN PATTERN: how many of iptables' on node1.
rules() {
    in_ns node1 iptables -t "$1" -S | grep -c -- "^-A $2.*$3"
}

# refuses VERB PART: the runtime does not run or stop a pod, in words that have this part.
refuses() {
    local answer arguments=("$1" "${POD_ID[pod1]}")
    [ "$1" = stop ] || arguments=(run pod4 "/$PREFIX-runtimes")
    if answer=$(cri node1 "${arguments[@]}" 2>&1); then fail "$1 did not fail"; fi
    contains "$1" "$2" "$answer"
}

runtimes_up containerd_up "${CHAIN[@]}"
equal "node1" 'NetworkReady true ' "$(cri node1 status)"
cri_run node1 pod1 port=8081:5003
cri_run node2 pod2
cri_run node1 pod3 ingress=20M egress=10M
equal "what the CRI says of pod1" "ready $(pod_addresses pod1)" "$(cri node1 podstatus "${POD_ID[pod1]}")"
equal "what the agent says of pod1" 'default/pod1 attached' "$(agent_json node1 pods |
    jq -r --arg container "${POD_ID[pod1]}" '.pods[] | select(.container == $container) | "\(.pod) \(.state)"')"
exchange pod1 pod2
transfer pod2 pod1 "$(underlay_of node1 4)" 8081
equal "rules of portmap" 1 "$(rules nat CNI-DN "--to-destination $(pod_address pod1):5003")"
equal "rules of firewall" 2 "$(rules filter CNI-FORWARD "$(pod_address pod1)/32")"
equal "MTU, by tuning" 1400 "$(in_pod pod1 ip -j link show eth0 | jq '.[0].mtu')"
equal "setting, by tuning" 77 "$(in_pod pod1 cat /proc/sys/net/core/somaxconn)"
equal "bandwidth, of pod3 alone" "from 1250000, towards 2500000" "$(buckets)"
reaches pod3 "$(pod_address pod2)"

say "containerd is killed"
kill -KILL "${CONTAINERD[node1]}"
until_true 10 "containerd ends" test ! -e "/proc/${CONTAINERD[node1]}/exe"
reaches pod1 "$(pod_address pod2)"
containerd_start node1
exchange pod1 pod2
cri_end pod3
cri_end pod2

say "no agent: it is waited for, and named"
lab stop node1
refuses run 'the Tartan agent does not answer on'
lab start node1
reaches pod1 10.244.2.0

say "a broken configuration sorts first"
in_runtime_host node1 sh -c 'echo "{broken" >/etc/cni/net.d/05-broken.conflist'
until_true 5 "node1 is not ready" network_is false
in_runtime_host node1 rm /etc/cni/net.d/05-broken.conflist
until_true 5 "node1 is ready" network_is true

say "configuration and program gone, one after the other: a pod cannot be stopped, until they are back"
in_runtime_host node1 mv "$CONF" /tmp/
until_true 5 "node1 is not ready" network_is false
refuses stop 'cni plugin not initialized'
conflist node1 "${CHAIN[@]}"
until_true 5 "node1 is ready" network_is true
in_runtime_host node1 mv /opt/cni/bin/tartan-cni /opt/cni/bin/away
refuses stop 'failed to find plugin "tartan-cni"'
in_runtime_host node1 mv /opt/cni/bin/away /opt/cni/bin/tartan-cni
cri_end pod1
runtimes_end
