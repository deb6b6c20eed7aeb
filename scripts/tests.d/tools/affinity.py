"""Which worker carries each flow, in each direction, told by the workers' counters alone.

    affinity.py watch PREFIX POD1 POD2     128 UDP flows that ping-pong, 16 UDP flows of one direction that are
                                           answered once in a turn, 16 TCP flows: three turns, 5 s from each to
                                           the next, and a storm of all at once between them; prints what was found
    affinity.py storm PREFIX POD1 POD2     the storm alone

PREFIX is that of a lab of two nodes with a pod each, POD1 and POD2 are the pods' addresses. Both ends of every flow
are in this process, its sockets in the pods' namespaces.

In a turn UDP flows go in groups, and each flow of a group sends another power of two of packets: the sum that a worker
counts then says which flows it carried. The powers are dealt anew in every turn. TCP flows and answers go one by one:
one worker's counter may move, and no other.
"""

import ctypes
import json
import os
import random
import socket
import sys
import threading
import time

from packets import family

PING_PONGS, ONE_WAYS, STREAMS = 128, 16, 16
GROUP = 8
TURNS, EVERY = 3, 5.0
PATIENCE = 3.0
# Time in which delayed acknowledgments go.
REST = 0.06
STORM = 2.0
CHUNK = 1 << 16
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
RANDOM = random.Random(20240229)
SEATS = ("node1 out", "node2 in", "node2 out", "node1 in")


def inside(namespace, make):
    """What `make` makes, of the namespace."""
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        for step in (lambda: LIBC.setns(there.fileno(), CLONE_NEWNET), make, lambda: LIBC.setns(home.fileno(), CLONE_NEWNET)):
            result = step()
            if step is make:
                made = result
            elif result != 0:
                sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    return made


class Udp:
    """Two connected sockets."""

    def __init__(self, prefix, one, two):
        self.ends = [inside(f"{prefix}-pod{n}", lambda: socket.socket(family(one), socket.SOCK_DGRAM)) for n in (1, 2)]
        for end, address in zip(self.ends, (one, two)):
            end.settimeout(PATIENCE)
            end.bind((address, 0))
        names = [end.getsockname() for end in self.ends]
        self.ends[0].connect(names[1])
        self.ends[1].connect(names[0])

    def pass_on(self, sender):
        self.ends[sender].send(b"flow")
        self.ends[1 - sender].recv(100)

    def ping_pong(self):
        self.pass_on(0)
        self.pass_on(1)


class Tcp:
    """A connection between the pods."""

    def __init__(self, prefix, one, two):
        listener = inside(f"{prefix}-pod2", lambda: socket.create_server((two, 0), family=family(two)))
        with listener:
            client = inside(f"{prefix}-pod1", lambda: socket.socket(family(one), socket.SOCK_STREAM))
            client.settimeout(PATIENCE)
            client.connect(listener.getsockname())
            self.ends = [client, listener.accept()[0]]
        for end in self.ends:
            end.settimeout(PATIENCE)
            # All of them together fit into every queue on the way.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK)

    def pass_on(self, sender):
        part = CHUNK // 4
        self.ends[sender].sendall(bytes(part))
        while part:
            part -= len(self.ends[1 - sender].recv(part))

    def ping_pong(self):
        self.pass_on(0)
        self.pass_on(1)


class Counters:
    """What each worker of both nodes has sent and delivered since it was last looked at."""

    def __init__(self, prefix):
        self.paths = [f"/run/tartan-lab/{prefix}/node{n}/run/tartan/tartan.sock" for n in (1, 2)]
        self.last = self.read()

    def read(self):
        found = {}
        for node, path in zip(("node1", "node2"), self.paths):
            with socket.socket(socket.AF_UNIX) as api:
                api.settimeout(5)
                api.connect(path)
                api.sendall(b'{"call": "drops"}\n')
                with api.makefile() as answer:
                    workers = json.loads(answer.readline())["ok"]["workers"]
            found[f"{node} out"] = [worker["outbound"]["sent"] for worker in workers]
            found[f"{node} in"] = [worker["inbound"]["delivered"] for worker in workers]
        return found

    def moved(self):
        """By seat, what each worker's count grew by."""
        before, self.last = self.last, self.read()
        return {seat: [b - a for a, b in zip(before[seat], self.last[seat])] for seat in SEATS}


def decode(counts, weights):
    """The worker of each flow of a group, or None where the counts are not theirs."""
    if sum(counts) != sum(weights):
        return [None] * len(weights)
    carriers = [[worker for worker, count in enumerate(counts) if count & weight] for weight in weights]
    return [found[0] if len(found) == 1 else None for found in carriers]


def alone(counts):
    """The only worker whose count moved, or None."""
    found = [worker for worker, count in enumerate(counts) if count]
    return found[0] if len(found) == 1 else None


class Watch:
    """The worker of every flow and seat, turn by turn."""

    def __init__(self, counters):
        self.counters = counters
        self.seen = {}

    def group(self, kind, flows, act, seats):
        for first in range(0, len(flows), GROUP):
            members = range(first, min(first + GROUP, len(flows)))
            weights = [1 << place for place in range(len(members))]
            RANDOM.shuffle(weights)
            for number, weight in zip(members, weights):
                for _ in range(weight):
                    act(flows[number])
            moved = self.counters.moved()
            for seat in seats:
                for number, worker in zip(members, decode(moved[seat], weights)):
                    self.seen.setdefault((kind, number, seat), []).append(worker)

    def each(self, kind, flows, act, seats, rest=0.0):
        for number in RANDOM.sample(range(len(flows)), len(flows)):
            act(flows[number])
            time.sleep(rest)
            moved = self.counters.moved()
            for seat in seats:
                self.seen.setdefault((kind, number, seat), []).append(alone(moved[seat]))

    def turn(self, udp, ways, tcp):
        self.counters.moved()
        self.group("ping-pong", udp, Udp.ping_pong, SEATS)
        self.group("one-way", ways, lambda flow: flow.pass_on(0), SEATS[:2])
        self.each("one-way", ways, lambda flow: flow.pass_on(1), SEATS[2:])
        self.each("tcp", tcp, Tcp.ping_pong, SEATS, REST)

    def report(self, workers):
        lost = [key for key, turns in self.seen.items() if None in turns]
        changed = [key for key, turns in self.seen.items() if len(set(turns) - {None}) > 1]
        used = {seat: sorted({turns[0] for (_, _, found), turns in self.seen.items() if found == seat and turns[0] is not None})
                for seat in SEATS}
        return {
            "watched": len(self.seen),
            "turns": sorted({len(turns) for turns in self.seen.values()}),
            "changes": len(changed),
            "unclear": len(lost),
            "idle": {seat: workers - len(found) for seat, found in used.items() if len(found) < workers},
            "examples": [f"{kind} {number} {seat}: {self.seen[kind, number, seat]}" for kind, number, seat in (changed + lost)[:8]],
        }


def storm(udp, ways, tcp):
    """All flows at once, both ways."""
    end = time.monotonic() + STORM

    def chat():
        while time.monotonic() < end:
            for sender in (0, 1):
                for flow in udp + (ways if sender == 0 else []):
                    flow.ends[sender].send(b"flow")
                for flow in udp + (ways if sender == 0 else []):
                    flow.ends[1 - sender].recv(100)

    def write(end_of_flow, counts, place):
        data = bytes(CHUNK)
        while time.monotonic() < end:
            end_of_flow.sendall(data)
            counts[place] += len(data)

    def read(end_of_flow, other, counts, place):
        done = 0
        while other.is_alive() or done < counts[place]:
            end_of_flow.settimeout(0.2)
            try:
                done += len(end_of_flow.recv(CHUNK))
            except TimeoutError:
                pass
        end_of_flow.settimeout(PATIENCE)

    threads = [threading.Thread(target=chat)]
    counts = [0] * 2 * len(tcp)
    for number, flow in enumerate(tcp):
        for sender in (0, 1):
            place = 2 * number + sender
            # What one side reads and the other writes are sockets of their own: timeouts are per object.
            writer = threading.Thread(target=write, args=(flow.ends[sender].dup(), counts, place))
            reader = threading.Thread(target=read, args=(flow.ends[1 - sender], writer, counts, place))
            threads += [writer, reader]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(REST)
    return sum(counts)


def main(task, prefix, one, two):
    udp = [Udp(prefix, one, two) for _ in range(PING_PONGS)]
    ways = [Udp(prefix, one, two) for _ in range(ONE_WAYS)]
    tcp = [Tcp(prefix, one, two) for _ in range(STREAMS)]
    if task == "storm":
        print(json.dumps({"bytes": storm(udp, ways, tcp)}))
        return
    counters = Counters(prefix)
    watch, carried = Watch(counters), 0
    for turn in range(TURNS):
        begin = time.monotonic()
        watch.turn(udp, ways, tcp)
        if turn + 1 < TURNS:
            carried += storm(udp, ways, tcp)
            time.sleep(max(0.0, begin + EVERY - time.monotonic()))
    print(json.dumps({**watch.report(len(counters.last[SEATS[0]])), "bytes": carried}))


if __name__ == "__main__":
    main(*sys.argv[1:])
