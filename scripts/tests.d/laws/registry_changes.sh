#!/usr/bin/env bash
# What changes in the registry is followed, by daemons that are not started anew and lose no datagram between other
# nodes. A node joins; its record is deleted, or its lease ends, and is written again with the same subnet; it moves to
# another address; its service is killed and its agent stopped, and neither withdraws or writes anything; it
# leaves. A node of flannel gets another MAC.
# labs: registry=etcd|kubernetes third=kernel-vxlan
# last: a node joins and leaves
. "$TOOLS/registry.sh"

# Of the node that joins, and its first pod.
NEW=4
POD=pod7
# Another one for the kernel node.
MAC=02:00:5e:aa:00:03

# reached FROM TO: in each family, within the time that nodes have to follow.
reached() {
    local family
    for family in "${FAMILIES[@]}"; do
        until_true "$FOLLOWED_WITHIN" "$1 reaches $2, IPv$family" \
            in_ns "$1" ping -q -c 1 -W 1 "$(address_of "$2" "$family")"
    done
}

# What is in the registry of node4, and when it was changed.
written() {
    case $REGISTRY in
    etcd) etcdctl get "$KEY" -w json | jq -c '.kvs[0]' ;;
    kubernetes) api GET /node$NEW | jq -c '[.metadata, .status]' ;;
    esac
}

# comes_back AFTER: the record of node4, after another's hand.
comes_back() {
    until_true "$FOLLOWED_WITHIN" "the record of node$NEW is back, after it was $1" has_record $NEW
    reached pod1 $POD
}

removed_from_etcd() {
    local lease
    etcdctl del "$KEY" >/dev/null
    comes_back deleted
    # (jq would round a number of 64 bits.)
    lease=$(etcdctl get "$KEY" -w fields | awk '$1 == "\"Lease\"" { print $3 }')
    [ "${lease:-0}" != 0 ] || fail "the key of node$NEW has no lease"
    etcdctl lease revoke "$(printf '%x' "$lease")" >/dev/null
    comes_back revoked
}

removed_from_kubernetes() {
    api PATCH /node$NEW "$(jq -nc '"flannel.alpha.coreos.com/" as $of | {metadata: {annotations:
        {($of + "kube-subnet-manager"): null, ($of + "backend-data"): null, ($of + "public-ip"): null}}}')" >/dev/null
    comes_back emptied
}

# gets_mac FOUR SIX [WRITTEN]: as flanneld after a reboot, with devices made anew.
gets_mac() {
    ip -n "$PREFIX-node3" link set flannel.1 address "$1"
    [ "$INSIDE" = v4 ] || ip -n "$PREFIX-node3" link set flannel-v6.1 address "$2"
    registry follow
    registry write 3 "${@:3}"
    reached pod1 pod5
}

# A service that starts anew has read the registry once it knows what was written then: of a subnet that it has not.
ends() {
    local free=99
    BEFORE=$(written)
    [[ $(address_of $POD) != 10.244.99.* ]] || free=98
    [ "$REGISTRY" != kubernetes ] || grep -q '"type":"NetworkUnavailable"' <<<"$BEFORE" ||
        fail "no condition of node$NEW: $BEFORE"
    kill -KILL "$(service_pid node$NEW)"
    registry write $free
    until_true 5 "node$NEW follows the registry after a kill" knows node$NEW $free
    registry delete $free
    reached pod1 $POD
    lab stop node$NEW
    same "what the registry holds of node$NEW after a kill and a stop" "$BEFORE" "$(written)"
}

OLD=$(agents node1 node2)
answering pod3
steady pod1 pod3 "${FAMILIES[0]}"
# With etcd it takes any subnet that is free, for a lease that ends.
cp "$LAB_STATE/settings" "$SCRATCH/settings"
undo cp "$SCRATCH/settings" "$LAB_STATE/settings"
[ "$REGISTRY" != etcd ] || sed -i 's/ACQUIRE=.*/ACQUIRE="1"/' "$LAB_STATE/settings"
lab join node$NEW >/dev/null
reached pod1 $POD
reached $POD pod5
JOINED=$(agents node$NEW)
KEY=$(record_of $NEW | jq -r .key)
"removed_from_$REGISTRY"
# Without this the kernel takes the second address of a subnet away with the first.
in_ns node$NEW sysctl -q -w net.ipv4.conf.all.promote_secondaries=1
ip -n "$PREFIX-node$NEW" address add 192.0.2.104/24 dev eth0
ip -n "$PREFIX-node$NEW" address delete 192.0.2.$NEW/24 dev eth0
if [ "$INSIDE" = dual ]; then
    ip -n "$PREFIX-node$NEW" address add 2001:db8:192::104/64 dev eth0 nodad
    ip -n "$PREFIX-node$NEW" address delete 2001:db8:192::$NEW/64 dev eth0
fi
until_true "$FOLLOWED_WITHIN" "the registry has node$NEW at its new address" has_record 104
equal "records of its old one" '' "$(record_of $NEW)"
reached pod1 $POD
same "daemons and addresses of node$NEW" "$JOINED" "$(agents node$NEW)"
ends
ADDRESS=$(address_of $POD)
[ "$REGISTRY" != etcd ] || registry delete 104
lab leave node$NEW
until_true "$FOLLOWED_WITHIN" "node1 has no node$NEW" knows_not node1 104
grep -qi unreachable <<<"$(in_ns pod1 ping -c 1 -W 1 "$ADDRESS")" || fail "$ADDRESS is not unreachable to pod1"
gets_mac "$MAC" "$MAC" "$MAC"
gets_mac "$(vtep_mac_of node3 4)" "$(vtep_mac_of node3 6)"
same "daemons and addresses of node1 and node2" "$OLD" "$(agents node1 node2)"
none_lost 0
