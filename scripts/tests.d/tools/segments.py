"""Sends one UDP super-packet: COUNT datagrams of SIZE bytes in a single call with UDP_SEGMENT.

    segments.py ADDRESS PORT SIZE COUNT                              constant content
    segments.py ADDRESS PORT SIZE COUNT OFFSET SRC MAC MAC FORGED    content that holds, from OFFSET on and
        then every SIZE bytes, what a VXLAN datagram carries: an inner packet from SRC to ADDRESS, port FORGED

A receiver that cuts the datagram at the mark instead of at its own headers sees those as datagrams.
"""

import socket
import struct
import sys

from packets import family, udp_packet, vxlan

SOL_UDP, UDP_SEGMENT = 17, 103


def forged_content(address, size, count, offset, source, source_mac, destination_mac, port):
    # VXLAN, Ethernet, IP and UDP headers stand in front of the forged payload.
    headers = 8 + 14 + (40 if family(address) == socket.AF_INET6 else 20) + 8
    inner = udp_packet(source, address, 4000, port, b"forged" + bytes(size - headers - 6))
    one = vxlan(inner, source_mac, destination_mac)
    assert len(one) == size
    return (bytes(offset) + one * count)[: size * count]


def main(address, port, size, count, *forged):
    size, count = int(size), int(count)
    content = bytes(range(256)) * (size * count // 256 + 1)
    content = content[: size * count]
    if forged:
        offset, source, source_mac, destination_mac, forged_port = forged
        content = forged_content(address, size, count, int(offset), source, source_mac, destination_mac, int(forged_port))
    client = socket.socket(family(address), socket.SOCK_DGRAM)
    client.setsockopt(SOL_UDP, UDP_SEGMENT, struct.pack("i", size))
    sent = client.sendto(content, (address, int(port)))
    if sent != size * count:
        sys.exit(f"sent {sent} of {size * count} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
