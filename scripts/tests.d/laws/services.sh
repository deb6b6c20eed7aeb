#!/usr/bin/env bash
# Kubernetes Services by kube-proxy's rules, in its iptables and its nftables mode, with masquerade and without: every
# request is answered, seen and refused as with the kernel's VXLAN device and flannel's rules, the table of services.py:
# by TCP and UDP, from pods, nodes and outside, at ClusterIPs, external addresses, and node ports at every address of
# the nodes; 1 MiB each way from pod to Service. UDP flows follow an endpoint that moves. Nothing is dropped, but,
# without --full, what a worker drops that the scheduler keeps from its core: RingFull after 25 ms (FULL_INBOX_WAIT in
# dataplane/src/limits.rs), OverShare where pods' transfers pile up meanwhile. TCP sends those again.
#
#   node1, node2, node3 ══ underlay ══ client, no node of the cluster
#
# labs: format=vxlan outside=dual
# labs: format=udp outside=dual
# labs: kernel-path=auto
# full: inside!=dual
# full: outside=dual|v4
# seconds: 1200

mapfile -t NODES < <(awk '{ print $1 }' "$LAB_STATE/nodes")
# Whose pods and processes ask: in the labs beside vxlan-dual and the oracle's those of node1 alone. A second round of
# the default run asks by IPv6; by IPv4 vxlan-over-v4 does.
ASKERS=(node1 "${NODES[-1]}")
# Each a mode of kube-proxy, with or without masquerade. Of two nat chains of one priority packets meet the newer one
# first: kube-proxy's, and with `last` Tartan's, which is written anew.
case ${FULL:+full}:$BACKEND:$KERNEL_PATH in
full:*)
    ROUNDS=("nftables on" "nftables off" "nftables last" "iptables off" "iptables on" "iptables last")
    ASKERS=("${NODES[@]}")
    ;;
:vxlan:off) ROUNDS=("nftables on" "iptables off") ;;
:vxlan:auto) ROUNDS=("iptables $([ "$PEER" = "" ] && echo off || echo on)") ASKERS=(node1) ;;
*) ROUNDS=("iptables on") ASKERS=(node1) ;;
esac

# settings NODE RP_FILTER ICMP_RATELIMIT: with masquerade everything is answered by the way it came, and the strictest
# rp_filter changes nothing. Without it the answer of a node to a pod comes by the overlay, that of a pod to a node past
# it. A refusal is an ICMP error, of which a host sends few in a second to each other one.
settings() {
    ip netns exec "$PREFIX-$1" sysctl -qw "net.ipv4.conf.all.rp_filter=$2" "net.ipv4.icmp_ratelimit=$3" \
        "net.ipv6.icmp.ratelimit=$3"
}

# What flannel and the stock bridge plugin give a node beside its tunnel: the bridge's address, the first of its subnet.
prepare() {
    local node
    for node in "${NODES[@]}"; do
        undo ip -n "$PREFIX-$node" link delete cni0
        undo settings "$node" 0 1000
        ip -n "$PREFIX-$node" -batch - <<COMMANDS
link add cni0 type bridge
link set cni0 up
address add 10.244.${node#node}.1/32 dev cni0
address add fd00:10:244:${node#node}::1/128 dev cni0
COMMANDS
    done
    python3 "$TOOLS/services.py" serve >"$SCRATCH/serve" &
    STARTED+=("$!")
    until_true 10 "pods and nodes serve" grep -q 'all serve' "$SCRATCH/serve"
}

# all_drops: what the workers dropped by reason, and the kernel at their sockets and devices.
all_drops() {
    local node own='"RingFull", "OverShare"'
    [ -z "${FULL:-}" ] || own=empty
    for node in "${TARTAN[@]}"; do
        agent_json "$node" drops | jq -c --arg node "$node" "[\$node, ([.workers[] | .outbound, .inbound |
            .dropped | to_entries[] | select(.key | IN($own) | not)] | group_by(.key) |
            map({(.[0].key): map(.value) | add}) | add),
            ([.kernel[] | select(.counter | test(\"drop\")).count] | add)]"
    done | paste -sd ' '
}

# asked MODE MASQUERADE
asked() {
    local node before
    lab services --masquerade "${2/last/on}" --kube-proxy "$1" >/dev/null
    for node in "${NODES[@]}"; do settings "$node" "$([ "$2" = off ] && echo 0 || echo 1)" 0; done
    for node in "${TARTAN[@]}"; do
        [ "$2" = last ] || break
        in_ns "$node" nft delete table inet tartan
        until_true 5 "$node: the table is back" in_ns "$node" nft list chain inet tartan postrouting
    done
    before=$(all_drops)
    say "kube-proxy's $1 mode, masquerade $2"
    python3 "$TOOLS/services.py" ask "$1" "${2/last/on}" "${ASKERS[@]}" | tail -n 30 || fail "answers, $*"
    # Without masquerade what the kernel sends on with a pod's source comes from a node that is not that pod's.
    [ "$2" = off ] || equal "dropped by then" "$before" "$(all_drops)"
}

undo lab services --off
prepare
for ROUND in "${ROUNDS[@]}"; do
    read -r MODE MASQUERADE <<<"$ROUND"
    if [ "$ROUND" != "${ROUNDS[0]}" ]; then
        lab services --off
        [ -n "${FULL:-}" ] || export ASKED=${SERVED[-1]}
    fi
    asked "$MODE" "$MASQUERADE"
    [ "$ROUND" != "${ROUNDS[0]}" ] || python3 "$TOOLS/services.py" move "$SCRIPTS/lab" services --prefix "$PREFIX" \
        --masquerade "$MASQUERADE" --kube-proxy "$MODE" --moved || fail "UDP flows, $MODE, masquerade $MASQUERADE"
done
