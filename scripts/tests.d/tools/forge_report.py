"""Sends forged reports of a path MTU, ICMP "fragmentation needed" and ICMPv6 "packet too big", from wherever it runs.
Reads one JSON object from stdin:

    {"node": its underlay address, "peer": that of the node that it sends to, "format": "udp" or "vxlan",
     "mtus": [...], "ports": the outer source ports to quote,
     "source": inner source, "destination": inner destination, "source_mac": ..., "destination_mac": ...}

Each quotes a datagram that the node could have sent: everything that is public is right. Prints how many were sent.
"""

import json
import socket
import struct
import sys
import time

from packets import FLANNEL_UDP_PORT, VXLAN_PORT, checksum, family, udp_packet, vxlan

# RFC 1812 section 4.3.2.3 and RFC 4443 section 2.4: bytes of the error, its own headers included.
LARGEST = {socket.AF_INET: 576 - 28, socket.AF_INET6: 1280 - 48}
# A raw socket's queue holds far more than this many.
BURST = 50


def quoted(order, port):
    inner = udp_packet(order["source"], order["destination"], 5004, 5004, b"\0" * 1350)
    if order["format"] == "vxlan":
        payload, to = vxlan(inner, order["source_mac"], order["destination_mac"]), VXLAN_PORT
    else:
        payload, to = inner, FLANNEL_UDP_PORT
    return udp_packet(order["node"], order["peer"], port, to, payload)


def report(kind, mtu, quote):
    quote = quote[: LARGEST[kind]]
    if kind == socket.AF_INET6:
        # The kernel writes the checksum.
        return struct.pack("!BBHI", 2, 0, 0, mtu) + quote
    message = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quote
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]


def main():
    order = json.load(sys.stdin)
    kind = family(order["node"])
    protocol = socket.IPPROTO_ICMPV6 if kind == socket.AF_INET6 else socket.IPPROTO_ICMP
    sender = socket.socket(kind, socket.SOCK_RAW, protocol)
    count = 0
    for port in order["ports"]:
        for mtu in order["mtus"]:
            sender.sendto(report(kind, mtu, quoted(order, port)), (order["node"], 0))
            count += 1
            if count % BURST == 0:
                time.sleep(0.01)
    print(count)


if __name__ == "__main__":
    main()
