#!/usr/bin/env python3
"""Asks on a TAP for the Ethernet addresses of neighbours, and tells which answers came.

    neighbours.py DEVICE OWN4 OTHER4 OWN6 OTHER6

OTHER4 and OTHER6 are pods of another node, OWN4 and OWN6 the tunnel's addresses. Also asks for the own addresses, for
one outside of the cluster and from a foreign source, none of which must be answered.
"""

import select
import socket
import struct
import sys
import time

ARP, IPV6 = 0x0806, 0x86DD
ASKER = b"\x02\x00\x00\x00\x00\x09"


def arp(source, target):
    v4 = lambda text: socket.inet_pton(socket.AF_INET, text)
    packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + ASKER + v4(source) + bytes(6) + v4(target)
    return b"\xff" * 6 + ASKER + struct.pack("!H", ARP) + packet


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def solicitation(source, target):
    v6 = lambda text: socket.inet_pton(socket.AF_INET6, text)
    group = v6("ff02::1:ff00:0")[:13] + v6(target)[13:]
    body = struct.pack("!BBHI", 135, 0, 0, 0) + v6(target) + b"\x01\x01" + ASKER
    pseudo = v6(source) + group + struct.pack("!II", len(body), 58)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    header = struct.pack("!IHBB", 6 << 28, len(body), 58, 255) + v6(source) + group
    return b"\x33\x33" + group[12:] + ASKER + struct.pack("!H", IPV6) + header + body


def answers(line, request, seconds):
    """The Ethernet addresses that answers name."""
    line.send(request)
    end, found = time.monotonic() + seconds, []
    while (left := end - time.monotonic()) > 0:
        if not select.select([line], [], [], left)[0]:
            break
        frame, sender = line.recvfrom(2000)
        if sender[2] == socket.PACKET_OUTGOING:
            continue
        (kind,) = struct.unpack_from("!H", frame, 12)
        if kind == ARP and frame[20:22] == b"\x00\x02":
            found.append("arp " + frame[22:28].hex(":"))
        if kind == IPV6 and frame[20] == 58 and frame[54] == 136:
            found.append("ndp " + frame[80:86].hex(":"))
    return found


def main():
    device, own4, other4, own6, other6 = sys.argv[1:]
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    line.bind((device, 0))
    print(*answers(line, arp(own4, other4), 0.5))
    print(*answers(line, solicitation(own6, other6), 0.5))
    others = [
        arp(own4, own4),
        arp(own4, "203.0.113.9"),
        arp("203.0.113.9", other4),
        arp("0.0.0.0", other4),
        solicitation(own6, "2001:db8::9"),
        solicitation("2001:db8::9", other6),
        solicitation("::", other6),
    ]
    found = [answer for request in others for answer in answers(line, request, 0.3)]
    print(*(found or ["nothing else"]))


if __name__ == "__main__":
    main()
