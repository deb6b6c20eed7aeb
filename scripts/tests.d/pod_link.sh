#!/usr/bin/env bash
# The host's side of a pod's link is put back like the rest of the node: routes, neighbour entries, settings, MTU, alias and
# whatever else another program removes are there again within two seconds, and each is counted. A pod that goes on sending
# as itself meanwhile is never counted as forging. What cannot be put back is shown by `tartan pods` and the status.
#
#   pod1 ── node1 (meddled with) ══ underlay ══ node2 ── pod3
#   pod2 ──┘
#
# pod_link.sh INSIDE: the families of the pods, v4, v6 or dual
# alone: it measures how long a repair takes
# full: dual
# full: v4
# full: v6
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

INSIDE=$1
SPACE=$PREFIX-node1
SECONDS_TO_REPAIR=2

facts() {
    local family
    for family in $(families "$INSIDE"); do
        ip -n "$SPACE" "-$family" route show table all dev "$VETH" proto static
        ip -n "$SPACE" "-$family" neigh show dev "$VETH" nud permanent
    done | sort
    ip -n "$SPACE" -j link show dev "$VETH" | jq -c '.[0] | {mtu, address, ifalias, up: (.flags | index("UP") != null)}'
    ip netns exec "$SPACE" sysctl -n \
        "net.ipv4.conf.$VETH."{forwarding,accept_redirects,send_redirects,accept_source_route,arp_ignore,rp_filter} \
        "net.ipv6.conf.$VETH."{accept_ra,accept_redirects,forwarding,disable_ipv6}
}

as_before() {
    [ "$(facts)" = "$BEFORE" ]
}

repairs() {
    agent_json node1 status | jq .repairs
}

counted_repair() {
    [ "$(repairs)" -gt "$1" ]
}

# meddle WHAT CMD...: the command does damage; the agent repairs it.
meddle() {
    local what=$1 before
    shift
    before=$(repairs)
    "$@"
    until_true "$SECONDS_TO_REPAIR" "$what is put back" as_before || diff <(echo "$BEFORE") <(facts) || true
    until_true 2 "$what: the status counts the repair" counted_repair "$before" || true
    reached "after: $what"
}

reached() {
    local family
    for family in $(families "$INSIDE"); do
        in_ns pod1 ping -n -q -c 3 -i 0.02 -W 1 "$(address_of pod3 "$family")" >"$SCRATCH/ping" || fail "ping $1, IPv$family"
    done
}

# kernel_count COUNTER
kernel_count() {
    agent_json node1 drops | jq --arg counter "$1" '[.kernel[] | select(.counter == $counter).count] | add // 0'
}

forged_sources() {
    kernel_count forged_sources
}

# As itself, for as long as the test needs.
speak() {
    local family
    for family in $(families "$INSIDE"); do
        start_in pod1 ping -n -q -i 0.005 -W 1 "$(address_of pod2 "$family")" >/dev/null
        SPEAKERS+=("$PID")
    done
}

# What `pods` and `status` say of the link.
fault() {
    local pods
    pods=$(agent_json node1 pods) || true
    jq -r --arg veth "$VETH" '.pods[] | select(.host_ifname == $veth) | .fault // "none"' <<<"$pods"
}

link_problems() {
    local status
    status=$(agent_json node1 status) || true
    jq '[.problems[] | select(.code == "pod-link")] | length' <<<"$status"
}

told() {
    [ "$(fault)" != none ] && [ "$(link_problems)" = 1 ]
}

untold() {
    [ "$(fault)" = none ] && [ "$(link_problems)" = 0 ]
}

# Packets that the first rule of the pods' table has let pass: those of no pod.
of_no_pod() {
    ip netns exec "$SPACE" nft -j list chain inet tartan-pods prerouting |
        jq '[.nftables[].rule | values][0] | select(.comment == "tartan: from no pod").expr[] | select(.counter).counter.packets'
}

say "links of pods: inside $INSIDE"
lab_up --nodes 2 --pods 2 --inside "$INSIDE"
VETH=$(agent_json node1 pods | jq -r --arg address "$(address_of pod1)" \
    '.pods[] | select(any(.addresses[]; startswith($address + "/"))).host_ifname')
SPEAKERS=()
BEFORE=$(facts)
# Regression: what no pod sent met a rule for each address of a pod, 250 of them on a full node.
PASSED=$(of_no_pod)
[ -n "$PASSED" ] || fail "the first rule of the pods' table is not the one for packets of no pod"
reached before
[ $(($(of_no_pod) - PASSED)) -ge 3 ] || fail "answers to a pod meet the rules of each pod"
for FAMILY in $(families "$INSIDE"); do
    ADDRESS=$(address_of pod1 "$FAMILY")
    meddle "the route of IPv$FAMILY" ip -n "$SPACE" "-$FAMILY" route delete "$ADDRESS" dev "$VETH"
    meddle "the neighbour of IPv$FAMILY" ip -n "$SPACE" neigh delete "$ADDRESS" dev "$VETH"
    meddle "the neighbour of IPv$FAMILY, another's" ip -n "$SPACE" neigh replace "$ADDRESS" lladdr 02:00:00:00:00:66 dev "$VETH" nud permanent
done
meddle "the link, taken down" ip -n "$SPACE" link set "$VETH" down
meddle "the link's MTU" ip -n "$SPACE" link set "$VETH" mtu 1300
meddle "the link's MAC" ip -n "$SPACE" link set "$VETH" address 02:00:00:00:00:67
meddle "the link's alias" ip -n "$SPACE" link set "$VETH" alias another
meddle "rp_filter" ip netns exec "$SPACE" sysctl -qw "net.ipv4.conf.$VETH.rp_filter=2"
meddle "forwarding" ip netns exec "$SPACE" sysctl -qw "net.ipv4.conf.$VETH.forwarding=0"
meddle "accept_redirects" ip netns exec "$SPACE" sysctl -qw "net.ipv4.conf.$VETH.accept_redirects=1"
if [ "$INSIDE" != v4 ]; then
    meddle "accept_ra" ip netns exec "$SPACE" sysctl -qw "net.ipv6.conf.$VETH.accept_ra=2"
    meddle "IPv6, switched off" ip netns exec "$SPACE" sysctl -qw "net.ipv6.conf.$VETH.disable_ipv6=1"
fi

# Its own packets, while the way back is gone.
BOOKED=$(forged_sources)
speak
for ((TURN = 0; TURN < 10; TURN++)); do
    for FAMILY in $(families "$INSIDE"); do
        ip -n "$SPACE" "-$FAMILY" route delete "$(address_of pod1 "$FAMILY")" dev "$VETH"
    done
    until_true "$SECONDS_TO_REPAIR" "the routes, turn $TURN" as_before || true
done
for SPEAKER in "${SPEAKERS[@]}"; do stop "$SPEAKER" INT; done
equal "a pod's own packets, booked as forged" 0 "$(($(forged_sources) - BOOKED))"
[ "$(kernel_count lost_routes)" -gt 0 ] || fail "packets that were dropped for want of a route are counted nowhere"

# A route in the place of ours, or before it, is another program's: it stays, and is told. Once it is gone, ours is back.
# stays_and_is_told WHAT FAMILY ACTION ROUTE...
stays_and_is_told() {
    local what=$1 family=$2 action=$3 code=0
    shift 3
    ip -n "$SPACE" "-$family" route "$action" "$@"
    until_true 3 "$what is told" told || tartan node1 pods || true
    tartan node1 pods >"$SCRATCH/pods" || code=$?
    equal "exit code of pods" 1 "$code"
    grep -q faulty "$SCRATCH/pods" || fail "pods does not say faulty: $(cat "$SCRATCH/pods")"
    # Each refresh looks again, and so does one that another damage brings.
    meddle_mac
    [ -n "$(ip -n "$SPACE" "-$family" route show "$@")" ] || fail "$what was removed"
    ip -n "$SPACE" "-$family" route delete "$@"
    until_true 3 "$what is told no longer" untold || true
    until_true "$SECONDS_TO_REPAIR" "the pod's route is back after $what" as_before || diff <(echo "$BEFORE") <(facts) || true
}

has_mac() {
    grep -q "ether $1" <<<"$(ip -n "$SPACE" link show dev "$VETH")"
}

meddle_mac() {
    local mac
    mac=$(ip -n "$SPACE" -j link show dev "$VETH" | jq -r '.[0].address')
    ip -n "$SPACE" link set "$VETH" address 02:00:00:00:00:68
    until_true "$SECONDS_TO_REPAIR" "the MAC is put back" has_mac "$mac" || true
}

for FAMILY in $(families "$INSIDE"); do
    ADDRESS=$(address_of pod1 "$FAMILY")
    stays_and_is_told "a route in the place of a pod's, IPv$FAMILY" "$FAMILY" replace "$ADDRESS" dev tartan0
    # The least metric of IPv4 is that of ours.
    [ "$FAMILY" = 4 ] || stays_and_is_told "a route in front of a pod's, IPv$FAMILY" "$FAMILY" add "$ADDRESS" dev tartan0 metric 1
done
reached "after other programs' routes"

# A damaged record leads nothing to its pod that is not a pod's.
RECORD=$(grep -l "\"$VETH\"" "$LAB_STATE"/node1/run/tartan/attachments/*.json)
cp "$RECORD" "$SCRATCH/record"

routes() {
    ip -n "$SPACE" route show table main | sort
    ip -n "$SPACE" -6 route show table main | sort
}

# damage FILTER: in the record. The agent sees a file that takes its place.
damage() {
    jq -c "$1" "$SCRATCH/record" >"$SCRATCH/damaged"
    mv "$SCRATCH/damaged" "$RECORD"
}

stranded() {
    local pods
    pods=$(agent_json node1 pods) || true
    jq -e --arg veth "$VETH" 'any(.pods[]; .host_ifname == $veth and .state == "stranded")' <<<"$pods" >/dev/null
}

ROUTES=$(routes)
for FAMILY in $(families "$INSIDE"); do
    ADDRESS=$(address_of pod1 "$FAMILY") EVERYTHING=0.0.0.0/0 ROUTER=192.0.2.254/32
    [ "$FAMILY" = 4 ] || EVERYTHING=::/0 ROUTER=2001:db8::fe/128
    damage ".allowed_sources = [\"$EVERYTHING\"]"
    until_true 3 "a record that allows everything is told" told || tartan node1 pods || true
    meddle_mac
    equal "routes, with a record that allows $EVERYTHING" "$ROUTES" "$(routes)"
    damage ".addresses |= map(if startswith(\"$ADDRESS/\") then \"$ROUTER\" else . end)"
    until_true 3 "a pod with the address of a router is stranded" stranded || tartan node1 pods || true
    meddle_mac
    equal "routes, with a record that has $ROUTER" "$ROUTES" "$(routes)"
done
damage .
until_true 3 "a whole record is told no longer" untold || true
reached "at the end"
law_one node1
