#!/usr/bin/env bash
# A Node of the Kubernetes API without podCIDR is found by `tartan doctor` and shown by `tartan status`, by its name, on itself
# and on the other nodes, and is gone from both when it has its podCIDR again. No agent is started anew for that.
# labs: registry=kubernetes
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

SUBNETS=()
for FAMILY in "${FAMILIES[@]}"; do
    if [ "$FAMILY" = 4 ]; then SUBNETS+=(10.244.1.0/24); else SUBNETS+=(fd00:10:244:1::/64); fi
done

# kube VERB...: see scripts/lab.d/kube_nodes.py.
kube() {
    in_ns registry python3 "$SCRIPTS/lab.d/kube_nodes.py" http://192.0.2.252:6443 "$@"
}

services() {
    for NODE in "${TARTAN[@]}"; do service_pid "$NODE"; done
}

BEFORE=$(services)
OTHERS=()
for NODE in "${TARTAN[@]:1}"; do OTHERS+=("$NODE lease-refused node1|it has no podCIDR"); done
# To the others node1 is no node now, so it hears nothing of them.
if [ "${TARTAN_PROBE:-}" != false ]; then for NODE in "${TARTAN[@]:1}"; do OTHERS+=("node1 peer-silent $NODE"); done; fi
fault "kube unassign node1" "kube add node1 ${SUBNETS[*]}" "node1 leases-refused node1|it has no podCIDR" "${OTHERS[@]}"
found "${TARTAN[@]}"
no_more
found "${TARTAN[@]}"
equal "services before and after" "$BEFORE" "$(services)"
for POD in pod3 pod5; do
    in_ns pod1 ping -q -c 3 -i 0.1 -W 1 "$(address_of "$POD")" >/dev/null || fail "pod1 does not reach $POD afterwards"
done
