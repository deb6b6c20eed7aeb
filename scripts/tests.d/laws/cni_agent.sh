#!/usr/bin/env bash
# A pod's limits are in force when ADD returns: what it exchanges with a pod beside it, a pod of another node and an
# outside host passes a token bucket each way. The agent puts back limits that are removed, a killed service changes
# none, and with the pod they go. A second limiter in the chain is refused by name. A thousand connections to the
# agent's socket that say nothing delay neither an ADD nor `tartan status`: the plugin's calls have a socket and seats
# of their own, and a connection that says nothing loses its seat to the next. A plugin that knows only the one socket
# is served too, in the running service and in the one after it. With --full an ADD beside them takes at most twice the
# slowest without them, and 0.5 s.
# labs: device=tun kernel-path=auto third=tartan
# last: it kills a service
. "$TOOLS/cni.sh"

SPACE=$PREFIX-node1
# As containerd gives them: no burst is named. Bits per second.
LIMITS='{"runtimeConfig": {"bandwidth": {"IngressRate": 20000000, "IngressBurst": 4294967295,
    "EgressRate": 10000000, "EgressBurst": 4294967295}}}'

# in_force: whether both buckets are there, and what comes from the pod goes through one.
in_force() {
    local found
    found=$(tc -n "$SPACE" qdisc show dev "$END"; tc -n "$SPACE" qdisc show dev "$LIMITER"
        tc -n "$SPACE" filter show dev "$END" ingress)
    [[ $found == *" root "*"rate 20Mbit "*" root "*"rate 10Mbit "*"Redirect to device $LIMITER"* ]]
}

# passed DEVICE: the packets that its bucket has let through.
passed() {
    tc -n "$SPACE" -s -j qdisc show dev "$1" root | jq '.[0].packets'
}

# limited ADDRESS: the pod's packets to it and the answers pass the buckets.
limited() {
    local to from
    to=$(passed "$END") from=$(passed "$LIMITER")
    pings shaped "$1"
    [ $(($(passed "$LIMITER") - from)) -ge 5 ] || fail "packets to $1 passed no bucket"
    [ $(($(passed "$END") - to)) -ge 5 ] || fail "packets from $1 passed no bucket"
}

# What the agent reports.
limits_are_reported() {
    agent_json node1 pods | jq -e --arg container "$PREFIX-shaped" '.pods[] | select(.container == $container)
        | .state == "attached" and .bandwidth.egress.rate == 10000000 and .bandwidth.ingress.rate == 20000000'
}

# removed CMD...: what that removes is put back; the agent counts it.
removed() {
    local repairs
    repairs=$(agent_json node1 status | jq .repairs)
    "$@"
    until_true 5 "the limits are back after $*" in_force
    equal "repairs" 1 "$(($(agent_json node1 status | jq .repairs) - repairs))"
}

# Connects to the agent's socket a thousand times and says nothing; connects again what is closed.
idle() {
    start_in node1 python3 -c '
import resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
poll = selectors.DefaultSelector()
while True:
    try:
        while len(poll.get_map()) < 1000:
            one = socket.socket(socket.AF_UNIX)
            one.connect(sys.argv[1])
            poll.register(one, selectors.EVENT_READ)
        print("connected", flush=True)
    except OSError:
        one.close()
    for key, _ in poll.select(0.1):
        poll.unregister(key.fileobj)
        key.fileobj.close()
' "$LAB_STATE/node1/run/tartan/tartan.sock" >"$SCRATCH/idle"
    IDLE=$PID
    until_true 30 "a thousand idle connections" grep -q connected "$SCRATCH/idle"
}

# adds WHEN [MOST]: a pod is attached and detached five times; the slowest ADD, in milliseconds, into SLOWEST.
adds() {
    local began took
    SLOWEST=0
    for _ in {1..5}; do
        began=${EPOCHREALTIME/./}
        call ADD node1 seated >/dev/null || fail "ADD $1"
        took=$(((${EPOCHREALTIME/./} - began) / 1000))
        [ "$took" -le "$SLOWEST" ] || SLOWEST=$took
        call DEL node1 seated || fail "DEL $1"
    done
    measured_at_most "milliseconds of the slowest of five ADDs $1" "${2:-$SLOWEST}" "$SLOWEST"
}

# What another process removes is there again, and a plugin that finds it missing uses the one that old plugins know.
old_path() {
    rm "$LAB_STATE/node1/run/tartan/cni.sock"
    call STATUS node1 none '{"cniVersion": "1.1.0"}' || fail "without its own socket the plugin gets no answer $1"
    until_true 3 "the plugin's socket is there again" test -S "$LAB_STATE/node1/run/tartan/cni.sock"
}

new_pods shaped seated
adds "with no other caller"
MOST=$((2 * SLOWEST + 500))
attach node1 shaped "$LIMITS"
END=$(jq -r .host_ifname "$LAB_STATE/node1/run/tartan/attachments/$PREFIX-shaped:eth0.json")
LIMITER=tl${END#tt}
in_force || fail "the limits are not in force when ADD returns"
until_true 10 "the agent reports the limits" limits_are_reported
for ADDRESS in "$(address_of pod2)" "$(address_of pod3)" 192.0.2.250; do limited "$ADDRESS"; done
removed tc -n "$SPACE" qdisc delete dev "$END" ingress
removed tc -n "$SPACE" qdisc delete dev "$END" root
removed ip -n "$SPACE" link delete "$LIMITER"

idle
adds "beside idle connections" "$MOST"
for _ in 1 2; do until_true 4 "a status beside them" tartan node1 status; done
old_path "beside them"
kill -KILL "$(service_pid node1)"
in_force || fail "the limits went with the service"
until_true 10 "the next service reports the limits, beside them" limits_are_reported
adds "of the next service" "$MOST"
stop "$IDLE" KILL
old_path "when they are gone"
call DEL node1 shaped || fail "DEL"
equal "limiters that are left" '' "$(ip -n "$SPACE" link show type ifb)"

undo rm -rf "$LAB_STATE/node1/etc/cni"
mkdir -p "$LAB_STATE/node1/etc/cni/net.d"
cat >"$LAB_STATE/node1/etc/cni/net.d/10-tartan.conflist" <<'JSON'
{"name": "tartan", "plugins": [{"type": "tartan-cni", "capabilities": {"bandwidth": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}
JSON
if ANSWER=$(call ADD node1 shaped "$LIMITS"); then fail "a pod that two limit is attached: $ANSWER"; fi
[[ $ANSWER == *'the plugin bandwidth, and both would limit'* ]] || fail "the refusal does not name it: $ANSWER"
