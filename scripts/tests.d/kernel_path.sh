#!/usr/bin/env bash
# The kernel path comes into use and goes out of use under traffic, outlives its service, is repaired, and leaves nothing
# behind.
#
#   pod1 ── node1: underlay_in, tunnel_out, gro_in ══ underlay ══ node2: the same, or a kernel VXLAN device ── pod2
#     └ ping 1,000 times a second, and a TCP transfer
#
# kernel_path.sh PEER, where PEER is tartan or kernel-vxlan.
# alone: it measures loss
# case: tartan
# full: tartan device-type=tap
# full: kernel-vxlan
# full: tartan workers=2
# Peers learn from probes whether a node has the kernel path.
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

PEER=$1
PINGS=3000
FORMAT_PORT=8472
PRIVATE_PORT=18472
# To make the queueing discipline that programs hang from, the kernel takes the device's queues out of service for a
# moment. It is made once.
MOST_LOST_AT_FIRST=3

# under_load MOST WHAT CMD...: pings that the command may cost, at most; and a TCP transfer goes on.
under_load() {
    local most=$1 what=$2 pinger received
    shift 2
    start_in pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" "$PINGS" 0.001 5 >"$SCRATCH/ping"
    pinger=$PID
    sleep 0.5
    "$@"
    wait "$pinger" || true
    received=$(cut -d ' ' -f 1 "$SCRATCH/ping")
    at_most "$what: of $PINGS pings lost" "$most" $((PINGS - received))
}

transfer() {
    local receiver
    start_in pod2 python3 "$TOOLS/bulk.py" receive "$(address_of pod2)" 5003 >"$SCRATCH/received"
    receiver=$PID
    in_ns pod1 timeout 30 python3 "$TOOLS/bulk.py" send "$(address_of pod2)" 5003 $((64 << 20)) $((64 << 20)) >"$SCRATCH/sent" ||
        fail "the TCP transfer $1 failed at the sender"
    wait "$receiver" || fail "the TCP transfer $1 failed at the receiver"
}

kill_the_service() {
    local pid
    pid=$(service_pid node1)
    kill -KILL "$pid"
    until_true 5 "a new service on node1" another_service "$pid"
    # What node2 announced to the service before holds.
    equal "peers of node1 after a kill, and why its programs do not send to them" '1 []' \
        "$(agent_json node1 peers | jq -r '"\(.peers | length) \([.peers[].user_space | values])"')"
}

another_service() {
    [ "$(service_pid node1)" != "$1" ] && kernel_path_in_use node1
}

has_programs() {
    [ "$(programs_of node1 | wc -l)" = 3 ]
}

# node1 is to be out of use, and cannot: its sockets stay where they are.
off_without_port() {
    set_mode node1 off
    until_true 5 "another process has the format's port" is_taken
}

says_off() {
    [ "$(agent_json node1 status | jq -c '[.problems[].code]')" = '["kernel-path-off"]' ]
}

give_port_back() {
    stop "$TAKER"
    until_true 15 "node1 is out of use, and has the format's port" has_format_port
}

has_format_port() {
    [ "$(agent_json node1 status | jq -c '[.problems[].code]')" = '[]' ] && is_bound node1 udp "$FORMAT_PORT" && ! is_bound node1 udp "$PRIVATE_PORT"
}

# ipsec_policy VERB: of other hosts, so that no packet meets it.
ipsec_policy() {
    ip -n "$PREFIX-node1" xfrm policy "$1" src 198.51.100.1/32 dst 198.51.100.2/32 dir out "${@:2}"
}

set_ipsec_policy() {
    ipsec_policy add tmpl proto esp mode transport
    until_true 3 "node1 is out of use" is_off_for_ipsec
    until_true 5 "node1 receives at the format's port" is_bound node1 udp "$FORMAT_PORT"
}

is_off_for_ipsec() {
    [[ $(agent_json node1 status | jq -r .kernel_path.reason) == *"has IPsec policies"* ]]
}

# A pod of a node without the kernel path must not speak as its node to another's private port. The port beside it shows
# that datagrams of pods arrive there.
guards_private_port() {
    local port place='ip guarded seen'
    nft_in node2 "add table ip guarded; add chain $place { type filter hook prerouting priority -300; }"
    for port in "$PRIVATE_PORT" $((PRIVATE_PORT + 1)); do
        nft_in node2 "add rule $place udp dport $port counter"
        for _ in 1 2 3; do
            in_ns pod1 python3 -c 'import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], int(sys.argv[2])))' \
                "$(underlay_of node2 4)" "$port"
        done
    done
    equal "datagrams of pod1 that reach node2's private port, and the port beside it" "0 3" \
        "$(ip netns exec "$PREFIX-node2" nft -j list chain ip guarded seen | jq -r '[.. | .counter? | select(.packets).packets] | join(" ")')"
    nft_in node2 "delete table ip guarded"
}

nothing_left() {
    equal "programs on node1 $1" "" "$(programs_of node1)"
    if ip -n "$PREFIX-node1" link show tartan0-gro >/dev/null 2>&1; then fail "tartan0-gro is there $1"; fi
    if is_pinned node1; then fail "programs and tables are pinned $1"; fi
}

say "the kernel path: peer $PEER"
case $PEER in
tartan) lab_up ;;
kernel-vxlan) lab_up --peer kernel-vxlan ;;
*) die "PEER is tartan or kernel-vxlan, not $PEER" ;;
esac
equal "mode by default" '"off"' "$(agent_json node1 status | jq .kernel_path.mode)"
nothing_left "with the kernel path off"
guards_private_port
in_ns pod1 ping -q -c 3 -i 0.1 "$(address_of pod2)" >"$SCRATCH/ping" || fail "ping before"

under_load "$MOST_LOST_AT_FIRST" "into use on node1" set_mode node1 stateless
KERNEL_PATH=stateless
until_true 3 "three programs on node1" has_programs || programs_of node1
transfer "with the kernel path"
if [ "$PEER" = tartan ]; then
    equal "packets of node1's programs to a node that says that its kernel path is off" 0 "$(kernel_path_flow node1 outbound sent)"
else
    [ "$(kernel_path_flow node1 outbound sent)" -gt 1000 ] || fail "the programs of node1 have sent nothing"
fi
[ "$(kernel_path_flow node1 inbound delivered)" -gt 500 ] || fail "the programs of node1 have delivered nothing"
law_one node1
if [ "$PEER" = tartan ]; then
    under_load "$MOST_LOST_AT_FIRST" "into use on node2" set_mode node2 stateless
    until_true 5 "node1's programs send to node2" programs_send node1 node2
    transfer "with two kernel paths"
    [ "$(kernel_path_flow node1 outbound sent)" -gt 1000 ] || fail "the programs of node1 have sent nothing"
    law_one node2
    LOST=$(($(flow node1 outbound sent) + $(flow node2 outbound sent) - $(flow node2 inbound delivered) - $(flow node1 inbound delivered)))
    if [ "$LOST" -lt 0 ] || [ "$LOST" -gt $((2 * MOST_LOST_AT_FIRST)) ]; then fail "between the nodes $LOST packets were lost"; fi
fi

under_load 0 "service killed" kill_the_service
under_load 0 "out of use on node1" set_mode node1 off
nothing_left "after kernel-path = off"
law_one_off() { KERNEL_PATH=off law_one "$1"; }
law_one_off node1
under_load 0 "into use again" set_mode node1 stateless

say "another process takes the format's port on the way out of use"
take_port node1 "$FORMAT_PORT"
under_load 0 "no way out of use on node1" off_without_port
until_true 5 "node1 says that it is not out of use" says_off
is_bound node1 udp "$PRIVATE_PORT" || fail "node1 receives nowhere: no socket has the private port"
under_load 0 "out of use on node1 once the port is free" give_port_back
nothing_left "after the port was given back"
law_one_off node1
under_load 0 "into use after that" set_mode node1 stateless

say "an IPsec policy"
under_load 0 "out of use for an IPsec policy" set_ipsec_policy
nothing_left "with an IPsec policy"
# By itself it comes back after a minute without a policy.
set_mode node1 off
ipsec_policy delete
under_load 0 "into use without it" set_mode node1 stateless

say "another program removes what is ours"
ip netns exec "$PREFIX-node1" tc filter del dev eth0 ingress
until_true 12 "the program at the underlay is put back" has_programs || programs_of node1
ip -n "$PREFIX-node1" link delete tartan0-gro
until_true 12 "the VXLAN device is put back" has_programs || programs_of node1
transfer "after the repairs"

say "keeper and service end and start again"
lab stop node1
nothing_left "after an orderly stop"
lab start node1
until_true 5 "the kernel path after another start" kernel_path_in_use node1
transfer "after another start"
law_one node1

is_pinned node1 || fail "programs and tables are not pinned"
KEEPER=$(cat "$LAB_STATE/node1/pid")
SERVICE=$(pgrep -P "$KEEPER")
kill -KILL "$KEEPER" "$SERVICE"
until_true 2 "keeper and service have ended" have_ended "$KEEPER" "$SERVICE"
tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
grep -q 'removed programs and tables in .*/sys/fs/bpf/tartan' "$SCRATCH/cleanup" || fail "cleanup does not tell: $(cat "$SCRATCH/cleanup")"
nothing_left "after tartan cleanup"
equal "queueing discipline at eth0 after tartan cleanup" "" "$(ip netns exec "$PREFIX-node1" tc qdisc show dev eth0 | grep clsact)"
lab start node1
