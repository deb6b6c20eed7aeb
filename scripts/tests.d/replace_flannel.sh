#!/usr/bin/env bash
# Tartan takes the place of a stopped flannel on a node, and gives it back. The node has the kernel's VXLAN devices as
# flannel leaves them, and a pod on the bridge of the stock CNI plugin. While packets run both ways, Tartan takes the
# devices' names, MACs and port. No peer is told of it: what they know of the node is the same to the byte.
#
#   pod1 ── cni0 ── node1 kernel, then tartan, then kernel ══ vxlan ══╦══ node2 tartan ── pod2
#                                                                     ╚══ node3 kernel ── pod3
#
# replace_flannel.sh INSIDE REGISTRY, as in scripts/lab up; the registry has the node's record as flanneld wrote it
# alone: with --full a gap of packets is measured
# case: dual etcd
# full: v4 kubernetes
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/stock.sh"
. "$TOOLS/registry.sh"

INSIDE=$1
REGISTRY=$2
ROOT=$LAB_STATE/node1
ENV_FILE=$ROOT/run/flannel/subnet.env
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
    registry write 1
    lab flannel node1
    in_ns node1 nft 'table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority srcnat; }; }
        table ip6 flannel-ipv6 { chain forward { type filter hook forward priority filter; }; }
        table ip operators-own { chain postrtg { }; }'
}

# What the registry holds of node1, byte by byte; what the kernel of a peer knows of the others, and a Tartan peer of
# node1.
known_to_peers() {
    local family device
    case $REGISTRY in
    etcd) etcdctl get "$(record_of 1 | jq -r .key)" --print-value-only ;;
    kubernetes) api GET /node1 | jq '.metadata.annotations | to_entries | sort | from_entries' ;;
    esac
    registry follow
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

# across MOST CMD...: datagrams in each family and a connection to each peer while the command does its work; no byte of
# a connection is lost, and of each path at most so many datagrams.
across() {
    local most=$1 family peer
    shift
    begin_transfer pod1 pod2 "${FAMILIES[0]}" $((1 << 30)) 200000
    begin_transfer pod1 pod3 "${FAMILIES[-1]}" $((1 << 30)) 200000
    for family in "${FAMILIES[@]}"; do
        for peer in pod2 pod3; do
            steady pod1 $peer "$family"
            steady $peer pod1 "$family"
        done
    done
    until_true 10 "both connections carry something" prints 2 connected
    "$@"
    for peer in pod2 pod3; do
        kill -TERM "${SENDING[$peer]}"
        end_transfer pod1 $peer
    done
    none_lost "$most" measured_at_most
}

connected() {
    in_ns pod1 ss -Htni state established 'dport = 5003' | grep -c bytes_acked
}

# is_as_flannel_left TYPE: flannel's names of node1 are a device of that type and its file.
is_as_flannel_left() {
    equal "device flannel.1 of node1" "$1" \
        "$(ip -n "$PREFIX-node1" -d -j link show dev flannel.1 | jq -r '.[0].linkinfo.info_kind')"
    same "subnet.env" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
    unchanged "behind that"
    all_talk
}

log_says() {
    grep -qF "$1" "$ROOT/log" || fail "the log does not say '$1'"
}

# Everything of flannel's is gone that Tartan takes, and nothing else.
place_is_taken() {
    is_as_flannel_left tun
    equal "VXLAN devices of node1" '' "$(ip -n "$PREFIX-node1" link show type vxlan)"
    equal "nft tables of node1" 'table ip operators-own' "$(in_ns node1 nft list tables | grep -e flannel -e own)"
    log_says 'took the place of the VXLAN device flannel.1 that flannel left, VTEP MAC 02:00:5e:10:00:01'
}

is_gone() {
    [ -z "$(ip -n "$PREFIX-node1" route show "$1")" ]
}

# Routes of DirectRouting go; what another program set, or leads to no peer, stays.
routes_past_the_overlay() {
    local route
    local stay=("10.244.9.0/24 via 192.0.2.2 dev eth0" "10.244.3.0/24 via 192.0.2.3 dev eth0 proto static metric 50")
    # shellcheck disable=SC2086
    for route in "${stay[@]}" "10.244.2.0/24 via 192.0.2.2 dev eth0"; do ip -n "$PREFIX-node1" route add $route; done
    until_true 5 "flannel's route to node2 is gone" is_gone 10.244.2.0/24
    log_says 'removed the route 10.244.2.0/24 via 192.0.2.2 dev eth0, which flannel left'
    for route in "${stay[@]}"; do
        equal "a route that is not flannel's" "$route " "$(ip -n "$PREFIX-node1" route show "${route%% *}")"
        ip -n "$PREFIX-node1" route delete "${route%% *}"
    done
    [ -n "$(ip -n "$PREFIX-node1" route show 10.244.1.0/24 dev cni0)" ] || fail "the route to cni0 is gone"
}

# after WHAT CMD...: there is another service.
after() {
    local pid
    pid=$(service_pid node1)
    "${@:2}"
    until_true 10 "the next service after $1" next_service node1 "$pid"
}

give_back() {
    local outcome
    lab stop node1
    outcome=$(tartan node1 cleanup) || fail "tartan cleanup ended with code $?: $outcome"
    lab flannel node1
}

lab_up --nodes 3 --registry "$REGISTRY" --inside "$INSIDE" --outside "$INSIDE" --peer kernel-vxlan
flannel_node
registry follow
all_talk
answering pod1 pod2 pod3
BEFORE=$(known_to_peers)
mkdir -p "$ROOT/etc/tartan"
printf 'replace-flannel = true\ndevice-name = "flannel.1"\n' >"$ROOT/etc/tartan/tartan.toml"
# At 50 a second: 100 ms for the swap. The way back is a stop and a clean-up, two commands.
across 5 lab start node1
place_is_taken
no_findings
routes_past_the_overlay
# The MAC is in the packets alone, so nothing on the host changes it: a restart, the loss of the device.
after "a kill" kill -KILL "$(service_pid node1)"
after "the loss of the device" ip -n "$PREFIX-node1" link delete flannel.1
unchanged "after that"
all_talk
law_one node1
law_one node2
say "the way back"
across 100 give_back
is_as_flannel_left vxlan
equal "routes with Tartan's protocol number" '' "$(ip -n "$PREFIX-node1" route show proto 116)"
