"""Echo requests, and how many of them were answered.

    pings.py ADDRESS COUNT INTERVAL PATIENCE     seconds; prints 'N received', and '+M duplicates' if there were any

ping(8) waits for its last answers only twice as long as the slowest one took before, at the least one interval, whatever
its option -W says once there was an answer: an answer that a busy machine delivers 50 ms late counts as lost there. Here
each answer has PATIENCE seconds from the last request on, and all time that it needs before.
"""

import contextlib
import os
import select
import socket
import struct
import sys
import time

from packets import ICMP, ICMPV6, checksum, family

# Types of RFC 792 and RFC 4443: (request, answer).
TYPES = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}


def answered(data, version, identifier):
    """The sequence number that a raw socket's packet answers, or None. IPv4 packets come with their header."""
    if version == socket.AF_INET:
        data = data[(data[0] & 15) * 4 :]
    kind, _, _, who, sequence = struct.unpack_from("!BBHHH", data)
    return sequence if (kind, who) == (TYPES[version][1], identifier) else None


def main():
    address, count, interval, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    version = family(address)
    line = socket.socket(version, socket.SOCK_RAW, ICMP if version == socket.AF_INET else ICMPV6)
    line.connect((address, 0))
    identifier = os.getpid() & 0xFFFF
    sent, duplicates, answers = 0, 0, set()
    due = time.monotonic()
    while True:
        now = time.monotonic()
        if sent < count and now >= due:
            body = struct.pack("!BBHHH", TYPES[version][0], 0, 0, identifier, sent) + bytes(48)
            sent += 1
            due = now + (interval if sent < count else patience)
            with contextlib.suppress(OSError):  # an ICMP error: no answer
                line.send(body[:2] + struct.pack("!H", checksum(body)) + body[4:])
            continue
        if sent == count and (len(answers) == count or now >= due):
            break
        if select.select([line], [], [], due - now)[0]:
            with contextlib.suppress(OSError):
                sequence = answered(line.recv(65536), version, identifier)
                duplicates += sequence in answers
                if sequence is not None:
                    answers.add(sequence)
    print(f"{len(answers)} received" + (f" +{duplicates} duplicates" if duplicates else ""))


main()
