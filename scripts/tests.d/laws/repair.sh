#!/usr/bin/env bash
# What another program removes or changes on a node is put back within two seconds and counted: address, routes, MTU,
# settings of the tunnel device, and of a pod's link routes, neighbours, MAC, MTU, alias, settings. What the pod sends
# meanwhile is never counted as forged. A route of another program in the place of a pod's, or in front of it, is
# reported and stays; once it is gone, the pod's is put back. A broken list of nodes is refused with its line and the
# reason, while traffic goes on by the old one; a repaired list is adopted.
# labs: registry=file

SPACE=$PREFIX-node1
NODES_FILE=$LAB_STATE/node1/nodes.toml
LINK=$(agent_json node1 pods | jq -r --arg address "$(address_of pod1)" \
    '.pods[] | select(any(.addresses[]; startswith($address + "/"))).host_ifname')

# Of the node's tunnel device and of pod1's link.
state() {
    local device family
    for device in tartan0 "$LINK"; do
        for family in "${FAMILIES[@]}"; do
            ip -n "$SPACE" "-$family" route show table all dev "$device" | grep -v 'proto kernel'
            ip -n "$SPACE" "-$family" neigh show dev "$device" nud permanent
            ip -n "$SPACE" "-$family" route show type unreachable
        done | sort
        ip -n "$SPACE" -j address show dev "$device" | jq -c '.[0] | [.mtu, .address, .ifalias,
            (.flags | index("UP") != null), ([.addr_info[] | "\(.local)/\(.prefixlen) \(.scope)"] | sort)]'
        in_ns node1 bash -c "cd /proc/sys/net && grep . ip*/conf/$device/{accept_redirects,forwarding} \
            ipv4/conf/$device/{rp_filter,send_redirects,accept_local,arp_ignore} \
            ipv6/conf/$device/{accept_ra,disable_ipv6}"
    done
    in_ns node1 sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding
}

# put_back WHAT
put_back() {
    until_true 2 "$1 is put back" prints "$BEFORE" state || diff <(echo "$BEFORE") <(state) || true
}

# said COMMAND FILTER: of node1.
said() {
    agent_json node1 "$1" | jq "$2"
}

traffic() {
    local family to
    for family in "${FAMILIES[@]}"; do
        to=$(address_of pod3 "$family")
        equal "pings to $to $1" "3 received" "$(in_ns pod1 python3 "$TOOLS/pings.py" "$to" 3 0.02 20)"
    done
}

# damage DEVICE: commands of ip, and settings, all of it at once. (agent/tests/host/repair.rs does each by itself.)
damage() {
    local family address repairs one damages=()
    for family in "${FAMILIES[@]}"; do
        if [ "$1" = tartan0 ]; then
            damages+=("-$family address flush dev tartan0 scope global" "-$family route flush dev tartan0 proto 116"
                "-$family route flush type unreachable proto 116")
        else
            address=$(address_of pod1 "$family")
            # Not its MAC too, which others_route() changes: a link of another name and MAC is another program's.
            damages+=("neigh delete $address dev $1" "route delete $address dev $1" "link set $1 alias another")
        fi
    done
    damages+=("link set $1 mtu 1300" "net.ipv4.conf.$1.rp_filter=2" "net.ipv4.conf.$1.forwarding=0"
        "net.ipv4.conf.$1.accept_redirects=1" net.ipv4.ip_forward=0)
    if [[ ${FAMILIES[*]} = *6* ]]; then
        damages+=(net.ipv6.conf.all.forwarding=0 "net.ipv6.conf.$1.accept_ra=2" "net.ipv6.conf.$1.disable_ipv6=1")
    fi
    repairs=$(said status .repairs) done=0
    for one in "${damages[@]}" "link set $1 down"; do
        case $one in
        net.*) in_ns node1 sysctl -q -w "$one" ;;
        # A command before it may have had the same effect.
        *) if eval "ip -n $SPACE $one" 2>"$SCRATCH/refused"; then done=$((done + 1)); else cat "$SCRATCH/refused"; fi ;;
        esac
    done
    [ "$done" -ge 3 ] || fail "only $done of these damages were done: ${damages[*]}"
    put_back "all of $1"
    until_true 5 "the status counts a repair" prints true said status ".repairs > $repairs" || true
    traffic "after it"
}

# What `pods` and `status` say of the link.
reported() {
    echo "$(said pods "[.pods[] | select(.host_ifname == \"$LINK\" and .fault)] | length") $(
        said status '[.problems[] | select(.code == "pod-link")] | length')"
}

# others_route FAMILY replace|add METRIC...
others_route() {
    local family=$1 address
    address=$(address_of pod1 "$family")
    ip -n "$SPACE" "-$family" route "$2" "$address" dev tartan0 "${@:3}"
    until_true 3 "another's route ($*) is reported" prints "1 1" reported || tartan node1 pods || true
    if tartan node1 pods >"$SCRATCH/pods"; then fail "exit code 0 of pods"; fi
    grep -q faulty "$SCRATCH/pods" || fail "pods does not say faulty: $(cat "$SCRATCH/pods")"
    # Another damage brings a look at all of the link.
    ip -n "$SPACE" link set "$LINK" address 02:00:00:00:00:68
    until_true 2 "the MAC is put back" prints "$MAC" in_ns node1 cat "/sys/class/net/$LINK/address" || true
    [ -n "$(ip -n "$SPACE" "-$family" route show "$address" dev tartan0)" ] || fail "another's route was removed"
    ip -n "$SPACE" "-$family" route delete "$address" dev tartan0 "${@:3}"
    until_true 3 "another's route is reported no longer" prints "0 0" reported || true
    put_back "the pod's route"
}

# list TEXT: the list of nodes with one more, of that subnet; written as an editor saves it.
list() {
    printf '%s\n\n[[node]]\nname = "node9"\n%s\npublic-ip = "%s"\n' "$GOOD" "$1" "$NINE" >"$NODES_FILE.new"
    mv "$NODES_FILE.new" "$NODES_FILE"
}

# The line of the error, and a word of the reason.
is_refused() {
    ! tartan node1 status >"$SCRATCH/status" &&
        [[ $(head -n 1 "$SCRATCH/status") == "PROBLEM: "*"line $(($(wc -l <<<"$GOOD") + 4))"*subnet* ]]
}

BEFORE=$(state)
MAC=$(in_ns node1 cat "/sys/class/net/$LINK/address")
damage tartan0
damage "$LINK"

# Its own packets, while the way back is gone.
FORGED='[.kernel[] | select(.counter == "forged_sources").count] | add // 0'
BOOKED=$(said drops "$FORGED")
for FAMILY in "${FAMILIES[@]}"; do
    start_in pod1 ping -n -q -i 0.005 -W 1 "$(address_of pod2 "$FAMILY")" >/dev/null
done
for _ in 1 2 3; do
    for FAMILY in "${FAMILIES[@]}"; do
        POD1=$(address_of pod1 "$FAMILY")
        ip -n "$SPACE" "-$FAMILY" route delete "$POD1" dev "$LINK"
        in_ns node1 ip neigh replace "$POD1" lladdr 02:00:00:00:00:66 dev "$LINK" nud permanent
    done
    put_back "the pod's route and its neighbour entry"
done
for PID in "${STARTED[@]}"; do stop "$PID" INT; done
equal "a pod's own packets, booked as forged" "$BOOKED" "$(said drops "$FORGED")"
equal "packets that were dropped for want of a route are counted" true \
    "$(said drops '[.kernel[] | select(.counter == "lost_routes").count] | add > 0')"

others_route "${FAMILIES[0]}" replace
# The least metric of IPv4 is that of ours.
[[ ${FAMILIES[*]} != *6* ]] || others_route 6 add metric 1

GOOD=$(<"$NODES_FILE")
NINE=$([ "$OUTSIDE" = v6 ] && echo 2001:db8:192::9 || echo 192.0.2.9)
cp "$NODES_FILE" "$SCRATCH"
undo cp "$SCRATCH/nodes.toml" "$NODES_FILE"
list 'subnet = ["10.244.9.0/24"]'
until_true 3 "an unknown key is refused" is_refused || tartan node1 status || true
equal "peers" 2 "$(said peers '.peers | length')"
traffic "with the broken list"
# The subnets of node3, with another number.
list "$(grep '^subnets' <<<"$GOOD" | sed -n '3s/244\([.:]\)3/244\19/gp')"
until_true 3 "the repaired list is adopted" prints 3 said peers '.peers | length'
grep -qE "/(24|64) +node9 +$NINE" <<<"$(tartan node1 routes)" || fail "no route: $(tartan node1 routes)"
traffic "with the repaired list"
