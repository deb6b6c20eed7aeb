"""UDP super-packets, COUNT datagrams of SIZE bytes in a single call with UDP_SEGMENT, arrive as those datagrams and
nothing else.

    segments.py FROM SOURCE TO ADDRESS SOURCE_MAC MAC

The pod FROM sends to the pod TO, behind VTEPs with these MACs. All but the last have a content that holds, at a place
where a wrong cut could fall and then every SIZE bytes, what a VXLAN datagram carries: an inner packet to a port that
is counted too.
"""

import contextlib
import socket
import struct
import sys
from pathlib import Path

from packets import family, udp_packet, vxlan
from spaces import Findings, inside, soon

SOL_UDP, UDP_SEGMENT = 17, 103
SIZE, COUNT = 1200, 10
PORT, FORGED_PORT = 7000, 7001
# Bytes of headers of VXLAN, Ethernet, IPv4 and UDP, and what IPv6 has more. A wrong cut at every SIZE bytes of the
# whole datagram falls all of them earlier in the payload; without the VXLAN header it is the last three, in the other
# format the last two.
HEADERS, MORE = (8, 14, 20, 8), 20


def contents(source, address, source_mac, mac):
    """Those that are forged, for each place of a wrong cut, and a constant one."""
    more = MORE if ":" in address else 0
    inner = udp_packet(source, address, 4000, FORGED_PORT, b"forged" + bytes(SIZE - sum(HEADERS) - more - 6))
    one = vxlan(inner, source_mac, mac)
    for place in (0, *(SIZE - sum(HEADERS[first:]) - more for first in (0, 1, 2))):
        yield (bytes(place) + one * COUNT)[: SIZE * COUNT]
    yield bytes(range(250)) * (SIZE * COUNT // 250)


def received(server, sizes):
    """The sizes of what has come, with what came before."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sizes.append(len(server.recv(65536, socket.MSG_DONTWAIT)))
    return sizes


def counters(name):
    """Of a pod's kernel, the datagrams that programs have read, and those for no socket."""
    four, six = inside(name, lambda: [Path("/proc/thread-self/net", file).read_text() for file in ("snmp", "snmp6")])
    names, counts = (line.split() for line in four.splitlines() if line.startswith("Udp:"))
    found = dict(zip(names, counts)) | dict(line.split() for line in six.splitlines())
    return [int(found[count]) + int(found.get("Udp6" + count, 0)) for count in ("InDatagrams", "NoPorts")]


def main(sender, source, name, address, *macs):
    findings, what = Findings(), f"from {sender} to {name}, {address}"
    client, good, forged = (inside(where, lambda: socket.socket(family(address), socket.SOCK_DGRAM))
                            for where in (sender, name, name))
    good.bind((address, PORT))
    forged.bind((address, FORGED_PORT))
    client.setsockopt(SOL_UDP, UDP_SEGMENT, struct.pack("i", SIZE))
    before, sizes = counters(name), []
    sent = sum(client.sendto(content, (address, PORT)) // SIZE for content in contents(source, address, *macs))
    found = soon(lambda: received(good, sizes), [SIZE] * sent)
    findings.equal(f"datagrams of {SIZE} bytes {what}", [SIZE] * 5 * COUNT, found)
    findings.equal(f"forged ones {what}", [], received(forged, []))
    grown = [after - count for after, count in zip(counters(name), before)]
    findings.equal(f"datagrams that programs of {name} have read, and for no socket", [sent, 0], grown)
    findings.end()


main(*sys.argv[1:])
