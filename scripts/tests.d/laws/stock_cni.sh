#!/usr/bin/env bash
# A pod on the bridge of the stock flannel CNI plugin, fed from subnet.env, talks with pods of other nodes, and with the
# nodes' processes, both ways, every source check on and nothing dropped; also when it is older than the agent. With
# strict-pods it is refused, and every refusal counted.
# labs: inside=dual device!=tap
# labs: inside=v6
# full: inside=v4
# last: it starts an agent anew
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

COUNT=5
BYTES=$((8 << 20))
SIZES=(0-2 1200 1360-1480)
if [ -n "${FULL:-}" ]; then SIZES=(0-1500); fi
SETTINGS=$LAB_STATE/node2/etc/tartan/tartan.toml
# A node's first address of its subnet.
declare -A TUNNEL=([4]=10.244.1.0 [6]=fd00:10:244:1::)

# pings ANSWERED FROM ADDRESS
pings() {
    equal "ping $2 to $3" "$1 received" "$(in_ns "$2" python3 "$TOOLS/pings.py" "$3" $COUNT 0.02 $(($1 > 0 ? 2 : 1)))"
}

# drops: what each node of Tartan dropped since `noted`, {"node2 outbound SpoofedSource": n, ...}
drops() {
    local node
    for node in "${TARTAN[@]}"; do
        agent_json "$node" drops | jq --arg node "$node" '.reasons[] | {"\($node) \(.direction) \(.reason)": .count}'
    done | jq -cs --argjson before "${NOTED:-"{}"}" \
        'add | with_entries(.value -= ($before[.key] // 0) | select(.value > 0))'
}

everyone_talks() {
    local address pod
    address=$(address_of bridged "$1")
    # The kernel makes sure that no other host has an IPv6 address before it uses it.
    until_true 5 "the bridged pod answers, IPv$1" in_ns node2 ping -n -q -c 1 -W 1 "$address"
    for pod in pod1 pod5; do
        pings $COUNT "$pod" "$address"
        pings $COUNT bridged "$(address_of "$pod" "$1")"
    done
    pings $COUNT node1 "$address"
    pings $COUNT node2 "$address"
    pings $COUNT bridged "${TUNNEL[$1]}"
    if [ "$(underlay_of node1 "$1")" != - ]; then pings $COUNT bridged "$(underlay_of node1 "$1")"; fi
}

# everything_arrives FROM TO FAMILY: every size, and TCP in bulk.
everything_arrives() {
    local address receiver sent
    address=$(address_of "$2" "$3")
    # The bridge has one MTU, that of IPv4: the first larger packet of IPv6 is answered with packet-too-big, and lost.
    in_ns "$1" ping -q -c 3 -i 0.2 -s 1400 "$address" >/dev/null || fail "no answer to large pings from $1 to $address"
    start_in "$2" python3 "$TOOLS/sizes.py" serve "$address"
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    in_ns "$1" python3 "$TOOLS/sizes.py" ask "$address" "${SIZES[@]}" || fail "sizes from $1 to $address"
    sent=$(in_ns "$1" python3 "$TOOLS/bulk.py" send "$address" 5003 $BYTES) || fail "sending from $1 to $address"
    wait "$receiver" || fail "receiving at $address"
    equal "bytes and sha256 from $1 to $address" "$sent" "$(cat "$SCRATCH/received")"
}

# A reload: the keeper starts another service.
reload() {
    local before
    before=$(service_pid node2)
    kill -HUP "$(cat "$LAB_STATE/node2/pid")"
    until_true 10 "another service of node2 forwards" another_service "$before"
    agents_are_ready
}

another_service() {
    agent_json node2 status | jq -e --argjson before "$1" '.service_pid != $before and .snapshot_adopted'
}

NOTED=$(drops)
bridged_pod node2
for FAMILY in "${FAMILIES[@]}"; do
    everyone_talks "$FAMILY"
    everything_arrives pod1 bridged "$FAMILY"
    everything_arrives bridged pod1 "$FAMILY"
done
equal "drops" '{}' "$(drops)"

undo rmdir --ignore-fail-on-non-empty "$(dirname "$SETTINGS")"
mkdir -p "$(dirname "$SETTINGS")"
echo 'strict-pods = true' >"$SETTINGS"
reload
NOTED=
NOTED=$(drops)
REFUSED=0
for FAMILY in "${FAMILIES[@]}"; do
    pings 0 bridged "$(address_of pod1 "$FAMILY")"
    pings 0 pod1 "$(address_of bridged "$FAMILY")"
    REFUSED=$((REFUSED + COUNT))
    pings $COUNT node2 "$(address_of bridged "$FAMILY")"
    pings $COUNT node2 "$(address_of pod1 "$FAMILY")"
done
equal "drops with strict-pods" \
    "{\"node2 outbound SpoofedSource\":$REFUSED,\"node2 inbound NotOurs\":$REFUSED}" "$(drops)"

rm "$SETTINGS"
reload
for FAMILY in "${FAMILIES[@]}"; do pings $COUNT pod1 "$(address_of bridged "$FAMILY")"; done
