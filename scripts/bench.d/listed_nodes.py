"""The nodes that a lab only lists (scripts/lab up --listed), as far as probes of peers go: each answers those that come
to it, and asks the nodes that are there as often as it is asked by them, as a Tartan node would. Runs until SIGTERM in
the namespace behind which their addresses lie.

The format is that of encap/src/probe.rs, in VXLAN over IPv4. A node's VTEP MAC is the one that frames to it bear.
"""

import os
import socket
import struct
import subprocess

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

subprocess.run(["ip", "route", "replace", "local", "198.18.0.0/15", "dev", "lo"], check=True)
# They stand for other machines, which do not take the core from a worker in the middle of its answers.
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
nonce = 0
nodes = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
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
    answer = bytearray(message[:MESSAGE])
    answer[5] = IS_ANSWER
    struct.pack_into("!IIII", answer, 24, OUTER + len(data), HEARD, INNER_MTU, 0)
    asked = struct.pack("!6s2xQ12xII", b"\0TRT\x01" + bytes((IS_REQUEST,)), nonce, HEARD, INNER_MTU)
    # The stations exchanged.
    back = headers[:8] + headers[14:20] + headers[8:14] + headers[20:]
    for said in (bytes(answer), asked.ljust(REQUEST, b"\0")):
        nodes.sendmsg([back + said], own, 0, (source[0], VXLAN))
