#!/usr/bin/env bash
# What goes wrong in clusters is named by its code, and goes away by itself once its cause is gone: an underlay without carrier, a
# wrong own address in the list of nodes, a list that is cut off, a route past the overlay. A flushed ruleset and a route that is
# removed are put back.
#
# labs: registry=file outside=v4
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

NODES=$LAB_STATE/node1/nodes.toml
POD3=$(address_of pod3 4)

has_problem() {
    agent_json "$1" status | jq -e --arg code "$2" 'any(.problems[]; .code == $code)'
}

reaches() {
    in_ns pod1 ping -q -c 1 -W 1 "$POD3"
}

# named NODE CODE CURE...: it has the problem, and after the cure has it no more, and pods talk.
named() {
    until_true 15 "$1 has the problem $2" has_problem "$1" "$2"
    "${@:3}"
    until_true 15 "$1 is well after $2" no_problem "$1"
    until_true 15 "pod1 reaches pod3 after $2" reaches
}

# rewrite COMMAND...: what the list of nodes of node1 is to be, in one piece, as an editor saves it.
rewrite() {
    "$@" <"$SCRATCH/nodes.toml" >"$NODES.new"
    mv "$NODES.new" "$NODES"
}

repairs() {
    agent_json node1 status | jq .repairs
}

repaired() {
    [ "$(repairs)" -gt "$REPAIRS" ]
}

cp "$NODES" "$SCRATCH/nodes.toml"
undo rewrite cat
undo ip -n "$PREFIX-node2" link set eth0 up
ip -n "$PREFIX-node2" link set eth0 down
named node2 underlay-down ip -n "$PREFIX-node2" link set eth0 up
rewrite sed 's/"192\.0\.2\.1"/"192.0.2.7"/'
named node1 underlay-address-missing rewrite cat
rewrite head -c -12
named node1 leases-refused rewrite cat
in_ns node1 ip route add "${POD3%.*}.0/24" via 192.0.2.250
named node1 route-bypasses in_ns node1 ip route delete "${POD3%.*}.0/24" via 192.0.2.250
REPAIRS=$(repairs)
in_ns node1 nft flush ruleset
in_ns node1 ip route delete 10.244.0.0/16 dev tartan0
until_true 15 "node1 has repaired what was removed" repaired
until_true 15 "pod1 reaches pod3 again" reaches
