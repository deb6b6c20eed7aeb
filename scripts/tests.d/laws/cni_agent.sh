#!/usr/bin/env bash
# A pod's limits are in force when ADD returns: what it exchanges with a pod beside it, a pod of another node and an
# outside host passes a token bucket each way. The agent puts back limits that are removed, a killed service changes
# none, and with the pod they go. A second limiter in the chain is refused by name. With --full the rates are measured,
# and are within 15 % of the limits.
# labs: device=tun kernel-path=auto third=tartan
# last: it kills a service
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

# Bits per second.
TO_POD=20000000
FROM_POD=10000000
OUTSIDE=192.0.2.250
RECORDS=$LAB_STATE/node1/run/tartan/attachments
# As containerd gives them: no burst is named.
LIMITS=$(jq -nc --argjson to "$TO_POD" --argjson from "$FROM_POD" '{runtimeConfig: {bandwidth:
    {IngressRate: $to, IngressBurst: 4294967295, EgressRate: $from, EgressBurst: 4294967295}}}')

# in_force: whether both buckets are there, and what comes from the pod goes through one.
in_force() {
    # Without -q, grep reads to the end: tc would end by SIGPIPE.
    tc -n "$PREFIX-node1" qdisc show dev "$END" | grep "^qdisc tbf .* root .*rate 20Mbit" >/dev/null &&
        tc -n "$PREFIX-node1" qdisc show dev "$LIMITER" | grep "^qdisc tbf .* root .*rate 10Mbit" >/dev/null &&
        tc -n "$PREFIX-node1" filter show dev "$END" ingress | grep "Redirect to device $LIMITER" >/dev/null
}

no_limiters() {
    [ -z "$(ip -n "$PREFIX-node1" link show type ifb)" ]
}

# passed DEVICE: the packets that its bucket has let through.
passed() {
    tc -n "$PREFIX-node1" -s -j qdisc show dev "$1" root | jq '.[0].packets'
}

# limited NAME ADDRESS: the pod's packets to it and the answers pass the buckets; with --full at the limits' rates.
limited() {
    local to from
    to=$(passed "$END")
    from=$(passed "$LIMITER")
    pings shaped "$2"
    [ $(($(passed "$LIMITER") - from)) -ge 5 ] || fail "packets to $1 passed no bucket"
    [ $(($(passed "$END") - to)) -ge 5 ] || fail "packets from $1 passed no bucket"
    if [ -n "${FULL:-}" ]; then rates "$@"; fi
}

# rates NAME ADDRESS: of half as much again as the limit, sent by the pod and then by the other, arrives what it allows.
rates() {
    rate "the pod to $1" "$FROM_POD" "$1" "$1" "$2"
    rate "$1 to the pod" "$TO_POD" shaped "$1" "$2" --reverse
}

# rate WHAT LIMIT RECEIVER NAME ADDRESS [OPTION]: in bits per second, within 15 %.
rate() {
    local bytes began found
    start_in "$4" iperf3 --server --one-off >/dev/null
    until_true 5 "iperf3 listens in $4" is_bound "$4" tcp 5201
    start_in shaped iperf3 --client "$5" --udp --length 1200 --bitrate $(($2 * 3 / 2)) --time 8 "${@:6}" >/dev/null
    sleep 2
    began=${EPOCHREALTIME/./}
    bytes=$(device_count "$3" eth0 rx_bytes)
    sleep 4
    found=${EPOCHREALTIME/./}
    found=$((($(device_count "$3" eth0 rx_bytes) - bytes) * 8000000 / (found - began)))
    equal "$1, whether $found is within 15 % of $2" true "$(jq -n "$found / $2 | . > 0.85 and . < 1.15")"
    wait "$PID" || true
}

# removed CMD...: what that removes is put back; the agent counts it.
removed() {
    local repairs
    repairs=$(agent_json node1 status | jq .repairs)
    "$@"
    until_true 5 "the limits are back after $*" in_force
    equal "repairs" 1 "$(($(agent_json node1 status | jq .repairs) - repairs))"
}

state_is() {
    [ "$(row node1 "$1" | jq -r .state)" = "$2" ]
}

new_pods shaped
attach node1 shaped "$LIMITS"
END=$(row node1 shaped | jq -r .host_ifname)
LIMITER=tl${END#tt}
in_force || fail "the limits are not in force when ADD returns"
equal "limits by the agent" "$FROM_POD $TO_POD" \
    "$(row node1 shaped | jq -r '"\(.bandwidth.egress.rate) \(.bandwidth.ingress.rate)"')"
limited pod2 "$(address_of pod2)"
limited pod3 "$(address_of pod3)"
limited mallory "$OUTSIDE"
removed tc -n "$PREFIX-node1" qdisc delete dev "$END" ingress
removed tc -n "$PREFIX-node1" qdisc delete dev "$END" root
removed ip -n "$PREFIX-node1" link delete "$LIMITER"
kill -KILL "$(service_pid node1)"
in_force || fail "the limits went with the service"
until_true 10 "the next service reports the pod" state_is shaped attached
call DEL node1 shaped || fail "DEL"
no_limiters || fail "a limiter is left"
mkdir -p "$LAB_STATE/node1/etc/cni/net.d"
undo rm -rf "$LAB_STATE/node1/etc/cni"
jq -n '{bandwidth: true} as $capabilities | {name: "tartan", plugins:
    [{type: "tartan-cni", $capabilities}, {type: "bandwidth", $capabilities}]}' \
    >"$LAB_STATE/node1/etc/cni/net.d/10-tartan.conflist"
if ANSWER=$(call ADD node1 shaped "$LIMITS"); then fail "a pod that two limit is attached: $ANSWER"; fi
grep -q 'the plugin bandwidth, and both would limit' <<<"$ANSWER" || fail "the refusal does not name it: $ANSWER"
equal "records left of it" '' "$(find "$RECORDS" -name "*shaped*")"
rm -r "$LAB_STATE/node1/etc/cni"
