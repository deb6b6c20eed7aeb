#!/usr/bin/env bash
# Every fault of the path to a peer by itself: found by `tartan doctor`, and shown by `tartan status` and `tartan peers`, with
# exit code 1, within 10 s; and gone from all three, with exit code 0, 10 s after its end. peer_health.sh has them all at once.
#
#   node1 ─── underlay ──┬─ node2  all but narrow paths
#                        └─ node3 ..  one narrow path each
#
# path_faults.sh INSIDE BACKEND [some]: as in scripts/lab up; in a lab of both families the faults of the underlay are those of
# its IPv6 alone. `some`: one of three MTUs, and one of what a route, or who rejects, may say. Each narrow path is that of a peer
# of its own: to search for an MTU takes a path's credit of probes for half a minute.
# case: v4 vxlan some
# full: v4 vxlan
# full: v4 udp
# full: v6 vxlan
# full: dual vxlan
# full: dual udp
# Its files are its own in the subshell that looks at the other node.
# shellcheck disable=SC2030,SC2031
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

INSIDE=$1
BACKEND=$2
SOME=${3:-}
case $INSIDE in v4) FAMILY=4 IP=ip ICMP=icmp HEADER=0 ;; *) FAMILY=6 IP=ip6 ICMP=icmpv6 HEADER=40 ;; esac
case $BACKEND in vxlan) PORT=8472 ;; udp) PORT=8285 ;; esac
# What is heard of a peer by its other address is a sign of life (docs/limitations.md): it does not stay `silent`.
SILENT=silent
[ "$INSIDE" != dual ] || SILENT=one-way
NODES=$LAB_STATE/node1/nodes.toml
NET_CONF=$LAB_STATE/node2/net-conf.json
ONE=
TWO=
PEERS_CODE=0
MEANWHILE=

# on_the_way RULE [RULE]: what the switch between the nodes does with what node1 sends, and with what node2 sends.
on_the_way() {
    ip netns exec "$PREFIX-net" nft -f - <<RULES
table netdev lossy {
    chain from1 {
        type filter hook ingress device "node1" priority 0
        $1
    }
    chain from2 {
        type filter hook ingress device "node2" priority 0
        ${2:-}
    }
}
RULES
}

nothing_on_the_way() {
    ip netns exec "$PREFIX-net" nft delete table netdev lossy
}

# refuse NODE HOOK VERDICT: what the node's packet filter does with packets of the overlay's format.
refuse() {
    in_ns "$1" nft -f - <<RULES
table inet refusing {
    chain port {
        type filter hook $2 priority 0
        $IP daddr $TWO udp dport $PORT $3
    }
}
RULES
}

refuse_no_more() {
    in_ns "$1" nft delete table inet refusing
}

# shown_by_peers NODE PEER STATE WORDS: so does `tartan peers`, with the words in its reason and exit code 1.
shown_by_peers() {
    until peers_say "$@"; do
        if (($(clock) - BEGAN > 3 * AT_MOST)); then
            fail "tartan peers of $1 does not say '$3' of $2 ('$4') by exit code 1 within $((3 * AT_MOST / 100)) s, but by $PEERS_CODE" \
                "$(jq -c '.peers[] | {name, state, reason}' "$SCRATCH/peers.json")"
            return 0
        fi
        sleep 0.1
    done
    in_time "tartan peers of $1 says '$3' of $2"
}

peers_say() {
    PEERS_CODE=0
    tartan "$1" peers -o json >"$SCRATCH/peers.json" || PEERS_CODE=$?
    [ "$PEERS_CODE" = 1 ] && jq -e --arg peer "$2" --arg state "$3" --arg words "$4" \
        '.peers[] | select(.name == $peer and .state == $state) | .reason | contains($words)' "$SCRATCH/peers.json" >/dev/null
}

# path_found NODE WHAT CODE STATE [WORDS]: by all three; of the other node.
path_found() {
    local peer=node1
    [ "$1" = node2 ] || peer=${SUBJECT:-node2}
    found "$1" "$2" "$3" 1
    [ -z "${5:-}" ] || evidence "$5"
    shown_by_peers "$1" "$peer" "$4" "${5:-}"
    # As evidence the doctor says what probes and packets have shown of the peer.
    doctor "$1"
    jq -e --arg words "$peer is $4 for " '[.checks[].findings[].evidence[]] | any(startswith($words))' "$SCRATCH/doctor.json" >/dev/null ||
        fail "no evidence says '$peer is $4': $(findings)"
}

both_gone() {
    [ -z "${2:-}" ] || meanwhile gone node2 "node2: no more $1"
    gone node1 "no more $1"
    [ -z "${2:-}" ] || joined
}

# meanwhile CMD...: beside what follows until `joined`: one clock is of both nodes.
meanwhile() {
    (
        SCRATCH=$(mktemp -d -p "$SCRATCH")
        FAILURES=0 TOO_SLOW=0
        "$@"
        exit "$((FAILURES == 0 ? 0 : FAILURES == TOO_SLOW ? 75 : 1))"
    ) &
    MEANWHILE=$!
}

joined() {
    local code=0
    wait "$MEANWHILE" || code=$?
    case $code in
    0) ;;
    75) too_late "node2, as said above" ;;
    *) fail "node2, as said above" ;;
    esac
}

# narrower BYTES NODE: larger packets to it are lost without a word, as where a firewall drops frag-needed and
# packet-too-big.
narrower() {
    local mtu=$((1500 - $1)) SUBJECT=$2
    begins
    # The length in the IPv6 header is without that header.
    on_the_way "$IP daddr $(underlay_of "$2" "$FAMILY") $IP length > $((mtu - HEADER)) drop"
    path_found node1 "MTU smaller by $1, no ICMP" peer-narrow narrow "$mtu"
    begins
    nothing_on_the_way
    both_gone "MTU smaller by $1"
}

lost_to_node2() {
    begins
    on_the_way "$IP daddr $TWO udp dport $PORT drop"
    meanwhile path_found node2 "UDP port dropped on the way there, seen from node2" "peer-$SILENT" "$SILENT"
    path_found node1 "UDP port dropped on the way there" peer-one-way one-way
    joined
    begins
    nothing_on_the_way
    both_gone "UDP port dropped on the way there" node2
}

lost_to_node1() {
    begins
    on_the_way "" "$IP daddr $ONE udp dport $PORT drop"
    path_found node1 "UDP port dropped on the way back" "peer-$SILENT" "$SILENT"
    begins
    nothing_on_the_way
    both_gone "UDP port dropped on the way back"
}

# Keeper and service.
agent_stopped() {
    begins
    lab stop node2
    path_found node1 "agent of the peer stopped" peer-refused refused
    begins
    lab start node2
    both_gone "stopped agent" node2
}

other_network() {
    [ "$BACKEND" = vxlan ] || return 0
    begins
    vni 7
    path_found node1 "wrong VNI" peer-other-vni wrong-vni "network 7"
    begins
    vni 1
    both_gone "wrong VNI" node2
}

# vni NUMBER: of node2, which takes it by a new start of its service.
vni() {
    jq ".Backend.VNI = $1" "$NET_CONF" >"$SCRATCH/net-conf.json"
    cat "$SCRATCH/net-conf.json" >"$NET_CONF"
    kill -HUP "$(cat "$LAB_STATE/node2/pid")"
}

# node1's list has another MAC for node2; packets of pods show node1 the source MAC.
stale_mac() {
    [ "$BACKEND" = vxlan ] || return 0
    cp "$NODES" "$SCRATCH/nodes.toml"
    begins
    awk '/^name = / { is_its = /"node2"/ } { print } is_its && /^subnets = / { print "vtep-mac = \"0a:74:00:00:00:01\""
        if (/fd00:/ && /10\./) print "vtep-mac-v6 = \"0a:74:00:00:00:02\"" }' "$SCRATCH/nodes.toml" | cat >"$NODES"
    in_ns pod2 ping -q -c 2 -i 0.1 -W 1 "$(address_of pod1)" >/dev/null || true
    meanwhile path_found node2 "stale MAC, seen from node2" peer-wrong-mac wrong-mac
    path_found node1 "stale MAC" vtep-mac-changed wrong-mac
    joined
    begins
    cat "$SCRATCH/nodes.toml" >"$NODES"
    both_gone "stale MAC" node2
}

# What the kernel of this node says of the address is an errno.
route() {
    begins
    ip -n "$PREFIX-node1" "-$FAMILY" route add "$1" "$TWO"
    path_found node1 "a route of the kind $1" peer-unreachable unreachable "$2"
    begins
    ip -n "$PREFIX-node1" "-$FAMILY" route del "$1" "$TWO"
    both_gone "route of the kind $1"
}

output_dropped() {
    begins
    refuse node1 output drop
    path_found node1 "dropped by this node's firewall" peer-unreachable unreachable EPERM
    begins
    refuse_no_more node1
    both_gone "firewall of this node"
}

# rejected ICMP: by the packet filter of the peer's host.
rejected() {
    begins
    refuse node2 input "reject with $ICMP $1"
    path_found node1 "rejected with $1" "$2" "${2#peer-}" "$3"
    begins
    refuse_no_more node2
    both_gone "$1"
}

say "faults of a path, one at a time: $INSIDE $BACKEND $SOME"
NARROW=(95 50 100)
[ -z "$SOME" ] || NARROW=(95)
lab_up --nodes $((2 + ${#NARROW[@]})) --backend "$BACKEND" --inside "$INSIDE" --outside "$INSIDE" --underlay wire
ONE=$(underlay_of node1 "$FAMILY")
TWO=$(underlay_of node2 "$FAMILY")
begins
for node in node1 node2; do gone "$node" "$node beforehand"; done
is_measured() {
    agent_json node1 peers | jq -e '[.peers[].paths[]] | all(.state == "up" and .mtu_measured == 1500)'
}
until_true 10 "the paths are measured" is_measured || true

for number in "${!NARROW[@]}"; do narrower "${NARROW[number]}" "node$((3 + number))"; done
lost_to_node2
lost_to_node1
agent_stopped
other_network
stale_mac
route unreachable EHOSTUNREACH
output_dropped
rejected admin-prohibited peer-unreachable "prohibited by a firewall or router"
if [ -z "$SOME" ]; then
    route prohibit EACCES
    route blackhole EINVAL
    rejected port-unreachable peer-refused ''
    case $FAMILY in
    4)
        rejected host-prohibited peer-unreachable "prohibited by a firewall or router"
        rejected host-unreachable peer-unreachable "host unreachable"
        ;;
    6) rejected addr-unreachable peer-unreachable "address unreachable" ;;
    esac
fi
for node in node1 node2; do law_one "$node"; done
