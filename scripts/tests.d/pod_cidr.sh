#!/usr/bin/env bash
# A Node of the Kubernetes API that has no podCIDR, of another node and of this one: found by `tartan doctor` and shown by
# `tartan status`, by the Node's name and with exit code 1, within 10 s, and gone 10 s after it has its podCIDR again. The others
# know no node of that subnet meanwhile, so what a node without podCIDR sends is dropped there.
#
#   pod1 ── node1 ══ underlay ══ node2 ── pod2
#                       ╚═══════ registry, the Kubernetes API
#
# pod_cidr.sh INSIDE: of both pods and underlay, v4 or dual
# case: v4
# full: dual
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

INSIDE=$1
# shellcheck disable=SC2034 # tools/registry.sh reads it
REGISTRY=kubernetes

# ranges NUMBER: the podCIDRs of a node of the lab.
ranges() {
    echo "10.244.$1.0/24"
    [ "$INSIDE" = v4 ] || echo "fd00:10:244:$1::/64"
}

# without_pod_cidr NUMBER CODE: of that node, as node1 sees it.
without_pod_cidr() {
    local own
    begins
    kube unassign "node$1"
    found node1 "node$1 without podCIDR" "$2" 1
    evidence "node$1"
    evidence "it has no podCIDR"
    jq -e --arg node "node$1" '.problems | any(.sentence | contains($node) and contains("it has no podCIDR"))' "$SCRATCH/status.json" >/dev/null ||
        fail "status does not say that node$1 has no podCIDR: $(jq -c .problems "$SCRATCH/status.json")"
    mapfile -t own < <(ranges "$1")
    begins
    kube add "node$1" "${own[@]}"
    gone node1 "node$1 has its podCIDR again"
    gone node2 "node2: node$1 has its podCIDR again"
}

say "a podCIDR is missing: $INSIDE"
# shellcheck disable=SC2119
registry_lab
begins
for node in node1 node2; do gone "$node" "$node beforehand"; done
without_pod_cidr 2 lease-refused
# Of this node's own the list as a whole is refused. To the others it is silent: they have no such node.
BESIDE='^peer-silent$'
without_pod_cidr 1 leases-refused
for pod in pod2 pod3; do
    in_ns pod1 ping -q -c 3 -i 0.1 -W 1 "$(address_of "$pod")" >/dev/null || fail "pod1 does not reach $pod afterwards"
done
same_daemons
law_one node1
