#!/usr/bin/env bash
# Nothing outside is trusted. Forged datagrams of both formats, from a host that is no peer and from a
# real peer's address: none is delivered, none is answered, and each is counted under its reason, exactly.
# What a peer may rightly say, from its own node address, is delivered.
#
#   mallory 192.0.2.250 ──┐
#   node2 (tartan)        ├─ underlay ── node1 tartan ── pod1, pod2
#   node3 (kernel) ───────┘      captured here, in the pod and on tartan0
#
# case: udp
# case: vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/tools/law.sh"

BACKEND=$1
SINK_PORT=7000
MAC1=0a:74:c0:00:02:01
MAC2=0a:74:c0:00:02:02
# Of each format; a number that no other count of this test is.
COUNT=37
CASES=0
# shellcheck disable=SC2016
INBOUND='[.workers[].inbound]
    | {received: (map(.received) | add), delivered: (map(.delivered) | add), originated: (map(.originated) | add)}
    + (reduce (.[].dropped | to_entries[]) as $drop ({}; .[$drop.key] += $drop.value))'

# Every count of node1's inbound direction that is not zero: {"received": n, "NotOurs": n, ...}
inbound() {
    told node1 drops | jq -c "$INBOUND"
}

# The numbers of $2 that differ from those of $1, and by how much.
growth() {
    jq -nc --argjson before "$1" --argjson after "$2" \
        '$after | with_entries(.value -= ($before[.key] // 0)) | with_entries(select(.value != 0))'
}

# forged WHAT HOST REASON JSON: sends and compares what was counted. REASON "delivered" means just that.
forged() {
    local what=$1 host=$2 reason=$3 order sent before grown expected wait
    order=$(jq -nc --argjson more "$4" --argjson count "$COUNT" --argjson port "$SINK_PORT" \
        --arg source "$POD3" --arg destination "$POD1" --arg from "$MAC2" --arg to "$MAC1" \
        '{to: "192.0.2.1", formats: ["udp", "vxlan"], $count, $source, $destination, $port,
          source_mac: $from, destination_mac: $to} + $more')
    sent=$(jq ".count * (.formats | length)" <<<"$order")
    before=$(inbound)
    in_ns "$host" python3 "$TOOLS/forge.py" <<<"$order"
    expected=$(jq -ncS --arg reason "$reason" --argjson sent "$sent" '{received: $sent} + {($reason): $sent}')
    for ((wait = 0; wait < 20; wait++)); do
        grown=$(growth "$before" "$(inbound)" | jq -cS .)
        [ "$grown" != "$expected" ] || break
        sleep 0.1
    done
    equal "$what" "$expected" "$grown"
    CASES=$((CASES + 1))
    [ "$reason" != delivered ] || RIGHTFUL=$((RIGHTFUL + sent))
}

from_mallory() {
    forged "unknown outer source" mallory UnknownPeer '{}'
    forged "unknown outer source, our own pod inside" mallory UnknownPeer "{\"source\": \"$POD1\"}"
    forged "unknown outer source, its own address inside" mallory UnknownPeer '{"source": "192.0.2.250"}'
}

inner_source_of_a_peer() {
    local who
    for who in "another node's pod $POD5" "another node's address 192.0.2.3" "another node's tunnel 10.244.3.0" \
        "our own pod $POD2" "the pod itself $POD1" "our node address 192.0.2.1" "our tunnel address 10.244.1.0" \
        "loopback 127.0.0.1" "nobody's address 203.0.113.7" "a pod of no node 10.244.77.2"; do
        forged "a peer speaks as $who" node2 NotPeersSource "{\"source\": \"${who##* }\"}"
    done
}

inner_destination() {
    local what
    for what in "no pod of ours 10.244.1.99" "another node's pod $POD5" "our node address 192.0.2.1" \
        "loopback 127.0.0.1" "link-local 169.254.1.1" "multicast 224.0.0.1" "broadcast 255.255.255.255" \
        "nobody's address 203.0.113.7"; do
        forged "a peer speaks to $what" node2 NotOurs "{\"destination\": \"${what##* }\"}"
    done
}

broken_headers() {
    forged "another VNI" node2 WrongVni '{"formats": ["vxlan"], "vni": 2}'
    forged "no I flag" node2 VxlanFlags '{"formats": ["vxlan"], "flags": 0}'
    forged "a flag beside I" node2 VxlanFlags '{"formats": ["vxlan"], "flags": 136}'
    forged "a reserved bit" node2 VxlanFlags '{"formats": ["vxlan"], "reserved": 1}'
    forged "another VTEP's MAC" node2 NotOurMac '{"formats": ["vxlan"], "destination_mac": "02:00:5e:10:00:03"}'
    forged "our own MAC as source" node2 BadSourceMac "{\"formats\": [\"vxlan\"], \"source_mac\": \"$MAC1\"}"
    forged "a multicast MAC as source" node2 BadSourceMac '{"formats": ["vxlan"], "source_mac": "01:00:5e:00:00:01"}'
    forged "ARP inside" node2 NotIp '{"formats": ["vxlan"], "ethertype": 2054}'
    forged "cut short" node2 TooShort '{"formats": ["vxlan"], "cut": 21}'
    forged "no IP inside" node2 Malformed '{"formats": ["udp"], "raw": "00112233445566778899aabbccddeeff00112233"}'
    forged "an inner packet cut short" node2 Malformed '{"formats": ["udp"], "cut": 30}'
}

rightful() {
    forged "a peer's pod" node2 delivered '{}'
    forged "a peer's node address" node2 delivered '{"source": "192.0.2.2"}'
    forged "a peer's tunnel address" node2 delivered '{"source": "10.244.2.0"}'
}

say "forged datagrams: backend $BACKEND"
lab_up --nodes 3 --pods 2 --backend "$BACKEND" --peer kernel-vxlan
POD1=$(address_of pod1) POD2=$(address_of pod2) POD3=$(address_of pod3) POD5=$(address_of pod5)
RIGHTFUL=0
start_in pod1 python3 "$TOOLS/sink.py" "$SINK_PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" in_ns pod1 sh -c "ss -Hlun | grep -q :$SINK_PORT"
# Whatever node1 says meanwhile, but ARP, would be an answer to a forger.
capture net node1 "$SCRATCH/replies.pcap" inbound and ip
REPLIES=$PID
capture node1 tartan0 "$SCRATCH/device.pcap"
DEVICE=$PID
from_mallory
inner_source_of_a_peer
inner_destination
broken_headers
rightful
sleep 0.5
stop "$REPLIES" INT
stop "$DEVICE" INT
stop "$SINK"
say "$CASES kinds of datagrams"
law_one node1
equal "datagrams that reached the pod" "$RIGHTFUL" "$(jq ".\"$SINK_PORT\".count" "$SCRATCH/sink")"
equal "packets on tartan0" "$RIGHTFUL" "$(tcpdump -nr "$SCRATCH/device.pcap" 2>/dev/null | wc -l)"
equal "replies on the wire" 0 "$(tcpdump -nr "$SCRATCH/replies.pcap" 2>/dev/null | wc -l)"
