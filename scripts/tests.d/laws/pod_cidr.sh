#!/usr/bin/env bash
# A Node of the Kubernetes API without podCIDR is found by `tartan doctor` and shown by `tartan status`, by its name, on
# itself and on the other nodes, and is gone from both when it has its podCIDR again. No agent is started anew for that.
# labs: registry=kubernetes
. "$TOOLS/faults.sh"
. "$TOOLS/registry.sh"

# As a server refuses a change of its podCIDR: made anew, as it was without.
unassign() {
    api DELETE /node1 >/dev/null
    api POST '' "$(jq '{apiVersion, kind, metadata: (.metadata | {name, labels, annotations})}' <<<"$NODE")" >/dev/null
}

assign() {
    api PATCH /node1 "$(jq '{spec: (.spec | {podCIDR, podCIDRs})}' <<<"$NODE")" >/dev/null
}

NODE=$(api GET /node1)
BEFORE=$(agents "${TARTAN[@]}")
OTHERS=()
for OTHER in "${TARTAN[@]:1}"; do
    OTHERS+=("$OTHER lease-refused node1|it has no podCIDR")
    # To the others node1 is no node now, so it hears nothing of them.
    if [ "${TARTAN_PROBE:-}" != false ]; then OTHERS+=("node1 peer-silent $OTHER"); fi
done
fault unassign assign "node1 leases-refused node1|it has no podCIDR" "${OTHERS[@]}"
found "${TARTAN[@]}"
no_more
found "${TARTAN[@]}"
same "daemons and addresses" "$BEFORE" "$(agents "${TARTAN[@]}")"
for POD in pod3 pod5; do
    in_ns pod1 ping -q -c 3 -i 0.1 -W 1 "$(address_of "$POD")" >/dev/null || fail "pod1 does not reach $POD afterwards"
done
