#!/usr/bin/env bash
# A flannel node in the same registry: its kernel VXLAN device is set up by what Tartan's nodes have written there, as its
# agent would do, and they by what it has written. What a Tartan node writes is what flanneld would, byte for byte.
#
#   pod1 ── node1, tartan ══ vxlan ══ node2, tartan ── pod2
#                              ╠═════ node3, kernel VXLAN ── pod3
#                              ╚═════ registry
#
# registry_mixed.sh REGISTRY INSIDE, where INSIDE is v4 or dual, of both pods and underlay
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
PINGS=50
BYTES=$((4 << 20))

# What flanneld writes of a node with the address of node1 and a MAC: flannel's pkg/lease/lease.go, and pkg/subnet/kube.
expected() {
    local four=$1 six=$1
    case $REGISTRY-$INSIDE in
    etcd-v4) printf '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}\n' "$four" ;;
    etcd-dual) printf '{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8:192::1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"},"BackendV6Data":{"VNI":1,"VtepMAC":"%s"}}\n' "$four" "$six" ;;
    kubernetes-*)
        printf 'backend-data {"VNI":1,"VtepMAC":"%s"}\nbackend-type vxlan\n' "$four"
        [ "$INSIDE" = v4 ] || printf 'backend-v6-data {"VNI":1,"VtepMAC":"%s"}\n' "$six"
        printf 'kube-subnet-manager true\npublic-ip 192.0.2.1\n'
        [ "$INSIDE" = v4 ] || printf 'public-ipv6 2001:db8:192::1\n'
        ;;
    esac
}

written() {
    case $REGISTRY in
    etcd) etcdctl get --print-value-only "$(record_of 1 | jq -r .key)" ;;
    kubernetes)
        kube list | jq -r '.items[] | select(.metadata.name == "node1") | .metadata.annotations | to_entries[]
            | select(.key | startswith("flannel.alpha.coreos.com/")) | "\(.key | split("/")[1]) \(.value)"' | sort
        ;;
    esac
}

# Every packet of a path arrives, small ones and TCP in bulk.
talk() {
    local from=$1 to=$2 family=$3 address receiver
    address=$(address_of "$to" "$family")
    equal "pings from $from to $to, IPv$family" "$PINGS received" \
        "$(in_ns "$from" python3 "$TOOLS/pings.py" "$address" "$PINGS" 0.005 2)"
    start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    in_ns "$from" python3 "$TOOLS/bulk.py" send "$address" 5003 "$BYTES" >"$SCRATCH/sent" || fail "TCP from $from to $to, IPv$family"
    wait "$receiver" || fail "TCP to $to from $from, IPv$family"
    equal "bytes and sha256 from $from to $to, IPv$family" "$(cat "$SCRATCH/sent")" "$(cat "$SCRATCH/received")"
}

say "a kernel node beside Tartan's: registry $REGISTRY, $INSIDE"
registry_lab --peer kernel-vxlan
MAC=$(record_of 1 | jq -r .mac4)
same "what node1 has written" "$(expected "$MAC")" "$(written)"
equal "the MAC of node1 for IPv6" "$([ "$INSIDE" = v4 ] && echo null || echo "$MAC")" "$(record_of 1 | jq -r .mac6)"
for FAMILY in $(families "$INSIDE"); do
    talk pod1 pod3 "$FAMILY"
    talk pod3 pod2 "$FAMILY"
    talk pod2 pod1 "$FAMILY"
done
# A stop leaves the record as it is: the node is gone for a moment, not for good.
BEFORE=$(written)
lab stop node1
same "what the registry holds of node1 after a stop" "$BEFORE" "$(written)"
lab start node1
same "what the registry holds of node1 after its start" "$BEFORE" "$(written)"
for FAMILY in $(families "$INSIDE"); do talk pod3 pod1 "$FAMILY"; done
for NODE in node1 node2; do
    until_true 5 "all is well on $NODE" all_well "$NODE"
    law_one "$NODE"
done
