"""UDP datagrams at a steady rate, numbered from 0, each of them answered; and which of them were lost, to the number.

    steady.py serve ADDRESS... PORT    sends each datagram back until SIGTERM, and prints then
                                         N received
                                         last NUMBER         the largest that came
                                       and `late`, `duplicate`, `pause` and `hole` as below
    steady.py send SOURCE PORT ADDRESS PORT RATE [COUNT] [own-ports] [options] [patience=SECONDS]
                                       sends RATE datagrams a second, COUNT or until SIGTERM, and prints then
                                         N sent, M answered
                                         late N              answers behind that of a larger number
                                         duplicate N
                                         pause MS            the longest time from one answer to the next
                                         marks NUMBER...     the number that was next, at each SIGUSR1
                                         hole FIRST LENGTH   so many in a row, from FIRST on, had no answer: a line each

`own-ports` sends each from a port of its own: to a firewall each is a new flow. With `options` they have IP options, and
no program of the kernel path carries them. SOURCE may be '', any. Once all is sent, an answer has PATIENCE seconds from
the one before it (2). SIGUSR1 tells the moment of an event by a number, which a busy machine does not move.

SO_RCVBUFFORCE needs root: a buffer within the usual limit overflows while a process waits half a second for a core.
"""

import select
import signal
import socket
import struct
import sys
import threading
import time

from ending import Ending
from packets import family

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
# RFC 791: three times no operation, and the end of the list.
NO_OPERATION = bytes([1, 1, 1, 0])
PATIENCE = 2.0


class Row:
    """Numbers, as they came."""

    def __init__(self):
        self.numbers, self.last, self.late, self.duplicate = set(), -1, 0, 0

    def add(self, number):
        if number in self.numbers:
            self.duplicate += 1
        elif number < self.last:
            self.late += 1
        self.numbers.add(number)
        self.last = max(self.last, number)

    def print_holes(self, count):
        """Of the numbers below count."""
        first = 0
        for number in sorted(self.numbers | {count}):
            if number > first:
                print(f"hole {first} {number - first}")
            first = number + 1


class Pause:
    def __init__(self):
        self.before, self.longest = None, 0.0

    def ends(self, moment):
        if self.before is not None:
            self.longest = max(self.longest, moment - self.before)
        self.before = moment


def print_rows(rows, pause):
    print(f"late {sum(row.late for row in rows)}")
    print(f"duplicate {sum(row.duplicate for row in rows)}")
    print(f"pause {pause.longest * 1000:.0f}")


def open_socket(address, port):
    line = socket.socket(family(address), socket.SOCK_DGRAM)
    line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    line.bind((address, port))
    return line


def serve(addresses, port):
    # A row for each sender's address and port.
    rows, pause, waiting, servers = {}, Pause(), select.epoll(), {}
    for address in addresses:
        server = open_socket(address, port)
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        servers[server.fileno()] = server
        waiting.register(server, select.EPOLLIN)
    while not ENDING.told:
        for ready, _ in waiting.poll(0.1):
            data, control, _, client = servers[ready].recvmsg(2048, 128)
            servers[ready].sendto(data, client)
            seconds, nanoseconds = struct.unpack("qq", control[0][2][:16])
            pause.ends(seconds + nanoseconds / 1e9)
            rows.setdefault(client, Row()).add(int.from_bytes(data[:8]))
    print(f"{sum(len(row.numbers) + row.duplicate for row in rows.values())} received")
    print(f"last {max((row.last for row in rows.values()), default=-1)}")
    print_rows(rows.values(), pause)
    for row in rows.values():
        # One that sends from a port of its own each time has no row.
        if len(row.numbers) > 1:
            row.print_holes(row.last)


class Sender:
    def __init__(self, rate, options):
        self.rate = rate
        self.own_ports = "own-ports" in options
        self.ip_options = NO_OPERATION if "options" in options else b""
        self.count = next((int(word) for word in options if word.isdigit()), sys.maxsize)
        self.patience = next((float(word.split("=")[1]) for word in options if "=" in word), PATIENCE)
        self.waiting, self.clients, self.answers, self.pause = select.epoll(), {}, Row(), Pause()
        self.sent, self.is_done, self.marks = 0, False, []
        signal.signal(signal.SIGUSR1, lambda *_: self.marks.append(self.sent))

    def client(self, source, target):
        """A socket, or None if there is no route now."""
        client = open_socket(*source)
        if self.ip_options:
            client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, self.ip_options)
        try:
            client.connect(target)
        except OSError:
            client.close()
            return None
        self.clients[client.fileno()] = client
        self.waiting.register(client, select.EPOLLIN)
        return client

    def read(self):
        quiet = time.monotonic()
        while not self.is_done or len(self.answers.numbers) < self.sent and time.monotonic() - quiet <= self.patience:
            for ready, _ in self.waiting.poll(0.1):
                try:
                    number = int.from_bytes(self.clients[ready].recv(2048)[:8])
                except OSError:
                    continue  # an ICMP error: no answer
                quiet = time.monotonic()
                self.pause.ends(quiet)
                self.answers.add(number)
            if not self.is_done:
                quiet = time.monotonic()

    def run(self, source, target):
        source = (source[0] or ("::" if family(target[0]) == socket.AF_INET6 else "0.0.0.0"), source[1])
        client = None
        reader = threading.Thread(target=self.read, daemon=True)
        reader.start()
        begin = time.monotonic()
        while not ENDING.told and self.sent < self.count:
            due = min(int((time.monotonic() - begin) * self.rate) + 1, self.count)
            while self.sent < due:
                if client is None or self.own_ports:
                    client = self.client(source, target)
                if client is not None:
                    self.send(client)
                self.sent += 1
            time.sleep(0.5 / self.rate)
        self.is_done = True
        reader.join()
        print(f"{self.sent} sent, {len(self.answers.numbers)} answered")
        print_rows([self.answers], self.pause)
        print("marks", *self.marks)
        self.answers.print_holes(self.sent)

    def send(self, client):
        """The error of a datagram before, or of the route: this one is lost, unless it can be sent at once."""
        for _ in range(2):
            try:
                client.send(self.sent.to_bytes(8) + bytes(192))
                break
            except OSError:
                continue


ENDING = Ending()
if sys.argv[1] == "serve":
    serve(sys.argv[2:-1], int(sys.argv[-1]))
else:
    SOURCE, SOURCE_PORT, ADDRESS, PORT, RATE = sys.argv[2:7]
    Sender(int(RATE), sys.argv[7:]).run((SOURCE, int(SOURCE_PORT)), (ADDRESS, int(PORT)))
