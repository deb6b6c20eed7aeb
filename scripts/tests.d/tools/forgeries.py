"""Sends what forge.py does, case by case, and compares what a node of the lab counts of each.

    forgeries.py PREFIX          a case a line: FROM NODE EXPECTED WHAT KEY=VALUE..., separated by tabs

FROM is the namespace that sends, NODE the one that counts; with a NODE of - it sends alone. EXPECTED names the counts
that alone grow there, by as many as were sent: received, delivered, read (from the device), reasons of drops, or one of
the kernel's (forged_sources), with a plus between them; or `nothing`. KEY=VALUE... is forge.py's order, a list with
commas; of a key that comes twice the last one counts. Exit code 1: a count differed. Prints at last how many cases there
were, and how many datagrams were to be delivered.
"""

import collections
import ctypes
import json
import os
import socket
import sys
import time

from forge import send

CLONE_NEWNET = 0x40000000
# Seconds for a count to be reached, and how long one that is to stay is looked at.
PATIENCE, REST = 20, 0.1
PREFIX = sys.argv[1]
LISTS = ("formats", "sources", "destinations")


def order_of(words):
    order = dict(word.split("=", 1) for word in words.split())
    for key, value in order.items():
        order[key] = value.split(",") if key in LISTS else int(value) if value.isdecimal() and key != "raw" else value
    return order


def enter(name):
    """Sockets that are made from now on are in that namespace."""
    space = os.open(f"/run/netns/{PREFIX}-{name}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), name)
    os.close(space)


def counts(node):
    """What a node received but for probes, what became of it, what it read from its device, what its rules dropped."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(f"/run/tartan-lab/{PREFIX}/{node}/run/tartan/tartan.sock")
        control.sendall(b'{"call":"drops"}\n')
        drops = json.loads(b"".join(iter(lambda: control.recv(65536), b"")))["ok"]
    found = collections.Counter()
    for worker in drops["workers"]:
        inbound = worker["inbound"]
        found.update({"received": inbound["received"] - inbound["probes"], "read": worker["outbound"]["received"]})
        found.update({name: inbound[name] for name in ("delivered", "originated")})
        found.update(inbound["dropped"])
        found.update(worker["outbound"]["dropped"])
    rules = [count for count in drops["kernel"] if count["counter"].startswith("forged_")]
    found.update({count["counter"]: count["count"] for count in rules})
    return found


def examine(node, expected, order, what, tries=5):
    """Whether the counts grow as those of this case. One whose ring between two workers was full, on a busy machine, shows
    nothing, and is sent again."""
    sent, before, grown = send(order), BEFORE[node], None
    wanted = {} if expected == "nothing" else dict.fromkeys(expected.split("+"), sent)
    until = time.monotonic() + (PATIENCE if wanted else REST)
    while time.monotonic() < until and (grown != wanted or not wanted):
        time.sleep(0.005)
        BEFORE[node] = now = counts(node)
        grown = {name: now[name] - before[name] for name in now if now[name] != before[name]}
    if grown.get("RingFull") and tries:
        print(f"{what}: {grown}, once more")
        CUT.append(grown.get("delivered", 0))
        return examine(node, expected, order, what, tries - 1)
    if grown != wanted:
        print(f"FAILED: {what}: expected {wanted}, found {grown}", file=sys.stderr)
    else:
        print(f"{what}: {grown}")
    return grown == wanted


# What was delivered of cases that were sent again.
CUT = []
# Of the case before: a datagram that is counted late or twice is an error of the next one.
BEFORE, held, cases, rightful = {}, True, 0, 0
for line in sys.stdin:
    place, where, count, case, keys = line.rstrip("\n").split("\t")
    arranged = order_of(keys)
    cases += 1
    enter(place)
    if where == "-":
        send(arranged)
        continue
    BEFORE.setdefault(where, counts(where))
    held = examine(where, count, arranged, f"{case}, from {place}") and held
    if "delivered" in count:
        rightful += arranged["count"] * len(arranged["formats"])
print(cases, rightful + sum(CUT))
sys.exit(not held)
