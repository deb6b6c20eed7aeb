#!/usr/bin/env bash
# Tartan takes the place of a stopped flannel on a node, and gives it back. The node has the kernel's VXLAN devices as
# flannel leaves them, and a pod on the bridge of the stock CNI plugin. While packets run both ways, Tartan takes the
# devices' names, MACs and port. No peer is told of it: what they know of the node is the same to the byte.
#
#   pod1 ── cni0 ── node1 kernel, then tartan, then kernel ══ vxlan ══╦══ node2 tartan ── pod2
#                                                                     ╚══ node3 kernel ── pod3
#
# replace_flannel.sh INSIDE REGISTRY, as in scripts/lab up; etcd and kubernetes have the node's record as flanneld wrote
# it alone: with --full a gap of packets is measured
# case: dual etcd
# full: v4 kubernetes
# full: dual file
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

INSIDE=$1
REGISTRY=$2
ENV_FILE=$LAB_STATE/node1/run/flannel/subnet.env
LOG=$LAB_STATE/node1/log
# At 50 a second: 100 ms for the swap. The way back is a stop and a clean-up, two commands.
MOST_LOST_SWAP=5
MOST_LOST_BACK=100
read -ra FAMILIES <<<"$(families "$INSIDE")"

# node1 as flannel leaves it: no trace of Tartan, flannel's subnet.env, devices, record and rules, a pod on the stock
# plugin's bridge.
flannel_node() {
    local result
    lab detach node1
    lab stop node1
    cp "$ENV_FILE" "$SCRATCH/subnet.env"
    tartan node1 cleanup >/dev/null || fail "tartan cleanup on node1 ended with code $?"
    mkdir -p "$(dirname "$ENV_FILE")"
    cp "$SCRATCH/subnet.env" "$ENV_FILE"
    result=$(stock ADD node1 pod1) || die "the stock plugin on node1 says: $result"
    jq -r '"pod1 node1 \([.ips[].address | split("/")[0]] | join(" "))"' <<<"$result" >>"$LAB_STATE/pods"
    [ "$REGISTRY" = file ] || registry write 1
    lab flannel node1
    follow
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

# The kernel nodes learn what the registry says.
follow() {
    [ "$REGISTRY" = file ] || registry follow
}

# What the registry holds of node1, byte by byte; what the kernel of a peer knows of the others, and a Tartan peer of
# node1.
known_to_peers() {
    local family device
    case $REGISTRY in
    etcd) etcdctl get "$(record_of 1 | jq -r .key)" --print-value-only ;;
    kubernetes) kube list | jq -S '.items[] | select(.metadata.name == "node1").metadata.annotations' ;;
    esac
    follow
    for family in "${FAMILIES[@]}"; do
        device=flannel.1
        if [ "$family" = 6 ]; then device=flannel-v6.1; fi
        ip -n "$PREFIX-node3" neighbour show dev "$device"
        bridge -n "$PREFIX-node3" fdb show dev "$device"
        ip -n "$PREFIX-node3" "-$family" route show
        ip -n "$PREFIX-node2" "-$family" route show
    done
    agent_json node2 peers | jq -c '.peers[] | select(.public_ip == "192.0.2.1")
        | {name, public_ip, public_ipv6, vtep_mac, vtep_mac_v6, seen_vtep_mac, seen_vtep_mac_v6}'
}

unchanged() {
    same "what peers know $1" "$BEFORE" "$(known_to_peers)"
}

all_talk() {
    local family pod
    for family in "${FAMILIES[@]}"; do
        for pod in pod2 pod3; do
            until_true 10 "$pod reaches pod1, IPv$family" in_ns $pod ping -q -c 1 -W 1 "$(address_of pod1 "$family")"
            until_true 10 "pod1 reaches $pod, IPv$family" in_ns pod1 ping -q -c 1 -W 1 "$(address_of $pod "$family")"
        done
    done
}

# across MOST CMD...: datagrams and a connection to each peer in each family while the command does its work; no byte of
# a connection is lost, and of each path at most so many datagrams.
across() {
    local most=$1 family peer port=5000 address senders=() receivers=()
    shift
    for family in "${FAMILIES[@]}"; do
        for peer in pod2 pod3; do
            port=$((port + 1))
            address=$(address_of $peer "$family")
            start_in $peer python3 "$TOOLS/bulk.py" receive "$address" $port >"$SCRATCH/received $port"
            receivers+=("$PID")
            start_in pod1 python3 "$TOOLS/bulk.py" send "$address" $port $((1 << 30)) 200000 >"$SCRATCH/sent $port"
            senders+=("$PID")
            steady pod1 $peer "$family"
            steady $peer pod1 "$family"
        done
    done
    until_true 10 "pod1 has ${#senders[@]} connections" connected ${#senders[@]}
    "$@"
    kill -TERM "${senders[@]}"
    for PID in "${senders[@]}" "${receivers[@]}"; do wait "$PID" || fail "a connection across $*"; done
    same "bytes and sha256 of each connection" "$(cat "$SCRATCH/sent "*)" "$(cat "$SCRATCH/received "*)"
    none_lost "$most" measured_at_most
}

# connected COUNT: and each of them has carried something.
connected() {
    [ "$(in_ns pod1 ss -Htni state established 'dport > 5000 and dport < 5010' | grep -c bytes_acked)" = "$1" ]
}

# kind_of DEVICE: of node1, the kernel's word.
kind_of() {
    ip -n "$PREFIX-node1" -d -j link show dev "$1" 2>/dev/null | jq -r '.[0].linkinfo.info_kind'
}

# Everything of flannel's is gone that Tartan takes, and nothing else.
place_is_taken() {
    equal "device flannel.1 of node1" tun "$(kind_of flannel.1)"
    equal "VXLAN devices of node1" '' "$(ip -n "$PREFIX-node1" link show type vxlan)"
    equal "nft tables of node1" 'table ip operators-own' "$(in_ns node1 nft list tables | grep -e flannel -e own)"
    same "subnet.env" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
    unchanged "after the swap"
    grep -q 'took the place of the VXLAN device flannel.1 that flannel left, VTEP MAC 02:00:5e:10:00:01' "$LOG" ||
        fail "the log does not say what was taken"
}

# routes PREFIX...: those of node1 to it that do not lead to Tartan's device.
routes() {
    ip -n "$PREFIX-node1" route show "$@"
}

is_gone() {
    [ -z "$(routes "$1")" ]
}

# Routes of DirectRouting go; what another program set, or leads to no peer, stays.
routes_past_the_overlay() {
    ip -n "$PREFIX-node1" route add 10.244.9.0/24 via 192.0.2.2 dev eth0
    ip -n "$PREFIX-node1" route add 10.244.3.0/24 via 192.0.2.3 dev eth0 metric 50 proto static
    ip -n "$PREFIX-node1" route add 10.244.2.0/24 via 192.0.2.2 dev eth0
    until_true 5 "flannel's route to node2 is gone" is_gone 10.244.2.0/24
    grep -q 'removed the route 10.244.2.0/24 via 192.0.2.2 dev eth0, which flannel left' "$LOG" ||
        fail "the log does not say what was removed"
    equal "a route to no peer's subnet" '10.244.9.0/24 via 192.0.2.2 dev eth0 ' "$(routes 10.244.9.0/24)"
    equal "another program's route" '10.244.3.0/24 via 192.0.2.3 dev eth0 proto static metric 50 ' \
        "$(routes 10.244.3.0/24)"
    ip -n "$PREFIX-node1" route delete 10.244.9.0/24
    ip -n "$PREFIX-node1" route delete 10.244.3.0/24
    [ -n "$(routes 10.244.1.0/24 dev cni0)" ] || fail "the route to cni0 is gone"
}

# after WHAT CMD...: there is another service, and all pods talk.
after() {
    local pid
    pid=$(service_pid node1)
    "${@:2}"
    until_true 10 "the next service after $1" next_service "$pid"
    all_talk
}

next_service() {
    agent_json node1 status | jq -e --argjson before "$1" '.service_pid != $before and .snapshot_adopted'
}

# The MAC is in the packets alone, so nothing on the host changes it: a restart, the loss of the device, udev's habit to
# give new links another address.
mac_stays() {
    after "a kill" kill -KILL "$(service_pid node1)"
    after "the loss of the device" ip -n "$PREFIX-node1" link delete flannel.1
    if ip -n "$PREFIX-node1" link set flannel.1 address 02:00:00:00:00:99 2>/dev/null; then
        fail "the device has a hardware address"
    fi
    unchanged "after all that"
}

give_back() {
    local outcome
    lab stop node1
    outcome=$(tartan node1 cleanup) || fail "tartan cleanup ended with code $?: $outcome"
    lab flannel node1
}

lab_up --nodes 3 --registry "$REGISTRY" --inside "$INSIDE" --outside "$INSIDE" --peer kernel-vxlan
flannel_node
all_talk
answering pod1 pod2 pod3
BEFORE=$(known_to_peers)
mkdir -p "$LAB_STATE/node1/etc/tartan"
printf 'replace-flannel = true\ndevice-name = "flannel.1"\n' >"$LAB_STATE/node1/etc/tartan/tartan.toml"
across $MOST_LOST_SWAP lab start node1
place_is_taken
no_findings
all_talk
routes_past_the_overlay
mac_stays
law_one node1
law_one node2
say "the way back, and once more"
across $MOST_LOST_BACK give_back
equal "device flannel.1 of node1" vxlan "$(kind_of flannel.1)"
same "subnet.env after the way back" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
equal "routes with Tartan's protocol number" '' "$(ip -n "$PREFIX-node1" route show proto 116)"
unchanged "in the end"
all_talk
across $MOST_LOST_SWAP lab start node1
no_findings
law_one node1
