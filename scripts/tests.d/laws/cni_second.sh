#!/usr/bin/env bash
# A second interface of a pod, as Multus adds it: by the same plugin for another network, with its results kept in a
# place of its own. Answers leave by the interface where their requests came in. Each interface is deleted by itself.
# labs: inside=v4 format=vxlan third=kernel-vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

SECOND='{"name": "second"}'

# answers_leave_by IFNAME ADDRESS: pod3 asks the pod there.
answers_leave_by() {
    local before
    before=$(device_count multi "$1" tx_packets)
    pings pod3 "$2"
    equal "answers that left by $1" 5 "$(($(device_count multi "$1" tx_packets) - before))"
}

new_pods multi
attach node1 multi
attach node1 multi "$SECOND" net1
FAR=$(address_of pod3)
WITH_RESULT=$(jq -c --argjson keys "$SECOND" '$keys + {prevResult: .}' "$SCRATCH/multi.net1")
call CHECK node1 multi "$WITH_RESULT" net1 || fail "CHECK of net1"
pings multi "$FAR"
answers_leave_by net1 "$(given multi net1)"
answers_leave_by eth0 "$(given multi)"
in_ns multi ping -n -q -c 1 -W 5 -I "$(given multi net1)" "$FAR" >/dev/null || fail "no answer to net1"
for _ in first second; do call DEL node1 multi "$WITH_RESULT" net1 || fail "DEL of net1"; done
pings multi "$FAR"
pings pod3 "$(given multi)"
pings pod3 "$(given multi net1)" 0
