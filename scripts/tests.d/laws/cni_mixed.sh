#!/usr/bin/env bash
# On one node a pod on the bridge of the stock plugin and a pod of tartan-cni reach each other, both ways, with no
# drop: the node answers on the bridge for its pods. It reports that it is mixed, and the bridge's prefix and address.
# labs: inside=v4 format=vxlan third=kernel-vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

remove_bridge() {
    stock DEL node1 old
    ip -n "$PREFIX-node1" link delete cni0
    rm -r "$LAB_STATE/node1/cni"
}

drops() {
    echo "$(($(dropped node1 outbound) + $(dropped node1 inbound)))"
}

# host-local goes on behind what it gave last: the first addresses are the lab's pods'.
mkdir -p "$LAB_STATE/node1/cni/networks/cbr0"
printf 10.244.1.100 >"$LAB_STATE/node1/cni/networks/cbr0/last_reserved_ip.0"
new_pods old
undo remove_bridge
OLD=$(stock ADD node1 old | jq -r '.ips[0].address | split("/")[0]') || die "the stock plugin refuses a pod"
NEW=$(address_of pod2)
BEFORE=$(drops)
until_true 5 "the node answers on the bridge" in_ns node1 grep -q 1 /proc/sys/net/ipv4/conf/cni0/proxy_arp
# The kernel takes its time, up to 0.8 s, to answer for another host.
until_true 5 "the old pod reaches the new one" in_ns old ping -n -q -c 1 -W 1 "$NEW"
pings old "$NEW"
pings pod2 "$OLD"
pings pod3 "$OLD"
equal "drops" 0 "$(($(drops) - BEFORE))"
agent_json node1 status | jq -r '.problems[].sentence' | grep 'cni0 live beside' >/dev/null ||
    fail "status does not say that the node is mixed: $(agent_json node1 status | jq -c .problems)"
equal "rows of the bridge's prefix and address" 2 "$(tartan node1 pods | grep -c '^- .* kernel-routed .*$')"
