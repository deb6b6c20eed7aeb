#!/usr/bin/env bash
# Debian's portmap, bandwidth, tuning and firewall chained behind us, as containerd's CRI calls them: each finds in our
# result what it needs, does its work on our interfaces, and takes it back before we take them.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

PORTMAP='{"type": "portmap", "capabilities": {"portMappings": true}}'
BANDWIDTH='{"type": "bandwidth", "capabilities": {"bandwidth": true}}'
TUNING='{"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "77"}}'
FIREWALL='{"type": "firewall"}'
# As `bandwidth` says it to the kernel: bytes a second.
INGRESS=$((20 * 1000 * 1000 / 8))
EGRESS=$((10 * 1000 * 1000 / 8))


# The rates of the token buckets of a node, by kind of device: towards a pod on its veth, from it on an IFB.
buckets() {
    ip netns exec "$PREFIX-$1" tc -j qdisc show | jq -r '[.[] | select(.kind == "tbf") |
        (if .dev | startswith("tt") then "towards" else "from" end) + " \(.options.rate)"] | sort | join(", ")'
}

accepted() {
    ip netns exec "$PREFIX-$1" iptables -S CNI-FORWARD | grep -c -- "$2/32"
}

lab_up --pods 0
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node" "$TUNING" "$BANDWIDTH" "$PORTMAP" "$FIREWALL"
    containerd_up "$node"
    remember "$node"
done

cri_run node1 pod1 port=8081:5003 ingress=20M egress=10M
cri_run node2 pod2
exchange pod1 pod2
hairpin pod1
equal "portmap" 1 "$(ip netns exec "$PREFIX-node1" iptables -t nat -S | grep -c -- "--to-destination $(pod_address pod1):5003")"
transfer pod2 pod1 "$(underlay_of node1 4)" 8081
equal "bandwidth" "from $EGRESS, towards $INGRESS" "$(buckets node1)"
equal "bandwidth of a pod without" '' "$(buckets node2)"
equal "tuning" "1400 77" "$(in_pod pod1 ip -j link show eth0 | jq '.[0].mtu') $(in_pod pod1 cat /proc/sys/net/core/somaxconn)"
equal "firewall" 2 "$(accepted node1 "$(pod_address pod1)")"

for pod in pod1 pod2; do
    cri "${POD_NODE[$pod]}" stop "${POD_ID[$pod]}"
    cri "${POD_NODE[$pod]}" rm "${POD_ID[$pod]}"
done
for node in node1 node2; do
    forgotten "$node"
    nothing_dropped "$node"
done
