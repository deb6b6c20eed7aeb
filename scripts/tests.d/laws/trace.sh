#!/usr/bin/env bash
# `tartan trace`: on a healthy path every stage passes, on both nodes; one fault at a time is named by its stage and code, with a
# reason, a remedy and the exit code 1; what cannot be judged is said to be not known. Behind it the path is well again.
#
# labs: probes=on format=udp
# labs: probes=on inside=v4
# full: probes=on inside!=v6
# seconds: 300
# last: it stops agents
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

POD1=$(address_of pod1 4) POD3=$(address_of pod3 4)
# An address of node2 that is no pod's.
NODE2=${POD3%.*}.0
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
    of '.stages[].reason' | grep -q "inet other other, handle " || fail "the rule is not named: $(of '.stages[-1].reason')"
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

a_healthy_path
what_the_packet_is
foreign_rules
a_narrow_path
live
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
