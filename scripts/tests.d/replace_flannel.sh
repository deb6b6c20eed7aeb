#!/usr/bin/env bash
# Tartan takes the place of a stopped flanneld on a node, and gives it back. The node has the kernel's VXLAN devices as
# flannel leaves them, and pods on the bridge of the stock CNI plugin. While packets run both ways, Tartan takes the
# devices' names, MACs and port. No peer is told of it: what they know of the node is the same to the byte.
#
#   pod1 ── cni0 ── node1 kernel, then tartan, then kernel ══ vxlan ══╦══ node2 tartan ── pod2
#                                                                     ╚══ node3 kernel ── pod3
#
# replace_flannel.sh INSIDE REGISTRY, as in scripts/lab up; etcd and kubernetes have the node's record as flanneld wrote it
# alone: a gap of packets is measured
# case: dual etcd
# full: v4 kubernetes
# full: v4 file
# full: dual file
# full: v4 etcd
# full: dual kubernetes
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"
# shellcheck source=scripts/lab.d/addresses.sh
. "$SCRIPTS/lab.d/addresses.sh"
# shellcheck source=scripts/lab.d/kernel_vxlan.sh
. "$SCRIPTS/lab.d/kernel_vxlan.sh"
# shellcheck source=scripts/lab.d/registry.sh
. "$SCRIPTS/lab.d/registry.sh"
# shellcheck source=scripts/lab.d/etcd.sh
. "$SCRIPTS/lab.d/etcd.sh"
# shellcheck source=scripts/lab.d/kubernetes.sh
. "$SCRIPTS/lab.d/kubernetes.sh"

INSIDE=$1
KIND=$2
OUTSIDE=$INSIDE
# Of the lab's functions those that these files need. The test says itself what the kernel nodes know.
REGISTRY='file'
UNDERLAY_MTU=1500
LAB_HOME=$SCRIPTS
registry_in() { in_ns registry "$@"; }
node_numbers() { echo 1 2 3; }
node_kind() { if [ "$1" = 2 ]; then echo tartan; else echo kernel-vxlan; fi; }
sysctl_in() { ip netns exec "$PREFIX-$1" sysctl -q -w "${@:2}"; }

ENV_FILE=$LAB_STATE/node1/run/flannel/subnet.env
PINGS=300
# 100 ms at 20 ms a ping.
MOST_LOST=5
declare -A POD1
read -ra FAMILIES <<<"$(families "$INSIDE")"

# node1 as flannel leaves it: no trace of Tartan, flannel's subnet.env, devices and rules, a pod on the stock plugin's
# bridge; the others know its MACs.
flannel_node() {
    local family address result
    lab detach node1
    lab stop node1
    cp "$ENV_FILE" "$SCRATCH/subnet.env"
    tartan node1 cleanup >/dev/null || fail "tartan cleanup on node1 ended with code $?"
    mkdir -p "$(dirname "$ENV_FILE")"
    cp "$SCRATCH/subnet.env" "$ENV_FILE"
    result=$(stock ADD node1 pod1) || die "the stock plugin on node1 says: $result"
    for address in $(jq -r '.ips[].address | split("/")[0]' <<<"$result"); do
        case $address in
        *:*) POD1[6]=$address ;;
        *) POD1[4]=$address ;;
        esac
    done
    kernel_vxlan_up 1
    record_of_flannel
    in_ns node1 nft -f - <<'NFT'
table ip flannel-ipv4 {
    chain postrtg {
        type nat hook postrouting priority srcnat;
        ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
        ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
        ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
    }
}
table ip6 flannel-ipv6 {
    chain forward { type filter hook forward priority filter; }
}
table ip operators-own {
    chain postrtg { }
}
NFT
}

# What flanneld has written of node1, with the MACs of its devices.
record_of_flannel() {
    local lease family
    case $KIND in
    file)
        entry_of_node1 1
        entry_of_node1 2
        for family in "${FAMILIES[@]}"; do
            kernel_vxlan_peer 3 "$(pod_subnet 1 "$family")" "$(vtep_mac 1 "$family")" "$(underlay_address 1 "$family")" "$family"
        done
        ;;
    etcd)
        lease=$(etcdctl lease grant 86400 | awk '{ print $2 }')
        etcdctl put --lease="$lease" "$(etcd_key 1)" "$(etcd_kernel_lease 1)" >/dev/null
        ;;
    kubernetes) kubernetes_kernel_annotations 1 | kubernetes_nodes annotate node1 ;;
    esac
    follow
}

# The kernel node learns what the registry says.
follow() {
    [ "$KIND" = file ] || lab registry follow
}

# The record of node1 byte by byte, where the registry has one.
record() {
    case $KIND in
    file) ;;
    etcd) etcdctl get "$(etcd_key 1)" --print-value-only ;;
    kubernetes)
        kubernetes_nodes list |
            jq -S '.items[] | select(.metadata.name == "node1").metadata.annotations
                | with_entries(select(.key | startswith("flannel.")))'
        ;;
    esac
}

# entry_of_node1 NODE: its list of nodes has node1's MACs.
entry_of_node1() {
    local list=$LAB_STATE/node$1/nodes.toml lines=$SCRATCH/lines family key=vtep-mac
    for family in "${FAMILIES[@]}"; do
        printf '%s = "%s"\n' "$key" "$(vtep_mac 1 "$family")"
        key=vtep-mac-v6
    done >"$lines"
    sed "/^name = \"node1\"$/r $lines" "$list" >"$SCRATCH/nodes.toml"
    cat "$SCRATCH/nodes.toml" >"$list"
}

configure() {
    mkdir -p "$LAB_STATE/node1/etc/tartan"
    printf 'replace-flannel = true\ndevice-name = "flannel.1"\n' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
}

# What a peer's kernel knows of the other nodes, and a Tartan peer of node1.
known_to_peers() {
    local family device
    record
    follow
    for family in "${FAMILIES[@]}"; do
        device=$(kernel_vxlan_name "$family")
        ip -n "$PREFIX-node3" neighbour show dev "$device"
        bridge -n "$PREFIX-node3" fdb show dev "$device"
        ip -n "$PREFIX-node3" "-$family" route show
        ip -n "$PREFIX-node2" "-$family" route show
    done
    agent_json node2 peers | jq -c '.peers[] | select(.public_ip == "192.0.2.1") | {name, public_ip, public_ipv6, vtep_mac, vtep_mac_v6, seen_vtep_mac, seen_vtep_mac_v6}'
}

talks() {
    in_ns "$1" ping "-$3" -q -c 1 -W 1 "$2"
}

everybody_talks() {
    local family
    for family in "${FAMILIES[@]}"; do
        until_true 10 "pod2 reaches pod1, IPv$family" talks pod2 "${POD1[$family]}" "$family"
        until_true 10 "pod3 reaches pod1, IPv$family" talks pod3 "${POD1[$family]}" "$family"
        until_true 10 "pod1 reaches pod2, IPv$family" talks pod1 "$(address_of pod2 "$family")" "$family"
        until_true 10 "pod1 reaches pod3, IPv$family" talks pod1 "$(address_of pod3 "$family")" "$family"
    done
}

# across WHAT CMD...: pings and a connection in each direction and family run while the command does its work.
across() {
    local what=$1 family peer name received began server servers=()
    local -A ping=() stream=()
    shift
    for family in "${FAMILIES[@]}"; do
        for peer in pod2 pod3; do
            start_in "$peer" python3 "$TOOLS/stream.py" serve "$(address_of "$peer" "$family")" "500$family"
            servers+=("$PID")
            start_in pod1 python3 "$TOOLS/stream.py" talk "$(address_of "$peer" "$family")" "500$family" 6 \
                >"$SCRATCH/stream $peer $family" 2>&1
            stream["$peer $family"]=$PID
            start_in pod1 python3 "$TOOLS/pings.py" "$(address_of "$peer" "$family")" "$PINGS" 0.02 2 \
                >"$SCRATCH/pod1 to $peer, IPv$family"
            ping["pod1 to $peer, IPv$family"]=$PID
            start_in "$peer" python3 "$TOOLS/pings.py" "${POD1[$family]}" "$PINGS" 0.02 2 \
                >"$SCRATCH/$peer to pod1, IPv$family"
            ping["$peer to pod1, IPv$family"]=$PID
        done
    done
    for name in "${!stream[@]}"; do until_true 10 "a connection to $name" grep -q connected "$SCRATCH/stream $name"; done
    sleep 0.5
    began=$(clock)
    "$@"
    say "$what: took $((($(clock) - began) * 10)) ms until ready"
    for name in "${!ping[@]}"; do
        wait "${ping[$name]}" || fail "pings of $name"
        received=$(cut -d ' ' -f 1 "$SCRATCH/$name")
        measured_at_most "$what: pings lost of $PINGS, $name" "$MOST_LOST" $((PINGS - received))
    done
    for name in "${!stream[@]}"; do
        if wait "${stream[$name]}"; then
            say "$what: connection of pod1 to $name: $(tail -n 1 "$SCRATCH/stream $name")"
        else
            fail "$what: connection of pod1 to $name: $(tail -n 1 "$SCRATCH/stream $name")"
        fi
    done
    for server in "${servers[@]}"; do stop "$server"; done
}

# kind_of NODE DEVICE: the kernel's word.
kind_of() {
    ip -n "$PREFIX-$1" -d -j link show dev "$2" 2>/dev/null | jq -r '.[0].linkinfo.info_kind'
}

tables_of() {
    in_ns node1 nft list tables | grep -e flannel -e own | sort
}

# Everything of flannel's is gone that Tartan takes, and nothing else.
place_is_taken() {
    equal "device flannel.1 of node1" tun "$(kind_of node1 flannel.1)"
    if [ "$INSIDE" = dual ]; then equal "device flannel-v6.1 of node1" '' "$(kind_of node1 flannel-v6.1)"; fi
    equal "nft tables of node1" 'table ip operators-own' "$(tables_of)"
    same "subnet.env" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
    same "what peers know" "$BEFORE" "$(known_to_peers)"
    grep -q "took the place of the VXLAN device flannel.1 that flannel left, VTEP MAC $(vtep_mac 1 4)" "$LAB_STATE/node1/log" ||
        fail "the log does not say what was taken"
    equal "VXLAN devices of node1" '' "$(ip -n "$PREFIX-node1" link show type vxlan)"
}

# bypasses PREFIX: the routes of node1 to it that do not lead to Tartan's device.
bypasses() {
    ip -n "$PREFIX-node1" route show "$1"
}

is_gone() {
    [ -z "$(bypasses "$1")" ]
}

# Routes of DirectRouting go; what another program set, or leads to no peer, stays.
routes_past_the_overlay() {
    ip -n "$PREFIX-node1" route add 10.244.9.0/24 via 192.0.2.2 dev eth0
    ip -n "$PREFIX-node1" route add 10.244.3.0/24 via 192.0.2.3 dev eth0 metric 50 proto static
    ip -n "$PREFIX-node1" route add 10.244.2.0/24 via 192.0.2.2 dev eth0
    until_true 5 "flannel's route to node2 is gone" is_gone 10.244.2.0/24
    grep -q 'removed the route 10.244.2.0/24 via 192.0.2.2 dev eth0, which flannel left' "$LAB_STATE/node1/log" ||
        fail "the log does not say what was removed"
    equal "a route to no peer's subnet" '10.244.9.0/24 via 192.0.2.2 dev eth0 ' "$(bypasses 10.244.9.0/24)"
    equal "another program's route" '10.244.3.0/24 via 192.0.2.3 dev eth0 proto static metric 50 ' "$(bypasses 10.244.3.0/24)"
    ip -n "$PREFIX-node1" route delete 10.244.9.0/24
    ip -n "$PREFIX-node1" route delete 10.244.3.0/24
    [ -n "$(ip -n "$PREFIX-node1" route show 10.244.1.0/24 dev cni0)" ] || fail "the route to cni0 is gone"
}

# The MAC is in the packets alone, so nothing on the host changes it: a restart, the loss of the device, udev's habit to
# give new links another address.
mac_stays() {
    local pid
    pid=$(service_pid node1)
    kill -KILL "$pid"
    until_true 10 "the next service" next_service "$pid"
    everybody_talks
    pid=$(service_pid node1)
    ip -n "$PREFIX-node1" link delete flannel.1
    until_true 10 "a new device after its deletion" next_service "$pid"
    everybody_talks
    if ip -n "$PREFIX-node1" link set flannel.1 address 02:00:00:00:00:99 2>/dev/null; then
        fail "the device has a hardware address"
    fi
    everybody_talks
    same "what peers know after all that" "$BEFORE" "$(known_to_peers)"
}

next_service() {
    local pid
    pid=$(service_pid node1)
    [ "$pid" != "$1" ] && [ "$pid" != null ] && [ -n "$pid" ]
}

# The way back: Tartan stops, cleans up, and flanneld makes its devices, with the MAC of its lease.
give_back() {
    local outcome
    lab stop node1
    outcome=$(tartan node1 cleanup) || fail "tartan cleanup ended with code $?: $outcome"
    kernel_vxlan_up 1
}

say "Tartan in flannel's place: $INSIDE, registry $KIND"
lab_up --nodes 3 --backend vxlan --registry "$KIND" --inside "$INSIDE" --outside "$OUTSIDE" --peer kernel-vxlan
flannel_node
everybody_talks
BEFORE=$(known_to_peers)
configure
across "the swap" lab start node1
place_is_taken
no_findings
everybody_talks
routes_past_the_overlay
mac_stays
law_one node1
law_one node2

say "the way back"
# A stop and a clean-up are two commands; what they take is lost.
MOST_LOST=100 across "the way back" give_back
equal "device flannel.1 of node1" vxlan "$(kind_of node1 flannel.1)"
same "subnet.env after the way back" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
same "what peers know in the end" "$BEFORE" "$(known_to_peers)"
equal "routes with Tartan's protocol number" '' "$(ip -n "$PREFIX-node1" route show proto 116)"
everybody_talks

say "once more"
across "the second swap" lab start node1
no_findings
everybody_talks
law_one node1
