#!/usr/bin/env bash
# `tartan trace`: on a healthy path every stage passes, on both nodes; each fault is named by stage and code, with
# reason, remedy and exit code 1; what cannot be judged is said to be not known. To a Service the endpoints are named;
# what has none, or none that a traffic policy allows, is refused. (The law services shows where connections lead.)
#
# labs: probes=on format=udp
# labs: probes=on inside=v4
# full: probes=on inside!=v6
# seconds: 600
# last: it stops agents

POD1=$(address_of pod1 4) POD3=$(address_of pod3 4)
# An address of node2 that is no pod's.
NODE2=${POD3%.*}.0
MTU=$(ip -n "$PREFIX-node1" -j link show dev tartan0 | jq '.[0].mtu')

# trace ARG...: of a packet of pod1, into $SCRATCH/trace.json; the exit code into $CODE.
trace() {
    local began=$EPOCHREALTIME
    CODE=0
    tartan node1 trace -o json "$POD1" "$@" >"$SCRATCH/trace.json" || CODE=$?
    [ -z "${FULL:-}" ] || at_most "trace $*: ms" 2000 $(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
}

of() {
    jq -r "$1" "$SCRATCH/trace.json"
}

# The stages that do not pass, as STAGE=CODE, or ?STAGE=CODE where that is not known.
verdict() {
    of '[.stages[] | {"not-known": "?\(.stage)=\(.code)", refuses: "\(.stage)=\(.code)"}[.result] // empty] | join(" ")'
}

# judged WHAT VERDICT ARG...: this alone does not pass, and a refusal says why and what to do, with exit code 1.
judged() {
    local code=1
    if [ -z "${2##\?*}" ]; then code=0; fi
    trace "${@:3}"
    equal "$1: what does not pass, exit code, with reason and remedy" "$2 $code true" \
        "$(verdict) $CODE $(of '[.stages[] | select(.result == "refuses") | .reason != "" and .remedy != ""] | all')"
}

passes() {
    trace "$@"
    [ "$CODE" = 0 ] && [ "$(of .result)" = passes ]
}

# well WHAT PACKET ARG...: every stage passes, and the other node says so; the packet is that, or any.
well() {
    until_true 10 "$1: every stage passes" passes "${@:3}" || of '.stages[] | select(.result != "passes")'
    [ "$2" = any ] || equal "$1: the packet" "$2" "$(of '"\(.protocol) \(.port) \(.size) \(.dont_fragment)"')"
}

# rules NODE TYPE HOOK TEXT: the chain of another program's table; the one before goes.
rules() {
    in_ns "$1" nft "table inet other { }; delete table inet other
        table inet other { chain other { type $2 hook $3; $4; }; }"
}

# service NAME: its address.
service() {
    jq -r --arg name "lab/$1" '.[] | select(.name == $name).address' "$LAB_STATE/services.$FAMILY"
}

# endpoints SERVICE ROUTE POD...: these are all that are found, and such is the route to the one that is traced, or any.
endpoints() {
    local pod places route='"\(.stages[] | select(.stage == "route").code) \(.peer)"'
    [ "$2" != any ] || route='"any"'
    places=$(for pod in "${@:3}"; do socket_address "$(address_of "$pod" "$FAMILY")" 8080; done | sort | paste -sd ' ')
    trace "$(service "$1")" --tcp 80
    # In iptables mode a rule of kube-proxy's own asks for the state of a connection, which a trace does not judge.
    equal "IPv$FAMILY, $1: endpoints, code, what does not pass, route" "$places 0  $2" \
        "$(of '.endpoints[]' | sort | paste -sd ' ') $CODE $(verdict | sed 's/^?filter=not-judged$//') $(of "$route")"
}

# By the rules of kube-proxy's iptables and nftables mode. (agent/src/host/firewall/service has every kind of Service.)
to_services() {
    local POD1 FAMILY mode
    undo lab services --off
    for mode in iptables nftables; do
        for FAMILY in "${SERVED[@]}"; do
            POD1=$(address_of pod1 "$FAMILY")
            lab services --kube-proxy "$mode" >/dev/null
            endpoints all any pod{1..6}
            endpoints pod3 "overlay node2" pod3
            judged "IPv$FAMILY, no endpoint" service=no-endpoint "$(service empty)" --tcp 80
            judged "IPv$FAMILY, an endpoint elsewhere" service=no-local-endpoint "$(service inner-far)" --tcp 80
            lab services --kube-proxy "$mode" --moved >/dev/null
            endpoints moving "overlay node3" pod5
        done
        lab services --off
    done
}

STAGES="pod source-check route filter source fib format size kernel-path peer counters other-side"
well "healthy" any "$POD3"
equal "the stages" "$STAGES" "$(of '[.stages[].stage] | join(" ")')"
equal "the pod by its name, the peer" "$POD1 node2" \
    "$(tartan node1 trace -o json "lab/$PREFIX-pod1" "$POD3" | jq -r '"\(.source) \(.peer)"')"
well "tcp" "6 80 84 true" "$POD3" --tcp 80
well "udp" "17 53 84 false" "$POD3" --udp 53
well "icmp" "1 0 84 false" "$POD3" --icmp
well "a whole packet" "1 0 $MTU true" "$POD3" --size "$MTU" --df
# The device's MTU is the bound, and only of what must not be fragmented.
well "larger than the device, in fragments" any "$POD3" --size "$((MTU + 1))"
equal "ticks" "$(wc -w <<<"$STAGES")" "$(tartan node1 trace "$POD1" "$POD3" | grep -c '^✓ ')"

judged "an address of no node" "fib=NoRoute" 10.244.77.7
judged "an address of no pod there" "other-side=NotOurs" "${POD3%.*}.250"
judged "larger than the device" "size=device-mtu" "$POD3" --size "$((MTU + 1))" --df
judged "larger than the device, tcp" "size=device-mtu" "$POD3" --tcp 80 --size "$((MTU + 1))"
judged "another pod's source" "source-check=forged-source" "$POD3" --source "$POD3"
judged "the node's own address" "?route=this-node" "${POD1%.*}.0"
WRONG=$(tartan node1 trace missing/none "$POD3" 2>&1; tartan node1 trace "$POD1" "lab/$PREFIX-pod3" 2>&1) || true
equal "what to do with names that are not known" "name a pod of another node by its address;tartan pods" \
    "$(grep -o 'tartan pods\|name a pod of another node by its address' <<<"$WRONG" | sort -u | paste -sd ';')"

# A drop for an address alone is judged; one for a port, what a verdict map does and what may be translated are told.
undo in_ns node1 nft 'table inet other { }; delete table inet other'
rules node1 filter "forward priority 0" "ip daddr $POD3 drop"
judged "a foreign rule" "filter=dropped" "$POD3"
grep -q "inet other other, handle " <<<"$(of '.stages[].reason')" || fail "the rule is not named"
rules node1 filter "forward priority 0" "tcp dport 80 drop"
judged "a rule for a port" "?filter=not-judged" "$POD3" --tcp 80
judged "a rule for another protocol's port, which is not read" "?filter=not-judged" "$POD3" --udp 80
rules node1 filter "forward priority 0; policy drop" "ip daddr vmap { $POD3 : accept }"
judged "a verdict map before a policy that drops" "?filter=not-judged" "$POD3"
rules node1 nat "postrouting priority 100" "ip daddr $POD3 masquerade"
judged "a translation" "?translation=translated" "$POD3"
in_ns node1 nft delete table inet other
undo in_ns node2 nft 'table inet other { }; delete table inet other'
rules node2 filter "input priority -300" "meta l4proto udp meta length > 1300 drop"
judged "a narrow path" "other-side=path-narrow" "$NODE2" --size 1400 --df
in_ns node2 nft delete table inet other
well "without these rules" any "$POD3" --size 1400 --df

# What really happens, beside the prediction: in user space or on the kernel path.
start_in pod1 ping -q -i 0.05 -c 60 "$NODE2" >/dev/null
tartan node1 trace -o json "$POD1" "$NODE2" --live=1 >"$SCRATCH/trace.json" || true
equal "live: read, all of it sent, received; or carried by the kernel path" true \
    "$(of '.live | .in_kernel > 0 or (.read > 0 and .sent == .read and .received > 0)')"
if [ -n "${FULL:-}" ] && [ "$PEER" = "" ]; then to_services; fi
undo lab start node2
lab stop node2 >/dev/null
judged "a node that is down" other-side=no-answer "$NODE2"
undo lab start node1
lab stop node1 >/dev/null
trace "$POD3"
equal "no agent: exit code" 3 "$CODE"
