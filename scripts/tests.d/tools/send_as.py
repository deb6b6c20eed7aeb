"""Sends UDP datagrams with sources that need not be the sender's own. Reads one JSON object from stdin:

    {"sources": [...], "destinations": [...], "port": 7000, "count": 20}

Every source speaks to every destination of its family, count times. Prints how many datagrams that were.
"""

import json
import socket
import sys

from packets import family, udp_packet


def main():
    order = json.load(sys.stdin)
    sent = 0
    for source in order["sources"]:
        # Of both families: the packet comes with its IP header (raw(7), and ipv6 the same way).
        with socket.socket(family(source), socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            for destination in order["destinations"]:
                if family(destination) != family(source):
                    continue
                packet = udp_packet(source, destination, 4000, order["port"], b"speaking")
                for _ in range(order["count"]):
                    sender.sendto(packet, (destination, 0))
                sent += order["count"]
    print(sent)


if __name__ == "__main__":
    main()
