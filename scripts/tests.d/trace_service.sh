#!/usr/bin/env bash
# `tartan trace` to Services: by the rules of kube-proxy's iptables or nftables mode the endpoints are named, all of them,
# and the packet is traced to one; what has no endpoint, no such port, or another traffic policy is refused, as it is to a
# real connection; after the endpoint has moved, it is the other one that is traced. Both families.
#
#   pod1, pod2 ── node1 ══ underlay ══ node2 ── pod3, pod4
#                            └── client, no node of the cluster
#
# trace_service.sh KUBE_PROXY
# full: iptables
# full: nftables
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

KUBE_PROXY=$1
# Where the lab's Services lead to.
PORT=8080

# trace ARG...: of a packet of pod1, into $SCRATCH/trace.json; the exit code into $CODE, milliseconds into $TOOK.
trace() {
    local began
    began=$(date +%s%N)
    CODE=0
    tartan node1 trace -o json "$POD1" "$@" >"$SCRATCH/trace.json" || CODE=$?
    TOOK=$((($(date +%s%N) - began) / 1000000))
}

# of FILTER: of the trace.
of() {
    jq -r "$1" "$SCRATCH/trace.json"
}

# The stages that pass the packet not, with their codes. In iptables mode a rule of kube-proxy's own asks for the state of a
# connection, which a trace does not judge.
not_passing() {
    of '[.stages[] | select(.result != "passes") | "\(.stage)=\(.code)"] | join(" ")' | sed 's/^filter=not-judged$//'
}

# service NAME: its address.
service() {
    jq -r --arg name "lab/$1" '.[] | select(.name == $name).address' "$LAB_STATE/services.$FAMILY"
}

# places POD...: the endpoints' addresses and ports, sorted.
places() {
    local pod
    for pod in "$@"; do place "$(address_of "$pod" "$FAMILY")"; done | sort | paste -sd ' '
}

place() {
    case $1 in
    *:*) echo "[$1]:$PORT" ;;
    *) echo "$1:$PORT" ;;
    esac
}

# endpoints SERVICE POD...: these are all that are found.
endpoints() {
    trace "$(service "$1")" --tcp 80
    equal "IPv$FAMILY, $1: endpoints" "$(places "${@:2}")" "$(of '.endpoints[]' | sort | paste -sd ' ')"
    measured_at_most "IPv$FAMILY, $1: ms" 2000 "$TOOK"
}

# traced SERVICE POD CODE [PEER]: the packet is traced to that pod, by that kind of route, and nothing refuses it.
traced() {
    equal "IPv$FAMILY, $1: traced to $2" "$(places "$2") $3 ${4:-null} 0" \
        "$(of .endpoint) $(of '.stages[] | select(.stage == "route").code') $(of .peer) $CODE"
    equal "IPv$FAMILY, $1: what does not pass" "" "$(not_passing)"
    equal "IPv$FAMILY, $1: the Service stays the destination" "$(service "$1") 80" "$(of '"\(.destination) \(.port)"')"
}

# refused WHAT CODE ARG...: at the stage of the Service, with a remedy.
refused() {
    trace "${@:3}"
    equal "IPv$FAMILY, $1: refused" "service=$2 1 $3" "$(not_passing) $CODE $(of .destination)"
    equal "IPv$FAMILY, $1: the last stage" service "$(of '.stages[-1] | select(.remedy != "").stage')"
}

# connects ADDRESS PORT: whether pod1 gets an answer, as the trace says.
connects() {
    in_ns pod1 timeout 2 python3 -c 'import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1) as one: one.sendall(b"x\n")' "$1" "$2" 2>/dev/null
}

is_up() { tartan node1 peers -o json | jq -e '[.peers[].paths[]?.state] | index("up")' >/dev/null; }

all_of_one_family() {
    POD1=$(address_of pod1 "$FAMILY")
    endpoints pod3 pod3
    traced pod3 pod3 overlay node2
    endpoints pod2 pod2
    traced pod2 pod2 local-pod
    endpoints all pod1 pod2 pod3 pod4
    equal "IPv$FAMILY, all: a pod of the other node is traced" node2 "$(of .peer)"
    equal "IPv$FAMILY, all: what does not pass" "" "$(not_passing)"
    equal "IPv$FAMILY, all: named" 4 "$(of '.stages[] | select(.stage == "service").reason' | grep -oE "[0-9a-f.:]+\]?:$PORT, ?" | wc -l)"
    # With affinity; at an external address; of a pod with the host's network, on this node and on the other.
    endpoints sticky pod1 pod2 pod3 pod4
    trace "$(jq -r '.[] | select(.name == "lab/outer").external[0]' "$LAB_STATE/services.$FAMILY")" --tcp 80
    equal "IPv$FAMILY, an external address: endpoints" "$(places pod3)" "$(of '.endpoints[]')"
    for node in node1 node2; do
        trace "$(service "$node")" --tcp 80
        equal "IPv$FAMILY, the host's network of $node" "$(place "$(underlay_of "$node" "$FAMILY")") $CODE" "$(of .endpoint) 0"
    done
    equal "IPv$FAMILY, the host's network of node2: route" outside "$(of '.stages[] | select(.stage == "route").code')"

    refused "no endpoint" no-endpoint "$(service nobody)" --tcp 80
    connects "$(service nobody)" 80 && fail "IPv$FAMILY: a Service without endpoints answers"
    refused "an endpoint elsewhere" no-local-endpoint "$(service inner-far)" --tcp 80
    refused "another port" no-port "$(service pod3)" --udp 81
    trace "$(service pod3)"
    equal "IPv$FAMILY, ping: the ports are named" "service=service 0 tcp 80, udp 80" \
        "$(not_passing) $CODE $(of '.stages[-1].reason' | grep -o 'tcp 80, udp 80')"
    # What is no Service's goes on as it is asked.
    trace "$(address_of pod3 "$FAMILY")" --tcp 80
    equal "IPv$FAMILY, a pod: no endpoints" "[] null 0" "$(of '"\(.endpoints) \(.endpoint)"') $CODE"
    equal "IPv$FAMILY, a pod: what does not pass" "" "$(not_passing)"

    endpoints moving pod1
}

lab_up --nodes 2 --pods 2 --inside dual --outside dual
lab services --kube-proxy "$KUBE_PROXY" >/dev/null
for pod in pod1 pod2 pod3 pod4; do
    start_in "$pod" python3 "$TOOLS/exchange.py" serve "$pod" "$PORT" "$(address_of "$pod" 4)" "$(address_of "$pod" 6)"
done
until_true 20 "node2 answers probes" is_up
for FAMILY in 4 6; do
    all_of_one_family
    until_true 5 "IPv$FAMILY: a Service that passes answers" connects "$(service pod3)" 80
done

# What is refused behind the translation is told of the endpoint.
FAMILY=4 POD1=$(address_of pod1 4)
in_ns node1 nft -f - <<RULES
table inet other {
    chain forward {
        type filter hook forward priority -10;
        ip daddr $(address_of pod3 4) drop
    }
}
RULES
trace "$(service pod3)" --tcp 80
equal "a foreign rule that drops the endpoint's packets" "filter=dropped 1" "$(not_passing) $CODE"
connects "$(service pod3)" 80 && fail "a packet that is dropped arrives"
in_ns node1 nft delete table inet other

lab services --kube-proxy "$KUBE_PROXY" --moved >/dev/null
for FAMILY in 4 6; do
    POD1=$(address_of pod1 "$FAMILY")
    endpoints moving pod3
    traced moving pod3 overlay node2
done

# For people.
FAMILY=4 POD1=$(address_of pod1 4)
tartan node1 trace "$POD1" "$(service all)" --tcp 80 >"$SCRATCH/table" || fail "the table: exit code $?"
grep -q '✓ *service .*translated to one of: ' "$SCRATCH/table" || fail "no endpoints are printed: $(cat "$SCRATCH/table")"
law_one node1
