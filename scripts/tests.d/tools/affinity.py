"""Which worker carries each flow between pod1 on node1 and pod3 on node2, in each direction, told by the workers'
counters alone: while a flow sends and nothing else does, one worker's counter may move, and no other.

    affinity.py ADDRESS1 ADDRESS3 IDLE PING_PONGS ONE_WAYS STREAMS

Three turns, one flow after another; between two turns all flows send at once. PING_PONGS and ONE_WAYS are UDP, of which
the latter are answered once in a turn. IDLE workers of each seat are to carry no flow. All ends are here.
"""

import random
import socket
import sys
import time

from packets import family
from spaces import PATIENCE, Findings, inside, workers

TURNS = 3
# Of each flow between two turns; bytes of a TCP flow at a time.
ROUNDS, CHUNK = 20, 1 << 14
# Packets of a flow of one direction before it is answered.
ONE_WAY = 10
# Time in which delayed acknowledgments go.
REST = 0.06
KINDS = {"ping-pong": socket.SOCK_DGRAM, "one-way": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}
SEATS = ("node1 out", "node2 in", "node2 out", "node1 in")


class Flow:
    """Two connected sockets, of which each can send so much that the other one gets."""

    def __init__(self, kind, one, three):
        self.kind, self.size, self.seen = kind, CHUNK if kind == "tcp" else 4, {}
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

    def turn(self, before):
        """Notes for each seat which workers carried the flow; returns the counts afterwards."""
        for sender, times in ((0, ONE_WAY if self.kind == "one-way" else 1), (1, 1)):
            for _ in range(times):
                self.send(sender)
                self.receive(1 - sender)
        if self.kind == "tcp":
            time.sleep(REST)
        after = counts()
        for seat in SEATS:
            moved = [worker for worker, (old, new) in enumerate(zip(before[seat], after[seat])) if new > old]
            self.seen.setdefault(seat, []).append(moved)
        return after


def counts():
    """By seat, what each worker has sent or delivered."""
    found = {}
    for node in ("node1", "node2"):
        each = workers(node)
        found[f"{node} out"] = [worker["outbound"]["sent"] for worker in each]
        found[f"{node} in"] = [worker["inbound"]["delivered"] for worker in each]
    return found


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
    findings = Findings()
    for turn in range(TURNS):
        last = counts()
        for flow in random.sample(flows, len(flows)):
            last = flow.turn(last)
        if turn + 1 < TURNS:
            all_at_once(flows)
    seen = [(f"{flow.kind} {seat}", turns) for flow in flows for seat, turns in flow.seen.items()]
    findings.equal("flows and directions watched, per node", 4 * len(flows), len(seen))
    odd = [(what, turns) for what, turns in seen if len(turns[0]) != 1 or turns != turns[:1] * TURNS]
    findings.equal("those not with one worker, the same in all turns", [], odd)
    used = {seat: len({worker for flow in flows for moved in flow.seen[seat] for worker in moved}) for seat in SEATS}
    findings.equal("workers with a flow", {seat: len(last[seat]) - int(idle) for seat in SEATS}, used)
    findings.end()


main(*sys.argv[1:])
