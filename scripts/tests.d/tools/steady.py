"""Flows that go on while something is done to a cluster, and what they noticed of it.

    steady.py serve PORT        sends back every datagram, and all that comes by TCP
    steady.py send PORT ADDRESS PORT RATE [options] [PATIENCE]
                                RATE datagrams a second from one port to the other, numbered from 0, until SIGTERM; then
                                  N sent, M answered
                                  duplicate N
                                  lost N...       of those before the first SIGUSR1, between it and the next, and so on
                                  answered N...   the others of these
                                  pauses MS...    the longest between two answers in the second behind each SIGUSR1
    steady.py hold ADDRESS PORT
                                a message over TCP every 20 ms, once the one before is answered. Prints 'connected', and
                                'N answered' after every tenth; on SIGTERM 'N answered, longest pause M ms'

With `options` they have IP options, and no program of the kernel path carries them. Once all is sent, an answer has
PATIENCE seconds from the one before it (2). A signal divides what is sent by number, which a busy machine does not
move. `hold` fails when the connection ends, or an answer is wrong or does not come within a minute.
"""

import itertools
import selectors
import signal
import socket
import sys
import time

from ending import Ending
from packets import family

SO_RCVBUFFORCE = 33
# RFC 791: three times no operation, and the end of the list.
NO_OPERATION = bytes([1, 1, 1, 0])


def open_socket(version, port):
    """At every address; one of IPv6 has those of IPv4 too."""
    line = socket.socket(version, socket.SOCK_DGRAM)
    # As root: a buffer within the usual limit overflows while a process waits half a second for a core.
    line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    line.bind(("", port))
    return line


def serve(port):
    waiting = selectors.DefaultSelector()

    def answer(line):
        line.sendto(*line.recvfrom(2048))

    def accept(listener):
        waiting.register(listener.accept()[0], selectors.EVENT_READ, send_back)

    def send_back(connection):
        try:
            data = connection.recv(65536)
            connection.sendall(data)
        except OSError:
            data = b""
        if not data:
            waiting.unregister(connection)
            connection.close()

    waiting.register(open_socket(socket.AF_INET6, port), selectors.EVENT_READ, answer)
    listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    waiting.register(listener, selectors.EVENT_READ, accept)
    while True:
        for ready, _ in waiting.select():
            ready.data(ready.fileobj)


class Sender:
    def __init__(self, port, address, to, *words):
        # When the last answer came. Of each mark: the number, when it was, and the pause behind it.
        self.last, self.marks, self.sent = time.monotonic(), [], 0
        self.numbers, self.duplicate = set(), 0
        signal.signal(signal.SIGUSR1, lambda *_: self.marks.append([self.sent, time.monotonic(), 0.0]))
        self.patience = next((float(word) for word in words if word != "options"), 2.0)
        self.line, self.target = open_socket(family(address), port), (address, to)
        self.line.setblocking(False)
        if "options" in words:
            self.line.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, NO_OPERATION)
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(self.line, selectors.EVENT_READ)

    def read(self, seconds):
        """Whatever has come, or comes within these seconds."""
        if not self.waiting.select(seconds):
            return
        now = time.monotonic()
        for mark in reversed(self.marks):
            if mark[1] + 1 < self.last:
                break
            mark[2] = max(mark[2], now - self.last)
        self.last = now
        try:
            while True:
                number = int.from_bytes(self.line.recv(2048)[:8])
                self.duplicate += number in self.numbers
                self.numbers.add(number)
        except BlockingIOError:
            pass

    def send(self):
        """What cannot be sent, for there is no route, is lost. Each is longer than the one before: those of one length
        are joined (GRO, GSO), and a socket without room for a joined one counts one."""
        try:
            self.line.sendto(self.sent.to_bytes(8) + bytes(self.sent % 900), self.target)
        except OSError:
            pass
        self.sent += 1

    def run(self, rate):
        begin = time.monotonic()
        while not ENDING.told:
            while self.sent <= (time.monotonic() - begin) * rate:
                self.send()
            self.read(0.5 / rate)
        end = time.monotonic()
        while len(self.numbers) < self.sent and time.monotonic() - max(end, self.last) <= self.patience:
            self.read(0.1)
        print(f"{self.sent} sent, {len(self.numbers)} answered")
        print(f"duplicate {self.duplicate}")
        parts = [range(*part) for part in itertools.pairwise([0, *(mark[0] for mark in self.marks), self.sent])]
        print("lost", *(sum(number not in self.numbers for number in part) for part in parts))
        print("answered", *(sum(number in self.numbers for number in part) for part in parts))
        print("pauses", *(round(mark[2] * 1000) for mark in self.marks))


def hold(address, port):
    count, longest = 0, 0.0
    with socket.create_connection((address, port), 60) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("connected", flush=True)
        while not ENDING.told:
            begin = time.monotonic()
            message = count.to_bytes(8) * 8
            try:
                connection.sendall(message)
                answer = answers.read(len(message))
            except OSError as error:
                sys.exit(f"the connection ended after {count} answers: {error}")
            if answer != message:
                sys.exit(f"answer {count} is wrong, or the connection was closed: {answer!r}")
            count += 1
            if count % 10 == 0:
                print(f"{count} answered", flush=True)
            longest = max(longest, time.monotonic() - begin)
            time.sleep(0.02)
    print(f"{count} answered, longest pause {longest * 1000:.0f} ms")


ENDING = Ending()
match sys.argv[1:]:
    case ["serve", PORT]:
        serve(int(PORT))
    case ["send", PORT, ADDRESS, TO, RATE, *WORDS]:
        Sender(int(PORT), ADDRESS, int(TO), *WORDS).run(int(RATE))
    case ["hold", ADDRESS, PORT]:
        hold(ADDRESS, int(PORT))
