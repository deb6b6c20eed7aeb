#!/usr/bin/env bash
# Every fault of a path to a peer is found in words, by `tartan status` and `tartan peers` of node1, within 10 s, and is gone
# 10 s after its end. All faults at once, one a peer; TCP goes on through the path that becomes narrow.
#
#   node1 ─── underlay ──┬─ node2  agent stopped, keeper and service                 refused
#                        ├─ node3  what node1 sends there is lost                    one-way, and silent seen from node3
#                        ├─ node4  what it sends to node1 is lost                    silent, and one-way seen from node4
#                        ├─ node5  packets above 1400 bytes are lost without a word  narrow
#     with vxlan:        ├─ node6  another VNI                                       wrong-vni
#                        ├─ node7  node1's list has another MAC for it               wrong-mac
#                        └─ node8  a kernel VXLAN device, as flannel's               never a problem
#
# peer_health.sh BACKEND
# case: vxlan
# full: udp
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
NARROW=1400
NODES=$LAB_STATE/node1/nodes.toml
NET_CONF=$LAB_STATE/node6/net-conf.json

# state NODE PEER: the state of the peer, and the figures of its path.
state() {
    agent_json "$1" peers | jq -r --arg peer "$2" '.peers[] | select(.name == $peer) | .state'
}

is_state() {
    [ "$(state "$1" "$2")" = "$3" ]
}

# is_reported NODE CODE PEER: the problem is on the board, and both commands say so by their exit code.
is_reported() {
    agent_json "$1" status | jq -e --arg code "$2" --arg peer "$3" '.problems | any(.code == $code and .subject == $peer)' &&
        ! tartan "$1" status && ! tartan "$1" peers
}

is_well() {
    tartan "$1" status && tartan "$1" peers
}

begins() {
    BEGAN=$(clock)
    BEGAN_AT=$(date +%s)
}

# found NODE PEER STATE CODE: within 10 s of `begins`.
found() {
    local since
    # To look at so many peers takes longer than the bar. The agent says when it posted the problem; `tartan peers` showed the
    # state before (its SINCE is when the peer answered last).
    until_true 30 "$2 is $3 to $1" is_state "$1" "$2" "$3" ||
        say "it is $(agent_json "$1" peers | jq -c --arg peer "$2" '.peers[] | select(.name == $peer) | {state, reason, paths}')"
    until_true 30 "$1 reports $4 of $2" is_reported "$1" "$4" "$2" || return 0
    since=$(agent_json "$1" status | jq --arg code "$4" --arg peer "$2" '[.problems[] | select(.code == $code and .subject == $peer).since] | min')
    known "$1 reports $4 of $2" "$since"
}

# known WHAT SINCE: since a moment (Unix seconds) within 10 s of `begins`.
known() {
    [ "${2:-0}" -ge "$BEGAN_AT" ] || fail "$1 since ${2:-never}, which is before the fault began"
    measured_at_most "seconds until $1" 10 $((${2:-0} - BEGAN_AT))
}

# on_the_way RULE...: what a switch between the nodes loses; without a rule nothing any more.
on_the_way() {
    local rule
    ip netns exec "$PREFIX-net" nft delete table netdev lossy 2>/dev/null || true
    [ $# = 0 ] || ip netns exec "$PREFIX-net" nft -f - <<RULES
table netdev lossy {
    chain from1 { type filter hook ingress device "node1" priority 0; $(for rule in "$@"; do echo "$rule"; done) }
    chain from4 { type filter hook ingress device "node4" priority 0; ip daddr $(underlay_of node1 4) drop; }
}
RULES
}

# mac [MAC]: node1's list says so of node7; without one, the MAC that follows from its address.
mac() {
    awk -v mac="${1:-}" '/^vtep-mac/ && is_its { next } { print } /^name = / { is_its = /"node7"/ }
        is_its && /^name = / && mac { print "vtep-mac = \"" mac "\"" }' "$NODES" >"$SCRATCH/nodes.toml"
    cat "$SCRATCH/nodes.toml" >"$NODES"
}

# vni NUMBER: of node6, which takes it by a new start of its service.
vni() {
    jq ".Backend.VNI = $1" "$NET_CONF" >"$SCRATCH/net-conf.json"
    cat "$SCRATCH/net-conf.json" >"$NET_CONF"
    kill -HUP "$(cat "$LAB_STATE/node6/pid")"
}

# Bytes that pod5 has got of the one connection from pod1.
arrived() {
    in_ns pod5 nstat -asz IpExtInOctets | awk '/InOctets/ { print $2 }'
}

say "faults of paths: backend $BACKEND"
case $BACKEND in
vxlan) lab_up --nodes 8 --backend vxlan --peer kernel-vxlan --underlay wire ;;
udp) lab_up --nodes 5 --backend udp --underlay wire ;;
esac
others=(node2 node3 node4 node5)
if [ "$BACKEND" = vxlan ]; then others+=(node6 node7); fi
for peer in "${others[@]}"; do until_true 10 "$peer is up to node1" is_state node1 "$peer" up || true; done
until_true 5 "node1 is well beforehand" is_well node1 || tartan node1 status || true
is_measured() {
    [ "$(agent_json node1 peers | jq --arg peer "$1" '.peers[] | select(.name == $peer).paths[0].mtu_measured')" = "$2" ]
}
until_true 5 "the path to node5 is measured" is_measured node5 1500 || true

start_in pod5 python3 "$TOOLS/bulk.py" receive "$(address_of pod5)" 5201 >"$SCRATCH/received"
receiver=$PID
until_true 5 "the receiver listens" is_bound pod5 tcp 5201
start_in pod1 python3 "$TOOLS/bulk.py" send "$(address_of pod5)" 5201 $((1 << 32)) 4000000 >"$SCRATCH/sent"
sender=$PID
sleep 1

say "the faults begin"
begins
on_the_way "ip daddr $(underlay_of node3 4) drop;" "ip daddr $(underlay_of node5 4) ip length > $NARROW drop;"
lab stop node2 &
stopping=$!
if [ "$BACKEND" = vxlan ]; then
    vni 7
    mac 0a:74:00:00:00:01
fi
found node1 node5 narrow peer-narrow
took=$(($(clock) - BEGAN))
measured_at_most "hundredths of a second until the black hole is found" 500 "$took"
equal "MTU of the path to node5" "$NARROW 1500" \
    "$(agent_json node1 peers | jq -r '.peers[] | select(.name == "node5").paths[0] | "\(.mtu_measured) \(.mtu_configured)"')"
wait "$stopping"
found node1 node2 refused peer-refused
found node1 node3 one-way peer-one-way
found node3 node1 silent peer-silent
found node1 node4 silent peer-silent
found node4 node1 one-way peer-one-way
if [ "$BACKEND" = vxlan ]; then
    # The source MAC is seen of packets of pods.
    in_ns pod7 ping -q -c 2 -i 0.1 -W 1 "$(address_of pod1)" >/dev/null || true
    found node1 node6 wrong-vni peer-other-vni
    found node1 node7 wrong-mac vtep-mac-changed
    found node7 node1 wrong-mac peer-wrong-mac
fi
tartan node1 peers || true
before=$(arrived)
sleep 1
[ $(($(arrived) - before)) -gt 1000000 ] || fail "TCP does not go on over the narrow path: $(($(arrived) - before)) bytes in a second"

say "the faults end"
begins
on_the_way
if [ "$BACKEND" = vxlan ]; then
    vni 1
    mac
fi
lab start node2
for node in node1 node3 node4; do
    until_true 30 "$node is well after the faults" is_well "$node" || tartan "$node" status || true
    measured_at_most "hundredths of a second until $node is well" 1000 $(($(clock) - BEGAN))
done
if [ "$BACKEND" = vxlan ]; then
    case $(state node1 node8) in
    new | heard | quiet) ;;
    *) fail "the kernel peer is $(state node1 node8)" ;;
    esac
fi
say "an agent that starts while a peer is dead"
begins
on_the_way "ip daddr $(underlay_of node4 4) drop;"
found node1 node4 silent peer-silent
lab stop node1
begins
lab start node1
found node1 node4 silent peer-silent
begins
on_the_way
until_true 10 "node4 is up 10 s after it came back" is_state node1 node4 up || true
stop "$sender"
wait "$receiver" || true
equal "TCP's bytes and their sum" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
for node in node1 node3 node5; do law_one "$node"; done
