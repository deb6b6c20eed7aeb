"""Sends forged datagrams from wherever it runs, as a JSON object on stdin says. Encapsulated ones, in both formats:

    {"to": "192.0.2.1", "formats": ["udp", "vxlan"], "count": 50,
     "source": inner source, "destination": inner destination, "port": inner port,
     "source_mac": ..., "destination_mac": ..., and what vxlan() of packets.py takes: vni, flags, ...
     "cut": keep only so many bytes of the payload, "raw": hex bytes instead of an inner packet,
     "data": so many bytes of inner payload instead of a word, "outer_port": a port instead of the format's}

With "rate" in the place of "count" it sends so many a second of each format until SIGTERM. Or plain ones, by a raw
socket, with any source; each source speaks to each destination of its family, `count` times from each of `ports` ports:

    {"sources": [...], "destinations": [...], "port": 7000, "count": 20, "ports": 1}

Prints how many it sent, but for a count of encapsulated ones.
"""

import itertools
import json
import socket
import sys
import time

from ending import Ending
from packets import FLANNEL_UDP_PORT, IPV4, VXLAN_PORT, family, udp_packet, vxlan

# A receiver's socket holds far more than this many small datagrams.
BURST = 500
PORTS = {"udp": FLANNEL_UDP_PORT, "vxlan": VXLAN_PORT}
# To everyone on the interface.
LINK = ("eth0", IPV4, 0, 0, b"\xff" * 6)


def encapsulated(order):
    """A socket, payload and destination for each format."""
    if "raw" in order:
        inner = bytes.fromhex(order["raw"])
    else:
        word = b"forged" + bytes(order.get("data", 0))
        inner = udp_packet(order["source"], order["destination"], 4000, order["port"], word)
    header = {key: order[key] for key in ("vni", "flags", "ethertype", "reserved") if key in order}
    payloads = {"udp": inner, "vxlan": vxlan(inner, order["source_mac"], order["destination_mac"], **header)}
    sender = socket.socket(family(order["to"]), socket.SOCK_DGRAM)
    for form in order["formats"]:
        yield sender, payloads[form][: order.get("cut", 65536)], (order["to"], order.get("outer_port", PORTS[form]))


def spoken(order):
    """A socket, packet and destination for each plain datagram. The kernel fills in a source of IPv4 that is zero."""
    versions = set(map(family, order["sources"]))
    senders = {version: socket.socket(version, socket.SOCK_RAW, socket.IPPROTO_RAW) for version in versions}
    for source, destination in itertools.product(order["sources"], order["destinations"]):
        if family(destination) != family(source):
            continue
        for port in range(4000, 4000 + order.get("ports", 1)):
            packet = udp_packet(source, destination, port, order["port"], b"flood")
            if source == "0.0.0.0":
                yield socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM), packet, LINK
            else:
                yield senders[family(source)], packet, (destination, 0)


def datagrams(order):
    return spoken(order) if "sources" in order else encapsulated(order)


def send(order):
    """Sends them all, and says how many they were."""
    sent = 0
    for sender, packet, address in datagrams(order):
        for _ in range(order["count"]):
            sender.sendto(packet, address)
            sent += 1
            if sent % BURST == 0:
                time.sleep(0.005)
    return sent


def steadily(order):
    ending, sent, due, all_of_them = Ending(), 0, time.monotonic(), list(datagrams(order))
    while not ending.told:
        for sender, payload, address in all_of_them:
            try:
                sender.sendto(payload, address)
            except OSError:  # the ICMP error of an earlier one: this one was not sent
                continue
            sent += 1
        due += 1 / order["rate"]
        time.sleep(max(0, due - time.monotonic()))
    return sent


if __name__ == "__main__":
    ORDER = json.load(sys.stdin)
    SENT = steadily(ORDER) if "rate" in ORDER else send(ORDER)
    if "rate" in ORDER or "sources" in ORDER:
        print(SENT)
