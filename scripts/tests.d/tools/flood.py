"""Floods an encapsulation port from addresses and ports that the host need not have:

    flood.py DESTINATION PORT COUNT SOURCE...

Sends COUNT datagrams, each from another pair of a source and a port, of the family of DESTINATION.
Needs CAP_NET_RAW.
"""

import itertools
import socket
import sys
import time

from packets import family, udp_packet

# What the receiver takes in one go.
BURST = 500


def main():
    destination, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sender = socket.socket(family(destination), socket.SOCK_RAW, socket.IPPROTO_RAW)
    pairs = itertools.product(range(1024, 65536), sys.argv[4:])
    for number, (sport, source) in enumerate(itertools.islice(pairs, count)):
        if number % BURST == 0:
            time.sleep(0.005)
        sender.sendto(udp_packet(source, destination, sport, port, b"flood"), (destination, 0))


if __name__ == "__main__":
    main()
