#!/usr/bin/env bash
# Nothing outside is trusted. Forged datagrams of both formats, from a host that is no peer and from a real peer's address:
# none is delivered, none is answered, and each is counted under its reason, exactly. What a peer may rightly say, from its
# own node address, is delivered.
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"

PORT=7000
# Of each format; a number that no other count of this law is.
COUNT=37

# forged WHAT HOST REASON [KEYS]: a case of forgeries.py, which goes to node1; of a key that is in ORDER too the last one
# counts. REASON "delivered" means just that.
forged() {
    printf '%s\tnode1\treceived+%s\t{%s}\t%s\n' "$2" "$3" "$ORDER${4:+, $4}" "$1, IPv$FAMILY over IPv$OUTER"
}

# What is forged from here on: inner packets of family $1 over the underlay's family $2.
forge_as() {
    FAMILY=$1
    OUTER=$2
    POD1=$(address_of pod1 "$1") POD2=$(address_of pod2 "$1") POD3=$(address_of pod3 "$1") POD5=$(address_of pod5 "$1")
    MAC1=$(vtep_mac_of node1 "$1")
    FORMATS='"udp", "vxlan"'
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
        if [ "$BACKEND" != udp ]; then FORMATS='"vxlan"'; fi
        ;;
    esac
    ORDER="\"to\": \"$(underlay_of node1 "$2")\", \"formats\": [$FORMATS], \"count\": $COUNT, \"port\": $PORT,"
    ORDER+="\"source\": \"$POD3\", \"destination\": \"$POD1\", \"source_mac\": \"$(vtep_mac_of node2 "$1")\","
    ORDER+="\"destination_mac\": \"$MAC1\""
}

from_mallory() {
    forged "unknown outer source" mallory UnknownPeer
    forged "unknown outer source, our own pod inside" mallory UnknownPeer "\"source\": \"$POD1\""
    forged "unknown outer source, its own address inside" mallory UnknownPeer "\"source\": \"$MALLORY\""
}

# "WHO ADDRESS", of node $1's own address, if it has one of this family.
node_address() {
    local address
    address=$(underlay_of "node$1" "$FAMILY")
    [ "$address" = - ] || echo "$2 $address"
}

inner_addresses() {
    local who others
    mapfile -t others < <(node_address 3 "another node's address" && node_address 1 "our node address")
    for who in "${others[@]}" "another node's pod $POD5" "another node's tunnel ${SUBNET}3$TUNNEL" \
        "our own pod $POD2" "the pod itself $POD1" "our tunnel address ${SUBNET}1$TUNNEL" "${BEYOND[@]}" \
        "an unassigned address $UNASSIGNED" "a pod of no node ${SUBNET}77${TUNNEL%0}2"; do
        forged "a peer speaks as $who" node2 NotPeersSource "\"source\": \"${who##* }\""
    done
    mapfile -t others < <(node_address 1 "our node address")
    for who in "${others[@]}" "no pod of ours ${SUBNET}1${TUNNEL%0}99" "another node's pod $POD5" "${BEYOND[@]}" \
        "an unassigned address $UNASSIGNED"; do
        forged "a peer speaks to $who" node2 NotOurs "\"destination\": \"${who##* }\""
    done
}

broken_headers() {
    local format='"formats": ["vxlan"]'
    forged "another VNI" node2 WrongVni "$format, \"vni\": 2"
    forged "no I flag" node2 VxlanFlags "$format, \"flags\": 0"
    forged "a flag beside I" node2 VxlanFlags "$format, \"flags\": 136"
    forged "a reserved bit" node2 VxlanFlags "$format, \"reserved\": 1"
    forged "another VTEP's MAC" node2 NotOurMac "$format, \"destination_mac\": \"02:00:5e:10:00:03\""
    forged "our own MAC as source" node2 BadSourceMac "$format, \"source_mac\": \"$MAC1\""
    forged "a multicast MAC as source" node2 BadSourceMac "$format, \"source_mac\": \"01:00:5e:00:00:01\""
    forged "ARP inside" node2 NotIp "$format, \"ethertype\": 2054"
    forged "cut short" node2 TooShort "$format, \"cut\": 21"
    forged "the other family's ethertype" node2 NotIp "$format, \"ethertype\": $((FAMILY == 4 ? 0x86dd : 0x0800))"
    forged "no IP inside" node2 Malformed "\"raw\": \"$BAD_PACKET\""
    forged "an inner packet cut short" node2 Malformed '"formats": ["udp"], "cut": 30'
    forged "an inner packet cut short" node2 Malformed "$format, \"cut\": 52"
    [[ $FORMATS == *udp* ]] || forged "IPv6 in the udp format" node2 Ipv6InUdp '"formats": ["udp"]'
}

rightful() {
    local address
    forged "a peer's pod" node2 delivered
    forged "a peer's tunnel address" node2 delivered "\"source\": \"${SUBNET}2$TUNNEL\""
    address=$(underlay_of node2 "$FAMILY")
    [ "$address" = - ] || forged "a peer's node address" node2 delivered "\"source\": \"$address\""
}

# The port at which the service receives what the kernel path does not take is one of its own: what is sent there directly
# is trusted no more.
to_the_private_port() {
    local port
    port="\"formats\": [\"vxlan\"], \"outer_port\": $(agent_json node1 status | jq '.kernel_path.port')"
    forged "unknown outer source, to the private port" mallory UnknownPeer "$port"
    forged "a peer speaks as another node's pod, to the private port" node2 NotPeersSource "$port, \"source\": \"$POD5\""
    forged "a peer speaks to our node address, to the private port" node2 NotOurs \
        "$port, \"destination\": \"$(underlay_of node1 4)\""
}

every_case() {
    local inner
    for inner in "${FAMILIES[@]}"; do
        forge_as "$inner" "$(carrier "$inner" "$OUTSIDE")"
        from_mallory
        if kernel_path_carries && [ "$FAMILY$OUTER" = 44 ]; then to_the_private_port; fi
        inner_addresses
        broken_headers
        rightful
        [ "$OUTSIDE" = dual ] || continue
        # A peer is a peer by each of its addresses, and no more by one than by the other.
        forge_as "$inner" $((10 - inner))
        forged "unknown outer source" mallory UnknownPeer
        forged "a peer speaks as another node's pod" node2 NotPeersSource "\"source\": \"$POD5\""
        forged "a peer speaks to our node address" node2 NotOurs "\"destination\": \"$(underlay_of node1 "$inner")\""
        forged "a peer's pod" node2 delivered
    done
}

# seen FILE FILTER...: packets of a capture.
seen() {
    tcpdump -nqr "$SCRATCH/$1" "${@:2}" 2>/dev/null
}

start_in pod1 "$LOAD" count "$PORT" >"$SCRATCH/sink"
SINK=$PID
until_true 5 "the sink listens" is_bound pod1 udp "$PORT"
# Whatever else node1 says meanwhile would be an answer to a forger: but ARP, neighbour discovery and group reports, what it
# says to its registry, and probes of its peers (encap/src/probe.rs).
capture net node1 "$SCRATCH/replies" -Q in '(ip or ip6) and not tcp and not ip6[6] = 0' \
    and not '(icmp6 and (ip6[40] = 135 or ip6[40] = 136))' \
    and not '(greater 90 and (udp[28:2] = 0x88b5 or udp[8:4] = 0x545254))' \
    and not '(greater 90 and ip6[6] = 17 and (ip6[68:2] = 0x88b5 or ip6[48:4] = 0x545254))'
CAPTURES=("$PID")
capture node1 tartan0 "$SCRATCH/tartan0"
CAPTURES+=("$PID")
# With flows in the kernel path what a peer may say reaches the pod past tartan0: there what arrives at the pod is looked at.
capture pod1 eth0 "$SCRATCH/eth0" -Q in '(ip or ip6)' and not icmp6
CAPTURES+=("$PID")
forgeries "$(every_case)"
for PID in "${CAPTURES[@]}"; do stop "$PID" INT; done
stop "$SINK"
equal "datagrams that reached the pod" "$RIGHTFUL" "$(jq ".\"$PORT\".count" "$SCRATCH/sink")"
for DEVICE in tartan0 eth0; do
    equal "other packets at $DEVICE" 0 "$(seen "$DEVICE" not udp dst port "$PORT" | wc -l)"
done
# What arrives together is one super-packet on the device: its bytes are counted there, not its datagrams.
if [ "$KERNEL_PATH" != auto ]; then DEVICE=tartan0; fi
equal "bytes for the pod at $DEVICE" "$(jq "[.\"$PORT\".sizes | to_entries[] | (.key | tonumber) * .value] | add" "$SCRATCH/sink")" \
    "$(seen "$DEVICE" udp dst port "$PORT" | awk '{ bytes += $NF } END { print bytes + 0 }')"
equal "replies on the wire" 0 "$(seen replies | wc -l)"
law_one node1
# Its problems are those that this law has brought about, and would end after a while.
lab stop node1
lab start node1
agents_are_ready
