#!/usr/bin/env bash
# Nodes that learn of each other from etcd or from Kubernetes: what changes there is followed within two seconds, by
# daemons that are not started anew.
#
#   pod1 ── node1, tartan ══ underlay ══ node2, tartan ── pod2
#                               ╠═══════ node3, kernel VXLAN, as flannel sets it up ── pod3
#                               ╠═══════ node4, tartan ── pod4: joins and leaves
#                               ╚═══════ registry
#
# registry_changes.sh REGISTRY INSIDE, where INSIDE is v4 or dual, of both pods and underlay
# full: etcd dual
# case: kubernetes v4
# full: etcd v4
# full: kubernetes dual
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

REGISTRY=$1
INSIDE=$2
# Milliseconds, while a service is started after a crash.
LARGEST_GAP=1000

joining() {
    local moment family
    say "a node joins"
    lab join >/dev/null
    moment=$(now)
    for family in $(families "$INSIDE"); do
        watch_path "joined$family" pod1 pod4 "$family"
        watch_path "back$family" pod4 pod2 "$family"
        watch_path "kernel$family" pod4 pod3 "$family"
    done
    for family in $(families "$INSIDE"); do
        soon "until pod1 reaches the new node's pod (IPv$family)" answer "joined$family" "$moment"
        soon "until the new pod reaches pod2 (IPv$family)" answer "back$family" "$moment"
        soon "until the new pod reaches the kernel node's (IPv$family)" answer "kernel$family" "$moment"
    done
}

leaving() {
    local moment family
    say "it leaves: its record is deleted"
    lab leave node4
    moment=$(now)
    for family in $(families "$INSIDE"); do
        soon "until pod1 is told that there is no such pod (IPv$family)" refusal "joined$family" "$moment"
        unwatch "joined$family"
    done
    equal "peers of node1" 2 "$(agent_json node1 peers | jq '.peers | length')"
}

# moves FROM TO: node2 gets another address and loses the one that it had.
moves() {
    local family
    # Without this the kernel takes the second address of a subnet away with the first.
    ip netns exec "$PREFIX-node2" sysctl -q -w net.ipv4.conf.all.promote_secondaries=1
    for family in $(families "$INSIDE"); do
        case $family in
        4)
            ip -n "$PREFIX-node2" address add "192.0.2.$2/24" dev eth0
            ip -n "$PREFIX-node2" address delete "192.0.2.$1/24" dev eth0
            ;;
        6)
            ip -n "$PREFIX-node2" address add "2001:db8:192::$2/64" dev eth0 nodad
            ip -n "$PREFIX-node2" address delete "2001:db8:192::$1/64" dev eth0
            ;;
        esac
    done
}

moving() {
    local moment family from=2 to subnets
    subnets=$(own_addresses node2)
    for to in 102 2; do
        say "node2 moves from 192.0.2.$from to 192.0.2.$to"
        for family in $(families "$INSIDE"); do watch_path "moved$family" pod1 pod2 "$family"; done
        sleep 0.3
        moves "$from" "$to"
        moment=$(now)
        for family in $(families "$INSIDE"); do
            soon "until pod1 reaches pod2 at its new address (IPv$family)" answer "moved$family" "$moment"
            unwatch "moved$family"
        done
        [ -n "$(record_of "$to")" ] || fail "the registry has no record of 192.0.2.$to: $(registry leases)"
        [ -z "$(record_of "$from")" ] || fail "the registry still has a record of 192.0.2.$from"
        # The kernel node's agent would have followed by itself.
        registry follow
        from=$to
    done
    same "addresses of node2 after it has moved" "$subnets" "$(own_addresses node2)"
}

# As flanneld after a reboot: its device is made anew, and its record written with the new MAC.
another_mac() {
    local moment mac=02:00:5e:aa:00:03 space=$PREFIX-node3 lease key value
    say "node3, flannel's, gets another MAC"
    watch_path renamed pod1 pod3
    sleep 0.3
    ip -n "$space" link set flannel.1 down
    ip -n "$space" link set flannel.1 address "$mac"
    ip -n "$space" link set flannel.1 up
    registry follow
    case $REGISTRY in
    etcd)
        key=$(record_of 3 | jq -r .key)
        value=$(etcdctl get "$key" --print-value-only | sed "s/02:00:5e:10:00:03/$mac/")
        lease=$(etcdctl lease grant 86400 | awk '{ print $2 }')
        moment=$(now)
        etcdctl put --lease="$lease" "$key" "$value" >/dev/null
        ;;
    kubernetes)
        moment=$(now)
        kube annotate node3 <<<"backend-data {\"VNI\":1,\"VtepMAC\":\"$mac\"}"
        ;;
    esac
    soon "until pod1 reaches pod3 at its new MAC" answer renamed "$moment"
    unwatch renamed
}

# Somebody deletes what node2 has written, or its lease ends: it is written again, with the same subnet.
gone_and_back() {
    local moment key lease subnets ways=(deleted)
    subnets=$(own_addresses node2)
    [ "$REGISTRY" != etcd ] || ways+=(revoked)
    for way in "${ways[@]}"; do
        say "the record of node2 is $way"
        watch_path gone pod1 pod2
        sleep 0.3
        moment=$(now)
        case $REGISTRY-$way in
        etcd-deleted) etcdctl del "$(record_of 2 | jq -r .key)" >/dev/null ;;
        etcd-revoked)
            key=$(record_of 2 | jq -r .key)
            # (jq would round a number of 64 bits.)
            lease=$(etcdctl get "$key" -w fields | awk '$1 == "\"Lease\"" { print $3 }')
            [ "${lease:-0}" != 0 ] || fail "the key of node2 has no lease"
            etcdctl lease revoke "$(printf '%x' "$lease")" >/dev/null
            ;;
        kubernetes-*) printf '%s\n' kube-subnet-manager backend-data public-ip | kube annotate node2 ;;
        esac
        until_true "$FOLLOWED_WITHIN" "the record of node2 is back" has_record 2
        soon "until pod1 reaches pod2 again" answer gone "$(now)"
        measured_at_most "ms: longest pause of the ping" $((FOLLOWED_WITHIN * 1000)) "$(longest_gap gone "$moment")"
        unwatch gone
        same "addresses of node2 after that" "$subnets" "$(own_addresses node2)"
    done
    until_true 5 "all is well on node2" all_well node2
}

# The longest pause in ms between the answers on a path since a moment.
longest_gap() {
    awk -F'[][ ]' -v last="$2" '/bytes from/ && $2 >= last { if ($2 - last > longest) longest = $2 - last; last = $2 }
        END { printf "%d\n", longest * 1000 }' "$SCRATCH/path-$1"
}

# What is in the registry of node2, with the revision of its last change.
written() {
    case $REGISTRY in
    etcd) etcdctl get "$(record_of 2 | jq -r .key)" -w json | jq -c '.kvs[0]' ;;
    kubernetes) kube list | jq -c '.items[] | select(.metadata.name == "node2") | [.metadata, .status]' ;;
    esac
}

crash() {
    local pid before moment
    say "the service of node2 is killed"
    [ "$REGISTRY" != kubernetes ] || equal "NetworkUnavailable of node2" '["False"]' "$(kube list | jq -c '[.items[]
        | select(.metadata.name == "node2") | .status.conditions[] | select(.type == "NetworkUnavailable") | .status]')"
    before=$(written)
    watch_path crashed pod1 pod2
    sleep 0.3
    pid=$(service_pid node2)
    moment=$(now)
    kill -KILL "$pid"
    until_true 5 "another service on node2" another_service "$pid"
    until_true 5 "an answer from pod2" came_since answer crashed "$(now)"
    measured_at_most "ms: longest pause of the ping" "$LARGEST_GAP" "$(longest_gap crashed "$moment")"
    grep -qi unreachable "$SCRATCH/path-crashed" && fail "node2 was withdrawn: $(grep -im1 unreachable "$SCRATCH/path-crashed")"
    sleep 1
    same "what the registry holds of node2 after that" "$before" "$(written)"
    unwatch crashed
}

another_service() {
    [ "$(service_pid node2)" != "$1" ] && tartan node2 status
}

say "changes: registry $REGISTRY, $INSIDE"
OPTIONS=(--peer kernel-vxlan)
[ "$REGISTRY" != etcd ] || OPTIONS+=(--acquire)
registry_lab "${OPTIONS[@]}"
joining
leaving
moving
another_mac
gone_and_back
same_daemons
crash
for node in node1 node2; do
    until_true 5 "all is well on $node in the end" all_well "$node"
    law_one "$node"
done
