#!/usr/bin/env bash
# `tartan trace`: on a healthy path every stage passes, on both nodes; then one fault at a time, and each is named by its
# stage and code, with the exit code 1, within two seconds; after its end the path is well again.
#
#   pod1 ── node1, tartan ══ node2, tartan ── pod2        mallory: no node
#
# trace.sh BACKEND
# case: vxlan
# full: udp
# full: vxlan workers=2
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1

# trace ARG...: of a packet of pod1, into $SCRATCH/trace.json; the exit code into $CODE, milliseconds into $TOOK.
trace() {
    local began
    began=$(date +%s%N)
    CODE=0
    tartan node1 trace -o json "$POD1" "$@" >"$SCRATCH/trace.json" || CODE=$?
    TOOK=$((($(date +%s%N) - began) / 1000000))
}

# The stages that refuse the packet, with their codes.
refusing() {
    jq -r '[.stages[] | select(.result == "refuses") | "\(.stage)=\(.code)"] | join(" ")' "$SCRATCH/trace.json"
}

# refused WHAT STAGE=CODE ARG...: that stage alone refuses it.
refused() {
    trace "${@:3}"
    equal "$1: what refuses it" "$2" "$(refusing)"
    equal "$1: exit code" 1 "$CODE"
    measured_at_most "$1: ms" 2000 "$TOOK"
    jq -e '[.stages[] | select(.result == "refuses") | .reason != "" and .remedy != ""] | all' "$SCRATCH/trace.json" >/dev/null ||
        fail "$1: no reason or no remedy: $(jq -c '.stages[-1]' "$SCRATCH/trace.json")"
}

passes() {
    trace "${@:2}"
    [ "$CODE" = 0 ] && [ "$(jq -r .result "$SCRATCH/trace.json")" = passes ]
}

# well WHAT ARG...: within seconds every stage passes, and the other node says so.
well() {
    until_true 10 "$1: every stage passes" passes "$@" || {
        jq -c '.stages[] | select(.result != "passes")' "$SCRATCH/trace.json" >&2
        return 0
    }
    measured_at_most "$1: ms" 2000 "$TOOK"
}

# traced WHAT PACKET: the packet that the last trace was of.
traced() {
    equal "$1: the packet" "$2" "$(jq -c '{protocol, port, size, dont_fragment}' "$SCRATCH/trace.json")"
}

# unknown WHAT STAGE=CODE ARG...: that stage alone is not known, which is no refusal.
unknown() {
    trace "${@:3}"
    equal "$1" "$2 0" \
        "$(jq -r '[.stages[] | select(.result == "not-known") | "\(.stage)=\(.code)"] | join(" ")' "$SCRATCH/trace.json") $CODE"
}

lab_up --nodes 2 --pods 1 --backend "$BACKEND"
POD1=$(address_of pod1) POD2=$(address_of pod2)
MTU=$(ip -n "$PREFIX-node1" -j link show dev tartan0 | jq '.[0].mtu')
in_ns pod1 ping -q -c 1 -W 2 "$POD2" >/dev/null || fail "pod1 does not reach pod2"

well "healthy" "$POD2"
equal "the stages" "pod source-check route filter source fib format size kernel-path peer counters other-side" \
    "$(jq -r '[.stages[].stage] | join(" ")' "$SCRATCH/trace.json")"
equal "the pod by its name" "$POD1" "$(tartan node1 trace -o json "lab/$PREFIX-pod1" "$POD2" | jq -r .source)"
equal "the peer" node2 "$(jq -r .peer "$SCRATCH/trace.json")"
well "tcp" "$POD2" --tcp 80
traced "tcp" '{"protocol":6,"port":80,"size":84,"dont_fragment":true}'
well "udp" "$POD2" --udp 53
traced "udp" '{"protocol":17,"port":53,"size":84,"dont_fragment":false}'
well "icmp" "$POD2" --icmp
traced "icmp" '{"protocol":1,"port":0,"size":84,"dont_fragment":false}'
well "a whole packet" "$POD2" --size 1400 --df
traced "a whole packet" '{"protocol":1,"port":0,"size":1400,"dont_fragment":true}'
well "udp, a whole packet" "$POD2" --udp 53 --size "$MTU" --df
traced "udp, a whole packet" '{"protocol":17,"port":53,"size":'"$MTU"',"dont_fragment":true}'
# The device's MTU is the bound, and only of what must not be fragmented.
well "larger than the device, in fragments" "$POD2" --size "$((MTU + 1))"
# For people: a tick for each stage.
tartan node1 trace "$POD1" "$POD2" >"$SCRATCH/table"
equal "ticks" "$(jq '.stages | length' "$SCRATCH/trace.json")" "$(grep -c '^✓ ' "$SCRATCH/table")"

refused "an address of no node" "fib=NoRoute" 10.244.77.7
refused "an address of no pod there" "other-side=NotOurs" "${POD2%.*}.250"
refused "larger than the device" "size=device-mtu" "$POD2" --size "$((MTU + 1))" --df
refused "larger than the device, udp" "size=device-mtu" "$POD2" --udp 53 --size "$((MTU + 1))" --df
refused "larger than the device, tcp" "size=device-mtu" "$POD2" --tcp 80 --size "$((MTU + 1))"
refused "another pod's source" "source-check=forged-source" "$POD2" --source "$POD2"

# A drop of another program's, for that address alone; one for a port is not judged.
in_ns node1 nft -f - <<RULES
table inet other {
    chain forward {
        type filter hook forward priority 0;
        ip daddr $POD2 drop
    }
}
RULES
refused "a foreign rule" "filter=dropped" "$POD2"
jq -e '[.stages[].reason] | any(contains("inet other forward, handle "))' "$SCRATCH/trace.json" >/dev/null ||
    fail "the rule is not named: $(jq -c '.stages[-1]' "$SCRATCH/trace.json")"
in_ns node1 nft flush chain inet other forward
in_ns node1 nft add rule inet other forward tcp dport 80 drop
unknown "a rule for a port" "filter=not-judged" "$POD2" --tcp 80
unknown "a rule for another protocol's port, which is not read" "filter=not-judged" "$POD2" --udp 80
# A verdict map may do anything, before a policy that drops; and what may be translated is told.
in_ns node1 nft -f - <<RULES
delete table inet other
table inet other {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip daddr vmap { $POD2 : accept }
    }
}
RULES
unknown "a verdict map" "filter=not-judged" "$POD2"
in_ns node1 nft -f - <<RULES
delete table inet other
table inet other {
    chain postrouting {
        type nat hook postrouting priority 100;
        ip daddr $POD2 masquerade
    }
}
RULES
unknown "a translation" "translation=translated" "$POD2"
unknown "the node's own address" "route=this-node" "${POD1%.*}.0"
in_ns node1 nft delete table inet other
well "without the rule" "$POD2"

# A pod that goes on the other side.
lab detach node2 >/dev/null
refused "a pod that is gone" "other-side=NotOurs" "$POD2"

# A path that carries less, without a word.
in_ns node2 nft -f - <<RULES
table inet narrow {
    chain input {
        type filter hook input priority -300;
        meta l4proto udp meta length > 1300 drop
    }
}
RULES
refused "a narrow path" "other-side=path-narrow" "${POD2%.*}.0" --size 1400 --df
in_ns node2 nft delete table inet narrow

# What really happens, beside the prediction.
in_ns pod1 ping -q -i 0.1 -c 40 "${POD2%.*}.0" >/dev/null &
PINGS=$!
tartan node1 trace -o json "$POD1" "${POD2%.*}.0" --live=2 >"$SCRATCH/live.json" || true
wait "$PINGS" || true
jq -e '.live.read > 0 and .live.sent == .live.read and .live.received > 0' "$SCRATCH/live.json" >/dev/null ||
    fail "live: $(jq -c .live "$SCRATCH/live.json")"

# A node that is down.
lab stop node2 >/dev/null
trace "${POD2%.*}.0"
equal "a peer that is down: exit code" 1 "$CODE"
measured_at_most "a peer that is down: ms" 2000 "$TOOK"
jq -e '.stages[-1] | .stage == "other-side" and .code == "no-answer" and .result == "refuses"' "$SCRATCH/trace.json" >/dev/null ||
    fail "a peer that is down: $(jq -c '.stages[-2:]' "$SCRATCH/trace.json")"

# Wrong names and no agent.
CODE=0
tartan node1 trace missing/none "$POD2" 2>"$SCRATCH/wrong" || CODE=$?
equal "an unknown pod: exit code" 1 "$CODE"
grep -q 'tartan pods' "$SCRATCH/wrong" || fail "an unknown pod: $(cat "$SCRATCH/wrong")"
# A pod of another node has an address here, and no name.
CODE=0
tartan node1 trace "$POD1" "lab/$PREFIX-pod2" 2>"$SCRATCH/wrong" || CODE=$?
equal "another node's pod by name: exit code" 1 "$CODE"
grep -q 'name a pod of another node by its address' "$SCRATCH/wrong" || fail "another node's pod by name: $(cat "$SCRATCH/wrong")"
law_one node1
lab stop node1 >/dev/null
trace "$POD2"
equal "no agent: exit code" 3 "$CODE"
