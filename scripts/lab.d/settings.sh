# shellcheck shell=bash
# What a lab is made of: its options, names, addresses and places. Sourced by scripts/lab.

PREFIX=tt
NODES=2
PODS=1
BACKEND=vxlan
PEER=
CONTROL=
UNDERLAY=offload
WORKERS=
DEVICE=
DEVICE_TYPE=
KERNEL_PATH=
UNDERLAY_MTU=1500
INSIDE=v4
OUTSIDE=v4
REGISTRY='file'
ACQUIRE=
SECURE=
LISTED=0
# The number of the kernel node, if there is one; the numbers of nodes that have left.
KERNEL=
LEFT=' '
STATE=/run/tartan-lab/tt
REST=()

die() {
    echo "scripts/${0##*/}: $*" >&2
    exit 1
}

wrong() {
    echo "scripts/${0##*/}: $*" >&2
    exit 2
}

# What the options of `up` take: the least and the most of a number, or one of these words.
OPTIONS='--nodes 1..200
--pods 0..250
--backend udp vxlan
--peer kernel-vxlan
--workers 1..32
--device auto offload plain
--device-type auto tun tap
--kernel-path off stateless auto
--underlay offload no-tunnel wire
--underlay-mtu 576..9000
--inside v4 v6 dual
--outside v4 v6 dual
--listed 0..50000
--registry file etcd kubernetes
--prefix'

# Each sets the variable of its name.
parse_up() {
    local takes value
    while [ $# -gt 0 ]; do
        case $1 in
        --control | --direct) CONTROL=${1#--} ;;
        --acquire) ACQUIRE=1 ;;
        --secure) SECURE=1 ;;
        *)
            takes=$(awk -v name="$1" '$1 == name' <<<"$OPTIONS")
            [ -n "$takes" ] || wrong "up does not know '$1': see 'scripts/lab help'"
            takes=${takes#"$1"}
            [ $# -ge 2 ] || wrong "$1 needs a value"
            # shellcheck disable=SC2086
            case $takes in
            '') set_prefix "$2" ;;
            *..*) value=$(number "$1" "$2" ${takes%..*} "${takes#*..}") ;;
            *) value=$(one_of "$1" "$2" $takes) ;;
            esac
            [ -z "$takes" ] || printf -v "$(tr a-z- A-Z_ <<<"${1#--}")" %s "$value"
            shift
            ;;
        esac
        shift
    done
    [ -z "$PEER" ] || KERNEL=$NODES
    refuse_impossible
}

# What no set-up of these options could do.
refuse_impossible() {
    local family least=576 others=' or dual'
    if [ "$INSIDE" = dual ]; then others=; fi
    if [ -n "$CONTROL" ] && [ "$BACKEND" != vxlan ]; then
        wrong "--control is the kernel's VXLAN, --direct no overlay at all: they go with no other --backend"
    fi
    if [ "$CONTROL" = direct ] && [ -n "$PEER" ]; then
        wrong "--direct is every node without an overlay: it goes with no --peer"
    fi
    if [ "$LISTED" != 0 ] && { [ "$REGISTRY" != file ] || [ "$INSIDE$OUTSIDE" != v4v4 ] || [ -n "$CONTROL" ]; }; then
        wrong "--listed is about the list of nodes of IPv4 that agents read: it goes with --registry file," \
            "--inside v4 and --outside v4 alone"
    fi
    if [ "$REGISTRY" != etcd ] && [ -n "$ACQUIRE$SECURE" ]; then
        wrong "--acquire and --secure go with --registry etcd"
    fi
    if [ "$REGISTRY" != file ]; then
        [ -z "$CONTROL" ] ||
            wrong "--control and --direct have no agent that reads a registry: they go with no --registry $REGISTRY"
        for family in $(inside); do
            has "$family" "$(outside)" ||
                wrong "in a registry a node has a public address of each family that its pods have:" \
                "--inside $INSIDE needs --outside $INSIDE${others} there"
        done
    fi
    if [ "$REGISTRY" = etcd ] && [ "$INSIDE" = v6 ]; then
        wrong "flannel's keys in etcd have no place for a node without IPv4 pods: --registry etcd goes with" \
            "--inside v4 or dual"
    fi
    for family in $(inside); do
        if [ -n "$CONTROL$PEER" ] && ! has "$family" "$(outside)"; then
            wrong "a kernel node carries IPv$family over IPv$family alone, as flannel's do: --inside $INSIDE needs" \
                "--outside $INSIDE${others} there"
        fi
    done
    # The least MTU of an IPv6 link is 1280 (RFC 8200, section 5): the underlay's, and the tunnel's inside it.
    if has 6 "$(outside)"; then least=1280; fi
    if has 6 "$(inside)"; then
        for family in $(outside); do least=$((1280 + ${VXLAN_OVERHEAD[$family]})); done
    fi
    [ "$UNDERLAY_MTU" -ge "$least" ] ||
        wrong "--inside $INSIDE --outside $OUTSIDE needs an --underlay-mtu of at least $least"
}

# Takes --prefix out of the words before `--`; what is not it goes to REST.
parse_prefix() {
    REST=()
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix)
            [ $# -ge 2 ] || wrong "--prefix needs a value"
            set_prefix "$2"
            shift
            ;;
        --)
            REST+=("$@")
            return
            ;;
        *) REST+=("$1") ;;
        esac
        shift
    done
}

set_prefix() {
    [[ $1 =~ ^[a-z][a-z0-9]{0,7}$ ]] ||
        wrong "--prefix takes one to eight small letters and digits, a letter first, not '$1'"
    PREFIX=$1
    STATE=/run/tartan-lab/$PREFIX
}

number() {
    if ! [[ $2 =~ ^[0-9]{1,5}$ ]] || [ "$2" -lt "$3" ] || [ "$2" -gt "$4" ]; then
        wrong "$1 takes a number from $3 to $4, not '$2'"
    fi
    echo "$2"
}

# one_of OPTION VALUE WORD...
one_of() {
    has "$2" "${@:3}" || wrong "$1 takes one of: ${*:3}; not '$2'"
    echo "$2"
}

need_root() {
    [ "$(id -u)" = 0 ] || die "network namespaces need root: run it as root"
}

need_tools() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "'$tool' is missing: run scripts/install"
    done
}

find_binaries() {
    if [ -z "${LAB_BIN:-}" ]; then
        LAB_BIN=$REPOSITORY/target/fast
        have_binaries || "$LAB_HOME/build"
    fi
    LAB_BIN=$(readlink -f "$LAB_BIN")
    have_binaries || die "no tartan and tartan-cni in $LAB_BIN: run scripts/build, or set LAB_BIN"
}

have_binaries() {
    [ -x "$LAB_BIN/tartan" ] && [ -x "$LAB_BIN/tartan-cni" ]
}

save_settings() {
    declare -p NODES PODS BACKEND PEER CONTROL WORKERS DEVICE DEVICE_TYPE KERNEL_PATH UNDERLAY UNDERLAY_MTU \
        INSIDE OUTSIDE REGISTRY ACQUIRE SECURE LISTED KERNEL LEFT |
        sed 's/^declare --/declare -g --/' >"$STATE/settings"
    echo "declare -g -- LAB_BIN=\"${LAB_BIN:-}\"" >>"$STATE/settings"
}

load_settings() {
    [ -e "$STATE/settings" ] || die "there is no lab '$PREFIX': start it with 'scripts/lab up --prefix $PREFIX'"
    # shellcheck disable=SC1091
    . "$STATE/settings"
}

# Of the nodes that are there.
node_numbers() {
    local node
    for node in $(seq 1 "$NODES"); do
        [[ $LEFT == *" $node "* ]] || echo "$node"
    done
}

# Pods are numbered through: node i holds (i-1)*P+1 to i*P.
pod_numbers() {
    seq $((($1 - 1) * PODS + 1)) $(($1 * PODS))
}

# tartan, kernel-vxlan or direct
node_kind() {
    if [ "$CONTROL" = direct ]; then
        echo direct
    elif [ -n "$CONTROL" ] || [[ " $KERNEL " == *" $1 "* ]]; then
        echo kernel-vxlan
    else
        echo tartan
    fi
}

# Whether any node of this lab runs Tartan.
has_tartan() {
    [ "$(node_kind 1)" = tartan ]
}

# The names of the namespaces that this lab made and that still are the same: by the record of their numbers, not by the
# prefix alone. Whoever else has one of such a name keeps it.
lab_namespaces() {
    local name inode
    if [ -e "$STATE/namespaces" ]; then LAB_NAMESPACES=$(cat "$STATE/namespaces"); fi
    while read -r name inode; do
        if [ -n "$name" ] && is_namespace "$name" "$inode"; then echo "$name"; fi
    done <<<"${LAB_NAMESPACES:-}" | sort -u
}

# is_namespace NAME INODE: without a number, whether it exists: `up` ended between making it and noting its number.
is_namespace() {
    local now
    now=$(stat -L -c %i "/run/netns/$1" 2>/dev/null) || return 1
    [ -z "$2" ] || [ "$2" = "$now" ]
}

# make_namespace NAME: with its line in the record, which `down` goes by. An existing one is somebody else's.
make_namespace() {
    if [ -e "/run/netns/$1" ]; then
        die "the namespace $1 exists, and this lab did not make it: choose another --prefix"
    fi
    echo "$1" >>"$STATE/namespaces"
    ip netns add "$1"
    sed -i "s/^$1\$/$1 $(stat -L -c %i "/run/netns/$1")/" "$STATE/namespaces"
}

# Runs a command in the namespace of node, pod, mallory, registry or net. The variables make `tartan` reach a node's
# agent without --root, and etcdctl or kubectl the registry.
exec_in() {
    local name=$1 variables
    shift
    if [ -n "${LAB_BIN:-}" ]; then PATH=$LAB_BIN:$PATH; fi
    case $name in
    node*) ip netns exec "$PREFIX-$name" env TARTAN_ROOT="$STATE/$name" "$@" ;;
    registry)
        mapfile -t variables <"$STATE/registry/environment"
        ip netns exec "$PREFIX-$name" env "${variables[@]}" "$@"
        ;;
    *) ip netns exec "$PREFIX-$name" "$@" ;;
    esac
}
