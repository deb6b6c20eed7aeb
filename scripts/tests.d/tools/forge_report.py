"""Sends forged reports of a path MTU, ICMP "fragmentation needed" and ICMPv6 "packet too big", from wherever it runs.

    forge_report.py udp|vxlan NODE PEER SOURCE DESTINATION SOURCE_MAC MAC MTU,... PORT...

Each quotes a datagram that NODE could have sent to PEER, with an inner packet from SOURCE to DESTINATION: everything
that is public is right, and each PORT is once its outer source port, with each MTU. Prints how many were sent.
"""

import socket
import struct
import sys

from packets import FLANNEL_UDP_PORT, VXLAN_PORT, checksum, family, udp_packet, vxlan

# RFC 1812 section 4.3.2.3 and RFC 4443 section 2.4: bytes of the error, its own headers included.
LARGEST = {socket.AF_INET: 576 - 28, socket.AF_INET6: 1280 - 48}


def report(kind, mtu, quote):
    if kind == socket.AF_INET6:
        # The kernel writes the checksum.
        return struct.pack("!BBHI", 2, 0, 0, mtu) + quote
    message = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quote
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]


def main(form, node, peer, source, destination, source_mac, mac, mtus, *ports):
    inner, to = udp_packet(source, destination, 5004, 5004, bytes(1350)), FLANNEL_UDP_PORT
    if form == "vxlan":
        inner, to = vxlan(inner, source_mac, mac), VXLAN_PORT
    kind = family(node)
    reports = [report(kind, int(mtu), udp_packet(node, peer, int(port), to, inner)[: LARGEST[kind]])
               for port in ports for mtu in mtus.split(",")]
    protocol = socket.IPPROTO_ICMPV6 if kind == socket.AF_INET6 else socket.IPPROTO_ICMP
    with socket.socket(kind, socket.SOCK_RAW, protocol) as sender:
        for each in reports:
            sender.sendto(each, (node, 0))
    print(len(reports))


main(*sys.argv[1:])
