#!/usr/bin/env bash
# flannel's DirectRouting in a mixed cluster: a flannel node sends to nodes on its own link past the overlay, and Tartan
# encapsulates. What comes so is dropped by a strict reverse-path filter, an error, or checked by no node, which
# is a warning: status and log name the flannel nodes. With a loose filter packets pass both ways.
# labs: third=kernel-vxlan outside=dual kernel-path=off
# last: it starts the agent's service anew
. "$TOOLS/faults.sh"

# direct NODE, overlay NODE: node3's routes there, as flanneld's where a node's address needs no gateway (DirectRouting,
# pkg/backend/vxlan/vxlan_network.go) and else. An IPv6 gateway must not be reached by the other route.
direct() {
    in_ns node3 ip route replace "10.244.$1.0/24" via "192.0.2.$1"
    in_ns node3 ip route replace "fd00:10:244:$1::/64" via "2001:db8:192::$1"
}

overlay() {
    in_ns node3 ip route replace "10.244.$1.0/24" via "10.244.$1.0" dev flannel.1 onlink
    in_ns node3 ip route del "fd00:10:244:$1::/64"
    in_ns node3 ip route add "fd00:10:244:$1::/64" via "fd00:10:244:$1::" dev flannel-v6.1 onlink
}

# reverse_path_filter NODE DEVICE VALUE
reverse_path_filter() {
    undo in_ns "$1" sysctl -q -w "net/ipv4/conf/$2/rp_filter=$(in_ns "$1" sysctl -n "net/ipv4/conf/$2/rp_filter")"
    in_ns "$1" sysctl -q -w "net/ipv4/conf/$2/rp_filter=$3"
}

# answered FROM TO FAMILY COUNT: so many of three echo requests are.
answered() {
    equal "answers from $2 to $1, IPv$3" "$4 received" \
        "$(in_ns "$1" python3 "$TOOLS/pings.py" "$(address_of "$2" "$3")" 3 0.1 $(($4 > 0 ? 20 : 1)))"
}

for NODE in node1 node3; do reverse_path_filter "$NODE" all 0; done
for DEVICE in eth0 flannel.1; do reverse_path_filter node3 "$DEVICE" 2; done
reverse_path_filter node1 eth0 1
answered pod5 pod1 4 3
LOGGED=$(wc -l <"$LAB_STATE/node1/log")
for NODE in 1 2; do fault "direct $NODE" "overlay $NODE"; done
fault "net_conf node1 '.Backend.DirectRouting = true'" "net_conf node1" \
    "node1 direct-routing-filtered node3|rp_filter of eth0 is 1|IPv4|sysctl -w net.ipv4.conf.eth0.rp_filter=2|flannel.1"
found node1
until_true 5 "the log says it" sh -c "tail -n +$LOGGED $LAB_STATE/node1/log | grep 'rp_filter of eth0 is 1'"
equal "severity, and whether node2 is named" "error false" \
    "$(agent_json node1 status | jq -r '.problems[] | "\(.severity) \(.sentence | contains("node2"))"')"
answered pod5 pod1 4 0
answered pod5 pod1 6 3
reverse_path_filter node1 eth0 2
BEGAN=$SECONDS
EXPECTED=("node1 direct-routing node3|not checked")
found node1
equal "severity" warning "$(agent_json node1 status | jq -r '.problems[].severity')"
for FAMILY in 4 6; do
    answered pod5 pod1 "$FAMILY" 3
    answered pod1 pod5 "$FAMILY" 3
    answered pod1 pod3 "$FAMILY" 3
done
no_more
found node1
