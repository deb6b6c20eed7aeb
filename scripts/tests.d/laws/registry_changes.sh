#!/usr/bin/env bash
# What changes in the registry is followed, by daemons that are not started anew and lose no datagram between other
# nodes. A node joins; its record is deleted, or its lease ends, and is written again with the same subnet; it moves to
# another address and back; its service is killed and its agent stopped, and neither withdraws or writes anything; it
# leaves. A node of flannel gets another MAC.
# labs: registry=etcd|kubernetes third=kernel-vxlan
# last: a node joins and leaves
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

# Of the node that joins, and its first pod.
NEW=4
POD=pod7
# Another one for the kernel node.
MAC=02:00:5e:aa:00:03

# reached POD...: from pod1, within the time that nodes have to follow.
reached() {
    local pod family
    for pod; do
        for family in "${FAMILIES[@]}"; do
            until_true "$FOLLOWED_WITHIN" "pod1 reaches $pod, IPv$family" \
                in_ns pod1 ping -q -c 1 -W 1 "$(address_of "$pod" "$family")"
        done
    done
}

# With etcd it takes any subnet that is free, for a lease that ends.
joins() {
    cp "$LAB_STATE/settings" "$SCRATCH/settings"
    undo cp "$SCRATCH/settings" "$LAB_STATE/settings"
    [ "$REGISTRY" != etcd ] || sed -i 's/ACQUIRE=.*/ACQUIRE="1"/' "$LAB_STATE/settings"
    lab join node$NEW >/dev/null
    reached $POD
    for family in "${FAMILIES[@]}"; do
        until_true "$FOLLOWED_WITHIN" "the new pod reaches the kernel node's, IPv$family" \
            in_ns $POD ping -q -c 1 -W 1 "$(address_of pod5 "$family")"
    done
}

# What is in the registry of node4, and when it was changed.
written() {
    case $REGISTRY in
    etcd) etcdctl get "$(key_of $NEW)" -w json | jq -c '.kvs[0]' ;;
    kubernetes)
        kube list | jq -c --arg node node$NEW '.items[] | select(.metadata.name == $node) | [.metadata, .status]'
        ;;
    esac
}

key_of() {
    record_of "$1" | jq -r .key
}

# is_removed HOW: the record of node4, by another's hand.
is_removed() {
    local lease
    case $1 in
    deleted) etcdctl del "$(key_of $NEW)" >/dev/null ;;
    revoked)
        # (jq would round a number of 64 bits.)
        lease=$(etcdctl get "$(key_of $NEW)" -w fields | awk '$1 == "\"Lease\"" { print $3 }')
        [ "${lease:-0}" != 0 ] || fail "the key of node$NEW has no lease"
        etcdctl lease revoke "$(printf '%x' "$lease")" >/dev/null
        ;;
    emptied) printf '%s\n' kube-subnet-manager backend-data public-ip | kube annotate node$NEW ;;
    esac
    until_true "$FOLLOWED_WITHIN" "the record of node$NEW is back, after it was $1" has_record $NEW
    reached $POD
}

# moves FROM TO: node4 gets another address and loses the one that it had.
moves() {
    # Without this the kernel takes the second address of a subnet away with the first.
    ip netns exec "$PREFIX-node$NEW" sysctl -q -w net.ipv4.conf.all.promote_secondaries=1
    ip -n "$PREFIX-node$NEW" address add "192.0.2.$2/24" dev eth0
    ip -n "$PREFIX-node$NEW" address delete "192.0.2.$1/24" dev eth0
    if [ "$INSIDE" = dual ]; then
        ip -n "$PREFIX-node$NEW" address add "2001:db8:192::$2/64" dev eth0 nodad
        ip -n "$PREFIX-node$NEW" address delete "2001:db8:192::$1/64" dev eth0
    fi
    reached $POD
    until_true "$FOLLOWED_WITHIN" "the registry has node$NEW at 192.0.2.$2" has_record "$2"
    equal "records of 192.0.2.$1" '' "$(record_of "$1")"
}

# gets_mac FOUR SIX [WRITTEN]: as flanneld after a reboot, with devices made anew.
gets_mac() {
    ip -n "$PREFIX-node3" link set flannel.1 address "$1"
    [ "$INSIDE" = v4 ] || ip -n "$PREFIX-node3" link set flannel-v6.1 address "$2"
    registry follow
    registry write 3 "${@:3}"
    reached pod5
}

# is_the_same AFTER CMD...: what the command prints of node4 is what it was, once its agent has read the registry.
is_the_same() {
    registry write 99
    until_true 5 "node$NEW follows the registry after $1" knows node$NEW 99
    registry delete 99
    reached $POD
    same "what the registry holds of node$NEW after $1" "$BEFORE" "$("${@:2}")"
}

another_service() {
    [ "$(service_pid node$NEW)" != "$1" ] && all_well node$NEW
}

ends() {
    local pid
    BEFORE=$(written)
    [ "$REGISTRY" != kubernetes ] || grep -q '"type":"NetworkUnavailable"' <<<"$BEFORE" ||
        fail "no condition of node$NEW: $BEFORE"
    pid=$(service_pid node$NEW)
    kill -KILL "$pid"
    until_true 5 "another service on node$NEW" another_service "$pid"
    is_the_same "a kill" written
    BEFORE=$(record_of $NEW)
    lab stop node$NEW
    same "what the registry holds of node$NEW after a stop" "$BEFORE" "$(record_of $NEW)"
    lab start node$NEW
    is_the_same "a start" record_of $NEW
}

leaves() {
    local address
    address=$(address_of $POD)
    lab leave node$NEW
    until_true "$FOLLOWED_WITHIN" "node1 has no node$NEW" knows_not node1 $NEW
    grep -qi unreachable <<<"$(in_ns pod1 ping -c 1 -W 1 "$address")" ||
        fail "pod1 is not told that $address is unreachable"
}

OLD=$(agents node1 node2)
answering pod3
steady pod1 pod3 "${FAMILIES[0]}"
joins
registry follow
JOINED=$(agents node$NEW)
if [ "$REGISTRY" = etcd ]; then
    is_removed deleted
    is_removed revoked
else
    is_removed emptied
fi
moves $NEW 104
moves 104 $NEW
same "daemons and addresses of node$NEW" "$JOINED" "$(agents node$NEW)"
ends
leaves
gets_mac "$MAC" "$MAC" "$MAC"
gets_mac "$(vtep_mac_of node3 4)" "$(vtep_mac_of node3 6)"
same "daemons and addresses of node1 and node2" "$OLD" "$(agents node1 node2)"
none_lost 0
