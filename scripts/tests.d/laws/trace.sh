#!/usr/bin/env bash
# `tartan trace`: on a healthy path every stage passes, on both nodes; one fault at a time is named by its stage and code, with a
# reason, a remedy and the exit code 1; what cannot be judged is said to be not known. Behind it the path is well again. To a Service
# the endpoints are named; what has none, no such port, or another traffic policy is refused, as it is to a real connection.
#
# labs: probes=on format=udp
# labs: probes=on inside=v4
# full: probes=on inside!=v6
# seconds: 600
# last: it stops agents
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

POD1=$(address_of pod1 4) POD3=$(address_of pod3 4)
# An address of node2 that is no pod's.
NODE2=${POD3%.*}.0
# Where the lab's Services lead to.
PORT=8080
MTU=$(ip -n "$PREFIX-node1" -j link show dev tartan0 | jq '.[0].mtu')

# trace ARG...: of a packet of pod1, into $SCRATCH/trace.json; the exit code into $CODE, milliseconds into $TOOK.
trace() {
    local began=$EPOCHREALTIME
    CODE=0
    tartan node1 trace -o json "$POD1" "$@" >"$SCRATCH/trace.json" || CODE=$?
    TOOK=$(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
}

of() {
    jq -r "$1" "$SCRATCH/trace.json"
}

# stages RESULT: those that have it, with their codes.
stages() {
    of "[.stages[] | select(.result == \"$1\") | \"\(.stage)=\(.code)\"] | join(\" \")"
}

# refused WHAT STAGE=CODE ARG...: that stage alone refuses it, and says why and what to do.
refused() {
    trace "${@:3}"
    equal "$1: refused by, exit code, with reason and remedy" "$2 1 true" \
        "$(stages refuses) $CODE $(of '[.stages[] | select(.result == "refuses") | .reason != "" and .remedy != ""] | all')"
    measured_at_most "$1: ms" 2000 "$TOOK"
}

# unknown WHAT STAGE=CODE ARG...: that stage alone is not known, which is no refusal.
unknown() {
    trace "${@:3}"
    equal "$1: not known, exit code" "$2 0" "$(stages not-known) $CODE"
}

passes() {
    trace "$@"
    [ "$CODE" = 0 ] && [ "$(of .result)" = passes ]
}

# well WHAT PACKET ARG...: every stage passes, and the other node says so; the packet is that, unless it is said to be any.
well() {
    until_true 10 "$1: every stage passes" passes "${@:3}" || of '.stages[] | select(.result != "passes")'
    [ "$2" = any ] || equal "$1: the packet" "$2" "$(of '"\(.protocol) \(.port) \(.size) \(.dont_fragment)"')"
    measured_at_most "$1: ms" 2000 "$TOOK"
}

# rules TYPE HOOK TEXT: the chain of another program's table; the one before goes.
rules() {
    in_ns node1 nft "table inet other { }; delete table inet other; table inet other { chain other { type $1 hook $2; $3; }; }"
}

# said WHAT CODE WORDS ARG...: what trace prints on its standard error.
said() {
    local code=0
    tartan node1 trace "${@:4}" 2>"$SCRATCH/wrong" || code=$?
    equal "$1: exit code" "$2" "$code"
    grep -q "$3" "$SCRATCH/wrong" || fail "$1: $(cat "$SCRATCH/wrong")"
}

a_healthy_path() {
    well "healthy" any "$POD3"
    equal "the stages" "pod source-check route filter source fib format size kernel-path peer counters other-side" \
        "$(of '[.stages[].stage] | join(" ")')"
    equal "the pod by its name, the peer" "$POD1 node2" \
        "$(tartan node1 trace -o json "lab/$PREFIX-pod1" "$POD3" | jq -r '"\(.source) \(.peer)"')"
    well "tcp" "6 80 84 true" "$POD3" --tcp 80
    well "udp" "17 53 84 false" "$POD3" --udp 53
    well "icmp" "1 0 84 false" "$POD3" --icmp
    well "a whole packet" "1 0 $MTU true" "$POD3" --size "$MTU" --df
    well "udp, a whole packet" "17 53 $MTU true" "$POD3" --udp 53 --size "$MTU" --df
    # The device's MTU is the bound, and only of what must not be fragmented.
    well "larger than the device, in fragments" any "$POD3" --size "$((MTU + 1))"
    # For people: a tick for each stage.
    equal "ticks" "$(of '.stages | length')" "$(tartan node1 trace "$POD1" "$POD3" | grep -c '^✓ ')"
}

what_the_packet_is() {
    refused "an address of no node" "fib=NoRoute" 10.244.77.7
    refused "an address of no pod there" "other-side=NotOurs" "${POD3%.*}.250"
    refused "larger than the device" "size=device-mtu" "$POD3" --size "$((MTU + 1))" --df
    refused "larger than the device, udp" "size=device-mtu" "$POD3" --udp 53 --size "$((MTU + 1))" --df
    refused "larger than the device, tcp" "size=device-mtu" "$POD3" --tcp 80 --size "$((MTU + 1))"
    refused "another pod's source" "source-check=forged-source" "$POD3" --source "$POD3"
    unknown "the node's own address" "route=this-node" "${POD1%.*}.0"
    said "an unknown pod" 1 'tartan pods' missing/none "$POD3"
    said "another node's pod by its name" 1 'name a pod of another node by its address' "$POD1" "lab/$PREFIX-pod3"
}

# A drop for an address alone is judged; one for a port, what a verdict map does and what may be translated are told.
foreign_rules() {
    undo in_ns node1 nft 'table inet other { }; delete table inet other'
    rules filter "forward priority 0" "ip daddr $POD3 drop"
    refused "a foreign rule" "filter=dropped" "$POD3"
    grep -q "inet other other, handle " <<<"$(of '.stages[].reason')" || fail "the rule is not named: $(of '.stages[-1].reason')"
    rules filter "forward priority 0" "tcp dport 80 drop"
    unknown "a rule for a port" "filter=not-judged" "$POD3" --tcp 80
    unknown "a rule for another protocol's port, which is not read" "filter=not-judged" "$POD3" --udp 80
    rules filter "forward priority 0; policy drop" "ip daddr vmap { $POD3 : accept }"
    unknown "a verdict map before a policy that drops" "filter=not-judged" "$POD3"
    rules nat "postrouting priority 100" "ip daddr $POD3 masquerade"
    unknown "a translation" "translation=translated" "$POD3"
    in_ns node1 nft delete table inet other
    well "without the rule" any "$POD3"
}

# A path that carries less, without a word.
a_narrow_path() {
    undo in_ns node2 nft 'table inet narrow { }; delete table inet narrow'
    in_ns node2 nft 'table inet narrow { chain input { type filter hook input priority -300; meta l4proto udp meta length > 1300 drop; }; }'
    refused "a narrow path" "other-side=path-narrow" "$NODE2" --size 1400 --df
    in_ns node2 nft delete table inet narrow
    well "a path that is wide again" any "$POD3" --size 1400 --df
}

# What really happens, beside the prediction: in user space or on the kernel path.
live() {
    start_in pod1 ping -q -i 0.05 -c 60 "$NODE2" >/dev/null
    tartan node1 trace -o json "$POD1" "$NODE2" --live=1 >"$SCRATCH/trace.json" || true
    equal "live: read, all of it sent, received; or carried by the kernel path" true \
        "$(of '.live | .in_kernel > 0 or (.read > 0 and .sent == .read and .received > 0)')"
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

# not_served WHAT CODE ARG...: refused at the stage of the Service, with a remedy.
not_served() {
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
    not_served "no endpoint" no-endpoint "$(service nobody)" --tcp 80
    if connects "$(service nobody)" 80; then fail "IPv$FAMILY: a Service without endpoints answers"; fi
    not_served "an endpoint elsewhere" no-local-endpoint "$(service inner-far)" --tcp 80
    not_served "another port" no-port "$(service pod3)" --udp 81
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

# By the rules of kube-proxy's iptables and nftables mode the endpoints of a Service are named, all of them, and the packet is traced
# to one; after the endpoint has moved, to the other.
to_services() {
    local POD1 FAMILY POD MODE ADDRESSES
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
            POD1=$(address_of pod1 "$FAMILY")
            every_kind
            a_foreign_rule "$([ "$FAMILY" = 4 ] && echo ip || echo ip6)"
        done
        lab services --kube-proxy "$MODE" --moved >/dev/null
        for FAMILY in "${SERVED[@]}"; do
            POD1=$(address_of pod1 "$FAMILY")
            traced moving pod5 overlay node3
        done
        # For people.
        tartan node1 trace "$POD1" "$(service all)" --tcp 80 >"$SCRATCH/table" || fail "the table: exit code $?"
        grep -q '✓ *service .*translated to one of: ' "$SCRATCH/table" || fail "no endpoints are printed: $(cat "$SCRATCH/table")"
        lab services --off
    done
}

a_healthy_path
what_the_packet_is
foreign_rules
a_narrow_path
live
if [ -n "${FULL:-}" ] && [ "$PEER" = "" ]; then to_services; fi
undo lab start node2
lab stop node2 >/dev/null
trace "$NODE2"
equal "a node that is down: exit code, the last stage" "1 other-side no-answer refuses" \
    "$CODE $(of '.stages[-1] | "\(.stage) \(.code) \(.result)"')"
measured_at_most "a node that is down: ms" 2000 "$TOOK"
undo lab start node1
lab stop node1 >/dev/null
trace "$POD3"
equal "no agent: exit code" 3 "$CODE"
