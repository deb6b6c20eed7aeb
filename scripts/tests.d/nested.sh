#!/usr/bin/env bash
# A pod, without any capability, writes encapsulated packets itself and sends them by UDP from an ordinary socket to
# the addresses of nodes. Its node would translate them, and the receivers would know them for that node's. None
# arrives, each is counted where it leaves the pod, and what else pods say still arrives.
#
#   pod1, pod2 ── node1: tartan ══ underlay ══ tartan node2 ── cni0 ── pod3 (the stock plugin's)
#     tartan-cni                      ║
#                                  node3 (kernel) ── pod5
#
# nested.sh BACKEND INSIDE OUTSIDE: the families of pods and of the underlay are v4, v6 or dual
# case: vxlan dual dual
# full: udp v4 v4
# full: vxlan v6 v6
# full: vxlan v4 v4 workers=2
# full: vxlan v4 v4 kernel-path=stateless
# full: vxlan v4 v4 kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

BACKEND=$1
INSIDE=$2
OUTSIDE=$3
SINK_PORT=7000
COUNT=7
# Whether node1 has no service.
DEAD=
declare -A ADDRESS SINK RIGHTFUL=([pod1]=0 [pod3]=0 [pod5]=0)
POWERLESS=(setpriv --bounding-set=-all --inh-caps=-all python3)
if [ "$BACKEND" = vxlan ]; then KERNEL=yes; else KERNEL=no; fi

# What node $1 dropped of this kind since its table was written. Without a service, by the rules' own counters.
counted() {
    if [ -n "$DEAD" ]; then
        in_ns "$1" nft -j list table inet tartan | jq '[.nftables[].rule? | select(.chain == "guard" or .chain == "translated").expr |
            select(any(.[]; has("drop"))) | .[].counter?.packets // 0] | add'
        return
    fi
    agent_json "$1" drops | jq '[.kernel[] | select(.counter == "forged_encapsulation").count] | add // 0'
}

# nests WHAT POD NODE TO JSON: POD, on NODE, sends; every datagram is counted there.
nests() {
    local order sent before
    order=$(jq -nc --argjson more "$5" --argjson count "$COUNT" --argjson port "$SINK_PORT" --arg to "$4" \
        --arg mac "$(vtep_mac_of "$3" "$FAMILY")" --argjson formats "$FORMATS" \
        '{$to, $formats, $count, $port, source_mac: $mac} + $more')
    sent=$(jq '.count * (.formats | length)' <<<"$order")
    before=$(counted "$3")
    in_ns "$2" "${POWERLESS[@]}" "$TOOLS/forge.py" <<<"$order" || fail "$2 could not send"
    has_grown "$1, from $2 to $4" "$3" "$before" "$sent"
}

# has_grown WHAT NODE BEFORE NUMBER: that many more are counted, once they have arrived.
has_grown() {
    local wait grown
    for ((wait = 0; wait < 10; wait++)); do
        grown=$(($(counted "$2") - $3))
        [ "$grown" -lt "$4" ] || break
        sleep 0.05
    done
    equal "counted: $1" "$4" "$grown"
}

# Every inner source that a pod of node1 may like to be.
everyone_else() {
    local pod=$1 node=$2 to=$3 victim=$4 other=$5 source
    other=$(jq -nc --arg mac "$(vtep_mac_of "$other" "$FAMILY")" --arg destination "$victim" '{$destination, destination_mac: $mac}')
    for source in "neighbour $6" "node $(underlay_of "$node" "$FAMILY")" "tunnel address $7"; do
        nests "as its ${source% *}" "$pod" "$node" "$to" "$(jq -c --arg source "${source##* }" '. + {$source}' <<<"$other")"
    done
    nests "in fragments" "$pod" "$node" "$to" "$(jq -c --arg source "$6" '. + {$source, data: 3000}' <<<"$other")"
}

every_target() {
    local outer=$1 to
    FORMATS='["udp", "vxlan"]'
    # Where IPv6 does not go by udp, a receiver refuses it anyway.
    to=$(underlay_of node2 "$outer")
    everyone_else pod1 node1 "$to" "${ADDRESS[pod3 $FAMILY]}" node2 "$(address_of pod2 "$FAMILY")" "${TUNNEL1[$FAMILY]}"
    everyone_else pod3 node2 "$(underlay_of node1 "$outer")" "$(address_of pod1 "$FAMILY")" node1 \
        "${ADDRESS[pod3 $FAMILY]%?}9" "${TUNNEL2[$FAMILY]}"
    # The node's own socket, and addresses of a node that are not of the underlay: a kernel device hears at each.
    nests "to its own node" pod1 node1 "$(underlay_of node1 "$outer")" "$(peer_inside node1 pod2)"
    nests "to its own node" pod3 node2 "$(underlay_of node2 "$outer")" "$(peer_inside node2 pod3)"
    nests "to a bridge" pod1 node1 "${BRIDGE2[$FAMILY]}" "$(peer_inside node2 pod3)"
    service "$outer" "$to"
    service_elsewhere "$outer"
    if [ "$KERNEL" = yes ] && [ "$outer" = "$FAMILY" ]; then
        FORMATS='["vxlan"]'
        everyone_else pod1 node1 "$(underlay_of node3 "$outer")" "$(address_of pod5 "$FAMILY")" node3 \
            "$(address_of pod2 "$FAMILY")" "${TUNNEL1[$FAMILY]}"
        nests "to a tunnel address" pod1 node1 "${TUNNEL3[$FAMILY]}" "$(peer_inside node3 pod5)"
    fi
}

# An inner packet to a pod of a node, from some pod of the third node.
peer_inside() {
    local victim=${ADDRESS[$2 $FAMILY]:-$(address_of "$2" "$FAMILY")}
    jq -nc --arg mac "$(vtep_mac_of "$1" "$FAMILY")" --arg destination "$victim" --arg source "${FOREIGN[$FAMILY]}" \
        '{$destination, $source, destination_mac: $mac}'
}

# A Service whose endpoint is a node's port: what the pod sends to is no node's address.
service() {
    local outer=$1 to=$2 address=${SERVICE[$1]} family=ip
    [ "$outer" = 4 ] || family=ip6
    ip netns exec "$PREFIX-node1" nft -f - <<RULES
table inet services { chain to_node { type nat hook prerouting priority dstnat; }; }
add rule inet services to_node $family daddr $address udp dport 9472 dnat $family to $(socket_address "$to" 8472)
RULES
    FORMATS='["vxlan"]' nests "by a Service" pod1 node1 "$address" "$(peer_inside node2 pod3 | jq -c '. + {outer_port: 9472}')"
    ip netns exec "$PREFIX-node1" nft delete table inet services
}

# A Service of another node, which takes what the first node has masqueraded, and whose endpoint is a node's port.
service_elsewhere() {
    local outer=$1 at family=ip
    [ "$outer" = 4 ] || family=ip6
    at=$(underlay_of node2 "$outer")
    ip netns exec "$PREFIX-node2" nft -f - <<RULES
table inet services { chain to_node { type nat hook prerouting priority dstnat; }; }
add rule inet services to_node $family daddr $at udp dport 9472 dnat $family to $(socket_address "$at" 8472)
RULES
    FORMATS='["vxlan"]' nests "by a Service of its peer" pod1 node2 "$at" \
        "$(peer_inside node2 pod3 | jq -c '. + {outer_port: 9472}')"
    if [ "$KERNEL" = yes ] && [ "$outer" = "$FAMILY" ]; then
        ip netns exec "$PREFIX-node2" nft add rule inet services to_node "$family" daddr "$at" udp dport 9473 \
            dnat "$family" to "$(socket_address "$(underlay_of node3 "$outer")" 8472)"
        FORMATS='["vxlan"]' nests "by a Service of its peer, to a third node" pod1 node2 "$at" \
            "$(peer_inside node3 pod5 | jq -c '. + {outer_port: 9473}')"
    fi
    ip netns exec "$PREFIX-node2" nft delete table inet services
}

# says FROM TO ADDRESS: a plain datagram, and one that looks like an overlay between pods, which pods may have.
says() {
    local port
    for port in "$SINK_PORT" 8472; do
        in_ns "$1" "${POWERLESS[@]}" -c "import socket, sys
socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM).sendto(b'rightful', (sys.argv[1], int(sys.argv[2])))" "$3" "$port"
    done
    RIGHTFUL[$2]=$((RIGHTFUL[$2] + 1))
}

# With a raw socket a pod on a bridge forges a node's outer address, which the translation leaves alone.
raw() {
    local to before
    [ "$OUTSIDE" != v6 ] || return 0
    for to in node1 node2; do
        before=$(counted node2)
        in_ns pod3 python3 "$TOOLS/flood.py" "$(underlay_of "$to" 4)" 8472 "$COUNT" 192.0.2.1 192.0.2.3
        has_grown "with a node's outer address, from pod3 to $to" node2 "$before" "$COUNT"
    done
}

# A container of another program, on a bridge that is no pod's, forges a peer's address towards its own node's socket.
container() {
    local space=$PREFIX-node2 before
    [ "$OUTSIDE" != v6 ] || return 0
    make_namespace box
    ip -n "$space" link add docker0 type bridge
    ip -n "$space" link add box type veth peer name eth0 netns "$PREFIX-box"
    ip -n "$space" link set box master docker0 up
    ip -n "$space" address add 172.17.0.1/24 dev docker0
    ip -n "$space" link set docker0 up
    ip -n "$PREFIX-box" address add 172.17.0.2/24 dev eth0
    ip -n "$PREFIX-box" link set eth0 up
    ip -n "$PREFIX-box" route add default via 172.17.0.1
    ip netns exec "$space" sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.docker0.rp_filter=0
    before=$(counted node2)
    ip netns exec "$PREFIX-box" python3 "$TOOLS/flood.py" "$(underlay_of node2 4)" 8472 "$COUNT" "$(underlay_of node1 4)"
    has_grown "with a peer's outer address, from a container to its node" node2 "$before" "$COUNT"
    ip -n "$space" link delete docker0
    ip -n "$space" link delete box
}

# Whether node1's table names this address.
guard_knows() {
    grep -qF "$1" <<<"$(in_ns node1 nft list table inet tartan)"
}

# node3 gets another address: what the pods of node1 send there is dropped within a second.
followed() {
    local mallory=192.0.2.250 list=$LAB_STATE/node1/nodes.toml node=node3
    [ "$OUTSIDE" != v6 ] || mallory=2001:db8:192::250
    [ "$KERNEL" = yes ] || node=node2
    say "$node is reached at $mallory too"
    FORMATS='["vxlan"]' FAMILY=${INNERS##* }
    cp "$list" "$SCRATCH/list"
    python3 - "$SCRATCH/list" "$node" "$mallory" <<'PROGRAM'
import re, sys
path, node, address = sys.argv[1:]
text = open(path).read()
text = re.sub(f'(name = "{node}"\n)', rf'\1underlay-sources = ["{address}"]\n', text)
open(path, "w").write(text)
PROGRAM
    mv "$SCRATCH/list" "$list"
    until_true 1 "the guard knows $mallory" guard_knows "$mallory" || true
    nests "to a new address" pod1 node1 "$mallory" "$(peer_inside node2 pod3)"
}

# What is in our table of node1, by its number, which a table written anew changes.
handles() {
    in_ns node1 nft -s -a list table inet tartan | grep '# handle'
}

# The table stays when the agent stops. A kernel VXLAN device that takes over, as flanneld's, is not held up by it.
left_behind() {
    local space=$PREFIX-node1 keeper from to
    keeper=$(cat "$LAB_STATE/node1/pid")
    from=$(underlay_of node1 "$OUTER_LAST") to=$(underlay_of node2 "$OUTER_LAST")
    kill -TERM "$keeper"
    until_true 10 "the agent of node1 has ended" gone "$keeper" || true
    in_ns node1 nft list chain inet tartan translated >/dev/null || fail "the table is gone with the agent"
    # The kernel path passes what it does not take on to a port of user space, before any rule.
    ip netns exec "$PREFIX-node2" nft -f - <<RULES
table inet seen { counter arrived {}; chain to_port { type filter hook prerouting priority -400; }; }
add rule inet seen to_port udp dport { 8472, 18472 } counter name arrived
RULES
    ip -n "$space" link add flannel.77 address 02:00:00:00:00:77 type vxlan id 77 local "$from" remote "$to" dstport 8472 nolearning
    ip -n "$space" address add 10.77.0.1/24 dev flannel.77
    ip -n "$space" link set flannel.77 up
    ip -n "$space" neighbour add 10.77.0.2 lladdr 02:00:00:00:00:78 dev flannel.77
    # Nobody answers: it is the way there that counts.
    in_ns node1 ping -q -c "$COUNT" -i 0.01 -W 1 10.77.0.2 >/dev/null || true
    DEAD=yes
    equal "counted of what a kernel VXLAN device sends" "$DROPPED" "$(counted node1)"
    until_true 2 "all of it has arrived at node2" arrived "$COUNT" || true
    ip -n "$space" link delete flannel.77
    ip netns exec "$PREFIX-node2" nft delete table inet seen
}

# A process has ended, whether or not its parent has asked for its exit code.
gone() {
    ! grep -qs '^State:.[^Z]' "/proc/$1/status"
}

arrived() {
    in_ns node2 nft -j list counter inet seen arrived | jq -e --argjson least "$1" '[.nftables[].counter? // empty] | .[0].packets >= $least' >/dev/null
}

# The rules stand without a service, and a killed one's successor finds them.
outlives() {
    local to handle keeper service
    to=$(underlay_of node2 "$OUTER_LAST")
    handle=$(handles)
    keeper=$(cat "$LAB_STATE/node1/pid")
    FAMILY=${INNERS##* } FORMATS='["vxlan"]'
    # The keeper, stopped, starts no other service.
    kill -STOP "$keeper"
    service=$(service_pid node1)
    kill -KILL "$service"
    until_true 5 "the service is dead" gone "$service" || true
    DEAD=yes
    nests "without a service" pod1 node1 "$to" "$(peer_inside node2 pod3)"
    DEAD=
    kill -CONT "$keeper"
    until_true 10 "the next service answers" in_ns node1 tartan status || true
    nests "after a crash" pod1 node1 "$to" "$(peer_inside node2 pod3)"
    same "rules before and after a crash" "$handle" "$(handles)"
}

say "encapsulated packets from pods: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
declare -A TUNNEL1=([4]=10.244.1.0 [6]=fd00:10:244:1::) TUNNEL2=([4]=10.244.2.0 [6]=fd00:10:244:2::)
declare -A TUNNEL3=([4]=10.244.3.0 [6]=fd00:10:244:3::) BRIDGE2=([4]=10.244.2.1 [6]=fd00:10:244:2::1)
declare -A FOREIGN=([4]=10.244.3.9 [6]=fd00:10:244:3::9) SERVICE=([4]=10.96.0.9 [6]=fd00:10:96::9)
OPTIONS=(--nodes 2)
if [ "$KERNEL" = yes ]; then OPTIONS=(--nodes 3 --peer kernel-vxlan); fi
lab_up --pods 2 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" "${OPTIONS[@]}"
lab detach node2
RESULT=$(stock ADD node2 pod3) || die "the stock plugin on node2 says: $RESULT"
for address in $(jq -r '.ips[].address | split("/")[0]' <<<"$RESULT"); do
    case $address in
    *:*) ADDRESS[pod3 6]=$address ;;
    *) ADDRESS[pod3 4]=$address ;;
    esac
    until_true 5 "$address answers" in_ns node1 ping -n -q -c 1 -W 1 "$address" || true
done
INNERS=$(families "$INSIDE")
for pod in pod1 pod3 pod5; do
    [ "$KERNEL$pod" != nopod5 ] || continue
    start_in "$pod" "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink $pod"
    SINK[$pod]=$PID
    until_true 5 "the sink of $pod listens" is_bound "$pod" udp "$SINK_PORT"
done
for FAMILY in $INNERS; do
    OUTER_LAST=$(carrier "$FAMILY" "$OUTSIDE")
    every_target "$OUTER_LAST"
    # Each family of the underlay carries both.
    if [ "$OUTSIDE" = dual ]; then
        FORMATS='["vxlan"]' nests "by the other family" pod1 node1 "$(underlay_of node2 $((10 - FAMILY)))" "$(peer_inside node2 pod3)"
    fi
    says pod1 pod3 "${ADDRESS[pod3 $FAMILY]}"
    says pod3 pod1 "$(address_of pod1 "$FAMILY")"
    if [ "$KERNEL" = yes ]; then says pod1 pod5 "$(address_of pod5 "$FAMILY")"; fi
done
raw
container
followed
outlives
sleep 0.3
for pod in "${!SINK[@]}"; do
    stop "${SINK[$pod]}"
    equal "datagrams that reached $pod" "${RIGHTFUL[$pod]}" "$(jq ".\"$SINK_PORT\".count" "$SCRATCH/sink $pod")"
done
law_one node1
law_one node2
DEAD=yes DROPPED=$(DEAD=yes counted node1)
left_behind
