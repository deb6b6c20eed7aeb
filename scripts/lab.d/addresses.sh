# shellcheck shell=bash
# The address plan: what every node, subnet and VTEP of a lab is called on the wire. Sourced by scripts/lab.
#
#              underlay              pod subnet             VTEP MAC of a kernel node
#   node i     192.0.2.i             10.244.i.0/24          02:00:5e:10:00:i   flannel.1
#              2001:db8:192::i       fd00:10:244:i::/64     02:00:5e:16:00:i   flannel-v6.1
#   mallory    192.0.2.250, 2001:db8:192::250
#   --listed   198.18.0.0 + k        10.0.0.0 + k subnets of 24 bits, so that the cluster's network is 10.0.0.0/8
#   registry   192.0.2.252, 2001:db8:192::252      with --registry etcd or kubernetes (registry.sh)
#   client     192.0.2.251, 2001:db8:192::251      with `services` (services.sh), which has its own addresses
#
# The digits of i are those of its IPv4 address in the underlay's addresses of both families, and hexadecimal in
# pod subnets and MACs. Families are called 4 and 6.

# The families of pods, and of the underlay.
inside() {
    families "$INSIDE"
}

outside() {
    families "$OUTSIDE"
}

families() {
    case $1 in
    v4) echo 4 ;;
    v6) echo 6 ;;
    dual) echo 4 6 ;;
    esac
}

# has FAMILY LIST...: whether it is one of them.
has() {
    [[ " ${*:2} " == *" $1 "* ]]
}

# By family: bits of one address, of the underlay's network, and what VXLAN costs of the underlay's MTU (IP, UDP, VXLAN
# and Ethernet headers).
# shellcheck disable=SC2034 # The others use them.
declare -rA HOST_BITS=([4]=32 [6]=128) UNDERLAY_BITS=([4]=24 [6]=64) VXLAN_OVERHEAD=([4]=50 [6]=70)
# The kernel's devices, as flannel calls them.
# shellcheck disable=SC2034 # The others use them.
declare -rA KERNEL_VXLAN=([4]=flannel.1 [6]=flannel-v6.1)

# $1 the number of a host on the underlay, $2 the family
underlay_address() {
    if [ "$2" = 4 ]; then echo "192.0.2.$1"; else echo "2001:db8:192::$1"; fi
}

cluster_network() {
    case $1$LISTED in
    40) echo 10.244.0.0/16 ;;
    4*) echo 10.0.0.0/8 ;;
    6*) echo fd00:10:244::/48 ;;
    esac
}

# The first address of a node's pod subnet, which its tunnel has.
tunnel_address() {
    if [ "$2" = 4 ]; then echo "10.244.$1.0"; else printf 'fd00:10:244:%x::\n' "$1"; fi
}

pod_subnet() {
    if [ "$2" = 4 ]; then echo "$(tunnel_address "$1" 4)/24"; else echo "$(tunnel_address "$1" 6)/64"; fi
}

# $1 node, $2 which address of its pod subnet, $3 family
subnet_address() {
    if [ "$3" = 4 ]; then echo "10.244.$1.$2"; else printf 'fd00:10:244:%x::%x\n' "$1" "$2"; fi
}

# The MAC that others send to for inner packets of family $2. A kernel device has one of the lab's choice, which
# the list of nodes names; a Tartan node's follows from its public address (docs/configure.md), for both families.
vtep_mac() {
    case $(node_kind "$1")$2 in
    tartan*) default_vtep_mac "$1" ;;
    kernel-vxlan4) printf '02:00:5e:10:00:%02x\n' "$1" ;;
    kernel-vxlan6) printf '02:00:5e:16:00:%02x\n' "$1" ;;
    esac
}

default_vtep_mac() {
    local hash
    if has 4 "$(outside)"; then
        printf '0a:74:c0:00:02:%02x\n' "$1"
    else
        # The octets of 2001:db8:192::$1.
        hash=$(fnv1a 0x20 0x01 0x0d 0xb8 0x01 0x92 0 0 0 0 0 0 0 0 $((0x$1 >> 8)) $((0x$1 & 255)))
        printf '0a:74:%02x:%02x:%02x:%02x\n' $((hash >> 24)) $((hash >> 16 & 255)) $((hash >> 8 & 255)) $((hash & 255))
    fi
}

# The 32-bit FNV-1a hash of octets.
fnv1a() {
    local hash=$((0x811c9dc5)) octet
    for octet in "$@"; do
        hash=$(((hash ^ octet) * 0x01000193 & 0xffffffff))
    done
    echo "$hash"
}
