#!/usr/bin/env bash
# A pod on the bridge of the stock flannel CNI plugin, fed from subnet.env, talks with pods of other nodes, and with the
# nodes' processes, both ways, every source check on and nothing dropped; also when it is older than the agent. By IPv4
# it talks with pods of tartan-cni on its own node too, which reports that it is mixed. With strict-pods it is refused,
# and every refusal counted.
# labs: inside=dual device!=tap
# labs: inside=v6
# labs: inside=v4 format=vxlan kernel-path=stateless
# full: inside=v4
# last: it starts an agent anew
. "$TOOLS/stock.sh"

COUNT=5
SIZES=(0-2 1200 1360-1480)
if [ -n "${FULL:-}" ]; then SIZES=(0-1500); fi
SETTINGS=$LAB_STATE/node2/etc/tartan/tartan.toml
# A node's first address of its subnet.
declare -A TUNNEL=([4]=10.244.1.0 [6]=fd00:10:244:1::)

# pings ANSWERED FROM ADDRESS [FROM ADDRESS]...: all of them at once.
pings() {
    local answered=$1 begun=()
    shift
    rm -f "$SCRATCH"/pings-*
    while [ $# -gt 0 ]; do
        start_in "$1" python3 "$TOOLS/pings.py" "$2" $COUNT 0.02 $((answered > 0 ? 20 : 1)) \
            >"$SCRATCH/pings-${#begun[@]}"
        begun+=("$PID")
        shift 2
    done
    wait "${begun[@]}"
    equal "series of pings and their answers" "${#begun[@]} $answered received" \
        "$(sort "$SCRATCH"/pings-* | uniq -c | xargs)"
}

# drops: what the nodes of Tartan have dropped since BEFORE, {"outbound SpoofedSource": n, ...}
drops() {
    local node
    for node in "${TARTAN[@]}"; do agent_json "$node" drops; done | jq -cs --argjson before "${BEFORE:-"{}"}" 'reduce
        .[].reasons[] as $reason ({}; .["\($reason.direction) \($reason.reason)"] += $reason.count)
        | with_entries(.value -= ($before[.key] // 0) | select(.value > 0))'
}

# strict_pods VALUE: by a reload, for which the keeper starts another service.
strict_pods() {
    local service
    service=$(service_pid node2)
    echo "strict-pods = $1" >"$SETTINGS"
    kill -HUP "$(cat "$LAB_STATE/node2/pid")"
    until_true 10 "another service of node2 forwards" next_service node2 "$service"
    agents_are_ready
}

# Of FAMILY with everyone: over IPv4 also with a pod beside it.
talks() {
    local address pod pods=(pod1 pod5) pairs
    address=$(address_of bridged "$FAMILY")
    # The kernel makes sure that no other host has an IPv6 address before it uses it. It takes its time, up to 0.8 s, to
    # answer on the bridge for another host.
    until_true 5 "the bridged pod answers, IPv$FAMILY" in_ns node2 ping -q -c 1 -W 1 "$address"
    if [ "$FAMILY" = 4 ]; then
        pods+=(pod3)
        until_true 5 "it reaches a pod beside it" in_ns bridged ping -q -c 1 -W 1 "$(address_of pod3 4)"
    fi
    pairs=(node1 "$address" node2 "$address" bridged "${TUNNEL[$FAMILY]}")
    for pod in "${pods[@]}"; do pairs+=("$pod" "$address" bridged "$(address_of "$pod" "$FAMILY")"); done
    if [ "$(underlay_of node1 "$FAMILY")" != - ]; then pairs+=(bridged "$(underlay_of node1 "$FAMILY")"); fi
    pings $COUNT "${pairs[@]}"
}

BEFORE=$(drops)
bridged_pod node2
for FAMILY in "${FAMILIES[@]}"; do
    talks
    BRIDGED=$(address_of bridged "$FAMILY")
    # The bridge has one MTU, that of IPv4: the first larger packet of IPv6 is answered with packet-too-big, and lost.
    in_ns pod1 ping -q -c 3 -i 0.2 -s 1400 "$BRIDGED" >/dev/null || fail "large pings from pod1 to $BRIDGED"
    start_in bridged python3 "$TOOLS/sizes.py" serve "$BRIDGED"
    in_ns pod1 python3 "$TOOLS/sizes.py" ask "$BRIDGED" "${SIZES[@]}" || fail "sizes from pod1 to $BRIDGED"
    transfer pod1 bridged "$FAMILY" $((8 << 20))
    transfer bridged pod1 "$FAMILY" $((8 << 20))
done
equal "drops" '{}' "$(drops)"
if [ "$INSIDE" = v6 ]; then MIXED=''; else MIXED=mixed-pods; fi
equal "problems of node2" "$MIXED" "$(agent_json node2 status | jq -r '.problems[].code')"

undo rm -rf "$(dirname "$SETTINGS")"
mkdir -p "$(dirname "$SETTINGS")"
strict_pods true
BEFORE=
BEFORE=$(drops)
REFUSED=() HEARD=()
for FAMILY in "${FAMILIES[@]}"; do
    REFUSED+=(bridged "$(address_of pod1 "$FAMILY")" pod1 "$(address_of bridged "$FAMILY")")
    HEARD+=(node2 "$(address_of bridged "$FAMILY")" node2 "$(address_of pod1 "$FAMILY")")
done
pings 0 "${REFUSED[@]}"
pings $COUNT "${HEARD[@]}"
ALL=$((COUNT * ${#FAMILIES[@]}))
equal "drops with strict-pods" "{\"inbound NotOurs\":$ALL,\"outbound SpoofedSource\":$ALL}" \
    "$(drops | jq -c 'to_entries | sort | from_entries')"
strict_pods false
pings $COUNT "${REFUSED[@]}"
