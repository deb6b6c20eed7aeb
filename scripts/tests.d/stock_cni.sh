#!/usr/bin/env bash
# A node whose pods hang on the bridge of the stock flannel CNI plugin, some from before Tartan came, and a
# node with tartan-cni: all talk, both ways, with every source check on and nothing dropped. With strict-pods
# the bridge's pods are refused, and counted.
#
#   pod1, pod2 ── node1 tartan ══ underlay ══ tartan node2 ── cni0 ── pod3 (older than Tartan), pod4
#   tartan-cni: a veth and a host route each        bridge and host-local, fed from subnet.env
#
# alone: a worker that others keep from its core drops what is over a pod's share of it
# stock_cni.sh BACKEND [INSIDE OUTSIDE]: the families of pods and of the underlay are v4, v6 or dual
# case: vxlan dual v4
# full: udp
# full: vxlan v6 v6
# full: vxlan dual dual
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
declare -A NUMBERS=([v4]=4 [v6]=6 [dual]="4 6")
declare -A TUNNEL1=([4]=10.244.1.0 [6]=fd00:10:244:1::)
# The stock plugin's pods have "pod3 4" and the like here.
declare -A ADDRESS
BYTES=$((32 << 20))
LARGEST=1500
PINGS=5
ENV_FILE=$LAB_STATE/node2/run/flannel/subnet.env

# node2 becomes one that flannel has left: no agent, no trace of one, and flannel's subnet.env.
after_flannel() {
    lab detach node2
    lab stop node2
    cp "$ENV_FILE" "$SCRATCH/subnet.env"
    tartan node2 cleanup >/dev/null || fail "tartan cleanup on node2 ended with code $?"
    [ ! -e "$ENV_FILE" ] || fail "cleanup left $ENV_FILE"
    mkdir -p "$(dirname "$ENV_FILE")"
    cp "$SCRATCH/subnet.env" "$ENV_FILE"
}

# stock_pod POD: attaches it and notes its addresses.
stock_pod() {
    local result address family
    result=$(stock ADD node2 "$1") || die "the stock plugin on node2 says: $result"
    for address in $(jq -r '.ips[].address | split("/")[0]' <<<"$result"); do
        case $address in
        *:*) family=6 ;;
        *) family=4 ;;
        esac
        ADDRESS["$1 $family"]=$address
        # The kernel makes sure that no other host has an IPv6 address before it uses it.
        until_true 5 "$address answers" in_ns node2 ping -n -q -c 1 -W 1 "$address" || true
    done
}

# talks FROM ADDRESS: every ping is answered.
talks() {
    equal "ping $1 to $2" "$PINGS received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" "$PINGS" 0.02 2)"
}

silent() {
    equal "ping $1 to $2, which is refused" "0 received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" "$PINGS" 0.02 1)"
}

# Every payload size over UDP and TCP.
sizes() {
    in_ns "$1" python3 "$TOOLS/sizes.py" ask "$2" "0-$LARGEST" || fail "sizes from $1 to $2"
}

bulk() {
    local from=$1 to=$2 address=$3 receiver sent
    start_in "$to" python3 "$TOOLS/bulk.py" receive "$address" 5003 >"$SCRATCH/received"
    receiver=$PID
    sent=$(in_ns "$from" python3 "$TOOLS/bulk.py" send "$address" 5003 "$BYTES") || fail "sending from $from to $to"
    wait "$receiver" || fail "receiving at $to"
    equal "bytes from $from to $to" "$BYTES" "${sent%% *}"
    equal "bytes and sha256 at $to" "$sent" "$(cat "$SCRATCH/received")"
}

nothing_dropped() {
    local node
    for node in node1 node2; do
        equal "drops on $node" '{}' "$(drops "$node")"
        law_one "$node"
    done
}

# What a node dropped: {"outbound SpoofedSource": n, ...}
drops() {
    agent_json "$1" drops | jq -c '[.reasons[] | select(.count > 0) | {"\(.direction) \(.reason)": .count}] | add // {}'
}

everybody_talks() {
    local family=$1 pod
    for pod in pod3 pod4; do
        talks pod1 "${ADDRESS[$pod $family]}"
        talks node1 "${ADDRESS[$pod $family]}"
        talks node2 "${ADDRESS[$pod $family]}"
        talks "$pod" "$(address_of pod1 "$family")"
        talks "$pod" "${TUNNEL1[$family]}"
        if [[ " ${NUMBERS[$OUTSIDE]} " == *" $family "* ]]; then talks "$pod" "$(underlay_of node1 "$family")"; fi
    done
    talks pod3 "${ADDRESS[pod4 $family]}"
    talks node1 "$(address_of pod1 "$family")"
    talks node2 "$(address_of pod1 "$family")"
}

everything_arrives() {
    local family=$1
    sizes pod1 "${ADDRESS[pod3 $family]}"
    sizes pod3 "$(address_of pod1 "$family")"
    bulk pod2 pod4 "${ADDRESS[pod4 $family]}"
    bulk pod4 pod2 "$(address_of pod2 "$family")"
    [ -n "${FULL:-}" ] || return 0
    bulk node1 pod3 "${ADDRESS[pod3 $family]}"
    bulk node2 pod1 "$(address_of pod1 "$family")"
}

# A server of every payload size in a pod, at all of its addresses.
serve_sizes() {
    local address pod=$1
    shift
    for address in "$@"; do start_in "$pod" python3 "$TOOLS/sizes.py" serve "$address"; done
}

say "the stock flannel contract: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
read -ra FAMILIES <<<"${NUMBERS[$INSIDE]}"
lab_up --pods 2 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
after_flannel
stock_pod pod3
lab start node2
same "subnet.env, flannel's and Tartan's" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
stock_pod pod4
equal "families of the pods on the bridge of node2" $((2 * ${#FAMILIES[@]})) "${#ADDRESS[@]}"
for family in "${FAMILIES[@]}"; do
    everybody_talks "$family"
    serve_sizes pod1 "$(address_of pod1 "$family")"
    serve_sizes pod3 "${ADDRESS[pod3 $family]}"
    everything_arrives "$family"
done
nothing_dropped

say "strict-pods"
lab stop node2
mkdir -p "$LAB_STATE/node2/etc/tartan"
echo 'strict-pods = true' >"$LAB_STATE/node2/etc/tartan/tartan.toml"
lab start node2
REFUSED=0
for family in "${FAMILIES[@]}"; do
    silent pod3 "$(address_of pod1 "$family")"
    silent pod1 "${ADDRESS[pod3 $family]}"
    REFUSED=$((REFUSED + PINGS))
    talks pod3 "${ADDRESS[pod4 $family]}"
    talks node2 "${ADDRESS[pod3 $family]}"
    talks node2 "$(address_of pod1 "$family")"
done
equal "drops on node2" "{\"outbound SpoofedSource\":$REFUSED,\"inbound NotOurs\":$REFUSED}" "$(drops node2)"
law_one node2

say "the stock plugin takes its pods away"
rm "$LAB_STATE/node2/etc/tartan/tartan.toml"
lab stop node2
lab start node2
for pod in pod3 pod4; do
    stock DEL node2 "$pod" || fail "DEL of $pod"
done
equal "addresses that host-local holds" '' "$(find "$LAB_STATE/node2/cni/networks" -type f -name '*[.:]*' ! -name 'last_reserved_ip*')"
for family in "${FAMILIES[@]}"; do silent pod1 "${ADDRESS[pod3 $family]}"; done
