#!/usr/bin/env bash
# Kubernetes Services by kube-proxy's rules, in its iptables and its nftables mode, with masquerade and without: every request is
# answered, seen and refused as with the kernel's VXLAN device and flannel's rules, the table of tools/services.py: by TCP and UDP,
# from pods, nodes and outside, at ClusterIPs, external addresses, and node ports at every address of the nodes; 1 MiB each way from
# pod to Service. UDP flows follow an endpoint that moves. Nothing is dropped.
#
#   node1, node2, node3 ══ underlay ══ client, no node of the cluster
#
# labs: format=vxlan outside=dual
# labs: format=udp outside=dual
# labs: kernel-path=auto
# full: inside!=dual
# full: outside=dual|v4
# seconds: 1200
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=8080
# Each a mode of kube-proxy, with or without masquerade. Of two nat chains of one priority packets meet the newer one first:
# kube-proxy's, and with `last` Tartan's, which is written anew.
case ${FULL:+full}:$BACKEND:$KERNEL_PATH in
full:*) ROUNDS=("nftables on" "nftables off" "nftables last" "iptables off" "iptables on" "iptables last") ;;
:vxlan:off) ROUNDS=("nftables on" "iptables off") ;;
:vxlan:auto) ROUNDS=("iptables $([ "$PEER" = "" ] && echo off || echo on)") ;;
*) ROUNDS=("iptables on") ;;
esac
mapfile -t NODES < <(awk '{ print $1 }' "$LAB_STATE/nodes")
# Those whose pods and processes ask.
ASKERS=(node1 "${NODES[-1]}")
if [ -n "${FULL:-}" ]; then ASKERS=("${NODES[@]}"); fi

# What flannel and the stock bridge plugin give a node beside its tunnel: the bridge's address, the first of its subnet. A
# refusal is an ICMP error, of which a host sends few in a second to each other one.
prepare() {
    local node pod
    for node in "${NODES[@]}"; do
        ip -n "$PREFIX-$node" link add cni0 type bridge
        undo ip -n "$PREFIX-$node" link delete cni0
        ip -n "$PREFIX-$node" link set cni0 up
        ip -n "$PREFIX-$node" address add "10.244.${node#node}.1/32" dev cni0
        ip -n "$PREFIX-$node" address add "fd00:10:244:${node#node}::1/128" dev cni0
        undo ip netns exec "$PREFIX-$node" sysctl -qw net.ipv4.icmp_ratelimit=1000 net.ipv6.icmp.ratelimit=1000
        ip netns exec "$PREFIX-$node" sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
        undo strictness "$node" 0
        serve "$node" underlay_of
    done
    while read -r pod _; do serve "$pod" address_of; done <"$LAB_STATE/pods"
}

# serve NAME WHAT_GIVES_ITS_ADDRESS
serve() {
    local family addresses=()
    for family in "${SERVED[@]}"; do addresses+=("$("$2" "$1" "$family")"); done
    start_in "$1" python3 "$TOOLS/exchange.py" serve "$1" "$PORT" "${addresses[@]}"
    until_true 10 "$1 serves" is_bound "$1" udp "$PORT"
}

# With masquerade everything is answered by the way it came, and the strictest rp_filter changes nothing. Without it the answer
# of a node to a pod comes by the overlay, that of a pod to a node past it.
strictness() {
    ip netns exec "$PREFIX-$1" sysctl -qw "net.ipv4.conf.all.rp_filter=$2"
}

# written_anew NODE: its table goes, and is put back.
written_anew() {
    in_ns "$1" nft delete table inet tartan
    until_true 5 "$1: the table is back" in_ns "$1" nft list chain inet tartan postrouting
}

# all_drops: what the workers dropped by reason, and the kernel at their sockets and devices.
all_drops() {
    local node
    for node in "${TARTAN[@]}"; do
        agent_json "$node" drops | jq -c --arg node "$node" '[$node, ([.workers[] | .outbound, .inbound | .dropped // {} | to_entries[]
            | select(.value > 0)] | group_by(.key) | map({(.[0].key): (map(.value) | add)}) | add // {}),
            ([.kernel[] | select(.counter | test("drop")).count] | add)]'
    done | paste -sd ' '
}

# asked MODE MASQUERADE
asked() {
    local node before
    lab services --masquerade "${2/last/on}" --kube-proxy "$1" >/dev/null
    for node in "${NODES[@]}"; do strictness "$node" "$([ "$2" = off ] && echo 0 || echo 1)"; done
    if [ "$2" = last ]; then for node in "${TARTAN[@]}"; do written_anew "$node"; done; fi
    before=$(all_drops)
    say "kube-proxy's $1 mode, masquerade $2"
    python3 "$TOOLS/services.py" "$PREFIX" "$1" "${2/last/on}" "${ASKERS[@]}" >"$SCRATCH/wrong" || fail "answers, $1, masquerade $2"
    tail -n 30 "$SCRATCH/wrong"
    # Without masquerade what the kernel sends on with a pod's source comes from a node that is not that pod's.
    [ "$2" = off ] || equal "dropped by then" "$before" "$(all_drops)"
}

# UDP flows to a Service whose endpoint moves from a pod of the first node to one of the last. A flow that the node still tracks
# would go on to the old one.
moves() {
    local family address port node name flow flows=()
    for family in "${SERVED[@]}"; do
        read -r address port node < <(jq -r '.[] | select(.name == "lab/moving") | "\(.address) \(.port) \(.node_port)"' \
            "$LAB_STATE/services.$family")
        for name in pod1 pod2 pod5 node1 "${NODES[-1]}"; do flow_of "$name" "$address" "$port" "ClusterIP, IPv$family"; done
        for name in node1 "${NODES[-1]}"; do flow_of client "$(underlay_of "$name" "$family")" "$node" "$name, IPv$family"; done
    done
    for flow in "$SCRATCH"/flow.*; do until_true 5 "${flow##*/flow.}: an answer of pod1" grep -q '^pod1 ' "$flow"; done
    lab services --masquerade "$2" --kube-proxy "$1" --moved >/dev/null
    for flow in "$SCRATCH"/flow.*; do
        until_true 5 "${flow##*/flow.}: an answer of pod5" grep -q '^pod5 ' "$flow"
        equal "${flow##*/flow.}: who answered" "pod1 pod5" "$(cut -d ' ' -f 1 "$flow" | paste -sd ' ')"
    done
    for flow in "${flows[@]}"; do stop "$flow" KILL; done
}

# flow_of CLIENT ADDRESS PORT WHAT
flow_of() {
    start_in "$1" python3 "$TOOLS/exchange.py" flow "$2" "$3" >"$SCRATCH/flow.$1 to $4"
    flows+=("$PID")
}

undo lab services --off
prepare
for ROUND in "${ROUNDS[@]}"; do
    read -r MODE MASQUERADE <<<"$ROUND"
    [ "$ROUND" = "${ROUNDS[0]}" ] || lab services --off
    asked "$MODE" "$MASQUERADE"
    if [ "$ROUND" = "${ROUNDS[0]}" ]; then moves "$MODE" "$MASQUERADE"; fi
done
