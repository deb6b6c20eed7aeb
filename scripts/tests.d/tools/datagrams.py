"""UDP datagrams, one after another, and what becomes of each: what a node counts, what the sender is told (the errors
of its socket's queue, which ip(7) calls IP_RECVERR), and what arrives.

    datagrams.py NODE

Each line of the input is a step, its fields separated by |, or "flood|FROM|ADDRESS" (see flood):

    WHAT|FROM|SOURCE|ADDRESS|SIZE|COUNT|HOW|POD|COUNTS|ERRORS

FROM sends COUNT datagrams of SIZE bytes to ADDRESS, from SOURCE (or any address). HOW is `df`: the kernel judges no
size by a path MTU that it learned, and anything up to the device's goes out; or `cut`: fragments where larger than
the device's MTU, or, over IPv6, where none but the sender may cut, than what it learned of the path. POD receives all
of them, or is empty. COUNTS is a JSON object, by how much each count of the outbound direction of NODE grows. ERRORS
is what each datagram is answered with: errno, origin, type/code, MTU, from whom, about what, how much of the payload
it quotes, or the first words of it; or empty.
"""

import errno
import json
import select
import socket
import struct
import sys
import time

from packets import family
from sizes import request
from spaces import Findings, inside, soon, workers

PORT = 5004
# A send that returns the error of an earlier datagram sends nothing, and the next one does.
ATTEMPTS = 100
# The burst of ICMP errors to one sender, the time until it may be as large again, and the milliseconds from one to the
# next.
BURST, REST, EVERY = 32, 0.4, 10
FLOOD = 300
# linux/in.h, linux/in6.h, linux/errqueue.h: level, MTU_DISCOVER, its values for df and cut, RECVERR.
OPTIONS = {socket.AF_INET: (socket.IPPROTO_IP, 10, {"df": 3, "cut": 5}, 11),
           socket.AF_INET6: (socket.IPPROTO_IPV6, 23, {"df": 3, "cut": 0}, 25)}
ORIGINS = {1: "local", 2: "icmp", 3: "icmp6"}


class Sender:
    """A socket in a namespace, which keeps what it is told."""

    def __init__(self, name, source, address, how):
        self.address, self.told = address, []
        level, discover, values, self.errors = OPTIONS[family(address)]
        self.socket = inside(name, lambda: socket.socket(family(address), socket.SOCK_DGRAM))
        self.socket.setsockopt(level, discover, values[how])
        self.socket.setsockopt(level, self.errors, 1)
        if source:
            self.socket.bind((source, 0))

    def send(self, size):
        for _ in range(ATTEMPTS):
            try:
                self.socket.sendto(request(size), (self.address, PORT))
                return
            except OSError as error:
                refused = error.errno
        self.told.append(f"refused {errno.errorcode[refused]}")

    def errors_about(self, size):
        """All errors so far. The kernel finds a socket by the quote, so its addresses and ports are right."""
        while True:
            try:
                quote, control, _, to = self.socket.recvmsg(65536, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self.told
            right = "right" if quote == request(size)[: len(quote)] else "wrong"
            self.told += [f"{describe(data)} about {to[0]}, quotes {len(quote)} {right}"
                          for _, kind, data in control if kind == self.errors]


def describe(data):
    """struct sock_extended_err, and behind it the address of who says so."""
    number, origin, kind, code, _, mtu, _ = struct.unpack_from("=IBBBBII", data)
    (by,) = struct.unpack_from("=H", data, 16)
    by = socket.inet_ntop(by, data[20:24] if by == socket.AF_INET else data[24:40])
    return f"{errno.errorcode[number]} {ORIGINS[origin]} {kind}/{code} mtu {mtu} from {by}"


class Receivers:
    """A socket for each address of a pod that receives, and all that came."""

    def __init__(self):
        self.sockets = {}

    def listen(self, pod, address):
        if pod and address not in self.sockets:
            self.sockets[address] = inside(pod, lambda: socket.socket(family(address), socket.SOCK_DGRAM))
            self.sockets[address].bind((address, PORT))

    def came(self, so_far):
        """The sizes of what came to whichever of them, and whether the content is right."""
        for ready in select.select(list(self.sockets.values()), [], [], 0)[0]:
            data = ready.recv(65536)
            so_far.append((len(data), data == request(len(data))))
        return so_far


def outbound(node):
    """The counts of the outbound direction, of all workers together."""
    sums = {"unanswered": 0}
    for worker in workers(node):
        counts = worker["outbound"]
        sums["unanswered"] += worker["unanswered"]
        counts = {**{key: counts[key] for key in ("received", "originated", "sent", "delivered")}, **counts["dropped"]}
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def growth(node, before):
    grown = {name: count - before.get(name, 0) for name, count in outbound(node).items()}
    return {name: count for name, count in grown.items() if count}


def step(findings, receivers, node, line):
    what, name, source, address, size, count, how, pod, counts, error = line.split("|")
    size, count = int(size), int(count)
    receivers.listen(pod, address)
    sender, arrived, before = Sender(name, source, address, how), [], outbound(node)
    for _ in range(count):
        sender.send(size)
    expected = json.loads(counts), [error] * count if error else [], [(size, True)] * count if pod else []
    words = len(error.split())
    found = soon(lambda: (growth(node, before), [first_words(told, words) for told in sender.errors_about(size)],
                          receivers.came(arrived)), expected)
    for kind, one, other in zip((f"counts of {node}", "reported to the sender", "arrived"), expected, found):
        findings.equal(f"{what}: {kind}", one, other)


def first_words(text, count):
    return " ".join(text.split()[:count])


def flood(findings, node, name, address):
    """Datagrams to no node draw a burst of answers, and then one every 10 ms; each that none is sent for is counted."""
    time.sleep(REST)
    sender, before, start = Sender(name, "", address, "df"), outbound(node), time.monotonic()
    for _ in range(FLOOD):
        sender.send(100)
    soon(lambda: growth(node, before).get("NoRoute"), FLOOD)
    longest = BURST + 1 + 1000 * (time.monotonic() - start) / EVERY
    found = growth(node, before)
    answers = found.get("originated", 0)
    findings.equal("a flood: counts", {"received": FLOOD, "originated": answers, "delivered": answers, "NoRoute": FLOOD,
                                       "unanswered": FLOOD - answers}, found)
    findings.equal(f"a flood: {answers} answers are from {BURST} to {longest:.0f}", True, BURST <= answers <= longest)


def main(node):
    findings, receivers = Findings(), Receivers()
    for line in sys.stdin.read().splitlines():
        if line.startswith("flood|"):
            flood(findings, node, *line.split("|")[1:])
        else:
            step(findings, receivers, node, line)
    findings.end()


main(sys.argv[1])
