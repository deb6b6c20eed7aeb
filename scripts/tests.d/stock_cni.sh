#!/usr/bin/env bash
# A node whose pods hang on the bridge of the stock flannel CNI plugin, some from before Tartan came, and a
# node with tartan-cni: all talk, both ways, with every source check on and nothing dropped. With strict-pods
# the bridge's pods are refused, and counted.
#
#   pod1, pod2 ── node1 tartan ══ underlay ══ tartan node2 ── cni0 ── pod3 (older than Tartan), pod4
#   tartan-cni: a veth and a host route each        bridge and host-local, fed from subnet.env
#
# case: vxlan
# full: udp
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"
# shellcheck source=scripts/tests.d/tools/stock.sh
. "$TOOLS/stock.sh"

BACKEND=$1
BYTES=$((64 << 20))
LARGEST=1600
PINGS=10
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

# stock_pod POD: the address it got.
stock_pod() {
    local result
    result=$(stock ADD node2 "$1") || die "the stock plugin on node2 says: $result"
    jq -r '.ips[0].address | split("/")[0]' <<<"$result"
}

# talks FROM ADDRESS: every ping is answered.
talks() {
    local answer
    answer=$(in_ns "$1" ping -n -q -c "$PINGS" -i 0.02 -W 1 "$2") || true
    equal "ping $1 to $2" "$PINGS received" "$(grep -o '[0-9]* received' <<<"$answer")"
}

silent() {
    local answer
    answer=$(in_ns "$1" ping -n -q -c "$PINGS" -i 0.02 -W 1 "$2") || true
    equal "ping $1 to $2, which is refused" "0 received" "$(grep -o '[0-9]* received' <<<"$answer")"
}

# Every payload size over UDP and TCP.
sizes() {
    in_ns "$1" python3 "$TOOLS/sizes.py" ask "$2" 0 "$LARGEST" || fail "sizes from $1 to $2"
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
    told "$1" drops | jq -c '[.reasons[] | select(.count > 0) | {"\(.direction) \(.reason)": .count}] | add // {}'
}

everybody_talks() {
    local pod
    for pod in "$POD3" "$POD4"; do
        talks pod1 "$pod"
        talks node1 "$pod"
        talks node2 "$pod"
    done
    for pod in pod3 pod4; do
        talks "$pod" "$POD1"
        talks "$pod" 10.244.1.0
        talks "$pod" 192.0.2.1
    done
    talks pod3 "$POD4"
    talks node1 "$POD1"
    talks node2 "$POD1"
}

say "the stock flannel contract: backend $BACKEND"
lab_up --pods 2 --backend "$BACKEND"
after_flannel
POD1=$(address_of pod1) POD2=$(address_of pod2)
POD3=$(stock_pod pod3)
lab start node2
same "subnet.env, flannel's and Tartan's" "$(cat "$SCRATCH/subnet.env")" "$(cat "$ENV_FILE")"
POD4=$(stock_pod pod4)
equal "pods on the bridge of node2" "10.244.2.2 10.244.2.3" "$POD3 $POD4"
everybody_talks
start_in pod1 python3 "$TOOLS/sizes.py" serve "$POD1"
start_in pod3 python3 "$TOOLS/sizes.py" serve "$POD3"
sizes pod1 "$POD3"
sizes pod3 "$POD1"
bulk pod2 pod4 "$POD4"
bulk pod4 pod2 "$POD2"
bulk node1 pod3 "$POD3"
bulk node2 pod1 "$POD1"
nothing_dropped

say "strict-pods"
lab stop node2
mkdir -p "$LAB_STATE/node2/etc/tartan"
echo 'strict-pods = true' >"$LAB_STATE/node2/etc/tartan/tartan.toml"
lab start node2
silent pod3 "$POD1"
equal "drops on node2" "{\"outbound SpoofedSource\":$PINGS}" "$(drops node2)"
silent pod1 "$POD3"
equal "drops on node2" "{\"outbound SpoofedSource\":$PINGS,\"inbound NotOurs\":$PINGS}" "$(drops node2)"
talks pod3 "$POD4"
talks node2 "$POD3"
talks node2 "$POD1"
law_one node2

say "the stock plugin takes its pods away"
rm "$LAB_STATE/node2/etc/tartan/tartan.toml"
lab stop node2
lab start node2
for pod in pod3 pod4; do
    stock DEL node2 "$pod" || fail "DEL of $pod"
done
equal "addresses that host-local holds" '' "$(find "$LAB_STATE/node2/cni/networks" -name '10.*')"
silent pod1 "$POD3"
