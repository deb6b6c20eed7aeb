# shellcheck shell=bash
# The pods: on a Tartan node attached by tartan-cni as a container runtime would, on a kernel node by
# plain commands that give the same picture. Sourced by scripts/lab.
#
#   PREFIX-podK  eth0 10.244.i.j/32, default via 169.254.1.1  ──veth──  PREFIX-nodeI, route 10.244.i.j/32
#
# STATE/pods has one line per pod: name, node, address.

pods_up() {
    local node pod
    : >"$STATE/pods"
    for node in $(node_numbers); do
        for pod in $(pod_numbers "$node"); do
            add_namespace "pod$pod"
            # Neighbour discovery and multicast reports would be packets that nobody sent on purpose.
            sysctl_in "pod$pod" net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
            case $(node_kind "$node") in
            tartan) pod_by_cni "$node" "$pod" ;;
            kernel-vxlan) pod_by_hand "$node" "$pod" ;;
            esac
        done
    done
}

pod_by_cni() {
    local node=$1 pod=$2 result address
    result=$(cni ADD "$node" "$pod") || die "tartan-cni ADD of pod$pod failed: $result
The log of node$node ends:
$(tail -n 15 "$STATE/node$node/log")"
    address=$(jq -r '.ips[0].address' <<<"$result")
    echo "pod$pod node$node ${address%/*}" >>"$STATE/pods"
}

# $1 verb, $2 node, $3 pod: the call that a container runtime makes (CNI specification, section 2).
cni() {
    printf '{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": "%s" }\n' "$STATE/node$2" |
        ip netns exec "$PREFIX-node$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-pod$3" \
            CNI_NETNS="/var/run/netns/$PREFIX-pod$3" CNI_IFNAME=eth0 CNI_PATH="$LAB_BIN" \
            CNI_ARGS="K8S_POD_NAMESPACE=lab;K8S_POD_NAME=$PREFIX-pod$3" "$LAB_BIN/tartan-cni"
}

pod_by_hand() {
    local node=$1 pod=$2 space=$PREFIX-pod$2 host=$PREFIX-node$1 address gateway
    address=10.244.$node.$((pod - (node - 1) * PODS + 1))
    ip -n "$host" link add "pod$pod" mtu $((UNDERLAY_MTU - 50)) type veth \
        peer name eth0 mtu $((UNDERLAY_MTU - 50)) netns "$space"
    ip -n "$host" link set "pod$pod" up
    ip -n "$host" route add "$address/32" dev "pod$pod" scope link
    gateway=$(ip -n "$host" -j link show "pod$pod" | jq -r '.[0].address')
    ip -n "$space" address add "$address/32" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" neighbour add 169.254.1.1 lladdr "$gateway" dev eth0 nud permanent
    ip -n "$space" route add 169.254.1.1 dev eth0 scope link
    ip -n "$space" route add default via 169.254.1.1 dev eth0
    ip -n "$host" neighbour add "$address" lladdr "$(ip -n "$space" -j link show eth0 | jq -r '.[0].address')" dev "pod$pod" nud permanent
    echo "pod$pod node$node $address" >>"$STATE/pods"
}

# Takes a pod off its node.
pod_down() {
    local name=$1 node=$2 answer
    case $(node_kind "${node#node}") in
    tartan)
        answer=$(cni DEL "${node#node}" "${name#pod}") || die "tartan-cni DEL of $name failed: $answer"
        ;;
    kernel-vxlan) ip -n "$PREFIX-$node" link delete "$name" ;;
    esac
}

# Takes every pod off its node. A failure is told and does not stop the rest: with the namespaces, whatever
# is left ends.
pods_down() {
    local name node
    [ -e "$STATE/pods" ] || return 0
    while read -r name node _; do
        [ -e "/run/netns/$PREFIX-$node" ] || continue
        (pod_down "$name" "$node") || true
    done <"$STATE/pods"
}
