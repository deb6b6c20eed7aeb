"""Echo requests, and how many of them were answered.

    pings.py ADDRESS COUNT INTERVAL PATIENCE [SIZE]     seconds, bytes; prints 'N received', '+M duplicates' and
                                                        '+K damaged' if there were any

An answer counts if it brings back what its request held and, over IPv4, its checksum is right: that of ICMPv6 the
kernel looks at itself. Any other answer to us is damaged. ping(8) waits for its last answers only twice as long as the
slowest one took before, whatever its option -W says: here each has PATIENCE seconds from the last request on.
"""

import contextlib
import os
import random
import select
import socket
import struct
import sys
import time

from packets import ICMP, ICMPV6, checksum, family

# Types of RFC 792 and RFC 4443: (request, answer).
TYPES = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}
# Of asm-generic/socket.h, which Python does not name.
SO_RCVBUFFORCE = 33
# Type, code, checksum, identifier, sequence number.
HEADER = struct.Struct("!BBHHH")


def payload(sequence):
    """What a request holds, different for each."""
    return random.Random(sequence).randbytes(int(sys.argv[5]) if len(sys.argv) > 5 else 48)


def answered(data, version, identifier):
    """The sequence number that a raw socket's packet answers, or None, and whether the answer is sound."""
    if version == socket.AF_INET:  # These come with their header.
        data = data[(data[0] & 15) * 4 :]
    if len(data) < HEADER.size:
        return None, False
    kind, code, _, who, sequence = HEADER.unpack_from(data)
    if (kind, who) != (TYPES[version][1], identifier):
        return None, False
    summed = version == socket.AF_INET6 or checksum(data) == 0
    return sequence, summed and code == 0 and data[HEADER.size :] == payload(sequence)


def main():
    address, count, interval, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    version = family(address)
    line = socket.socket(version, socket.SOCK_RAW, ICMP if version == socket.AF_INET else ICMPV6)
    line.connect((address, 0))
    # What arrives while this program waits for a core; without the bound of net.core.rmem_max.
    line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    identifier = os.getpid() & 0xFFFF
    sent, duplicates, damaged, answers = 0, 0, 0, set()
    due = time.monotonic()
    while True:
        now = time.monotonic()
        if sent < count and now >= due:
            body = HEADER.pack(TYPES[version][0], 0, 0, identifier, sent) + payload(sent)
            sent += 1
            due = now + (interval if sent < count else patience)
            with contextlib.suppress(OSError):  # an ICMP error: no answer
                line.send(body[:2] + struct.pack("!H", checksum(body)) + body[4:])
            continue
        if sent == count and (len(answers) == count or now >= due):
            break
        if select.select([line], [], [], due - now)[0]:
            with contextlib.suppress(OSError):
                sequence, is_sound = answered(line.recv(65536), version, identifier)
                if sequence is None:
                    continue
                if not is_sound:
                    damaged += 1
                    continue
                duplicates += sequence in answers
                answers.add(sequence)
    counts = [(duplicates, "duplicates"), (damaged, "damaged")]
    print(f"{len(answers)} received" + "".join(f" +{count} {what}" for count, what in counts if count))


main()
