"""Sends forged datagrams of both formats from wherever it runs. Reads one JSON object from stdin:

    {"to": "192.0.2.1", "formats": ["udp", "vxlan"], "count": 50,
     "source": inner source, "destination": inner destination, "port": inner port,
     "source_mac": ..., "destination_mac": ..., and what vxlan() of packets.py takes: vni, flags, ...
     "cut": keep only so many bytes of the payload, "raw": hex bytes instead of an inner packet,
     "data": so many bytes of inner payload instead of a word, "outer_port": a port instead of the format's}

With "rate" in the place of "count" it sends so many a second of each format until SIGTERM, and prints how many it sent.
"""

import json
import socket
import sys
import time

from ending import Ending
from packets import FLANNEL_UDP_PORT, VXLAN_PORT, family, udp_packet, vxlan

# A receiver's socket holds far more than this many small datagrams.
BURST = 50


def steadily(sender, datagrams, rate):
    ending, sent, due = Ending(), 0, time.monotonic()
    while not ending.told:
        for payload, address in datagrams:
            try:
                sender.sendto(payload, address)
            except OSError:  # the ICMP error of an earlier one: this one was not sent
                continue
            sent += 1
        due += 1 / rate
        time.sleep(max(0, due - time.monotonic()))
    return sent


def main():
    order = json.load(sys.stdin)
    if "raw" in order:
        inner = bytes.fromhex(order["raw"])
    else:
        inner = udp_packet(order["source"], order["destination"], 4000, order["port"], b"forged" + bytes(order.get("data", 0)))
    header = {key: order[key] for key in ("vni", "flags", "ethertype", "reserved") if key in order}
    payloads = {
        FLANNEL_UDP_PORT: inner,
        VXLAN_PORT: vxlan(inner, order["source_mac"], order["destination_mac"], **header),
    }
    ports = {"udp": FLANNEL_UDP_PORT, "vxlan": VXLAN_PORT}
    sender = socket.socket(family(order["to"]), socket.SOCK_DGRAM)
    datagrams = [
        (payloads[ports[form]][: order.get("cut", 65536)], (order["to"], order.get("outer_port", ports[form])))
        for form in order["formats"]
    ]
    if "rate" in order:
        print(steadily(sender, datagrams, order["rate"]))
        return
    for payload, address in datagrams:
        for number in range(order["count"]):
            if number % BURST == 0:
                time.sleep(0.01)
            sender.sendto(payload, address)


if __name__ == "__main__":
    main()
