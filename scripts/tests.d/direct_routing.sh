#!/usr/bin/env bash
# flannel's DirectRouting in a mixed cluster: a flannel node sends to nodes on its own link past the overlay, Tartan
# encapsulates. What comes so is dropped by a strict reverse-path filter, and is checked by no node: the status says both.
#
#   pod1 ── node1 tartan ══ underlay, one link ══ node2 tartan ── pod2
#                 ║  <─ unencapsulated ──────────╗
#                 ╚══ VXLAN ══> node3, the kernel's VXLAN with direct routes ── pod3
#
# direct_routing.sh
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

ROOT=$LAB_STATE/node1

# As flanneld with DirectRouting does where a node's address needs no gateway (pkg/backend/vxlan/vxlan_network.go).
direct_routes() {
    local node number
    for node in node1 node2; do
        number=${node#node}
        ip -n "$PREFIX-node3" route replace "10.244.$number.0/24" via "$(underlay_of "$node" 4)"
        ip -n "$PREFIX-node3" -6 route replace "fd00:10:244:$number::/64" via "$(underlay_of "$node" 6)"
    done
}

reverse_path_filter() {
    # A dot in a name of sysctl is a slash, unless slashes separate.
    in_ns "$1" sysctl -q -w "net/ipv4/conf/all/rp_filter=$2" "net/ipv4/conf/$3/rp_filter=$4"
}

# The status has a problem by now, so `lab start` would not take the node for ready.
start_node1() {
    lab stop node1
    jq '.Backend.DirectRouting = true' "$ROOT/net-conf.json" >"$SCRATCH/net-conf.json"
    cp "$SCRATCH/net-conf.json" "$ROOT/net-conf.json"
    ip netns exec "$PREFIX-node1" setsid "${LAB_BIN:-$SCRIPTS/../target/fast}/tartan" --root "$ROOT" run --net-conf "$ROOT/net-conf.json" \
        --node-file "$ROOT/nodes.toml" --node-name node1 </dev/null >>"$ROOT/log" 2>&1 &
    echo $! >"$ROOT/pid"
    disown
    until_true 20 "node1 answers" adopted
}

adopted() {
    agent_json node1 status | jq -e '.snapshot_adopted'
}

# problem: code, severity and subject of what the status says of direct routing.
problem() {
    agent_json node1 status | jq -r '[.problems[] | select(.code | startswith("direct-routing"))
        | "\(.code) \(.severity) \(.subject)"] | join(", ")'
}

problem_is() {
    [ "$(problem)" = "$1" ]
}

# says FIELD TEXT...: all of it stands there.
says() {
    local found text
    found=$(agent_json node1 status | jq -r ".problems[] | select(.code | startswith(\"direct-routing\")) | .$1")
    for text in "${@:2}"; do
        [[ $found == *"$text"* ]] || fail "the $1 does not say '$text': $found"
    done
    say "$1: $found"
}

# answered FROM TO FAMILY: how many of three echo requests are.
answered() {
    in_ns "$1" python3 "$TOOLS/pings.py" "$(address_of "$2" "$3")" 3 0.1 2 | cut -d ' ' -f 1
}

say "direct routing in a mixed cluster"
lab_up --nodes 3 --backend vxlan --peer kernel-vxlan --inside dual --outside dual
no_findings
reverse_path_filter node1 0 eth0 1
reverse_path_filter node3 0 flannel.1 2
equal "without DirectRouting" "" "$(problem)"
equal "answers, IPv4, without" 3 "$(answered pod3 pod1 4)"
direct_routes
start_node1
until_true 5 "it is an error" problem_is "direct-routing-filtered error eth0" || problem
says sentence node3 "rp_filter of eth0 is 1" "IPv4"
says remedy "sysctl -w net.ipv4.conf.eth0.rp_filter=2" "flannel.1"
[[ $(agent_json node1 status | jq -r '.problems[].sentence') != *node2* ]] || fail "node2 encapsulates"
grep -q "rp_filter of eth0 is 1" "$ROOT/log" || fail "the log does not say it at the start"
equal "answers, IPv4, strict filter" 0 "$(answered pod3 pod1 4)"
equal "answers, IPv6, which has no such filter" 3 "$(answered pod3 pod1 6)"
reverse_path_filter node1 0 eth0 2
until_true 15 "it is a warning" problem_is "direct-routing warning eth0" || problem
says sentence node3 "not checked"
equal "what doctor finds" direct-routing "$(agent_json node1 doctor | jq -r '[.checks[].findings[].code] | join(" ")')"
for family in 4 6; do
    equal "answers, IPv$family, loose filter" 3 "$(answered pod3 pod1 "$family")"
    equal "answers, IPv$family, the other way" 3 "$(answered pod1 pod3 "$family")"
    equal "answers, IPv$family, between Tartan nodes" 3 "$(answered pod1 pod2 "$family")"
done
for node in node1 node2; do law_one "$node"; done
