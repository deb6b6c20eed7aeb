#!/usr/bin/env bash
# A flannel node whose VXLAN device has another MAC than its lease, as at each reboot with etcd, discards what is sent
# to the old one, and no counter has that. Once it sends something, Tartan shows node, both MACs and what to set; it
# shows nothing more when the node, or the lease, is right again.
# labs: third=kernel-vxlan kernel-path=off

NEW_MAC=0a:5e:00:00:00:77
LIST=$LAB_STATE/node1/nodes.toml

# device_has MAC: node3's of the family. The kernel forgets a device's neighbours with its MAC.
device_has() {
    local device=flannel.1
    if [ "$FAMILY" = 6 ]; then device=flannel-v6.1; fi
    {
        echo "link set $device address $1"
        ip -n "$PREFIX-node3" -j neighbour show dev "$device" nud permanent |
            jq -r ".[] | \"neighbour replace \(.dst) lladdr \(.lladdr) dev $device nud permanent\""
    } >"$SCRATCH/commands"
    ip -n "$PREFIX-node3" -b "$SCRATCH/commands"
}

lease_has() {
    sed -i "s/$OLD_MAC\|$NEW_MAC/$1/" "$LIST"
}

# shows MAC: after a packet of node3 the problem names node and both MACs; or, with null, there is none.
shows() {
    local field=seen_vtep_mac
    if [ "$FAMILY" = 6 ]; then field=seen_vtep_mac_v6; fi
    in_ns pod5 ping "-$FAMILY" -q -c 1 -W 0.2 "$(address_of pod1 "$FAMILY")" >/dev/null || true
    agent_json node1 peers | jq -e ".peers[] | select(.name == \"node3\") | \"\(.$field)\" == \"$1\"" || return 1
    agent_json node1 status | jq -e --arg new "$1" --arg old "$(vtep_mac_of node3 "$FAMILY")" '
        [.problems[] | select(.code == "vtep-mac-changed") | .subject, .sentence, .remedy] | join(" ") as $said
        | if $new == "null" then $said == "" else all("node3", $new, $old, "vtep-mac"; inside($said)) end'
}

# becomes device_has|lease_has MAC SHOWN: so; then that is shown, and with null pod5 answers.
becomes() {
    "$1" "$2"
    until_true 5 "IPv$FAMILY: $*" shows "$3" || agent_json node1 status | jq -c .problems
    [ "$3" != null ] || until_true 5 "IPv$FAMILY: an answer" in_ns pod1 ping -q -c 1 -W 1 "$(address_of pod5 "$FAMILY")"
}

if [ "$REGISTRY" = file ]; then
    cp "$LIST" "$SCRATCH/list"
    undo cp "$SCRATCH/list" "$LIST"
fi
for FAMILY in "${FAMILIES[@]}"; do
    OLD_MAC=$(vtep_mac_of node3 "$FAMILY")
    undo eval "FAMILY=$FAMILY; device_has $OLD_MAC"
    becomes device_has "$OLD_MAC" null
    becomes device_has "$NEW_MAC" "$NEW_MAC"
    if [ "$REGISTRY" = file ]; then
        becomes lease_has "$NEW_MAC" null
        becomes lease_has "$OLD_MAC" "$NEW_MAC"
    fi
    becomes device_has "$OLD_MAC" null
done
