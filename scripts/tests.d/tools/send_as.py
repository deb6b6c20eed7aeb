"""Sends UDP datagrams with sources that need not be the sender's own. Reads one JSON object from stdin:

    {"sources": [...], "destinations": [...], "port": 7000, "count": 20}

Every source speaks to every destination of its family, count times. Prints how many datagrams that were.
"""

import json
import socket
import sys

from packets import family, udp_packet


IPV4 = 0x0800
# To everyone on the interface.
LINK = ("eth0", IPV4, 0, 0, b"\xff" * 6)


def sender_as(source):
    """Of both families: the packet comes with its IP header (raw(7), and ipv6 the same way). The kernel fills in a
    source of IPv4 that is zero."""
    if source == "0.0.0.0":
        return socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
    return socket.socket(family(source), socket.SOCK_RAW, socket.IPPROTO_RAW)


def main():
    order = json.load(sys.stdin)
    sent = 0
    for source in order["sources"]:
        with sender_as(source) as sender:
            for destination in order["destinations"]:
                if family(destination) != family(source):
                    continue
                packet = udp_packet(source, destination, 4000, order["port"], b"speaking")
                for _ in range(order["count"]):
                    sender.sendto(packet, LINK if source == "0.0.0.0" else (destination, 0))
                sent += order["count"]
    print(sent)


if __name__ == "__main__":
    main()
