#!/usr/bin/env bash
# A pod on a bridge, whose source nobody checks at its interface, asks a Service whose endpoint is on the other node.
# With its own source it is answered, and the server sees it. With the source of another node's pod, or of that node's
# tunnel address, its packets do not leave the node: a Service's translation makes the node masquerade nothing forged.
#
#   bridged ── cni0 ── node1: tartan ══ underlay ══ tartan node2 ── pod3, pod4
#
# services_forged.sh MODE FAMILIES: MODE is kube-proxy's, iptables or nftables
# case: nftables dual
# full: iptables dual
# full: nftables v4 kernel-path=stateless
# full: nftables v4 kernel-path=auto
# full: iptables v4 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

MODE=$1
FAMILIES=$2
PORT=8080
# Of each source; a number that no other count of this test is.
COUNT=19

# A pod as a bridge plugin makes it: its node knows it by the subnet on the bridge.
bridged_pod() {
    local family length
    make_namespace bridged
    ip -n "$PREFIX-node1" link add cni0 type bridge
    ip -n "$PREFIX-node1" link add port type veth peer name eth0 netns "$PREFIX-bridged"
    ip -n "$PREFIX-node1" link set port master cni0 up
    for family in $(families "$FAMILIES"); do
        length=$((family == 4 ? 24 : 64))
        # shellcheck disable=SC2046
        ip -n "$PREFIX-node1" address add "$(subnet_address "$family" 1)/$length" dev cni0 $(without_dad "$family")
        # shellcheck disable=SC2046
        ip -n "$PREFIX-bridged" address add "$(subnet_address "$family" 77)/$length" dev eth0 $(without_dad "$family")
    done
    ip -n "$PREFIX-node1" link set cni0 up
    ip -n "$PREFIX-bridged" link set eth0 up
    for family in $(families "$FAMILIES"); do
        ip -n "$PREFIX-bridged" "-$family" route add default via "$(subnet_address "$family" 1)"
    done
}

# subnet_address FAMILY NUMBER, of node1
subnet_address() {
    case $1 in
    4) echo "10.244.1.$2" ;;
    6) echo "fd00:10:244:1::$2" ;;
    esac
}

without_dad() {
    if [ "$1" = 6 ]; then echo nodad; fi
}

cluster_ip() {
    jq -r '.[] | select(.name == "lab/pod3").address' "$LAB_STATE/services.$1"
}

ask() {
    echo "one any $(cluster_ip "$1") 80 asked" | ip netns exec "$PREFIX-bridged" python3 "$TOOLS/reach.py" ask
}

# Two sources of the other node: that of a pod, and the tunnel's. (The endpoint's own would be a hairpin for kube-proxy's
# iptables mode, which masquerades it itself.)
sources() {
    case $1 in
    4) printf '%s\n' "$(address_of pod4 4)" 10.244.2.0 ;;
    6) printf '%s\n' "$(address_of pod4 6)" fd00:10:244:2:: ;;
    esac
}

spoofed() {
    agent_json node1 drops | jq '[.workers[].outbound.dropped.SpoofedSource // 0] | add'
}

reached() {
    [ "$(spoofed)" -ge "$1" ]
}

say "services_forged: kube-proxy's $MODE mode, $FAMILIES"
lab_up --inside "$FAMILIES" --outside "$FAMILIES" --pods 2 >/dev/null
lab services --kube-proxy "$MODE" >/dev/null
bridged_pod
for FAMILY in $(families "$FAMILIES"); do
    start_in pod3 python3 "$TOOLS/reach.py" serve pod3 "$PORT" "$(address_of pod3 "$FAMILY")"
    OWN=$(subnet_address "$FAMILY" 77)
    answered() { [ "$(ask "$FAMILY" | sort)" = "$(printf '%s|pod3 %s|asked\n' tcp "$OWN" udp "$OWN")" ]; }
    until_true 10 "IPv$FAMILY: the honest pod is answered, and seen as itself" answered || ask "$FAMILY" >&2
    DELIVERED=$(flow node2 inbound delivered)
    BEFORE=$(spoofed)
    SENT=$(sources "$FAMILY" | jq -nRc --argjson count "$COUNT" --arg to "$(cluster_ip "$FAMILY")" \
        '{sources: [inputs], destinations: [$to], port: 80, $count}' | in_ns bridged python3 "$TOOLS/send_as.py")
    equal "IPv$FAMILY: forged packets sent" "$((2 * COUNT))" "$SENT"
    # Nothing switches off that the kernel of node1 may tell the forged source of a shorter way (an ICMPv6 redirect from a
    # link-local address). That is refused as well.
    until_true 5 "IPv$FAMILY: forged packets are counted" reached "$((BEFORE + SENT))" || true
    say "IPv$FAMILY: dropped as SpoofedSource: $(($(spoofed) - BEFORE))"
    equal "IPv$FAMILY: packets delivered on node2 meanwhile" 0 "$(($(flow node2 inbound delivered) - DELIVERED))"
done
for NODE in node1 node2; do law_one "$NODE"; done
