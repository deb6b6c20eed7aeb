"""Floods with super-packets whose segments are as small as it likes, as a pod with CAP_NET_RAW can (packet(7),
PACKET_VNET_HDR).

    super_packets.py GATEWAY_MAC SOURCE DESTINATION tcp|udp SIZE

Each has 60 kB and is to be cut into segments of SIZE bytes of payload; they belong to 16 flows. Until SIGTERM; prints
how many the kernel took. No limit of the interface holds them up: the kernel counts their segments only behind it
(SKB_GSO_DODGY).
"""

import contextlib
import socket
import struct
import sys

from ending import Ending
from packets import IPV4, IPV6, TCP, UDP, family, ipv4_header, ipv6_header, mac, ones_sum, pseudo_header

SOL_PACKET, PACKET_VNET_HDR = 263, 15
# struct virtio_net_hdr: flags, type, bytes of headers, segment size, where the checksum begins, and its place there.
VNET = struct.Struct("=BBHHHH")
NEEDS_CSUM, TCPV4, TCPV6, UDP_L4 = 1, 1, 4, 5
ETHERNET, BYTES, FLOWS, PORT = 14, 60_000, 16, 7009
# What the kernel lets a UDP super-packet be cut into (UDP_MAX_SEGMENTS).
UDP_SEGMENTS = 128


def super_packet(gateway, source, destination, kind, size, flow):
    v4 = family(source) == socket.AF_INET
    protocol, header = (TCP, 20) if kind == "tcp" else (UDP, 8)
    source, destination = (socket.inet_pton(family(source), text) for text in (source, destination))
    segments = BYTES // size if kind == "tcp" else min(BYTES // size, UDP_SEGMENTS)
    length = header + segments * size
    unfinished = ones_sum(pseudo_header(source, destination, protocol, length))
    ports = struct.pack("!HH", 40_000 + flow, PORT)
    if kind == "tcp":
        head = ports + struct.pack("!IIBBHHH", 1, 1, 0x50, 0x10, 1000, unfinished, 0)
    else:
        head = ports + struct.pack("!HH", length, unfinished)
    ip = (ipv4_header if v4 else ipv6_header)(source, destination, protocol, length)
    transport = ETHERNET + len(ip)
    gso = UDP_L4 if kind == "udp" else TCPV4 if v4 else TCPV6
    vnet = VNET.pack(NEEDS_CSUM, gso, transport + header, size, transport, 16 if kind == "tcp" else 6)
    ethernet = mac(gateway) + bytes(5) + b"\2" + struct.pack("!H", IPV4 if v4 else IPV6)
    return vnet + ethernet + ip + head + bytes(length - header)


def main(gateway, source, destination, kind, size):
    packets = [super_packet(gateway, source, destination, kind, int(size), flow) for flow in range(FLOWS)]
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    line.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    line.bind(("eth0", 0))
    sent, ending = 0, Ending()
    while not ending.told:
        for packet in packets:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent += line.send(packet) > 0
    print(sent)


main(*sys.argv[1:])
