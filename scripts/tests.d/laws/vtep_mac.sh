#!/usr/bin/env bash
# A flannel node whose VXLAN device has another MAC than its lease, as at each reboot with etcd, discards what is sent to the
# old one, and nobody counts that. Once it sends something, Tartan shows node, both MACs and what to set; it shows nothing more
# when the node, or the lease, is right again. The node itself, where peers are probed, never is a problem.
# labs: third=kernel-vxlan kernel-path=off
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

NEW_MAC=0a:5e:00:00:00:77
LIST=$LAB_STATE/node1/nodes.toml

# mac_of_node3 FAMILY MAC: its device has that one. The kernel forgets a device's neighbours with its MAC.
mac_of_node3() {
    local device=flannel.1 node
    if [ "$1" = 6 ]; then device=flannel-v6.1; fi
    ip -n "$PREFIX-node3" link set "$device" address "$2"
    for node in 1 2; do
        if [ "$1" = 6 ]; then set -- 6 "$2" "fd00:10:244:$node::"; else set -- 4 "$2" "10.244.$node.0"; fi
        ip -n "$PREFIX-node3" neighbour replace "$3" lladdr "$(vtep_mac_of "node$node" "$1")" dev "$device" nud permanent
    done
}

# shown FAMILY MAC: after a packet of node3 the problem names node and both MACs; or, with null, there is none.
shown() {
    local field=seen_vtep_mac said part
    if [ "$1" = 6 ]; then field=seen_vtep_mac_v6; fi
    in_ns pod5 ping "-$1" -q -c 1 -W 0.2 "$(address_of pod1 "$1")" >/dev/null || true
    [ "$(agent_json node1 peers | jq -r ".peers[] | select(.name == \"node3\") | .$field")" = "$2" ] || return 1
    said=$(agent_json node1 status | jq -r '.problems[] | select(.code == "vtep-mac-changed") | "\(.subject): \(.sentence): \(.remedy)"')
    if [ "$2" = null ]; then [ -z "$said" ] || return 1; else
        for part in node3 "$2" "$(vtep_mac_of node3 "$1")" vtep-mac; do [[ $said == *"$part"* ]] || return 1; done
    fi
}

answers() {
    in_ns pod1 ping "-$1" -q -c 1 -W 1 "$(address_of pod5 "$1")"
}

# unproblematic: to the probes, which it does not answer, once it has sent something.
unproblematic() {
    answers "${FAMILIES[0]}" >/dev/null
    agent_json node1 peers | jq -e '.peers[] | select(.name == "node3").state | IN("new", "heard", "quiet")'
}

# lease FROM TO: the list of nodes says so.
lease() {
    sed "s/$1/$2/" "$LIST" >"$SCRATCH/nodes.toml"
    cat "$SCRATCH/nodes.toml" >"$LIST"
}

for FAMILY in "${FAMILIES[@]}"; do
    OLD_MAC=$(vtep_mac_of node3 "$FAMILY")
    undo mac_of_node3 "$FAMILY" "$OLD_MAC"
    until_true 5 "IPv$FAMILY: no problem beforehand" shown "$FAMILY" null
    mac_of_node3 "$FAMILY" "$NEW_MAC"
    until_true 5 "IPv$FAMILY: the problem with its words" shown "$FAMILY" "$NEW_MAC" || agent_json node1 status | jq -c .problems
    mac_of_node3 "$FAMILY" "$OLD_MAC"
    until_true 5 "IPv$FAMILY: it goes with the node" shown "$FAMILY" null
    until_true 5 "IPv$FAMILY: an answer from pod5" answers "$FAMILY"
    [ "$REGISTRY" = file ] || continue
    undo lease "$NEW_MAC" "$OLD_MAC"
    mac_of_node3 "$FAMILY" "$NEW_MAC"
    until_true 5 "IPv$FAMILY: the problem again" shown "$FAMILY" "$NEW_MAC"
    lease "$OLD_MAC" "$NEW_MAC"
    until_true 5 "IPv$FAMILY: it goes with the lease" shown "$FAMILY" null
    until_true 5 "IPv$FAMILY: an answer from pod5 under the new MAC" answers "$FAMILY"
    lease "$NEW_MAC" "$OLD_MAC"
    until_true 5 "IPv$FAMILY: and is back with the old lease" shown "$FAMILY" "$NEW_MAC"
    mac_of_node3 "$FAMILY" "$OLD_MAC"
    until_true 5 "IPv$FAMILY: until the node has its old MAC" shown "$FAMILY" null
done
if [ "${TARTAN_PROBE:-}" != false ]; then
    until_true 5 "node3 is no problem to the probes" unproblematic || agent_json node1 peers | jq -c '.peers[] | select(.name == "node3")'
fi
