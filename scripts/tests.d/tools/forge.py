"""Sends forged datagrams from wherever it runs, as a JSON object on stdin says; prints how many. Encapsulated ones, in
both formats:

    {"to": "192.0.2.1", "formats": ["udp", "vxlan"], "count": 50,
     "source": inner source, "destination": inner destination, "port": inner port,
     "source_mac": ..., "destination_mac": ..., and what vxlan() of packets.py takes: vni, flags, ...
     "cut": keep only so many bytes of the payload, "raw": hex bytes instead of an inner packet,
     "data": so many bytes of inner payload instead of a word, "outer_port": a port instead of the format's}

With "rate" in the place of "count" it sends so many a second of each format until SIGTERM. Or plain ones, by a raw
socket, with any source; each source speaks to each destination of its family, `count` times from each of `ports` ports:

    {"sources": [...], "destinations": [...], "port": 7000, "count": 20, "ports": 1}

`forge.py cases` has cases as its input, a line each, of FROM NODE EXPECTED WHAT KEY=VALUE..., separated by tabs. It
sends each from FROM, a namespace of the lab LAB_PREFIX, and compares what NODE counts; with a NODE of - it sends
alone. EXPECTED names the counts that alone grow there, by as many as were sent: received, delivered,
read (from the device), reasons of drops, or one of the kernel's (forged_sources), with a plus between them; or
`nothing`. KEY=VALUE... is an order as above, a list with commas; of a key that comes twice the last one counts. Exit
code 1: a count differed. Prints at last how many cases there were, and how many datagrams were delivered.
"""

import collections
import itertools
import json
import socket
import subprocess
import sys
import time

from ending import Ending
from packets import IPV4, PORTS, family, udp_packet, vxlan
from spaces import PATIENCE, drops, inside

# A receiver's socket holds far more than this many small datagrams.
BURST = 500
# To everyone on the interface.
LINK = ("eth0", IPV4, 0, 0, b"\xff" * 6)
# How long a count that is to stay is looked at.
REST = 0.1
# What a kernel has not passed on, it says here.
KERNEL = "echo; nstat -as | grep -iE 'err|drop|discard|fail'; conntrack -S; ip -s link show dev eth0; ip neighbour"
LISTS = ("formats", "sources", "destinations")
# What each node counted after the case before: a datagram that is counted late or twice is an error of the next one.
BEFORE = {}


def encapsulated(order):
    """A socket, payload and destination for each format."""
    word = b"forged" + bytes(order.get("data", 0))
    inner = udp_packet(order["source"], order["destination"], 4000, order["port"], word)
    inner = bytes.fromhex(order.get("raw", "")) or inner
    header = {key: order[key] for key in ("vni", "flags", "ethertype", "reserved") if key in order}
    payloads = {"udp": inner, "vxlan": vxlan(inner, order["source_mac"], order["destination_mac"], **header)}
    sender = socket.socket(family(order["to"]), socket.SOCK_DGRAM)
    for form in order["formats"]:
        yield sender, payloads[form][: order.get("cut", 65536)], (order["to"], order.get("outer_port", PORTS[form]))


def spoken(order):
    """A socket, packet and destination for each plain datagram. The kernel fills in a source of IPv4 that is zero."""
    kinds = {"0.0.0.0": (socket.AF_PACKET, socket.SOCK_DGRAM)}
    for source, destination in itertools.product(order["sources"], order["destinations"]):
        if family(destination) != family(source):
            continue
        sender = socket.socket(*kinds.get(source, (family(source), socket.SOCK_RAW, socket.IPPROTO_RAW)))
        for port in range(4000, 4000 + order.get("ports", 1)):
            packet = udp_packet(source, destination, port, order["port"], b"flood")
            yield sender, packet, LINK if source in kinds else (destination, 0)


def send(order):
    """Sends them all, and says how many they were."""
    sent = 0
    for sender, packet, address in spoken(order) if "sources" in order else encapsulated(order):
        for _ in range(order["count"]):
            sender.sendto(packet, address)
            sent += 1
            if sent % BURST == 0:
                time.sleep(0.005)
    return sent


def steadily(order):
    """Each is of a flow of its own: of one flow, the kernel joins what waited (GRO), and a socket without room for a
    joined one counts one."""
    ending, sent, due = Ending(), 0, time.monotonic()
    while not ending.told:
        for sender, payload, address in encapsulated(order):
            sender.sendto(payload, address)
            sent += 1
        due += 1 / order["rate"]
        time.sleep(max(0, due - time.monotonic()))
    return sent


def order_of(words):
    order = dict(word.split("=", 1) for word in words.split())
    for key, value in order.items():
        order[key] = value.split(",") if key in LISTS else int(value) if value.isdecimal() and key != "raw" else value
    return order


def counts(node):
    """What a node received but for probes, what became of it, what it read from its device, what its rules dropped."""
    found, told = collections.Counter(), drops(node)
    for worker in told["workers"]:
        inbound, outbound = worker["inbound"], worker["outbound"]
        found.update({"received": inbound["received"] - inbound["probes"], "read": outbound["received"]})
        found.update({name: inbound[name] for name in ("delivered", "originated")})
        found.update(inbound["dropped"])
        found.update(outbound["dropped"])
    found.update({rule["counter"]: rule["count"] for rule in told["kernel"] if rule["counter"].startswith("forged_")})
    return found


def grown_by(place, node, expected, order):
    """What the counts are to grow by, and what they do."""
    sent, before, grown = inside(place, lambda: send(order)), BEFORE[node], {"counts": "none"}
    wanted = {} if expected == "nothing" else dict.fromkeys(expected.split("+"), sent)
    until = time.monotonic() + (PATIENCE if wanted else REST)
    while time.monotonic() < until and (grown != wanted or not wanted):
        time.sleep(0.005)
        BEFORE[node] = now = counts(node)
        grown = {name: now[name] - before[name] for name in now if now[name] != before[name]}
    return wanted, grown


def compare(lines):
    """Whether all grow as they are to."""
    held, cases, delivered = True, 0, 0
    for line in lines:
        place, node, expected, case, keys = line.rstrip("\n").split("\t")
        cases += 1
        if node == "-":
            inside(place, lambda: send(order_of(keys)))
            continue
        BEFORE.setdefault(node, counts(node))
        # One whose ring between two workers was full, on a busy machine, shows nothing, and is sent again.
        for _ in range(5):
            wanted, grown = grown_by(place, node, expected, order_of(keys))
            delivered += grown.get("delivered", 0)
            if grown == wanted or "RingFull" not in grown or grown.keys() - {*wanted, "RingFull"}:
                break
        print(f"{case}, from {place}: {grown}")
        if grown != wanted:
            held = False
            print(f"FAILED: {case}, from {place}: expected {wanted}, found {grown}", file=sys.stderr, flush=True)
            for space in (place, node):
                inside(space, lambda: subprocess.run(KERNEL, shell=True, stdout=sys.stderr, check=False))
    print(cases, delivered)
    return held


if __name__ == "__main__":
    if sys.argv[1:] == ["cases"]:
        sys.exit(not compare(sys.stdin))
    ORDER = json.load(sys.stdin)
    print((steadily if "rate" in ORDER else send)(ORDER))
