#!/usr/bin/env bash
# A stranger's ICMP errors change nothing. They quote datagrams from node1 to node2 in which all that is public is
# right: addresses, every UDP port that node1 has, VNI, MACs and the pods inside. Meanwhile the pods exchange large
# packets. The path MTU that node1 shows stays, and no packet is lost; a pod's errors do not reach the node's sockets.
# No such datagram was sent: the payload that they quote is made up. That real routers' reports are believed the law
# icmp shows.
# labs: probes=off

# Reports of a path MTU: of each MTU for each PORT, the outer source port of the datagram that is quoted.
REPORTS='import socket, struct, sys
from packets import FLANNEL_UDP_PORT, VXLAN_PORT, checksum, family, udp_packet, vxlan
form, node, peer, source, destination, source_mac, mac, mtus, *ports = sys.argv[1:]
inner, to, kind = udp_packet(source, destination, 5004, 5004, bytes(1350)), FLANNEL_UDP_PORT, family(node)
if form == "vxlan":
    inner, to = vxlan(inner, source_mac, mac), VXLAN_PORT
six = kind == socket.AF_INET6
sender = socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)
for port in ports:
    # RFC 1812 section 4.3.2.3 and RFC 4443 section 2.4: bytes of the error. Of ICMPv6 the kernel writes the checksum.
    quote = udp_packet(node, peer, int(port), to, inner)[: 1280 - 48 if six else 576 - 28]
    for mtu in map(int, mtus.split(",")):
        message = struct.pack("!BBHI", 2 if six else 3, 0 if six else 4, 0, mtu) + quote
        message = message[:2] + struct.pack("!H", 0 if six else checksum(message)) + message[4:]
        sender.sendto(message, (node, 0))
print(len(ports) * len(mtus.split(",")))'

# What node1 has of such errors: what its kernel took of a family, and what it dropped of a pod's.
errors() {
    local counter=IcmpInDestUnreachs
    if [ "$1" = 6 ]; then counter=Icmp6InPktTooBigs; fi
    echo "$(in_ns node1 nstat -asz "$counter" | awk '/^Icmp/ { print $2 }')" "$(agent_json node1 drops |
        jq '[.kernel[] | select(.counter == "forged_encapsulation").count] | add // 0')"
}

# forge WHO INNER OUTER MTU,...: how many reports it sent, quoting inner packets of a family.
forge() {
    local ports
    mapfile -t ports < <(in_ns node1 ss -Hlun | awk '{ print $4 }' | sed 's/.*://' | sort -un)
    in_ns "$1" env PYTHONPATH="$TOOLS" python3 -c "$REPORTS" "$BACKEND" "$(underlay_of node1 "$3")" \
        "$(underlay_of node2 "$3")" "$(address_of pod1 "$2")" "$(address_of pod3 "$2")" \
        "$(vtep_mac_of node1 "$2")" "$(vtep_mac_of node2 "$2")" "$4" "${ports[@]}"
}

# Large enough to be reported of, small enough for the device.
pings() {
    equal "large pings of IPv$1 $2" "50 received" \
        "$(in_ns pod1 python3 "$TOOLS/pings.py" "$(address_of pod3 "$1")" 50 0.002 5 1350)"
}

prove() {
    local inner=$1 outer taken dropped sent mtus=68,576,626,1000,1400
    outer=$(carrier "$inner" "$OUTSIDE")
    if [ "$outer" = 6 ]; then mtus=1280,1350,1400; fi
    pings "$inner" beforehand
    read -r taken dropped < <(errors "$outer")
    # Twice: a second report is what a first one is confirmed by.
    sent=$(forge mallory "$inner" "$outer" "$mtus")
    pings "$inner" "in between"
    sent=$((sent + $(forge mallory "$inner" "$outer" "$mtus")))
    [ "$sent" -ge 10 ] || fail "only $sent were forged"
    until_true 5 "node1's kernel takes $sent of IPv$outer" prints "$((taken + sent)) $dropped" errors "$outer" || true
    pings "$inner" afterwards
    dropped=$((dropped + $(forge pod1 "$inner" "$outer" "$mtus")))
    until_true 5 "a pod's are counted, not taken" prints "$((taken + sent)) $dropped" errors "$outer" || true
    equal "path MTU to node2 over IPv$outer" 1500 "$(path_mtu node1 node2 "$outer")"
}

for FAMILY in "${FAMILIES[@]}"; do prove "$FAMILY"; done
