"""Which worker carries each flow between pod1 on node1 and pod3 on node2, in each direction, told by the workers'
counters alone.

    affinity.py ADDRESS1 ADDRESS3 IDLE PING_PONGS ONE_WAYS STREAMS

Three turns: in a turn UDP flows go in groups, and each flow of a group sends another power of two of packets: the sum
that a worker counts then says which flows it carried. The powers are dealt anew in every turn. TCP flows and answers
go one by one: one worker's counter may move, and no other. IDLE workers of each seat are to carry no flow. Both ends
of every flow are here.
"""

import random
import socket
import sys
import time

from packets import family
from spaces import PATIENCE, Findings, inside, workers

GROUP, TURNS = 8, 3
# Of each flow between two turns.
ROUNDS, CHUNK = 20, 1 << 14
# Time in which delayed acknowledgments go.
REST = 0.06
RANDOM = random.Random(20240229)
KINDS = {"ping-pong": socket.SOCK_DGRAM, "one-way": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}
SEATS = ("node1 out", "node2 in", "node2 out", "node1 in")


class Flow:
    """Two connected sockets, of which each can send so much that the other one gets."""

    def __init__(self, kind, one, three):
        self.kind, self.size = kind, CHUNK if kind == "tcp" else 4
        near, far = (inside(name, lambda: socket.socket(family(one), KINDS[kind])) for name in ("pod1", "pod3"))
        near.bind((one, 0))
        far.bind((three, 0))
        if kind == "tcp":
            far.listen()
        near.connect(far.getsockname())
        if kind == "tcp":
            far = far.accept()[0]
        else:
            far.connect(near.getsockname())
        self.ends = near, far
        for end in self.ends:
            end.settimeout(PATIENCE)

    def send(self, sender):
        self.ends[sender].sendall(bytes(self.size))

    def receive(self, receiver):
        left = self.size
        while left:
            left -= len(self.ends[receiver].recv(left))

    def pass_on(self, *senders):
        for sender in senders:
            self.send(sender)
            self.receive(1 - sender)


def counts():
    """By seat, what each worker has sent or delivered."""
    found = {}
    for node in ("node1", "node2"):
        each = workers(node)
        found[f"{node} out"] = [worker["outbound"]["sent"] for worker in each]
        found[f"{node} in"] = [worker["inbound"]["delivered"] for worker in each]
    return found


def carriers(moved, weights):
    """The worker of each flow of a group, or None where the counts are not theirs."""
    if len(weights) > 1 and sum(moved) != sum(weights):
        return [None] * len(weights)
    bits = weights if len(weights) > 1 else [-1]
    found = [[worker for worker, count in enumerate(moved) if count & bit] for bit in bits]
    return [those[0] if len(those) == 1 else None for those in found]


class Watch:
    """The worker of every flow and seat, turn by turn."""

    def __init__(self):
        self.seen, self.last = {}, counts()

    def groups(self, flows, size, senders, seats):
        flows = RANDOM.sample(flows, len(flows))
        for first in range(0, len(flows), size):
            members = flows[first : first + size]
            weights = RANDOM.sample([1 << place for place in range(len(members))], len(members))
            for flow, weight in zip(members, weights):
                for _ in range(weight):
                    flow.pass_on(*senders)
            if flow.kind == "tcp":
                time.sleep(REST)
            before, self.last = self.last, counts()
            for seat in seats:
                moved = [b - a for a, b in zip(before[seat], self.last[seat])]
                for flow, worker in zip(members, carriers(moved, weights)):
                    self.seen.setdefault((flow, seat), []).append(worker)

    def turn(self, flows):
        self.last = counts()
        for kind, size, senders, seats in (("ping-pong", GROUP, (0, 1), SEATS), ("one-way", GROUP, (0,), SEATS[:2]),
                                           ("one-way", 1, (1,), SEATS[2:]), ("tcp", 1, (0, 1), SEATS)):
            self.groups([flow for flow in flows if flow.kind == kind], size, senders, seats)


def all_at_once(flows):
    for _ in range(ROUNDS):
        for sender in (0, 1):
            for flow in flows:
                flow.send(sender)
            for flow in flows:
                flow.receive(1 - sender)
    time.sleep(REST)


def main(one, three, idle, *numbers):
    flows = [Flow(kind, one, three) for kind, number in zip(KINDS, numbers) for _ in range(int(number))]
    findings, watch = Findings(), Watch()
    for turn in range(TURNS):
        watch.turn(flows)
        if turn + 1 < TURNS:
            all_at_once(flows)
    findings.equal("flows and directions watched, per node", 4 * len(flows), len(watch.seen))
    findings.equal("turns in which each was seen", {TURNS}, {len(turns) for turns in watch.seen.values()})
    odd = [f"{flow.kind} {seat}: {turns}" for (flow, seat), turns in watch.seen.items()
           if None in turns or len(set(turns)) > 1]
    findings.equal("those with another worker, or more than one, in a turn", [], odd)
    used = {seat: {worker for (_, found), turns in watch.seen.items() if found == seat for worker in turns}
            for seat in SEATS}
    findings.equal("workers without a flow", {seat: int(idle) for seat in SEATS},
                   {seat: len(watch.last[seat]) - len(used[seat]) for seat in SEATS})
    findings.end()


main(*sys.argv[1:])
