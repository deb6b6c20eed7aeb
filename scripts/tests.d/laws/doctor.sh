#!/usr/bin/env bash
# Each fault of a node is found by `tartan doctor`, with evidence, remedy and reference, and shown by `tartan status`,
# with exit code 1, within 10 s, and is gone from both within 10 s of its end. What the running agent can put right it
# repairs, and status names the repair; `doctor --fix` leaves the rest alone. Of many faults each has its own code.
# labs: probes=off third=tartan outside=v4
# seconds: 400
# last: it starts the agent's service anew
. "$TOOLS/faults.sh"

ROOT=$LAB_STATE/node1
LAST_GOOD=$ROOT/var/lib/tartan/last-good.json

on() { in_ns node1 "$@"; }
setting() { on sysctl -q -w "$@"; }

# bridge ADDRESS: cni0 has it.
bridge() {
    on ip link add cni0 type bridge
    on ip address add "$1" dev cni0
}

# list EXPRESSION: what sed makes of node1's list of nodes, in one piece, as an editor saves it.
list() {
    sed "$1" "$SCRATCH/nodes.toml" >"$ROOT/nodes.toml.new"
    mv "$ROOT/nodes.toml.new" "$ROOT/nodes.toml"
}

# repaired WORDS CMD...: what the command does, the service undoes by itself, and says so.
repaired() {
    BEFORE=$(agent_json node1 status | jq .repairs)
    "${@:2}"
    until_true 10 "status says that it repaired $1" has_repaired "$1" || agent_json node1 status | jq -c .last_repair
}

has_repaired() {
    agent_json node1 status | jq -e --arg words "$1" ".repairs > $BEFORE and (.last_repair | contains(\$words))"
}

# Datagrams, 100 a second, whose checksum is wrong, as an interface with a broken offload sends them.
WRONG_CHECKSUMS='import socket, struct, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
while True:
    raw.sendto(struct.pack("!HHHH", 1234, 8472, 16, 0xdead) + b"\0" * 8, ("192.0.2.1", 0))
    time.sleep(0.01)'
# The kernel path's programs see one interface, at which no other has a way to a peer or the node's address.
OFF=()
if kernel_path_carries; then OFF=("node1 kernel-path-off 192.0.2."); fi
found node1
equal "checks of the doctor" 16 "$(jq '.checks | length' "$SCRATCH/doctor-node1")"

fault 'on ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479 &&
    on ip address add 10.244.1.0/32 dev flannel.1' 'on ip link delete flannel.1' "node1 flannel-left-over flannel.1"
fault "flannel_chain node1" "on nft delete table ip nat" "node1 flannel-rules-left ip nat FLANNEL-POSTRTG"
fault 'on ip link add detour up type bridge && on ip route add 192.0.2.2/32 dev detour &&
    setting net.ipv4.conf.eth0.rp_filter=1' \
    'setting net.ipv4.conf.eth0.rp_filter=0 && on ip link delete detour' "node1 reverse-path-filter 192.0.2.2 by detour"
fault 'on ip route add 10.244.2.0/24 via 192.0.2.250' 'on ip route delete 10.244.2.0/24 via 192.0.2.250' \
    "node1 route-bypasses 10.244.2.0/24"
# The kernel has br_netfilter built in: its setting is what can be taken away, in the node's namespace alone.
fault 'bridge 10.244.1.1/24 && on ip link set cni0 up && on nft add table ip kube-proxy &&
    setting net.bridge.bridge-nf-call-iptables=0' 'setting net.bridge.bridge-nf-call-iptables=1 &&
    on nft delete table ip kube-proxy && on ip link delete cni0' \
    "node1 mixed-pods cni0" "node1 bridge-netfilter-off net.bridge.bridge-nf-call-iptables = 0"
start_in mallory python3 -c "$WRONG_CHECKSUMS"
fault true "stop $PID KILL" "node1 checksum-errors"
fault "touch -d '+1 hour' $LAST_GOOD" "touch $LAST_GOOD" "node1 clock-set-back in the future"
if [ "$REGISTRY" = file ]; then
    cp "$ROOT/nodes.toml" "$SCRATCH"
    fault 'list s/10.244.2.0/10.244.1.0/' 'list ""' "node1 leases-refused 10.244.1.0/24"
fi
fault true true "${OFF[@]}"
found node1
doctor node1 --fix
equal "--fix beside a running agent: exit code, what it did" "1 left alone: the agent runs" \
    "$(cat "$SCRATCH/code-node1") $(jq -r '.repairs[]' "$SCRATCH/doctor-node1" | cut -c 1-26)"
on ip link show dev flannel.1 >/dev/null || fail "--fix has taken flannel.1 away"

no_more
FILTER=. MTU=590 CODES=("node1 underlay-narrow eth0")
# The net-conf names an MTU, which the underlay then falls below.
[ "$BACKEND" = udp ] || FILTER='.Backend.MTU = 1500' MTU=1400 CODES=("node1 underlay-below-mtu eth0")
if ! kernel_path_carries; then
    sink node1 18999
    FILTER+=' | .Backend.Port = 18999'
    CODES+=("node1 underlay-port-taken 18999")
fi
fault "on ip link set eth0 mtu $MTU && net_conf node1 '$FILTER'" "on ip link set eth0 mtu 1500 && net_conf node1" \
    "${CODES[@]}"
fault 'bridge 10.244.9.1/24' 'on ip link delete cni0' "node1 bridge-other-subnet 10.244.9.1/24"
found node1

if [ "$REGISTRY" = file ]; then
    say "another address of the node, on its interface and in the list; an underlay without carrier"
    no_more
    # A /32 does not go with the other address.
    fault "on ip address add 192.0.2.77/32 dev eth0 && on ip address del 192.0.2.1/24 dev eth0" \
        "on ip address add 192.0.2.1/24 dev eth0 && on ip address del 192.0.2.77/32 dev eth0" \
        "node1 underlay-interface-missing 192.0.2.77" "${OFF[@]}"
    found node1
    no_more
    fault 'list s/"192.0.2.1"/"192.0.2.7"/' 'list ""' "node1 underlay-address-missing 192.0.2.7"
    fault "ip -n $PREFIX-node2 link set eth0 down" "ip -n $PREFIX-node2 link set eth0 up" "node2 underlay-down eth0"
    found node1 node2
fi
no_more
found node1 node2

repaired "" on nft flush ruleset
repaired net.ipv4.ip_forward setting net.ipv4.ip_forward=0
undo on nft delete table inet strict
repaired "inet strict forward" foreign_firewall node1
for TO in pod2 pod3; do
    in_ns pod1 ping -4 -q -c 2 -i 0.1 -W 1 "$(address_of "$TO" 4)" >/dev/null || fail "pod1 does not reach $TO"
done
equal "net.ipv4.ip_forward" 1 "$(on sysctl -n net.ipv4.ip_forward)"
