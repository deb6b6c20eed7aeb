#!/usr/bin/env bash
# The address of a deleted pod is refused: what pods of other nodes send to it is dropped by the node that had it, under
# NotOurs, each packet, and nothing is delivered; a pod beside it is answered by the node's kernel as unreachable. The
# pods that still live are reached as before.
# labs: outside=dual
# labs: kernel-path=auto
. "$TOOLS/cni.sh"

SENT=5

# counts: what node2 delivered and dropped of what came from peers, and of that under NotOurs.
counts() {
    agent_json node2 drops | jq -r '[.workers[].inbound] | "\(map(.delivered) | add) \(
        map(.dropped | add // 0) | add) \(map(.dropped.NotOurs // 0) | add)"'
}

# refused ADDRESS: from pods of other nodes, and from one beside it.
refused() {
    local pod before after
    for pod in pod1 pod5; do
        read -ra before < <(counts)
        equal "pings of $pod to $1" "0 received" "$(in_ns "$pod" python3 "$TOOLS/pings.py" "$1" "$SENT" 0.02 1)"
        read -ra after < <(counts)
        equal "of them delivered, dropped, and for NotOurs" "0 $SENT $SENT" \
            "$((after[0] - before[0])) $((after[1] - before[1])) $((after[2] - before[2]))"
    done
    equal "the answer to pod3" unreachable \
        "$(in_ns pod3 ping -n -c 1 -W 5 "$1" | grep -oi 'unreachable' | tr '[:upper:]' '[:lower:]')"
}

new_pods gone
attach node2 gone
mapfile -t ADDRESSES < <(jq -r '.ips[].address | split("/")[0]' "$SCRATCH/attached")
equal "addresses of the pod" "${#FAMILIES[@]}" "${#ADDRESSES[@]}"
for ADDRESS in "${ADDRESSES[@]}"; do for POD in pod1 pod3 pod5; do pings "$POD" "$ADDRESS"; done; done
OUTBOUND=$(dropped node1 outbound)
call DEL node2 gone
for ADDRESS in "${ADDRESSES[@]}"; do refused "$ADDRESS"; done
equal "packets that node1 dropped" "$OUTBOUND" "$(dropped node1 outbound)"
for FAMILY in "${FAMILIES[@]}"; do for POD in pod1 pod3 pod5; do pings "$POD" "$(address_of pod4 "$FAMILY")"; done; done
