"""UDP datagrams, one after another, and what becomes of each: what a node counts, what the sender is told (the errors
of its socket's queue, which ip(7) calls IP_RECVERR), and what arrives.

    datagrams.py NODE

Each line of the input is a step, its fields separated by |:

    WHAT|FROM|SOURCE|ADDRESS|SIZE|COUNT|HOW|POD|COUNTS|ERRORS

FROM sends COUNT datagrams of SIZE bytes to ADDRESS, from SOURCE (or any address). HOW is `df`: the kernel judges no
size by a path MTU that it learned, and anything up to the device's goes out; or `cut`: fragments where larger than
the device's MTU, or, over IPv6, where none but the sender may cut, than what it learned of the path. POD receives all
of them, or is empty. COUNTS is a JSON object, by how much each count of the outbound direction of NODE grows. ERRORS
is what each datagram is answered with: errno, origin, type/code, MTU, from whom, about what, how much of the payload
it quotes, or the first words of it; or empty.
"""

import collections
import contextlib
import errno
import json
import select
import socket
import struct
import sys

from packets import family
from sizes import request
from spaces import Findings, inside, soon, workers

PORT = 5004
# linux/in.h, linux/in6.h, linux/errqueue.h: level, MTU_DISCOVER, its values for df and cut, RECVERR.
OPTIONS = {socket.AF_INET: (socket.IPPROTO_IP, 10, {"df": 3, "cut": 5}, 11),
           socket.AF_INET6: (socket.IPPROTO_IPV6, 23, {"df": 3, "cut": 0}, 25)}
ORIGINS = {1: "local", 2: "icmp", 3: "icmp6"}
FINDINGS, RECEIVERS = Findings(), {}


def bound_socket(name, address, port):
    made = inside(name, lambda: socket.socket(family(address), socket.SOCK_DGRAM))
    made.bind((address, port))
    return made


class Sender:
    """A socket in a namespace, which keeps what it is told."""

    def __init__(self, name, source, address, how):
        self.address, self.told = address, []
        level, discover, values, self.errors = OPTIONS[family(address)]
        self.socket = bound_socket(name, source or ("::" if ":" in address else "0.0.0.0"), 0)
        self.socket.setsockopt(level, discover, values[how])
        self.socket.setsockopt(level, self.errors, 1)

    def send(self, size):
        # One that returns the error of an earlier datagram sends nothing, and the next one does.
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.socket.sendto(request(size), (self.address, PORT))
        return self.told.append("refused")

    def errors_about(self, size, words):
        """All errors so far, their first words. The kernel finds a socket by the quote, so its addresses and ports are
        right."""
        while True:
            try:
                quote, control, _, to = self.socket.recvmsg(65536, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return [" ".join(told.split()[:words]) for told in self.told]
            right = "right" if quote == request(size)[: len(quote)] else "wrong"
            # struct sock_extended_err, and behind it the address of who says so.
            for number, origin, kind, code, _, mtu, _, by, ends in (
                    (*struct.unpack_from("=IBBBBIIH", data), data) for _, what, data in control if what == self.errors):
                by = socket.inet_ntop(by, ends[20:24] if by == socket.AF_INET else ends[24:40])
                self.told.append(f"{errno.errorcode[number]} {ORIGINS[origin]} {kind}/{code} mtu {mtu} from {by} "
                                 f"about {to[0]}, quotes {len(quote)} {right}")


def arrived(so_far):
    """The sizes of what came to whichever pod, and whether the content is right."""
    for ready in select.select(list(RECEIVERS.values()), [], [], 0)[0]:
        data = ready.recv(65536)
        so_far.append((len(data), data == request(len(data))))
    return so_far


def outbound(node):
    """The counts of the outbound direction, of all workers together."""
    sums = collections.Counter()
    for worker in workers(node):
        counts = worker["outbound"]
        sums.update(counts["dropped"])
        sums.update({key: counts[key] for key in ("received", "originated", "sent", "delivered")})
    return sums


def step(node, what, name, source, address, size, count, how, pod, counts, error):
    size, count = int(size), int(count)
    if pod and address not in RECEIVERS:
        RECEIVERS[address] = bound_socket(pod, address, PORT)
    sender, came, before = Sender(name, source, address, how), [], outbound(node)
    for _ in range(count):
        sender.send(size)
    expected = json.loads(counts), [error] * count if error else [], [(size, True)] * count if pod else []
    found = soon(lambda: (dict(outbound(node) - before), sender.errors_about(size, len(error.split())), arrived(came)),
                 expected)
    FINDINGS.equal(f"{what}: counts of {node}, reported to the sender, arrived", expected, found)


for LINE in sys.stdin.read().splitlines():
    step(sys.argv[1], *LINE.split("|"))
FINDINGS.end()
