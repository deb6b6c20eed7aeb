# shellcheck shell=bash
# The underlay: a bridge in a namespace of its own and a veth to every host on it. Sourced by scripts/lab.
#
#   PREFIX-net   br0 ── node1 ─veth─ eth0   PREFIX-node1     192.0.2.1     2001:db8:192::1
#                    ├─ node2 ─veth─ eth0   PREFIX-node2     192.0.2.2     2001:db8:192::2
#                    └─ mallory ─veth─ eth0 PREFIX-mallory   192.0.2.250   2001:db8:192::250

underlay_up() {
    local node
    add_namespace net
    # The bridge stands for a wire, which says nothing itself.
    without_ipv6 net
    without_bridge_firewall net
    ip -n "$PREFIX-net" link add br0 mtu "$UNDERLAY_MTU" type bridge stp_state 0 mcast_snooping 0
    ip -n "$PREFIX-net" link set br0 up
    for node in $(node_numbers); do
        underlay_host "node$node" "$node"
    done
    underlay_host mallory 250
}

underlay_host() {
    local name=$1 number=$2 net=$PREFIX-net host=$PREFIX-$1 family no_dad
    add_namespace "$name"
    ip -n "$net" link add "$name" mtu "$UNDERLAY_MTU" type veth peer name eth0 mtu "$UNDERLAY_MTU" netns "$host"
    ip -n "$net" link set "$name" master br0 up
    sysctl_in "$name" net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
    for family in $(outside); do
        no_dad=
        if [ "$family" = 6 ]; then no_dad=nodad; fi
        # shellcheck disable=SC2086
        ip -n "$host" address add "$(underlay_address "$number" "$family")/${UNDERLAY_BITS[$family]}" dev eth0 $no_dad
    done
    ip -n "$host" link set eth0 up
    underlay_offloads "$net" "$name"
    underlay_offloads "$host" eth0
    # A network card's receiver merges; the bridge stands for the wire and does not.
    if [ "$UNDERLAY" = wire ]; then quiet_ethtool "$host" eth0 gro on; fi
}

# What a packet may still carry unfinished when it leaves this end. The bridge's ends send towards the
# nodes, so they are cut down like the nodes' own.
underlay_offloads() {
    case $UNDERLAY in
    offload) ;;
    no-tunnel) quiet_ethtool "$1" "$2" tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off ;;
    wire)
        quiet_ethtool "$1" "$2" tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off \
            tx-udp-segmentation off tx-checksumming off
        ;;
    esac
}

# ethtool tells on stdout what it changed besides; that is no news here.
quiet_ethtool() {
    local space=$1 device=$2
    shift 2
    ip netns exec "$space" ethtool -K "$device" "$@" >/dev/null
}

add_namespace() {
    make_namespace "$PREFIX-$1"
    quiet_ipv6 "$1"
    ip -n "$PREFIX-$1" link set lo up
}

# What an IPv6 host says by itself would be counted with what a test sends. No host here asks for a router or
# about a duplicate, or believes another to be a router; group reports, which nothing switches off, are sent at once.
quiet_ipv6() {
    local key settings=()
    for key in accept_ra=0 autoconf=0 accept_dad=0 dad_transmits=0 router_solicitations=0 \
        mldv1_unsolicited_report_interval=10 mldv2_unsolicited_report_interval=10; do
        settings+=("net.ipv6.conf.default.$key")
    done
    sysctl_in "$1" "${settings[@]}"
}

without_ipv6() {
    sysctl_in "$1" net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
}

# Where the host's kernel has br_netfilter, a bridge takes what it forwards through IP's firewall hooks unless a
# setting turns it off (net.bridge.bridge-nf-call-iptables is 1 in every new namespace). No switch does.
without_bridge_firewall() {
    local key
    for key in arptables iptables ip6tables; do
        if [ -e "/proc/sys/net/bridge/bridge-nf-call-$key" ]; then sysctl_in "$1" "net.bridge.bridge-nf-call-$key=0"; fi
    done
}

# The namespaces' inodes, noted while they have names: a process that stays in one after its name is
# gone is found by them.
note_namespaces() {
    local space
    # shellcheck disable=SC2034 # lab_namespaces reads it
    if [ -e "$STATE/namespaces" ]; then LAB_NAMESPACES=$(cat "$STATE/namespaces"); fi
    NAMESPACE_INODES=$(for space in $(lab_namespaces); do stat -L -c %i "/run/netns/$space"; done)
}

# Ends what still runs in the lab's namespaces, politely first, then removes them.
namespaces_down() {
    local space
    end_processes TERM 20
    end_processes KILL 50
    for space in $(lab_namespaces); do
        ip netns delete "$space"
    done
}

# $1 signal, $2 how many tenths of a second to wait for the end
end_processes() {
    local wait pids
    pids=$(lab_processes)
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086
    kill -"$1" $pids 2>/dev/null || true
    for ((wait = 0; wait < $2; wait++)); do
        [ -n "$(lab_processes)" ] || return 0
        sleep 0.1
    done
}

# Every process whose network namespace is one of the lab's. (A process may end while it is looked at.)
lab_processes() {
    [ -n "$NAMESPACE_INODES" ] || return 0
    { stat -c %N /proc/[0-9]*/ns/net 2>/dev/null || true; } |
        awk -F"'" -v inodes="${NAMESPACE_INODES//$'\n'/ }" '
            BEGIN { split(inodes, list, " "); for (i in list) ours["net:[" list[i] "]"] }
            $4 in ours { split($2, path, "/"); print path[3] }'
}
