#!/usr/bin/env bash
# Host state that another program removes is repaired: the tunnel's address, its route and its sysctls are back within two
# seconds. A broken list of nodes is refused with line and reason while traffic goes on by the old one; a repaired list is
# adopted.
#
#   pod1 ── node1 (meddled with) ══ underlay ══ node2 ── pod2
#
# repair.sh BACKEND [INSIDE], where INSIDE, v4 or dual, is the families of pods.
# case: vxlan dual
# full: vxlan
# full: udp
# full: vxlan dual device-type=tap
# full: vxlan kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=${2:-v4}
SPACE=$PREFIX-node1
NODES_FILE=$LAB_STATE/node1/nodes.toml
SECONDS_TO_REPAIR=2

facts() {
    ip -n "$SPACE" -o address show dev tartan0 | sed 's/ valid_lft.*//'
    ip -n "$SPACE" -4 route show
    ip -n "$SPACE" -6 route show
    ip -n "$SPACE" -j link show dev tartan0 | jq -c '.[0] | {mtu, flags}'
    sysctl_of rp_filter
    sysctl_of send_redirects
    sysctl_of accept_local
    ip netns exec "$SPACE" sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding
}

sysctl_of() {
    ip netns exec "$SPACE" sysctl -n "net.ipv4.conf.tartan0.$1"
}

as_before() {
    [ "$(facts)" = "$BEFORE" ]
}

counted_repair() {
    [ "$(agent_json node1 status | jq .repairs)" -gt "$1" ]
}

# meddle WHAT CMD...: the command does damage; the agent repairs it.
meddle() {
    local what=$1 repairs
    shift
    repairs=$(agent_json node1 status | jq .repairs)
    "$@"
    until_true "$SECONDS_TO_REPAIR" "$what is put back" as_before || diff <(echo "$BEFORE") <(facts) || true
    until_true 5 "$what: the status counts the repair" counted_repair "$repairs" || true
    traffic "after: $what"
}

traffic() {
    local family
    for family in $(families "$INSIDE"); do
        equal "pings $1, IPv$family" "5 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod2 "$family")" 5 0.02 3)"
    done
    say "traffic $1"
}

# How often the problems of node1 mention something.
problems() {
    agent_json node1 status | jq --arg text "$1" '[.problems[] | select((.sentence + ": " + .remedy) | contains($text))] | length'
}

problem_reported() {
    [ "$(problems "$1")" -gt 0 ]
}

no_problem() {
    [ "$(agent_json node1 status | jq '.problems | length')" = 0 ]
}

# refused WHAT LINE WORD: the list in place is refused, with its line and a word of the reason.
refused() {
    until_true 3 "$1 is refused" problem_reported "$3" || tartan node1 status || true
    problem_reported "line $2" || fail "$1: the status does not name line $2: $(agent_json node1 status | jq -c .problems)"
    local code=0
    tartan node1 status >"$SCRATCH/status" || code=$?
    equal "exit code of status: $1" 1 "$code"
    [[ $(head -n 1 "$SCRATCH/status") == "PROBLEM: "*"line $2"* ]] || fail "$1: the problem is not the first line: $(cat "$SCRATCH/status")"
    equal "peers: $1" 1 "$(agent_json node1 peers | jq '.peers | length')"
    traffic "with $1"
}

say "put back and refused: backend $BACKEND, inside $INSIDE"
lab_up --backend "$BACKEND" --inside "$INSIDE"
BEFORE=$(facts)
traffic before
meddle "the cluster route" ip -n "$SPACE" route delete 10.244.0.0/16 dev tartan0
meddle "the tunnel's address" ip -n "$SPACE" address delete 10.244.1.0/32 dev tartan0
meddle "the device, taken down" ip -n "$SPACE" link set tartan0 down
meddle "the device's MTU" ip -n "$SPACE" link set tartan0 mtu 1300
meddle "rp_filter" ip netns exec "$SPACE" sysctl -q -w net.ipv4.conf.tartan0.rp_filter=1
meddle "forwarding" ip netns exec "$SPACE" sysctl -q -w net.ipv4.ip_forward=0
if [ "$INSIDE" = dual ]; then
    meddle "the cluster route of IPv6" ip -n "$SPACE" -6 route delete fd00:10:244::/48 dev tartan0
    meddle "the tunnel's IPv6 address" ip -n "$SPACE" address delete fd00:10:244:1::/128 dev tartan0
    meddle "the own subnet's route of IPv6" ip -n "$SPACE" -6 route delete unreachable fd00:10:244:1::/64
    meddle "IPv6 of the device, switched off" ip netns exec "$SPACE" sysctl -q -w net.ipv6.conf.tartan0.disable_ipv6=1
    meddle "forwarding of IPv6" ip netns exec "$SPACE" sysctl -q -w net.ipv6.conf.all.forwarding=0
fi

GOOD=$(cat "$NODES_FILE")
# A node without a subnet of IPv6 is a problem of its own in a cluster of both families.
SUBNETS='"10.244.9.0/24"'
if [ "$INSIDE" = dual ]; then SUBNETS+=', "fd00:10:244:9::/64"'; fi
printf '%s\n[[node]]\nname = "node9"\nsubnet = ["10.244.9.0/24"]\npublic-ip = "192.0.2.9"\n' "$GOOD" >"$NODES_FILE"
LINES=$(($(grep -n 'subnet = ' "$NODES_FILE" | cut -d: -f1)))
refused "an unknown key" "$LINES" subnet
printf '%s\n[[node]]\nname = "node9"\nsubnets = ["10.244.2.0/24"]\npublic-ip = "192.0.2.9"\n' "$GOOD" >"$NODES_FILE.new"
mv "$NODES_FILE.new" "$NODES_FILE"
refused "a subnet of two nodes" "$(($(grep -n 'node9' "$NODES_FILE" | cut -d: -f1) + 1))" node2
printf '%s\n[[node]]\nname = "node9"\nsubnets = [%s]\npublic-ip = "192.0.2.9"\n' "$GOOD" "$SUBNETS" >"$NODES_FILE"
until_true 3 "the repaired list is adopted" no_problem
equal "peers after the repaired list" 2 "$(agent_json node1 peers | jq '.peers | length')"
equal "routes of the new peer" 1 "$(tartan node1 routes | grep -cE '10\.244\.9\.0/24 +node9 +192\.0\.2\.9')"
traffic "with the repaired list"
law_one node1
