"""Counts UDP datagrams until SIGTERM, then prints one JSON object.

    sink.py PORT [PORT...]

Per port: how many datagrams, their sizes, and for payloads that begin with "TT" and a 64-bit sequence
number (flood.py) how many numbers were seen, how often one came twice and how often one came late.
"lost" is what the socket itself dropped because this program was too slow (SO_RXQ_OVFL's figure).
"""

import collections
import json
import os
import selectors
import signal
import socket
import struct
import sys

BUFFER = 64 << 20
SO_RCVBUFFORCE = 33
END = False


class Port:
    def __init__(self, number):
        # Of both families, in a namespace without IPv6 too.
        self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self.socket.bind(("::", number))
        self.socket.setblocking(False)
        self.count = self.late = self.twice = 0
        self.sizes = collections.Counter()
        self.seen, self.newest = set(), -1

    def drain(self):
        try:
            while True:
                self.take(self.socket.recv(65536))
        except BlockingIOError:
            pass

    def take(self, data):
        self.count += 1
        self.sizes[len(data)] += 1
        if len(data) >= 10 and data[:2] == b"TT":
            (number,) = struct.unpack_from("!Q", data, 2)
            self.twice += number in self.seen
            self.seen.add(number)
            self.late += number < self.newest
            self.newest = max(self.newest, number)

    def report(self):
        return {
            "count": self.count,
            "sizes": self.sizes,
            "distinct": len(self.seen),
            "twice": self.twice,
            "late": self.late,
            "lost": self.lost(),
        }

    def lost(self):
        inode = str(os.fstat(self.socket.fileno()).st_ino)
        with open("/proc/net/udp6") as table:
            for line in table:
                words = line.split()
                if words[9] == inode:
                    return int(words[12])
        return None


def end(*_):
    global END
    END = True


def main(numbers):
    signal.signal(signal.SIGTERM, end)
    ports = {number: Port(number) for number in numbers}
    selector = selectors.DefaultSelector()
    for port in ports.values():
        selector.register(port.socket, selectors.EVENT_READ, port)
    while not END:
        for key, _ in selector.select(0.1):
            key.data.drain()
    for port in ports.values():
        port.drain()
    print(json.dumps({number: port.report() for number, port in ports.items()}))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
