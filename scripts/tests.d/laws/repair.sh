#!/usr/bin/env bash
# What another program removes or changes on a node is put back within two seconds and counted: address, routes, MTU and
# settings of the tunnel device, and of the host's side of a pod's link the routes, neighbours, MAC, MTU, alias and
# settings. What the pod sends meanwhile as itself is never counted as forged. A route of another program in the place
# of a pod's, or in front of it, is reported and stays; once it is gone, the pod's is put back. A broken list of nodes
# is refused with its line and the reason, while traffic goes on by the old one; a repaired list is adopted.
# labs: registry=file
# full: run=default|full
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

SPACE=$PREFIX-node1
NODES_FILE=$LAB_STATE/node1/nodes.toml
LINK=$(agent_json node1 pods | jq -r --arg address "$(address_of pod1)" \
    '.pods[] | select(any(.addresses[]; startswith($address + "/"))).host_ifname')
# The address of a node more.
NINE=$([ "$OUTSIDE" = v6 ] && echo 2001:db8:192::9 || echo 192.0.2.9)

# Of the node's tunnel device and of pod1's link.
state() {
    local device family
    for device in tartan0 "$LINK"; do
        ip -n "$SPACE" -o address show dev "$device" | sed 's/ valid_lft.*//'
        for family in "${FAMILIES[@]}"; do
            ip -n "$SPACE" "-$family" route show table all dev "$device" | grep -v 'proto kernel'
            ip -n "$SPACE" "-$family" neigh show dev "$device" nud permanent
        done | sort
        ip -n "$SPACE" -j link show dev "$device" |
            jq -c '.[0] | [.mtu, .address, .ifalias, (.flags | index("UP") != null)]'
        in_ns node1 sh -c "cd /proc/sys/net && grep . ip*/conf/$device/accept_redirects ip*/conf/$device/forwarding \
            ipv4/conf/$device/rp_filter ipv4/conf/$device/send_redirects \
            ipv4/conf/$device/accept_local ipv4/conf/$device/arp_ignore \
            ipv6/conf/$device/accept_ra ipv6/conf/$device/disable_ipv6"
    done
    ip -n "$SPACE" route show type unreachable
    ip -n "$SPACE" -6 route show type unreachable
    in_ns node1 sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding
}

is_put_back() {
    [ "$(state)" = "$BEFORE" ]
}

repairs() {
    agent_json node1 status | jq .repairs
}

has_repaired() {
    [ "$(repairs)" -gt "$1" ]
}

# kernel_count COUNTER
kernel_count() {
    agent_json node1 drops | jq --arg counter "$1" '[.kernel[] | select(.counter == $counter).count] | add // 0'
}

traffic() {
    local family to
    for family in "${FAMILIES[@]}"; do
        to=$(address_of pod3 "$family")
        equal "pings to $to $1" "3 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$to" 3 0.02 3)"
    done
}

# damage DEVICE: what is done to it, a line each: a command of ip, or a setting.
damage() {
    local family address
    for family in "${FAMILIES[@]}"; do
        if [ "$1" = tartan0 ]; then
            ip -n "$SPACE" -j address show dev tartan0 | jq -r --argjson family "$family" '.[].addr_info[]
                | select((.family == "inet6") == ($family == 6) and .scope == "global")
                | "address delete \(.local)/\(.prefixlen) dev tartan0"'
            ip -n "$SPACE" "-$family" route show dev tartan0 scope all |
                awk '/proto 116/ { print "route delete", $1, "dev tartan0" }'
            ip -n "$SPACE" "-$family" route show type unreachable | sed -n 's/^/route delete /;$p'
        else
            address=$(address_of pod1 "$family")
            echo "route delete $address dev $1"
            echo "neigh replace $address lladdr 02:00:00:00:00:66 dev $1 nud permanent"
            echo "neigh delete $address dev $1"
        fi
    done
    echo "link set $1 mtu 1300"
    # Not its MAC too, which others_route() changes: a link of another name and MAC is another program's.
    if [ "$1" = "$LINK" ]; then echo "link set $1 alias another"; fi
    printf '%s\n' "net.ipv4.conf.$1.rp_filter=2" "net.ipv4.conf.$1.forwarding=0" "net.ipv4.conf.$1.accept_redirects=1" \
        net.ipv4.ip_forward=0
    if [[ ${FAMILIES[*]} = *6* ]]; then
        printf '%s\n' net.ipv6.conf.all.forwarding=0 "net.ipv6.conf.$1.accept_ra=2" "net.ipv6.conf.$1.disable_ipv6=1"
    fi
    echo "link set $1 down"
}

do_damage() {
    case $1 in
    net.*) in_ns node1 sysctl -q -w "$1" ;;
    # A command before it may have had the same effect.
    *) eval "ip -n $SPACE $1" 2>/dev/null || [ -z "${FULL:-}" ] || say "no effect: $1" ;;
    esac
}

# put_back WHAT DAMAGE...: all of it is.
put_back() {
    local what=$1 before one
    shift
    before=$(repairs)
    for one; do do_damage "$one"; done
    until_true 2 "$what is put back" is_put_back || diff <(echo "$BEFORE") <(state) || true
    until_true 5 "$what: the status counts a repair" has_repaired "$before" || true
}

# In the default run all of it at once.
everything_is_put_back() {
    local device one damages
    for device in tartan0 "$LINK"; do
        mapfile -t damages < <(damage "$device")
        put_back "all of $device (${#damages[@]} damages)" "${damages[@]}"
        traffic "after it"
        [ -n "${FULL:-}" ] || continue
        for one in "${damages[@]}"; do put_back "$one" "$one"; done
        traffic "after each"
    done
}

# Its own packets, while the way back is gone.
own_packets_are_not_forged() {
    local family forged turn speakers=()
    forged=$(kernel_count forged_sources)
    for family in "${FAMILIES[@]}"; do
        start_in pod1 ping -n -q -i 0.005 -W 1 "$(address_of pod2 "$family")" >/dev/null
        speakers+=("$PID")
    done
    for ((turn = 0; turn < ${FULL:+7}+3; turn++)); do
        for family in "${FAMILIES[@]}"; do
            ip -n "$SPACE" "-$family" route delete "$(address_of pod1 "$family")" dev "$LINK"
        done
        until_true 2 "the routes, turn $turn" is_put_back || true
    done
    for PID in "${speakers[@]}"; do stop "$PID" INT; done
    equal "a pod's own packets, booked as forged" 0 "$(($(kernel_count forged_sources) - forged))"
    [ "$(kernel_count lost_routes)" -gt 0 ] || fail "packets that were dropped for want of a route are counted nowhere"
}

# is_reported YES|NO: what `pods` and `status` say of the link.
is_reported() {
    local pods status
    pods=$(agent_json node1 pods |
        jq --arg link "$LINK" '[.pods[] | select(.host_ifname == $link and .fault)] | length')
    status=$(agent_json node1 status | jq '[.problems[] | select(.code == "pod-link")] | length')
    [ "$pods $status" = "$1 $1" ]
}

# others_route FAMILY replace|add METRIC...
others_route() {
    local family=$1 address code=0
    address=$(address_of pod1 "$family")
    ip -n "$SPACE" "-$family" route "$2" "$address" dev tartan0 "${@:3}"
    until_true 3 "another's route ($*) is reported" is_reported 1 || tartan node1 pods || true
    tartan node1 pods >"$SCRATCH/pods" || code=$?
    equal "exit code of pods" 1 "$code"
    grep -q faulty "$SCRATCH/pods" || fail "pods does not say faulty: $(cat "$SCRATCH/pods")"
    # Another damage brings a look at all of the link.
    do_damage "link set $LINK address 02:00:00:00:00:68"
    until_true 2 "the MAC is put back" has_no_such_mac || true
    [ -n "$(ip -n "$SPACE" "-$family" route show "$address" dev tartan0)" ] || fail "another's route was removed"
    ip -n "$SPACE" "-$family" route delete "$address" dev tartan0 "${@:3}"
    until_true 3 "another's route is reported no longer" is_reported 0 || true
    until_true 2 "the pod's route is back" is_put_back || diff <(echo "$BEFORE") <(state) || true
}

has_no_such_mac() {
    ! grep -q 02:00:00:00:00:68 <<<"$(ip -n "$SPACE" link show dev "$LINK")"
}

has_problem() {
    agent_json node1 status | jq -e --arg text "$1" 'any(.problems[]; (.sentence + ": " + .remedy) | contains($text))'
}

# refused WHAT LINE WORD: the list in place is refused, with its line and a word of the reason.
refused() {
    local code=0
    until_true 3 "$1 is refused" has_problem "$3" || tartan node1 status || true
    tartan node1 status >"$SCRATCH/status" || code=$?
    equal "exit code of status: $1" 1 "$code"
    [[ $(head -n 1 "$SCRATCH/status") == "PROBLEM: "*"line $2"* ]] ||
        fail "$1: the first line is no problem of line $2: $(head -n 1 "$SCRATCH/status")"
    equal "peers: $1" 2 "$(agent_json node1 peers | jq '.peers | length')"
    traffic "with $1"
}

# list SUBNETS: with one node more, written as an editor saves it.
list() {
    printf '%s\n\n[[node]]\nname = "node9"\n%s\npublic-ip = "%s"\n' "$(<"$SCRATCH/good")" "$1" "$NINE" \
        >"$NODES_FILE.new"
    mv "$NODES_FILE.new" "$NODES_FILE"
}

put_list() {
    cat "$SCRATCH/good" >"$NODES_FILE"
    until_true 5 "the list of before is adopted" has_peers 2
}

has_peers() {
    [ "$(agent_json node1 peers | jq '.peers | length')" = "$1" ]
}

lists() {
    local line
    cp "$NODES_FILE" "$SCRATCH/good"
    undo put_list
    line=$(($(wc -l <<<"$(<"$SCRATCH/good")") + 4))
    list 'subnet = ["10.244.9.0/24"]'
    refused "an unknown key" "$line" subnet
    list "$(grep '^subnets' "$SCRATCH/good" | sed -n 2p)"
    refused "a subnet of two nodes" "$line" node2
    case $INSIDE in
    v4) list 'subnets = ["10.244.9.0/24"]' ;;
    v6) list 'subnets = ["fd00:10:244:9::/64"]' ;;
    dual) list 'subnets = ["10.244.9.0/24", "fd00:10:244:9::/64"]' ;;
    esac
    until_true 3 "the repaired list is adopted" has_peers 3
    until_true 3 "no problem is left" no_problem node1 || true
    grep -qE "/(24|64) +node9 +$NINE" <<<"$(tartan node1 routes)" ||
        fail "no route of the new peer: $(tartan node1 routes)"
    traffic "with the repaired list"
}

BEFORE=$(state)
everything_is_put_back
own_packets_are_not_forged
for FAMILY in "${FAMILIES[@]::${FULL:+1}+1}"; do others_route "$FAMILY" replace; done
# The least metric of IPv4 is that of ours.
[[ ${FAMILIES[*]} != *6* ]] || others_route 6 add metric 1
if [ "$REGISTRY" = file ]; then lists; fi
