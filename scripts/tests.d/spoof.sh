#!/usr/bin/env bash
# Nothing outside is trusted. Forged datagrams of both formats, from a host that is no peer and from a
# real peer's address: none is delivered, none is answered, and each is counted under its reason, exactly.
# What a peer may rightly say, from its own node address, is delivered.
#
#   mallory .250 ───┐
#   node2 (tartan)  ├─ underlay ── node1 tartan ── pod1, pod2
#   node3 (kernel) ─┘      captured here, in the pod and on tartan0
#
# spoof.sh BACKEND [INSIDE OUTSIDE], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the
# underlay.
# case: udp
# full: vxlan
# full: udp v6 v6
# case: vxlan dual dual workers=2
# full: udp workers=2
# full: vxlan device=plain
# full: udp dual dual
# full: vxlan v6 v6
# full: vxlan v6 v4
# full: vxlan v4 v6
# full: vxlan dual dual workers=2 device-type=tap
# case: vxlan kernel-path=auto
# full: vxlan kernel-path=stateless
# full: vxlan kernel-path=auto device-type=tap
# full: vxlan dual v4 workers=2 kernel-path=auto
# full: vxlan dual v4 kernel-path=stateless
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}
SINK_PORT=7000
# Of each format; a number that no other count of this test is.
COUNT=37
CASES=0
# shellcheck disable=SC2016
INBOUND='[.workers[].inbound]
    | {received: (map(.received - .probes) | add), delivered: (map(.delivered) | add), originated: (map(.originated) | add)}
    + (reduce (.[].dropped | to_entries[]) as $drop ({}; .[$drop.key] += $drop.value))'

# Every count of node1's inbound direction that is not zero, but for the probes of its peers' health:
# {"received": n, "NotOurs": n, ...}
inbound() {
    agent_json node1 drops | jq -c "$INBOUND"
}

# The numbers of $2 that differ from those of $1, and by how much.
growth() {
    jq -nc --argjson before "$1" --argjson after "$2" \
        '$after | with_entries(.value -= ($before[.key] // 0)) | with_entries(select(.value != 0))'
}

# forged WHAT HOST REASON JSON: sends and compares what was counted. REASON "delivered" means just that.
forged() {
    local what=$1 host=$2 reason=$3 order sent before grown expected wait
    order=$(jq -nc --argjson more "$4" --argjson formats "$FORMATS" --argjson count "$COUNT" --argjson port "$SINK_PORT" \
        --arg address "$(underlay_of node1 "$OUTER")" --arg source "$POD3" --arg destination "$POD1" \
        --arg from "$MAC2" --arg to "$MAC1" \
        '{to: $address, $formats, $count, $source, $destination, $port, source_mac: $from, destination_mac: $to} + $more')
    sent=$(jq ".count * (.formats | length)" <<<"$order")
    before=$(inbound)
    in_ns "$host" python3 "$TOOLS/forge.py" <<<"$order"
    expected=$(jq -ncS --arg reason "$reason" --argjson sent "$sent" '{received: $sent} + {($reason): $sent}')
    for ((wait = 0; wait < 20; wait++)); do
        grown=$(growth "$before" "$(inbound)" | jq -cS .)
        [ "$grown" != "$expected" ] || break
        sleep 0.1
    done
    equal "$what, IPv$FAMILY over IPv$OUTER" "$expected" "$grown"
    CASES=$((CASES + 1))
    [ "$reason" != delivered ] || RIGHTFUL=$((RIGHTFUL + sent))
}

# What is forged from here on: inner packets of family $1 over the underlay's family $2.
forge_as() {
    FAMILY=$1
    OUTER=$2
    POD1=$(address_of pod1 "$1") POD2=$(address_of pod2 "$1") POD3=$(address_of pod3 "$1") POD5=$(address_of pod5 "$1")
    MAC1=$(vtep_mac_of node1 "$1") MAC2=$(vtep_mac_of node2 "$1")
    FORMATS='["udp", "vxlan"]'
    case $1 in
    4)
        SUBNET=10.244. TUNNEL=.0 UNASSIGNED=203.0.113.7 MALLORY=192.0.2.250
        BEYOND=("loopback 127.0.0.1" "link-local 169.254.1.1" "multicast 224.0.0.1" "broadcast 255.255.255.255")
        BAD_PACKET=00112233445566778899aabbccddeeff00112233
        ;;
    6)
        SUBNET=fd00:10:244: TUNNEL=:: UNASSIGNED=2001:db8:ffff::7 MALLORY=2001:db8:192::250
        BEYOND=("loopback ::1" "link-local fe80::1" "multicast ff02::1" "unspecified ::" "an IPv4 pod mapped ::ffff:10.244.1.2")
        BAD_PACKET=60000000001011400011223344556677
        # Where IPv6 does not go by udp nothing more is asked of it.
        if [ "$BACKEND" != udp ]; then FORMATS='["vxlan"]'; fi
        ;;
    esac
}

from_mallory() {
    forged "unknown outer source" mallory UnknownPeer '{}'
    forged "unknown outer source, our own pod inside" mallory UnknownPeer "{\"source\": \"$POD1\"}"
    forged "unknown outer source, its own address inside" mallory UnknownPeer "{\"source\": \"$MALLORY\"}"
}

# "WHO ADDRESS", of node $1's own address, if it has one of this family.
node_address() {
    local address
    address=$(underlay_of "node$1" "$FAMILY")
    [ "$address" = - ] || echo "$2 $address"
}

inner_source_of_a_peer() {
    local who others
    mapfile -t others < <(node_address 3 "another node's address" && node_address 1 "our node address")
    for who in "${others[@]}" "another node's pod $POD5" "another node's tunnel ${SUBNET}3$TUNNEL" \
        "our own pod $POD2" "the pod itself $POD1" "our tunnel address ${SUBNET}1$TUNNEL" "${BEYOND[@]}" \
        "an unassigned address $UNASSIGNED" "a pod of no node ${SUBNET}77${TUNNEL%0}2"; do
        forged "a peer speaks as $who" node2 NotPeersSource "{\"source\": \"${who##* }\"}"
    done
}

inner_destination() {
    local what others
    mapfile -t others < <(node_address 1 "our node address")
    for what in "${others[@]}" "no pod of ours ${SUBNET}1${TUNNEL%0}99" "another node's pod $POD5" "${BEYOND[@]}" \
        "an unassigned address $UNASSIGNED"; do
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
    forged "the other family's ethertype" node2 NotIp "{\"formats\": [\"vxlan\"], \"ethertype\": $((FAMILY == 4 ? 0x86dd : 0x0800))}"
    forged "no IP inside" node2 Malformed "{\"raw\": \"$BAD_PACKET\"}"
    forged "an inner packet cut short" node2 Malformed '{"formats": ["udp"], "cut": 30}'
    forged "an inner packet cut short" node2 Malformed '{"formats": ["vxlan"], "cut": 52}'
}

rightful() {
    local address
    forged "a peer's pod" node2 delivered '{}'
    forged "a peer's tunnel address" node2 delivered "{\"source\": \"${SUBNET}2$TUNNEL\"}"
    address=$(underlay_of node2 "$FAMILY")
    [ "$address" = - ] || forged "a peer's node address" node2 delivered "{\"source\": \"$address\"}"
}

# The port at which the service receives what the kernel path does not take is one of its own: what is sent there directly
# is trusted no more.
to_the_private_port() {
    local port formats='"formats": ["vxlan"]'
    port=$(agent_json node1 status | jq '.kernel_path.port')
    forged "unknown outer source, to the private port" mallory UnknownPeer "{$formats, \"outer_port\": $port}"
    forged "a peer speaks as another node's pod, to the private port" node2 NotPeersSource "{$formats, \"source\": \"$POD5\", \"outer_port\": $port}"
    forged "a peer speaks to our node address, to the private port" node2 NotOurs \
        "{$formats, \"destination\": \"$(underlay_of node1 4)\", \"outer_port\": $port}"
}

every_kind() {
    from_mallory
    if kernel_path_carries && [ "$FAMILY$OUTER" = 44 ]; then to_the_private_port; fi
    inner_source_of_a_peer
    inner_destination
    broken_headers
    if [ "$FORMATS" = '["vxlan"]' ]; then forged "IPv6 in the udp format" node2 Ipv6InUdp '{"formats": ["udp"]}'; fi
    rightful
}

# A peer is a peer by each of its addresses, and no more by one than by the other.
other_underlay() {
    forged "unknown outer source" mallory UnknownPeer '{}'
    forged "a peer speaks as another node's pod" node2 NotPeersSource "{\"source\": \"$POD5\"}"
    forged "a peer speaks to our node address" node2 NotOurs "{\"destination\": \"$(underlay_of node1 "$FAMILY")\"}"
    forged "a peer's pod" node2 delivered '{}'
}

say "forged datagrams: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
OPTIONS=()
if [ "$INSIDE" = "$OUTSIDE" ]; then OPTIONS=(--peer kernel-vxlan); fi
lab_up --nodes 3 --pods 2 --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" "${OPTIONS[@]}"
RIGHTFUL=0
start_in pod1 "$LOAD" count "$SINK_PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" is_bound pod1 udp "$SINK_PORT"
# Whatever node1 says meanwhile, but ARP, neighbour discovery and group reports, would be an answer to a forger.
capture net node1 "$SCRATCH/replies.pcap" -Q in '(ip or ip6)' and not '(icmp6 and (ip6[40] = 135 or ip6[40] = 136))' \
    and not 'ip6[6] = 0'
REPLIES=$PID
capture node1 tartan0 "$SCRATCH/device.pcap"
DEVICE=$PID
# With flows in the kernel path what a peer may say reaches the pod past tartan0: there what arrives at the pod is looked at.
AT=tartan0
if [ "$KERNEL_PATH" = auto ]; then
    AT="the pod's interface"
    capture pod1 eth0 "$SCRATCH/pod.pcap" -Q in '(ip or ip6)' and not icmp6
    POD=$PID
fi
for INNER in $(families "$INSIDE"); do
    # With both families, IPv4 over IPv4 alone is what the cases of IPv4 forge in the default run.
    if [ -n "${FULL:-}" ] || [ "$INNER$INSIDE" != 4dual ]; then
        forge_as "$INNER" "$(carrier "$INNER" "$OUTSIDE")"
        every_kind
    fi
    if [ "$OUTSIDE" = dual ]; then
        forge_as "$INNER" $((10 - INNER))
        other_underlay
    fi
done
sleep 0.5
stop "$REPLIES" INT
stop "$DEVICE" INT
if [ "$KERNEL_PATH" = auto ]; then stop "$POD" INT; fi
stop "$SINK"
say "$CASES kinds of datagrams"
law_one node1
equal "datagrams that reached the pod" "$RIGHTFUL" "$(jq ".\"$SINK_PORT\".count" "$SCRATCH/sink")"
# What arrives together is one super-packet on the device: its bytes are counted there, not its datagrams.
SEEN=$SCRATCH/device.pcap
if [ "$KERNEL_PATH" = auto ]; then
    SEEN=$SCRATCH/pod.pcap
    equal "other packets at the pod's interface" 0 "$(tcpdump -nr "$SEEN" not udp dst port "$SINK_PORT" 2>/dev/null | wc -l)"
fi
equal "bytes for the pod on $AT" "$(jq "[.\"$SINK_PORT\".sizes | to_entries[] | (.key | tonumber) * .value] | add" "$SCRATCH/sink")" \
    "$(tcpdump -nqr "$SEEN" udp dst port "$SINK_PORT" 2>/dev/null | awk '{ bytes += $NF } END { print bytes + 0 }')"
equal "other packets on tartan0" 0 "$(tcpdump -nr "$SCRATCH/device.pcap" not udp dst port "$SINK_PORT" 2>/dev/null | wc -l)"
equal "replies on the wire" 0 "$(tcpdump -nr "$SCRATCH/replies.pcap" 2>/dev/null | wc -l)"
