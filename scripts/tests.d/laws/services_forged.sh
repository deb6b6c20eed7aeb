#!/usr/bin/env bash
# A pod on a bridge, whose source nothing checks at its interface, asks a Service whose endpoint is on the other node.
# With its own source it is answered, and the server sees it. With the source of another node's pod, or of that node's
# tunnel address, its packets do not leave the node: a Service's translation makes the node masquerade nothing forged.
# labs: format=vxlan inside=dual outside=dual
# full: format=vxlan
. "$TOOLS/stock.sh"

PORT=8080
# Of each source; a number that no other count of this law is.
COUNT=19

spoofed() {
    agent_json node1 drops | jq '[.workers[].outbound.dropped.SpoofedSource // 0] | add'
}

reached() {
    [ "$(spoofed)" -ge "$1" ]
}

# is_refused FAMILY: with two sources of the other node. (The endpoint's own would be a hairpin for kube-proxy's
# iptables mode, which masquerades it itself.)
is_refused() {
    local service delivered before sent own tunnel=10.244.2.0
    [ "$1" = 4 ] || tunnel=fd00:10:244:2::
    service=$(jq -r '.[] | select(.name == "lab/pod3").address' "$LAB_STATE/services.$1")
    own=$(address_of bridged "$1")
    start_in pod3 python3 "$TOOLS/exchange.py" serve pod3 "$PORT" "$(address_of pod3 "$1")"
    until_true 10 "IPv$1: the server listens" is_bound pod3 udp "$PORT"
    equal "IPv$1: the honest pod is answered, and seen as itself" "tcp pod3 $own udp pod3 $own" \
        "$(in_ns bridged python3 "$TOOLS/exchange.py" ask <<<"any $service 80" | paste -sd ' ')"
    stop "$PID"
    delivered=$(flow node2 inbound delivered) before=$(spoofed)
    sent=$(in_ns bridged python3 "$TOOLS/forge.py" <<<"{\"sources\": [\"$(address_of pod4 "$1")\", \"$tunnel\"],
        \"destinations\": [\"$service\"], \"port\": 80, \"count\": $COUNT}")
    equal "IPv$1: forged packets sent" $((2 * COUNT)) "$sent"
    # The kernel of node1 may tell the forged source of a shorter way (an ICMPv6 redirect), which is refused too.
    until_true 5 "IPv$1: forged packets are counted" reached $((before + sent))
    equal "IPv$1: packets delivered on node2 meanwhile" 0 $(($(flow node2 inbound delivered) - delivered))
}

undo lab services --off
lab services --kube-proxy "$([ -n "${FULL:-}" ] && echo iptables || echo nftables)" >/dev/null
bridged_pod node1
for FAMILY in "${SERVED[@]}"; do is_refused "$FAMILY"; done
