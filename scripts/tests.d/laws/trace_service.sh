#!/usr/bin/env bash
# `tartan trace` to Services, by the rules of kube-proxy's iptables or nftables mode: the endpoints are named, all of them, and the
# packet is traced to one; what has no endpoint, no such port, or another traffic policy is refused, as it is to a real connection;
# after the endpoint has moved, it is the other one that is traced.
#
# full: probes=on inside=dual third=tartan
# seconds: 300
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

# Where the lab's Services lead to.
PORT=8080

# trace ARG...: of a packet of pod1, into $SCRATCH/trace.json; the exit code into $CODE, milliseconds into $TOOK.
trace() {
    local began=$EPOCHREALTIME
    CODE=0
    tartan node1 trace -o json "$POD1" "$@" >"$SCRATCH/trace.json" || CODE=$?
    TOOK=$(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
}

# of FILTER: of the trace.
of() {
    jq -r "$1" "$SCRATCH/trace.json"
}

# stage NAME FIELD: of the stage of that name.
stage() {
    of ".stages[] | select(.stage == \"$1\").$2"
}

# The stages that pass the packet not, with their codes. In iptables mode a rule of kube-proxy's own asks for the state of a
# connection, which a trace does not judge.
not_passing() {
    of '[.stages[] | select(.result != "passes") | "\(.stage)=\(.code)"] | join(" ")' | sed 's/^filter=not-judged$//'
}

# service NAME [FIELD]: its address.
service() {
    jq -r --arg name "lab/$1" ".[] | select(.name == \$name).${2:-address}" "$LAB_STATE/services.$FAMILY"
}

# places POD...: the endpoints' addresses and ports, sorted.
places() {
    local pod
    for pod; do socket_address "$(address_of "$pod" "$FAMILY")" "$PORT"; done | sort | paste -sd ' '
}

# endpoints WHAT ADDRESS POD...: these are all that are found there.
endpoints() {
    trace "$2" --tcp 80
    equal "IPv$FAMILY, $1: endpoints; what does not pass" "$(places "${@:3}"); " "$(of '.endpoints[]' | sort | paste -sd ' '); $(not_passing)"
    measured_at_most "IPv$FAMILY, $1: ms" 2000 "$TOOK"
}

# traced SERVICE POD CODE [PEER]: the packet is traced to that pod, by that kind of route; the Service stays the destination.
traced() {
    endpoints "$1" "$(service "$1")" "$2"
    equal "IPv$FAMILY, $1: traced to $2" "$(places "$2") $3 ${4:-null} 0 $(service "$1") 80" \
        "$(of .endpoint) $(stage route code) $(of .peer) $CODE $(of '"\(.destination) \(.port)"')"
}

# refused WHAT CODE ARG...: at the stage of the Service, with a remedy.
refused() {
    trace "${@:3}"
    equal "IPv$FAMILY, $1: refused, at the last stage, with a remedy" "service=$2 1 $3 service" \
        "$(not_passing) $CODE $(of .destination) $(of '.stages[-1] | select(.remedy != "").stage')"
}

# connects ADDRESS PORT: whether pod1 gets an answer, as the trace says.
connects() {
    in_ns pod1 timeout 2 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null
}

# all_of SERVICE: every pod is an endpoint of it.
all_of() {
    endpoints "$1" "$(service "$1")" pod1 pod2 pod3 pod4 pod5 pod6
}

every_kind() {
    local node
    traced pod3 pod3 overlay node2
    traced pod2 pod2 local-pod
    all_of all
    equal "IPv$FAMILY, all: named" 6 "$(stage service reason | grep -oE "[0-9a-f.:]+\]?:$PORT, ?" | wc -l)"
    all_of sticky
    endpoints "an external address" "$(service outer 'external[0]')" pod5
    for node in node1 node2; do
        trace "$(service "$node")" --tcp 80
        equal "IPv$FAMILY, the host's network of $node" "$(socket_address "$(underlay_of "$node" "$FAMILY")" "$PORT") 0" "$(of .endpoint) $CODE"
    done
    equal "IPv$FAMILY, the host's network of node2: route" outside "$(stage route code)"
    refused "no endpoint" no-endpoint "$(service nobody)" --tcp 80
    if connects "$(service nobody)" 80; then fail "IPv$FAMILY: a Service without endpoints answers"; fi
    refused "an endpoint elsewhere" no-local-endpoint "$(service inner-far)" --tcp 80
    refused "another port" no-port "$(service pod3)" --udp 81
    trace "$(service pod3)"
    equal "IPv$FAMILY, ping: the ports are named" "service=service 0 tcp 80, udp 80" \
        "$(not_passing) $CODE $(of '.stages[-1].reason' | grep -o 'tcp 80, udp 80')"
    # What is no Service's goes on as it is asked.
    trace "$(address_of pod3 "$FAMILY")" --tcp 80
    equal "IPv$FAMILY, a pod: no endpoints" "[] null 0 " "$(of '"\(.endpoints) \(.endpoint)"') $CODE $(not_passing)"
    traced moving pod1 local-pod
    until_true 5 "IPv$FAMILY: a Service that passes answers" connects "$(service pod3)" 80
}

# What is refused behind the translation is told of the endpoint.
a_foreign_rule() {
    undo in_ns node1 nft 'table inet other { }; delete table inet other'
    in_ns node1 nft "table inet other { chain forward { type filter hook forward priority -10; $1 daddr $(address_of pod3 "$FAMILY") drop; }; }"
    trace "$(service pod3)" --tcp 80
    equal "a foreign rule that drops the endpoint's packets" "filter=dropped 1" "$(not_passing) $CODE"
    if connects "$(service pod3)" 80; then fail "a packet that is dropped arrives"; fi
    in_ns node1 nft delete table inet other
}

# set_family FAMILY: of what follows.
set_family() {
    FAMILY=$1
    POD1=$(address_of pod1 "$FAMILY")
}

undo lab services --off
for POD in pod1 pod2 pod3; do
    ADDRESSES=()
    for FAMILY in "${SERVED[@]}"; do ADDRESSES+=("$(address_of "$POD" "$FAMILY")"); done
    start_in "$POD" python3 "$TOOLS/exchange.py" serve "$POD" "$PORT" "${ADDRESSES[@]}"
    until_true 10 "$POD serves" is_bound "$POD" udp "$PORT"
done
for MODE in iptables nftables; do
    say "kube-proxy's $MODE mode"
    lab services --kube-proxy "$MODE" >/dev/null
    for FAMILY in "${SERVED[@]}"; do
        set_family "$FAMILY"
        every_kind
        a_foreign_rule "$([ "$FAMILY" = 4 ] && echo ip || echo ip6)"
    done
    lab services --kube-proxy "$MODE" --moved >/dev/null
    for FAMILY in "${SERVED[@]}"; do
        set_family "$FAMILY"
        traced moving pod5 overlay node3
    done
    # For people.
    set_family "${SERVED[0]}"
    tartan node1 trace "$POD1" "$(service all)" --tcp 80 >"$SCRATCH/table" || fail "the table: exit code $?"
    grep -q '✓ *service .*translated to one of: ' "$SCRATCH/table" || fail "no endpoints are printed: $(cat "$SCRATCH/table")"
    lab services --off
done
