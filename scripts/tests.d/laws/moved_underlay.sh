#!/usr/bin/env bash
# The underlay changes under a running node. Its address moves in the list of nodes: the agent follows without a
# restart, a TCP connection lives on, and nothing passes at the old address. With --full also: an interface that is
# deleted and made again, or down, or without its address, where drops have a name; another MTU, which device,
# subnet.env and new pods follow; and another subnet: nothing from the old pods or to them is delivered.
# (agent/tests/service/moved.rs and last_good.rs have the rest.)
#
#   pod1 ── node1, whose address moves ══ underlay ══ node2 ── pod3
#                                             ╚══════ node3 ── pod5: its list of nodes stays the old one
#
# labs: lab=vxlan-over-v4|udp-over-v6
# full: registry=file third=tartan
# last: it moves a node
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
FAMILY=${FAMILIES[0]}
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"
# shellcheck source=scripts/lab.d/underlay.sh
. "$SCRIPTS/lab.d/underlay.sh"

NODE1=$PREFIX-node1
POD1=$(address_of pod1 "$FAMILY")
POD3=$(address_of pod3 "$FAMILY")
POD5=$(address_of pod5 "$FAMILY")
# Of the underlay: those of node1, and that which carries the datagrams.
read -ra OUTER < <(families "$OUTSIDE")
CARRIER=$(carrier "$FAMILY" "$OUTSIDE")
# Of an echo request: IP and ICMP.
HEADERS=$((FAMILY == 4 ? 28 : 48))
# Bytes a second of the transfer that goes on all the time.
BULK_RATE=$((4 << 20))
# Beside the kernel path's VXLAN device the agent receives at a port of its own.
PORT=$FORMAT_PORT
if kernel_path_carries; then PORT=$PRIVATE_PORT; fi
STEPS=()

# underlay FAMILY N: the address that node1 has after N moves; each N: of every family, one a line, sorted.
underlay() {
    local host=1
    [ "$2" = 0 ] || host=$((100 + $2))
    if [ "$1" = 4 ]; then echo "192.0.2.$host"; else echo "2001:db8:192::$host"; fi
}

each() {
    local family
    for family in "${OUTER[@]}"; do underlay "$family" "$1"; done | sort
}

# addresses add|replace|delete N
addresses() {
    local address
    for address in $(each "$2"); do
        case $address in
        *:*) ip -n "$NODE1" address "$1" "$address/64" dev eth0 nodad ;;
        *) ip -n "$NODE1" address "$1" "$address/24" dev eth0 ;;
        esac
    done
}

# tell NODE OLD NEW...: in its list of nodes, one text for another. Replaced as a whole, as an editor does.
tell() {
    local file=$LAB_STATE/$1/nodes.toml
    shift
    cp "$file" "$file.new"
    while [ $# -gt 0 ]; do
        sed -i "s|\"$1\"|\"$2\"|" "$file.new"
        shift 2
    done
    mv "$file.new" "$file"
}

# tell_move NODE FROM TO: node1 has moved, says the list of a node.
tell_move() {
    # shellcheck disable=SC2046
    tell "$1" $(paste -d' ' <(each "$2") <(each "$3"))
}

problem_reported() {
    agent_json node1 status | jq -e --arg text "$1" '.problems | any((.sentence + ": " + .remedy) | contains($text))'
}

# What the sockets of node1 are bound to, one address a line.
bound() {
    ip netns exec "$NODE1" ss -Hlun "sport = :$PORT" | awk '{ print $4 }' | sed "s/:$PORT\$//; s/[][]//g" | sort -u
}

bound_to() {
    [ "$(bound)" = "$(each "$1")" ]
}

# count NODE DIRECTION REASON
count() {
    agent_json "$1" drops | jq --arg direction "$2" --arg reason "$3" \
        '[.reasons[] | select(.direction == $direction and .reason == $reason) | .count] | add'
}

# begin WHAT: what is sent from here on until `back` may be lost, for a second at most.
begin() {
    say "$1"
    STEPS+=("$1")
    mark "$SENDER"
}

# Datagrams are answered again, and none of a hundred is lost.
back() {
    a_while pod1 In 20
    mark "$SENDER"
    a_while pod1 In 100
    mark "$SENDER"
    kill -0 "$BULK" 2>/dev/null || fail "the TCP connection did not survive: ${STEPS[-1]}"
}

judge() {
    local step first
    for step in "${!STEPS[@]}"; do
        first=$((3 * step + 1))
        measured_at_most "${STEPS[step]}: datagrams lost" "$RATE" "$(missing sent "$first" $((first + 1)))"
        equal "${STEPS[step]}: datagrams lost behind it" 0 "$(missing sent $((first + 1)) $((first + 2)))"
    done
}

# silent POD ADDRESS: no answer comes to ten pings.
silent() {
    if in_ns "$1" ping -n -q -c 10 -i 0.02 -W 0.3 "$2" >"$SCRATCH/talk"; then fail "$1 reaches $2"; fi
}

talks() {
    in_ns "$1" ping -n -q -c 5 -i 0.02 -W 2 "${@:2}" >"$SCRATCH/talk" || fail "$1 does not reach $2"
}

# move FROM TO: by the lists of node1 and node2.
move() {
    addresses add "$2"
    begin "the address moves from $1 to $2"
    tell_move node1 "$1" "$2"
    tell_move node2 "$1" "$2"
    until_true 3 "the sockets of node1 move" bound_to "$2"
    back
    same "addresses of the sockets of node1" "$(each "$2")" "$(bound)"
    until_true 3 "node1 is well" no_problem node1
}

# node3 believes in the old address, which the host still has.
the_old_address_is_refused() {
    local capture unknown
    unknown=$(count node3 inbound UnknownPeer)
    capture net node1 "$SCRATCH/old.pcap" udp and inbound and "(" src host "$(underlay "$CARRIER" 0)" ")"
    capture=$PID
    silent pod5 "$POD1"
    silent pod1 "$POD5"
    stop "$capture" INT
    equal "datagrams from the old address" 0 "$(tcpdump -nr "$SCRATCH/old.pcap" 2>/dev/null | wc -l)"
    equal "datagrams from the new address that node3 refuses" $((unknown + 10)) "$(count node3 inbound UnknownPeer)"
    addresses delete 0
}

# The cable of node1, as scripts/lab lays it. With its MAC of before: peers do not ask for that of an address that they
# know.
cable() {
    ip -n "$PREFIX-net" link add node1 mtu 1500 type veth peer name eth0 mtu 1500 address "$MAC" netns "$NODE1"
    ip -n "$PREFIX-net" link set node1 master br0 up
    addresses add 1
    ip -n "$NODE1" link set eth0 up
    underlay_offloads "$PREFIX-net" node1
    underlay_offloads "$NODE1" eth0
    if [ "$UNDERLAY" = wire ]; then quiet_ethtool "$NODE1" eth0 gro on; fi
}

# gone WHAT WORD CMD...: the command takes the underlay away. The status says so, and packets of pods are dropped by
# name.
gone() {
    local refused
    say "$1"
    "${@:3}"
    until_true 3 "the status reports $1" problem_reported "$2" || tartan node1 status || true
    refused=$(count node1 outbound UnderlayRefused)
    until_true 3 "packets are dropped as UnderlayRefused" more_than "$refused" count node1 outbound UnderlayRefused
}

interface_gone_and_back() {
    local word=eth0
    gone "a deleted interface" "$(underlay "$CARRIER" 1)" ip -n "$NODE1" link delete eth0
    cable
    begin "a new interface"
    back
    until_true 3 "node1 is well" no_problem node1
    # The kernel takes IPv6 addresses away with the link; who gave them gives them again.
    if [ "$OUTSIDE" != v4 ]; then word=$(underlay 6 1); fi
    gone "an interface that is down" "$word" ip -n "$NODE1" link set eth0 down
    ip -n "$NODE1" link set eth0 up
    addresses replace 1
    begin "an interface that is up again"
    back
    gone "an address taken away" "$(underlay "$CARRIER" 1)" addresses delete 1
    addresses add 1
    begin "the address is there again"
    back
    until_true 3 "node1 is well" no_problem node1
}

mtu_of() {
    ip -n "$PREFIX-$1" -j link show "$2" | jq '.[0].mtu'
}

# mtu UNDERLAY POD: the device, flannel's file and new pods follow, and packets of the full size cross.
mtu() {
    local expected=$(($1 - OVERHEAD))
    ip -n "$NODE1" link set eth0 mtu "$1"
    until_true 3 "MTU $expected of tartan0" mtu_is "$expected"
    until_true 3 "node1 is well" no_problem node1
    equal "MTU in subnet.env" "$expected" "$(sed -n 's/^FLANNEL_MTU=//p' "$LAB_STATE/node1/run/flannel/subnet.env")"
    another_pod node1 "$2"
    equal "MTU of a new pod" "$expected" "$(mtu_of "$2" eth0)"
    talks "$2" "$POD3" -M "do" -s $((expected - HEADERS))
    talks pod1 "$POD3" -s $((expected - HEADERS + 1))
}

mtu_is() {
    [ "$(mtu_of node1 tartan0)" = "$1" ]
}

# subnet_of FAMILY NUMBER, as scripts/lab plans them.
subnet_of() {
    if [ "$1" = 4 ]; then echo "10.244.$2.0/24"; else printf 'fd00:10:244:%x::/64\n' "$2"; fi
}

# tell_subnet FROM TO: all lists.
tell_subnet() {
    local family node changes=()
    for family in "${FAMILIES[@]}"; do changes+=("$(subnet_of "$family" "$1")" "$(subnet_of "$family" "$2")"); done
    for node in node1 node2 node3; do tell "$node" "${changes[@]}"; done
}

another_subnet() {
    local spoofed others
    tell_subnet 1 17
    until_true 3 "the old pods are reported as stranded" problem_reported "stranded pods"
    tartan node1 pods >"$SCRATCH/pods" || [ $? = 1 ]
    grep -qF "$POD1 (stranded)" "$SCRATCH/pods" || fail "the table does not mark $POD1: $(cat "$SCRATCH/pods")"
    spoofed=$(count node1 outbound SpoofedSource)
    silent pod1 "$POD3"
    equal "packets of a stranded pod that are refused" $((spoofed + 10)) "$(count node1 outbound SpoofedSource)"
    others=$(count node1 inbound NotOurs)
    forge_to "$POD1" 10
    until_true 3 "ten packets to a stranded pod are refused" more_than $((others + 9)) count node1 inbound NotOurs
    equal "packets to a stranded pod that are refused" $((others + 10)) "$(count node1 inbound NotOurs)"
    another_pod node1 pod96
    talks pod96 "$POD3"
    talks pod3 "$(address_of pod96 "$FAMILY")"
    no_pod node1 pod96
    tell_subnet 17 1
    until_true 3 "no pod is stranded any more" status_has node1 '.stranded == 0'
}

# forge_to POD COUNT: pod3 speaks to it by way of node1, whatever the tables of node2 say.
forge_to() {
    jq -nc --arg to "$(underlay "$CARRIER" 0)" --arg source "$POD3" --arg destination "$1" --argjson count "$2" \
        --arg source_mac "$(vtep_mac_of node2 "$FAMILY")" \
        --arg destination_mac "$(agent_json node2 peers | jq -r '.peers[] | select(.name == "node1") | .vtep_mac')" \
        '$ARGS.named + {formats: ["vxlan"], port: 7000}' |
        in_ns node2 python3 "$TOOLS/forge.py"
}

# Everything that node3 refuses is counted: probes would be too.
[ "${TARTAN_PROBE:-}" = false ] || agents_with TARTAN_PROBE=false
OVERHEAD=$((1500 - $(mtu_of node1 tartan0)))
SERVICE=$(service_pid node1)
MAC=$(in_ns node1 cat /sys/class/net/eth0/address)
PROMOTE=net.ipv4.conf.all.promote_secondaries
undo in_ns node1 sysctl -q -w "$PROMOTE=$(in_ns node1 sysctl -n "$PROMOTE")"
# Without this the kernel takes the second address of a subnet away with the first.
in_ns node1 sysctl -q -w "$PROMOTE=1"
serve pod3
transfer pod1 pod3 5003 $((1 << 40)) "$BULK_RATE"
talk pod1 pod3
a_while pod1 In 20
move 0 1
the_old_address_is_refused
if [ -n "${FULL:-}" ]; then
    interface_gone_and_back
    mtu 1400 pod94
    mtu 1500 pod95
fi
move 1 0
addresses delete 1
stop "$SENDER"
kill "$BULK"
end_transfer "across all of it"
[ "$(cut -d' ' -f1 "$SCRATCH/received")" -gt 1000000 ] || fail "the TCP transfer moved next to nothing"
judge
if [ -n "${FULL:-}" ]; then another_subnet; fi
equal "the service of node1, never restarted" "$SERVICE" "$(service_pid node1)"
