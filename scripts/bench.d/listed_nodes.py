"""The nodes that a lab only lists (scripts/lab up --listed), as far as probes of peers go: each answers those that come to it,
and asks the nodes that are there as often as it is asked by them, as a Tartan node would.

    listed_nodes.py     in the namespace behind which their addresses lie; until SIGTERM

The format is that of encap/src/probe.rs, in VXLAN over IPv4. A node's VTEP MAC is the one that frames to it bear, so nothing has to
be told.
"""

import os
import signal
import socket
import struct
import subprocess
import sys

ADDRESSES = "198.18.0.0/15"
VXLAN = 8472
# In front of a message: the VXLAN header, and an Ethernet header of which this is the type.
HEADERS, PROBE = 8 + 14, b"\x88\xb5"
# What the kernel puts in front of a datagram over IPv4.
OUTER = 20 + 8
MESSAGE, REQUEST = 48, 70
IS_REQUEST, IS_ANSWER = 1, 2
# Milliseconds since the other node was last heard: any that are recent.
HEARD = 500
INNER_MTU = 1450
IP_PKTINFO = 8


def answer(message, length):
    """The answer to a request that came as an outer packet of so many bytes."""
    said = bytearray(message[:MESSAGE])
    said[5] = IS_ANSWER
    struct.pack_into("!IIII", said, 24, length, HEARD, INNER_MTU, 0)
    return bytes(said)


def request(nonce):
    return struct.pack("!6s2xQ12xII", b"\0TRT\x01" + bytes((IS_REQUEST,)), nonce, HEARD, INNER_MTU).ljust(REQUEST, b"\0")


def main():
    subprocess.run(["ip", "route", "replace", "local", ADDRESSES, "dev", "lo"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # They stand for other machines, which do not take the core from a worker in the middle of its answers.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    nonce = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nodes:
        nodes.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        nodes.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        nodes.bind(("0.0.0.0", VXLAN))
        while True:
            data, ancillary, _, source = nodes.recvmsg(65536, 64)
            headers, message = data[:HEADERS], data[HEADERS:]
            if headers[20:] != PROBE or len(message) < REQUEST or message[5] != IS_REQUEST:
                continue
            # From the address that was asked: struct in_pktinfo, whose last part is where the datagram was sent to.
            own = [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("I4s4s", 0, ancillary[0][2][8:12], bytes(4)))]
            nonce += 1
            # The stations exchanged.
            back = headers[:8] + headers[14:20] + headers[8:14] + headers[20:]
            for said in (answer(message, OUTER + len(data)), request(nonce)):
                nodes.sendmsg([back + said], own, 0, (source[0], VXLAN))


main()
