"""Asks on a TAP for the Ethernet addresses of neighbours, and tells which answers came.

    neighbours.py DEVICE OWN4 OTHER4 OWN6 OTHER6

OTHER4 and OTHER6 are pods of another node, OWN4 and OWN6 the tunnel's addresses. They are asked for last: what was to
come of the requests that must not be answered has come when their answers have.
"""

import socket
import struct
import sys

from packets import ICMPV6, IPV6, checksum, ipv6_header, pseudo_header

ARP = 0x0806
ASKER = b"\x02\x00\x00\x00\x00\x09"


def arp(source, target):
    source, target = map(socket.inet_aton, (source, target))
    packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + ASKER + source + bytes(6) + target
    return b"\xff" * 6 + ASKER + struct.pack("!H", ARP) + packet


def solicitation(source, target):
    source, target, group = (socket.inet_pton(socket.AF_INET6, text) for text in (source, target, "ff02::1:ff00:0"))
    group = group[:13] + target[13:]
    body = struct.pack("!BBHI", 135, 0, 0, 0) + target + b"\x01\x01" + ASKER
    body = body[:2] + struct.pack("!H", checksum(pseudo_header(source, group, ICMPV6, len(body)) + body)) + body[4:]
    header = bytearray(ipv6_header(source, group, ICMPV6, len(body)))
    header[7] = 255
    return b"\x33\x33" + group[12:] + ASKER + struct.pack("!H", IPV6) + bytes(header) + body


def next_answer(line):
    """The kind of the next answer, whom it is about, and the Ethernet address that it names."""
    while True:
        frame, sender = line.recvfrom(2000)
        (kind,) = struct.unpack_from("!H", frame, 12)
        if sender[2] == socket.PACKET_OUTGOING:
            continue
        if kind == ARP and frame[20:22] == b"\x00\x02":
            return "arp", socket.inet_ntoa(frame[28:32]), frame[22:28].hex(":")
        if kind == IPV6 and frame[20] == ICMPV6 and frame[54] == 136:
            return "ndp", socket.inet_ntop(socket.AF_INET6, frame[62:78]), frame[80:86].hex(":")


device, own4, other4, own6, other6 = sys.argv[1:]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as line:
    line.bind((device, 0))
    line.settimeout(20)
    for request in (arp(own4, own4), arp(own4, "203.0.113.9"), arp("203.0.113.9", other4), arp("0.0.0.0", other4),
                    solicitation(own6, "2001:db8::9"), solicitation("2001:db8::9", other6), solicitation("::", other6),
                    arp(own4, other4), solicitation(own6, other6)):
        line.send(request)
    print(*(" ".join(answer) for answer in sorted((next_answer(line), next_answer(line)))), sep="\n")
    line.settimeout(0.1)
    try:
        print("another:", *next_answer(line))
    except TimeoutError:
        print("nothing else")
