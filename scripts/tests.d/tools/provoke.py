"""Sends a node datagrams whose inner packets no kernel need take: super-packets with unfinished checksums, as a kernel
VXLAN sender on the same host hands them over, with headers that were tampered with.

    provoke.py NODE SOURCE DESTINATION SOURCE_MAC MAC COUNT SEED

Addresses and the IPv4 header checksum are right, so that the packets get as far as they can. Prints how many went.
"""

import random
import socket
import struct
import sys
import time

from packets import TCP, UDP, VXLAN_PORT, checksum, family, ipv4_header, ones_sum, pseudo_header, vxlan

SIZES = (0, 1, 100, 1400, 3000, 20_000, 60_000)
# A receiver's socket holds a few of the largest.
PAUSE = 0.001
# Places of the IPv4 header that may change: not the version, lengths, addresses and checksum.
TOUCHED = (1, 4, 5, 6, 7, 8, 9)


def transport(chance, source, destination, protocol, size):
    """A header of TCP or UDP, some bytes of it wrong, whose checksum field holds the sum of the pseudo-header alone."""
    if protocol == TCP:
        offset = chance.choice((5, 5, 5, 8, 15, 4, 0))
        flags = chance.choice((0x10, 0x18, 0x02, 0x04, 0x01, 0xFF, 0xD8))
        header = struct.pack("!HHIIBBHHH", 4000, 7000, chance.getrandbits(32), 1, offset << 4, flags, 512, 0, 0)
    else:
        header = struct.pack("!HHHH", 4000, 7000, chance.choice((8 + size, 8 + size, 8, 0, 65_535)), 0)
    place = 16 if protocol == TCP else 6
    header = bytearray(header)
    for _ in range(chance.choice((0, 0, 1, 2))):
        header[chance.randrange(len(header))] = chance.getrandbits(8)
    unfinished = ones_sum(pseudo_header(source, destination, protocol, len(header) + size))
    header[place : place + 2] = struct.pack("!H", unfinished)
    return bytes(header) + bytes(size)


def packet(chance, source, destination):
    protocol = chance.choice((TCP, UDP))
    body = transport(chance, source, destination, protocol, chance.choice(SIZES))
    header = bytearray(ipv4_header(source, destination, protocol, len(body)))
    if chance.random() < 0.3:
        header[chance.choice(TOUCHED)] = chance.getrandbits(8)
        header[10:12] = b"\0\0"
        header[10:12] = struct.pack("!H", checksum(bytes(header)))
    return bytes(header) + body


def main(node, source, destination, source_mac, mac, count, seed):
    chance = random.Random(int(seed))
    source, destination = (socket.inet_aton(end) for end in (source, destination))
    with socket.socket(family(node), socket.SOCK_DGRAM) as sender:
        for _ in range(int(count)):
            sender.sendto(vxlan(packet(chance, source, destination), source_mac, mac), (node, VXLAN_PORT))
            time.sleep(PAUSE)
    print(count)


main(*sys.argv[1:])
