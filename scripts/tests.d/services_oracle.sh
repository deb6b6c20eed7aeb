#!/usr/bin/env bash
# Kubernetes Services, compared with the kernel: the same clients ask the same Services, at every address they have, in a
# lab whose nodes carry pods' packets by the kernel's VXLAN device and flannel's rules, and in one with Tartan. Whoever
# answers, and whom he saw as the client, or how it failed, must be the same in both.
#
#   pod1, pod2 ── node1 ══ underlay ══ node2 ── pod3, pod4
#                             └── client, no node of the cluster
#
# services_oracle.sh MODE BACKEND PEER FAMILIES MASQUERADE CLIENTS: MODE is kube-proxy's, iptables or nftables; PEER, what
# node2 is beside Tartan, is tartan or kernel-vxlan; CLIENTS is all, or some: those of node1 and the one outside.
# MASQUERADE is on, off, or last: on, and Tartan's table is written anew behind kube-proxy's. Of two nat chains of one
# priority packets meet the newer one first.
#
# Asked are, by TCP and UDP: ClusterIPs; node ports at both nodes' address on the underlay, tunnel address and bridge
# address; external IPs and load balancers' addresses, which lead to either node. Of Services with endpoints that are
# pods of the same node, of the other one, the client itself, or nodes; with internalTrafficPolicy and
# externalTrafficPolicy Local, affinity, source ranges, and none. From pods and processes of both nodes, these bound to
# the node's address or not, and from outside. At last UDP flows go on while the endpoint changes.
# case: nftables vxlan tartan dual on some
# full: iptables udp tartan v4 on some
# full: nftables vxlan tartan dual on all
# full: iptables vxlan tartan dual on all
# full: nftables udp tartan dual on all
# full: iptables udp tartan dual on all
# full: nftables vxlan kernel-vxlan dual on all
# full: iptables vxlan kernel-vxlan dual on all
# full: nftables vxlan tartan dual last all
# full: iptables vxlan tartan dual last all
# full: nftables vxlan tartan dual off all
# full: iptables vxlan tartan dual off all
# full: nftables vxlan tartan v4 on all kernel-path=stateless
# full: nftables vxlan tartan v4 on all kernel-path=auto
# full: iptables vxlan tartan v4 on all kernel-path=auto
# full: nftables udp tartan dual off all
# full: nftables vxlan tartan v6 on all workers=2
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

MODE=$1
BACKEND=$2
PEER=$3
FAMILIES=$4
MASQUERADE=$5
WHO=$6
# Where the lab's Services lead to.
PORT=8080
# Seconds from a change of a Service to the first answer of its new endpoint.
LATEST=5
# NAME BOUND: who asks, and from which address.
CLIENTS=("pod1 any" "node1 any" "node1 bound" "client any")
[ "$WHO" = some ] || CLIENTS+=("pod3 any" "node2 any" "node2 bound")
# Whose an address is, and of what kind; and on which node a server is.
declare -A OWNER PLACE

# What flannel and the stock bridge plugin give a node beside its tunnel: the bridge's address, the first of its subnet.
bridges() {
    local number family address
    for number in 1 2; do
        ip -n "$PREFIX-node$number" link add cni0 type bridge
        ip -n "$PREFIX-node$number" link set cni0 up
        for family in $(families "$FAMILIES"); do
            address=$(node_address "node$number" bridge "$family")
            ip -n "$PREFIX-node$number" address add "$address/$((family == 4 ? 32 : 128))" dev cni0
        done
    done
}

# node_address NODE KIND FAMILY: underlay, tunnel or bridge.
node_address() {
    case $2$3 in
    underlay*) underlay_of "$1" "$3" ;;
    tunnel4) echo "10.244.${1#node}.0" ;;
    tunnel6) echo "fd00:10:244:${1#node}::" ;;
    bridge4) echo "10.244.${1#node}.1" ;;
    bridge6) echo "fd00:10:244:${1#node}::1" ;;
    esac
}

# A refusal is an ICMP error, of which a host sends few in a second to each other one.
many_refusals() {
    local node
    for node in node1 node2; do
        ip netns exec "$PREFIX-$node" sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
    done
}

owners() {
    local node kind family pod addresses address
    OWNER=([192.0.2.251]=client [2001:db8:192::251]=client)
    for node in node1 node2; do
        for kind in underlay tunnel bridge; do
            for family in $(families "$FAMILIES"); do OWNER[$(node_address "$node" "$kind" "$family")]=$node/$kind; done
        done
    done
    PLACE=([node1]=node1 [node2]=node2)
    while read -r pod node addresses; do
        PLACE[$pod]=$node
        for address in $addresses; do OWNER[$address]=$pod; done
    done <"$LAB_STATE/pods"
}

serve() {
    local name family addresses
    for name in pod1 pod2 pod3 pod4 node1 node2; do
        addresses=()
        for family in $(families "$FAMILIES"); do
            case $name in
            pod*) addresses+=("$(address_of "$name" "$family")") ;;
            node*) addresses+=("$(underlay_of "$name" "$family")") ;;
            esac
        done
        start_in "$name" python3 "$TOOLS/reach.py" serve "$name" "$PORT" "${addresses[@]}"
        until_true 5 "$name serves" listens "$name" "${#addresses[@]}"
    done
}

listens() {
    [ "$(ip netns exec "$PREFIX-$1" ss -Hltn "sport = $PORT" | wc -l)" = "$2" ]
}

# frontends FAMILY: every address and port at which a Service can be asked: KIND SERVICE WHAT ADDRESS PORT. A Service
# with several endpoints is asked only where the answer does not depend on chance, and what affinity remembers of a
# client at one address alone.
frontends() {
    local node kind places=''
    for node in node1 node2; do
        for kind in underlay tunnel bridge; do places+="$node/$kind $(node_address "$node" "$kind" "$1")"$'\n'; done
    done
    jq -r --arg places "$places" '
        ($places | split("\n") | map(select(. != "") | split(" "))) as $places
        | .[] | (.name | split("/")[1]) as $name
        | select($name != "all")
        | (if .affinity then "same" else "one" end) as $kind
        | ("\($kind) \($name) ClusterIP \(.address) \(.port)"),
          (((.external // []) + (.balancer // []) | to_entries[]) as $one
              | "\($kind) \($name) address\($one.key + 1) \($one.value) \(.port)"),
          (if .node_port == 0 then empty else
              $places[] as $place | "\($kind) \($name) \($place[0]) \($place[1]) \(.node_port)" end)' \
        "$LAB_STATE/services.$1"
}

# questions CLIENT BOUND FAMILY
questions() {
    local kind service what address port own=any
    [ "$2" = any ] || own=$(underlay_of "$1" "$3")
    while read -r kind service what address port; do
        if [ "$kind" = same ]; then
            case $1-$2-$what in
            pod*-ClusterIP | node*-any-ClusterIP | client-any-node?/underlay) ;;
            *) continue ;;
            esac
        fi
        echo "$kind $own $address $port IPv$3, $1$([ "$2" = any ] || echo ", bound,") to $service at $what"
    done
}

# All questions of all clients at the same time; the answers go to a file, sorted.
ask_all() {
    local client bound family processes=()
    rm -f "$SCRATCH"/answers.*
    for family in $(families "$FAMILIES"); do
        frontends "$family" >"$SCRATCH/frontends"
        for client in "${CLIENTS[@]}"; do
            read -r client bound <<<"$client"
            questions "$client" "$bound" "$family" <"$SCRATCH/frontends" >"$SCRATCH/questions.$client.$bound.$family"
            ip netns exec "$PREFIX-$client" python3 "$TOOLS/reach.py" ask <"$SCRATCH/questions.$client.$bound.$family" \
                >"$SCRATCH/answers.$client.$bound.$family" &
            processes+=("$!")
        done
    done
    wait "${processes[@]}" || die "a client could not ask"
    cat "$SCRATCH"/answers.* | named | sort >"$1"
}

# The peers' addresses by their owners' names.
named() {
    local protocol answer what name peer
    while IFS='|' read -r protocol answer what; do
        read -r name peer <<<"$answer"
        [ -z "${OWNER[${peer:-none}]:-}" ] || saw answer "$name" "$peer"
        echo "$what, $protocol: $answer"
    done
}

# saw VARIABLE SERVER ADDRESS: sets it to whom a server saw. Which of its addresses a node takes towards its own pods depends on the order in
# which they were given to it.
saw() {
    local owner=${OWNER[$3]:-$3}
    if [ "${owner%%/*}" = "${PLACE[$2]}" ] && [ "$2" != "$owner" ]; then owner="its node"; fi
    printf -v "$1" '%s saw %s' "$2" "$owner"
}

# UDP flows to a Service whose endpoint moves from a pod of node1 to one of node2. A flow that the node still tracks
# would go on to the old one.
flows() {
    local family client address port flow name peer node answer
    rm -f "$SCRATCH"/flow.*
    for family in $(families "$FAMILIES"); do
        read -r address port node < <(jq -r '.[] | select(.name == "lab/moving") | "\(.address) \(.port) \(.node_port)"' \
            "$LAB_STATE/services.$family")
        for client in pod1 pod2 pod3 node1 node2; do flow_of "$client" "$address" "$port" ClusterIP "$family"; done
        flow_of client "$(underlay_of node1 "$family")" "$node" node1 "$family"
        flow_of client "$(underlay_of node2 "$family")" "$node" node2 "$family"
        flow_of pod4 "$(node_address node1 tunnel "$family")" "$node" node1/tunnel "$family"
    done
    for flow in "$SCRATCH"/flow.*; do
        until_true "$LATEST" "${flow##*/flow.}: the first answer" grep -q '^pod1 ' "$flow" || true
    done
    services --moved
    for flow in "$SCRATCH"/flow.*; do
        until_true "$LATEST" "${flow##*/flow.}: an answer of the new endpoint" grep -q '^pod3 ' "$flow" || true
    done
    for flow in "${FLOWS[@]}"; do stop "$flow" KILL; done
    FLOWS=()
    for flow in "$SCRATCH"/flow.*; do
        while read -r name peer; do
            saw answer "$name" "$peer"
            echo "a flow of ${flow##*/flow.}: $answer"
        done <"$flow"
    done >>"$1"
}

# flow_of CLIENT ADDRESS PORT WHAT FAMILY
flow_of() {
    start_in "$1" python3 "$TOOLS/reach.py" flow "$2" "$3" >"$SCRATCH/flow.$1 to ${4/\//, }, IPv$5"
    FLOWS+=("$PID")
}
FLOWS=()

services() {
    lab services --masquerade "${MASQUERADE/last/on}" --kube-proxy "$MODE" "$@" >/dev/null
}

# A Tartan node's table goes, and is put back.
written_anew() {
    in_ns "$1" nft delete table inet tartan
    until_true 5 "$1: the table is back" in_ns "$1" nft list chain inet tartan postrouting
}

# answers FILE OPTION...: what every client is told in a lab of these options.
answers() {
    local node
    lab_up --inside "$FAMILIES" --outside "$FAMILIES" --pods 2 "${@:2}" >/dev/null
    bridges
    many_refusals
    services
    if [ "$MASQUERADE" = last ] && [ "$2" != --control ]; then
        for node in "${NODES[@]}"; do written_anew "$node"; done
    fi
    owners
    serve
    ask_all "$1"
    flows "$1"
    say "$(wc -l <"$1") answers with ${*:2}, $(grep -c 'timeout$' "$1" || true) of them none"
}

# Nothing dropped, by Tartan for whatever reason or by the kernel at its sockets and its device.
no_drops() {
    equal "drops on $1" '{}' "$(agent_json "$1" drops | jq -c '
        [(.workers[] | .outbound, .inbound | .dropped | to_entries[]),
         (.kernel[] | select(.counter | test("drop")) | {key: "\(.place) \(.counter)", value: .count})]
        | map(select(.value != 0)) | group_by(.key) | map({key: .[0].key, value: (map(.value) | add)}) | from_entries')"
}

say "services: kube-proxy's $MODE mode, backend $BACKEND, peer $PEER, $FAMILIES, masquerade $MASQUERADE, $WHO clients"
TARTAN=(--backend "$BACKEND" "${AGENTS[@]}")
NODES=(node1 node2)
if [ "$PEER" = kernel-vxlan ]; then
    TARTAN+=(--peer kernel-vxlan)
    NODES=(node1)
fi
ALL_AGENTS=("${AGENTS[@]}")
AGENTS=()
answers "$SCRATCH/oracle" --control
for PID in "${STARTED[@]}"; do stop "$PID" KILL; done
STARTED=()
"$SCRIPTS/lab" down --prefix "$PREFIX" >/dev/null || die "the census after the oracle's lab"
AGENTS=("${ALL_AGENTS[@]}")
answers "$SCRATCH/found" --backend "$BACKEND" "${TARTAN[@]:2}"
same "the answers with the kernel's VXLAN and with Tartan" "$(cat "$SCRATCH/oracle")" "$(cat "$SCRATCH/found")"
for NODE in "${NODES[@]}"; do
    law_one "$NODE"
    equal "problems of $NODE" '[]' "$(agent_json "$NODE" status | jq -c .problems)"
    if [ "$MASQUERADE" != off ]; then no_drops "$NODE"; fi
done
