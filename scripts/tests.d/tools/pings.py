"""Echo requests, and how many of them were answered.

    pings.py ADDRESS COUNT INTERVAL PATIENCE [SIZE]     seconds, bytes; prints 'N received', '+M duplicates' and
                                                        '+K damaged' if there were any

An answer counts if it brings back what its request held and, over IPv4, its checksum is right: that of ICMPv6 the
kernel looks at itself. Any other answer to us is damaged. ping(8) waits for its last answers only twice as long as the
slowest one took before, whatever its option -W says: here each has PATIENCE seconds from the last request on.
"""

import collections
import contextlib
import os
import random
import select
import socket
import struct
import sys
import time

from packets import ICMP, ICMPV6, checksum, family

# Protocol, and types of RFC 792 and RFC 4443: request, answer.
ECHO = {socket.AF_INET: (ICMP, 8, 0), socket.AF_INET6: (ICMPV6, 128, 129)}


def message(kind, sequence, size):
    """With a content of its own, different for each."""
    rest = struct.pack("!HH", os.getpid() & 0xFFFF, sequence) + random.Random(sequence).randbytes(size)
    return bytes([kind, 0]) + struct.pack("!H", checksum(bytes([kind, 0]) + rest)) + rest


def main(address, count, interval, patience, size=48):
    protocol, request, answer = ECHO[family(address)]
    line = socket.socket(family(address), socket.SOCK_RAW, protocol)
    line.connect((address, 0))
    # What arrives while this program waits for a core; without the bound of net.core.rmem_max.
    line.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE
    sent, damaged, answers, due = 0, 0, collections.Counter(), time.monotonic()
    while sent < count or len(answers) < count and time.monotonic() < due:
        now = time.monotonic()
        with contextlib.suppress(OSError):  # an ICMP error: no answer
            if sent < count and now >= due:
                sent += 1
                due = now + (interval if sent < count else patience)
                line.send(message(request, sent - 1, size))
            elif select.select([line], [], [], max(0, due - now))[0]:
                data = line.recv(65536)
                if protocol == ICMP:  # These come with their header.
                    data = data[(data[0] & 15) * 4 :]
                sequence, wanted = int.from_bytes(data[6:8]), message(answer, int.from_bytes(data[6:8]), size)
                if (data[:1], data[4:6]) != (wanted[:1], wanted[4:6]):
                    continue
                if protocol == ICMPV6:  # Its checksum has a pseudo-header.
                    data = data[:2] + wanted[2:4] + data[4:]
                is_sound = sequence < sent and data == wanted
                damaged += not is_sound
                answers.update([sequence] * is_sound)
    counts = [(answers.total() - len(answers), "duplicates"), (damaged, "damaged")]
    print(f"{len(answers)} received" + "".join(f" +{number} {what}" for number, what in counts if number))


main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:5]), *map(int, sys.argv[5:]))
