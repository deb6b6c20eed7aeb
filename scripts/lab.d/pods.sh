# shellcheck shell=bash
# The pods: on a Tartan node attached by tartan-cni as a container runtime would, on a kernel node by
# plain commands that give the same picture. Sourced by scripts/lab.
#
#   PREFIX-podK  eth0 10.244.i.j/32, default via 169.254.1.1        ──veth──  PREFIX-nodeI, route 10.244.i.j/32
#                     fd00:10:244:i::j/128, default via fe80::1                             fd00:10:244:i::j/128
#
# STATE/pods has one line per pod: name, node, its addresses.

pods_up() {
    local node pod
    : >"$STATE/pods"
    for node in $(node_numbers); do
        for pod in $(pod_numbers "$node"); do pod_up "$node" "$pod"; done
    done
}

# $1 node, $2 pod
pod_up() {
    add_namespace "pod$2"
    # Neighbour discovery and multicast reports would be packets that no test sent.
    [ "$INSIDE" != v4 ] || without_ipv6 "pod$2"
    case $(node_kind "$1") in
    tartan) pod_by_cni "$1" "$2" ;;
    *) pod_by_hand "$1" "$2" ;;
    esac
}

pod_by_cni() {
    local node=$1 pod=$2 result
    result=$(cni ADD "$node" "$pod") || die "tartan-cni ADD of pod$pod failed: $result
The log of node$node ends:
$(tail -n 15 "$STATE/node$node/log")"
    echo "pod$pod node$node $(jq -r '[.ips[].address | split("/")[0]] | join(" ")' <<<"$result")" >>"$STATE/pods"
}

# $1 verb, $2 node, $3 pod: the call that a container runtime makes (CNI specification, section 2).
cni() {
    printf '{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": "%s" }\n' "$STATE/node$2" |
        ip netns exec "$PREFIX-node$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-pod$3" \
            CNI_NETNS="/var/run/netns/$PREFIX-pod$3" CNI_IFNAME=eth0 CNI_PATH="$LAB_BIN" \
            CNI_ARGS="K8S_POD_NAMESPACE=lab;K8S_POD_NAME=$PREFIX-pod$3" "$LAB_BIN/tartan-cni"
}

pod_by_hand() {
    local node=$1 pod=$2 space=$PREFIX-pod$2 host=$PREFIX-node$1 mtu address addresses='' family
    # As flannel's FLANNEL_MTU where there is IPv4; the kernel reports what is too large for its IPv6 device.
    mtu=$UNDERLAY_MTU
    if [ "$(node_kind "$node")" = kernel-vxlan ]; then
        family=$(inside)
        mtu=$((UNDERLAY_MTU - ${VXLAN_OVERHEAD[${family%% *}]}))
    fi
    ip -n "$host" link add "pod$pod" mtu "$mtu" type veth peer name eth0 mtu "$mtu" netns "$space"
    # No link-local address: the gateway's exists on no interface.
    sysctl_in "node$node" "net.ipv6.conf.pod$pod.addr_gen_mode=1"
    ip -n "$host" link set "pod$pod" up
    ip -n "$space" link set eth0 up
    for family in $(inside); do
        address=$(subnet_address "$node" $((pod - (node - 1) * PODS + 1)) "$family")
        pod_address "$node" "$pod" "$address" "$family"
        addresses+=" $address"
    done
    echo "pod$pod node$node$addresses" >>"$STATE/pods"
}

# Gives a pod of a kernel node one address, and makes both ends know each other.
pod_address() {
    local space=$PREFIX-pod$2 host=$PREFIX-node$1 device=pod$2 address=$3 family=$4 gateway=169.254.1.1 no_dad=''
    if [ "$family" = 6 ]; then
        gateway=fe80::1
        no_dad=nodad
    fi
    # shellcheck disable=SC2086
    ip -n "$space" address add "$address/${HOST_BITS[$family]}" dev eth0 $no_dad
    ip -n "$space" neighbour add "$gateway" lladdr "$(mac_of "$host" "$device")" dev eth0 nud permanent
    ip -n "$space" "-$family" route add default via "$gateway" dev eth0 onlink
    ip -n "$host" neighbour add "$address" lladdr "$(mac_of "$space" eth0)" dev "$device" nud permanent
    ip -n "$host" "-$family" route add "$address/${HOST_BITS[$family]}" dev "$device"
}

# $1 namespace, $2 device
mac_of() {
    ip -n "$1" -j link show "$2" | jq -r '.[0].address'
}

# pods_of NODE
pods_of() {
    awk -v node="$1" '$2 == node { print $1 }' "$STATE/pods"
}

# Takes a pod off its node.
pod_down() {
    local name=$1 node=$2 answer
    case $(node_kind "${node#node}") in
    tartan)
        answer=$(cni DEL "${node#node}" "${name#pod}") || die "tartan-cni DEL of $name failed: $answer"
        ;;
    *) ip -n "$PREFIX-$node" link delete "$name" ;;
    esac
}

# Takes every pod off its node. A failure is reported and does not stop the rest: with the namespaces, whatever
# is left ends.
pods_down() {
    local name node
    [ -e "$STATE/pods" ] || return 0
    while read -r name node _; do
        [ -e "/run/netns/$PREFIX-$node" ] || continue
        (pod_down "$name" "$node") || true
    done <"$STATE/pods"
}
