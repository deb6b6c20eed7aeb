#!/usr/bin/env bash
# A flannel node whose VXLAN device was made anew, with another MAC, as at each reboot with etcd. It discards what is sent
# to the MAC that its lease had, and nobody counts that. Tartan says it within seconds, names node, both MACs and what to
# do, and says nothing more when the lease is right again.
#
#   pod1 ── node1, tartan ══ vxlan ══ node2, kernel ── pod2
#
# vtep_mac.sh INSIDE, as in scripts/lab up
# case: dual
# full: v4
# full: v6
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

INSIDE=$1
NEW_MAC=0a:5e:00:00:00:77
NODES=$LAB_STATE/node1/nodes.toml

device_of() {
    case $1 in
    4) echo flannel.1 ;;
    6) echo flannel-v6.1 ;;
    esac
}

# The problem's subject, sentence and remedy in one line; nothing without it.
problem() {
    agent_json node1 status | jq -r '.problems[] | select(.code == "vtep-mac-changed") | "\(.subject): \(.sentence): \(.remedy)"'
}

shows_problem() {
    [ -n "$(problem)" ]
}

shows_none() {
    [ -z "$(problem)" ]
}

# What `tartan peers -o json` says that the frames of the peer come with, in a family.
seen_mac() {
    local field=seen_vtep_mac
    if [ "$1" = 6 ]; then field=seen_vtep_mac_v6; fi
    agent_json node1 peers | jq -r ".peers[] | select(.name == \"node2\") | .$field"
}

# Datagrams from pod2, which keep arriving whatever the MAC.
speak() {
    in_ns pod2 ping "-$1" -q -c 2 -i 0.1 -W 1 "$(address_of pod1 "$1")" >/dev/null || true
}

answers() {
    in_ns pod1 ping "-$1" -q -c 1 -W 1 "$(address_of pod2 "$1")"
}

# renew FAMILY MAC: node2's device is made anew with that MAC, as flannel does it (scripts/lab.d/kernel_vxlan.sh).
renew() {
    local family=$1 mac=$2 space=$PREFIX-node2 device near far gateway subnet mtu options='' no_dad=''
    device=$(device_of "$family")
    case $family in
    4) near=10.244.2.0/32 gateway=10.244.1.0 subnet=10.244.1.0/24 ;;
    6)
        near=fd00:10:244:2::/128 gateway=fd00:10:244:1:: subnet=fd00:10:244:1::/64 no_dad=nodad
        options='noudp6zerocsumtx noudp6zerocsumrx'
        ;;
    esac
    mtu=$(ip -n "$space" -j link show dev "$device" | jq '.[0].mtu')
    far=$(vtep_mac_of node1 "$family")
    ip -n "$space" link delete "$device"
    # shellcheck disable=SC2086
    ip -n "$space" link add "$device" address "$mac" mtu "$mtu" type vxlan id 1 dev eth0 \
        local "$(underlay_of node2 "$family")" dstport 8472 nolearning $options
    # shellcheck disable=SC2086
    ip -n "$space" address add "$near" dev "$device" $no_dad
    ip -n "$space" link set "$device" up
    ip -n "$space" neighbour replace "$gateway" lladdr "$far" dev "$device" nud permanent
    bridge -n "$space" fdb replace "$far" dev "$device" dst "$(underlay_of node1 "$family")" self permanent
    ip -n "$space" route replace "$subnet" via "$gateway" dev "$device" onlink
}

# lease FROM TO: the list of nodes says so.
lease() {
    sed "s/$1/$2/" "$NODES" >"$SCRATCH/nodes.toml"
    cat "$SCRATCH/nodes.toml" >"$NODES"
}

prove() {
    local family=$1 old said
    old=$(vtep_mac_of node2 "$family")
    say "IPv$family"
    until_true 5 "an answer from pod2" answers "$family"
    equal "problem beforehand" "" "$(problem)"
    equal "MAC beforehand" null "$(seen_mac "$family")"
    renew "$family" "$NEW_MAC"
    speak "$family"
    until_true 5 "the problem shows" shows_problem || return 0
    said=$(problem)
    say "$said"
    for part in node2 "$old" "$NEW_MAC" vtep-mac; do
        case $said in
        *"$part"*) ;;
        *) fail "the problem does not name $part" ;;
        esac
    done
    equal "MAC that is seen" "$NEW_MAC" "$(seen_mac "$family")"
    # It goes when the list says what is so.
    lease "$old" "$NEW_MAC"
    until_true 5 "the problem goes with the lease" shows_none
    until_true 5 "an answer from pod2 under the new MAC" answers "$family"
    equal "MAC afterwards" null "$(seen_mac "$family")"
    # Or when the node is as the list says.
    renew "$family" "$old"
    speak "$family"
    until_true 5 "the problem shows again" shows_problem
    lease "$NEW_MAC" "$old"
    until_true 5 "the problem goes" shows_none
    renew "$family" "$NEW_MAC"
    speak "$family"
    until_true 5 "the problem shows once more" shows_problem
    renew "$family" "$old"
    speak "$family"
    until_true 5 "the problem goes with the node" shows_none
    until_true 5 "an answer from pod2 in the end" answers "$family"
}

say "a VTEP MAC that is not the lease's: $INSIDE"
lab_up --nodes 2 --backend vxlan --inside "$INSIDE" --outside "$INSIDE" --peer kernel-vxlan
for family in $(families "$INSIDE"); do prove "$family"; done
law_one node1
