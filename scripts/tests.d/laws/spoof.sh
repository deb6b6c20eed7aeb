#!/usr/bin/env bash
# Nothing outside is trusted. Forged datagrams of both formats, from a host that is no peer and from a real peer's
# address: none is delivered, none is answered, and each is counted under its reason, exactly. What a peer may rightly
# say, from its own node address, is delivered.

PORT=7000
# Of each format; a number that no other count of this law is.
COUNT=37

# forged HOST REASON|delivered WHAT [KEY=VALUE...]: a case of forge.py, which goes to node1.
forged() {
    printf '%s\tnode1\treceived+%s\t%s, IPv%s over IPv%s\t%s\n' "$1" "$2" "$3" "$FAMILY" "$OUTER" "$ORDER ${*:4}"
}

# From here on inner packets of family $1 go over the underlay's family $2, as pod3 speaks to pod1.
forge_as() {
    FAMILY=$1 OUTER=$2 POD1=$(address_of pod1 "$1") POD5=$(address_of pod5 "$1") MAC1=$(vtep_mac_of node1 "$1")
    # A node has no address of a family that its underlay has not: it is -.
    NODE1=$(underlay_of node1 "$1") NODE2=$(underlay_of node2 "$1") NODE3=$(underlay_of node3 "$1")
    # Where IPv6 does not go by udp nothing more is asked of it.
    FORMATS=udp,vxlan
    if [ "$1$BACKEND" = 6vxlan ]; then FORMATS=vxlan; fi
    ORDER="to=$(underlay_of node1 "$2") formats=$FORMATS count=$COUNT port=$PORT source=$(address_of pod3 "$1")"
    ORDER+=" destination=$POD1 source_mac=$(vtep_mac_of node2 "$1") destination_mac=$MAC1"
    SUBNET=10.244. HOST=. MALLORY=192.0.2.250 OTHER=0x86dd BAD_PACKET=00112233445566778899aabbccddeeff00112233
    BEYOND=("loopback 127.0.0.1" "link-local 169.254.1.1" "multicast 224.0.0.1" "broadcast 255.255.255.255"
        "an unassigned address 203.0.113.7")
    [ "$1" = 6 ] || return 0
    SUBNET=fd00:10:244: HOST=:: MALLORY=2001:db8:192::250 OTHER=0x0800 BAD_PACKET=60000000001011400011223344556677
    BEYOND=("loopback ::1" "link-local fe80::1" "multicast ff02::1" "unspecified ::"
        "an IPv4 pod mapped ::ffff:10.244.1.2" "an unassigned address 2001:db8:ffff::7")
}

# every HOST REASON WHAT KEY WHO...: a case for each who has an address, its last word, in that key.
every() {
    local who
    for who in "${@:5}"; do
        [ "${who##* }" = - ] || forged "$1" "$2" "$3 $who" "$4=${who##* }"
    done
}

# Whatever the underlay's family that it comes by.
once() {
    local reason what keys
    forged mallory UnknownPeer "unknown outer source, our own pod inside" "source=$POD1"
    forged mallory UnknownPeer "unknown outer source, its own address inside" "source=$MALLORY"
    # The port at which the service receives what the kernel path does not take is one of its own: what is sent there
    # directly is trusted no more.
    if kernel_path_carries && [ "$FAMILY$OUTER" = 44 ]; then
        keys="formats=vxlan outer_port=$(agent_json node1 status | jq '.kernel_path.port')"
        forged mallory UnknownPeer "unknown outer source, to the private port" "$keys"
        forged node2 NotPeersSource "a peer speaks as another node's pod, to the private port" "$keys" "source=$POD5"
        forged node2 NotOurs "a peer speaks to our node address, to the private port" "$keys" "destination=$NODE1"
    fi
    every node2 NotPeersSource "a peer speaks as" source "another node's address $NODE3" "our node address $NODE1" \
        "another node's pod $POD5" "another node's tunnel ${SUBNET}3${HOST}0" "our pod $(address_of pod2 "$FAMILY")" \
        "the pod $POD1" "our tunnel address ${SUBNET}1${HOST}0" "a pod of no node ${SUBNET}77${HOST}2" "${BEYOND[@]}"
    every node2 NotOurs "a peer speaks to" destination "our node address $NODE1" "no pod of ours ${SUBNET}1${HOST}99" \
        "another node's pod $POD5" "${BEYOND[@]}"
    every node2 delivered "a peer's" source "tunnel address ${SUBNET}2${HOST}0" "node address $NODE2"
    while IFS='|' read -r reason what keys; do
        forged node2 "$reason" "$what" "$keys"
    done <<CASES
WrongVni|another VNI|formats=vxlan vni=2
VxlanFlags|no I flag|formats=vxlan flags=0
VxlanFlags|a flag beside I|formats=vxlan flags=136
VxlanFlags|a reserved bit|formats=vxlan reserved=1
NotOurMac|another VTEP's MAC|formats=vxlan destination_mac=02:00:5e:10:00:03
BadSourceMac|our own MAC as source|formats=vxlan source_mac=$MAC1
BadSourceMac|a multicast MAC as source|formats=vxlan source_mac=01:00:5e:00:00:01
NotIp|ARP inside|formats=vxlan ethertype=2054
NotIp|the other family's ethertype|formats=vxlan ethertype=$((OTHER))
TooShort|cut short|formats=vxlan cut=21
Malformed|no IP inside|raw=$BAD_PACKET
Malformed|an inner packet cut short|formats=udp cut=30
Malformed|an inner packet cut short|formats=vxlan cut=52
CASES
    [ "$FORMATS" != vxlan ] || forged node2 Ipv6InUdp "IPv6 in the udp format" formats=udp
}

every_case() {
    local inner
    for inner in "${FAMILIES[@]}"; do
        forge_as "$inner" "$(carrier "$inner" "$OUTSIDE")"
        once
        # A peer is a peer by each of its addresses, and no more by one than by the other.
        for OUTER in $(families "$OUTSIDE"); do
            forge_as "$inner" "$OUTER"
            forged node2 delivered "a peer's pod"
            forged mallory UnknownPeer "unknown outer source"
            every node2 NotPeersSource "a peer speaks as" source "another node's pod $POD5"
            every node2 NotOurs "a peer speaks to" destination "our node address $NODE1"
        done
    done
}

# seen FILE FILTER...: packets of a capture.
seen() {
    tcpdump -nqr "$SCRATCH/$1" "${@:2}" 2>/dev/null
}

# Whatever else node1 says meanwhile would be an answer to a forger: but ARP, neighbour discovery and group reports,
# what it says to its registry, and probes of its peers (encap/src/probe.rs).
capture net node1 "$SCRATCH/replies" -Q in '(ip or ip6) and not tcp and not ip6[6] = 0' \
    and not '(icmp6 and (ip6[40] = 135 or ip6[40] = 136))' \
    and not '(greater 90 and (udp[28:2] = 0x88b5 or udp[8:4] = 0x545254))' \
    and not '(greater 90 and ip6[6] = 17 and (ip6[68:2] = 0x88b5 or ip6[48:4] = 0x545254))'
capture node1 tartan0 "$SCRATCH/tartan0"
# With flows in the kernel path what a peer may say reaches the pod past tartan0: there what arrives at the pod is
# looked at.
capture pod1 eth0 "$SCRATCH/eth0" -Q in '(ip or ip6)' and not icmp6
CAPTURES=("${STARTED[@]}")
sink pod1 "$PORT"
forgeries "$(every_case)"
for PID in "${CAPTURES[@]}"; do stop "$PID" INT; done
equal "datagrams that reached the pod" "$RIGHTFUL" "$(sunk pod1 .count)"
for DEVICE in tartan0 eth0; do
    equal "other packets at $DEVICE" 0 "$(seen "$DEVICE" not udp dst port "$PORT" | wc -l)"
done
# What arrives together is one super-packet on the device: its bytes are counted there, not its datagrams.
if [ "$KERNEL_PATH" != auto ]; then DEVICE=tartan0; fi
equal "bytes for the pod at $DEVICE" "$(sunk pod1 '[.sizes | to_entries[] | (.key | tonumber) * .value] | add')" \
    "$(seen "$DEVICE" udp dst port "$PORT" | awk '{ bytes += $NF } END { print bytes + 0 }')"
equal "replies on the wire" 0 "$(seen replies | wc -l)"
law_one node1
# Its problems are those that this law has brought about, and would end after a while.
lab stop node1
lab start node1
agents_are_ready
