#!/usr/bin/env bash
# In a cluster of both families each has an MTU of its own, as with flannel: what the outer headers of that family
# leave. The pods' interfaces, the tunnel device and subnet.env have the larger, routes of the other family the smaller.
# A packet of that size with DF crosses to every node; one byte more, where the device takes it, is answered with
# packet-too-big and the MTU.
# labs: inside=dual outside=dual
# full: inside=dual
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# The file that flannel writes on node1 (pkg/subnet/subnet.go, WriteSubnetFile).
flannels_file() {
    printf '%s\n' FLANNEL_NETWORK=10.244.0.0/16 FLANNEL_SUBNET=10.244.1.1/24 FLANNEL_IPV6_NETWORK=fd00:10:244::/48 \
        FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64 "FLANNEL_MTU=${MTU[4]}" FLANNEL_IPMASQ=true
}

# route_mtu NAME FAMILY DESTINATION: the MTU that a route has of its own; that of the device where it has none.
route_mtu() {
    local route
    route=$(ip -n "$PREFIX-$1" -j "-$2" route show "$3" | jq -r '.[0] | "\(.dev) \(.metrics[0].mtu // 0)"')
    if [ "${route#* }" = 0 ]; then device_mtu "$1" "${route% *}"; else echo "${route#* }"; fi
}

device_mtu() {
    ip -n "$PREFIX-$1" -j link show dev "$2" | jq '.[0].mtu'
}

# steps FAMILY: the datagrams between pod1, its node and each other node's pod, as datagrams.py takes them.
steps() {
    local size=$((MTU[$1] - 28)) error="EMSGSIZE icmp 3/4 mtu ${MTU[$1]}" pod near far
    near=$(address_of pod1 "$1")
    if [ "$1" = 6 ]; then size=$((MTU[6] - 48)) error="EMSGSIZE icmp6 2/0 mtu ${MTU[6]}"; fi
    for pod in pod3 pod5; do
        far=$(address_of "$pod" "$1")
        echo "IPv$1 from pod1 to $pod|pod1||$far|$size|1|df|$pod|{\"received\":1,\"sent\":1}|"
        echo "IPv$1 from $pod to pod1|$pod||$near|$size|1|df|pod1|{}|"
        [ "${MTU[$1]}" -lt "${MTU[4]}" ] || continue
        # The kernel looks at the route for what it forwards, and not for what a process sends.
        echo "IPv$1 from pod1 to $pod, a byte too large|pod1||$far|$((size + 1))|1|df||{}|$error"
        echo "IPv$1 from node1 to $pod, a byte too large|node1||$far|$((size + 1))|1|df||$TOO_BIG|$error"
    done
}

TOO_BIG='{"TooBig":1,"delivered":1,"originated":1,"received":1}'
declare -A MTU
for FAMILY in 4 6; do MTU[$FAMILY]=$((UNDERLAY_MTU - $(overhead "$FAMILY"))); done
same "subnet.env" "$(flannels_file)" "$(cat "$LAB_STATE/node1/run/flannel/subnet.env")"
equal "MTU of the tunnel device and the pod's interface" "${MTU[4]} ${MTU[4]}" \
    "$(device_mtu node1 tartan0) $(device_mtu pod1 eth0)"
equal "MTU of the node's routes" "${MTU[4]} ${MTU[6]}" \
    "$(route_mtu node1 4 10.244.0.0/16) $(route_mtu node1 6 fd00:10:244::/48)"
equal "MTU of the pod's routes" "${MTU[4]} ${MTU[6]}" "$(route_mtu pod1 4 default) $(route_mtu pod1 6 default)"
for FAMILY in 4 6; do steps "$FAMILY"; done >"$SCRATCH/steps"
python3 "$TOOLS/datagrams.py" node1 <"$SCRATCH/steps" || fail "packets of and above the MTU"
