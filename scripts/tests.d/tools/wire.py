"""Is every frame of a capture exactly what the format says?

    wire.py udp|vxlan FILE LEAST WAY...

FILE holds what passed between two nodes. A WAY is FAMILY,ADDRESS1,MAC1,ADDRESS2,MAC2: inner packets of the family (4 or
6) pass between these underlay addresses, whose VTEPs have these MACs, and nowhere else; at least LEAST datagrams of
each way in each direction. Prints a line per finding, exit 1 on any.
"""

import collections
import sys

from packets import ETHERTYPES, ICMPV6, PORTS, UDP, Bad, Packet, binary, read_pcap, vxlan

ARP = 0x0806
# What the hosts of an IPv6 underlay ask and tell each other: neighbour solicitation and advertisement (RFC 4861),
# group report (RFC 3810).
UNDERLAYS_OWN = (135, 136, 143)


def check_frame(frame, form, ways):
    """The way of a right frame: inner family, outer source, outer destination; None for the underlay's own."""
    ethertype = int.from_bytes(frame[12:14])
    if ethertype == ARP:
        return None
    outer = Packet(frame[14:])
    outer.check_transport()
    port, payload = int.from_bytes(outer.payload[2:4]), outer.payload[8:]
    if (ethertype, outer.fragment) != (ETHERTYPES[outer.version], False):
        raise Bad(f"ethertype {ethertype:#06x}, or a fragmented outer packet")
    if outer.protocol == ICMPV6 and outer.payload[0] in UNDERLAYS_OWN:
        return None
    if (outer.protocol, port) != (UDP, PORTS[form]):
        raise Bad(f"outer protocol {outer.protocol}, destination port {port}")
    inner = Packet(payload[22:] if form == "vxlan" else payload)
    inner.check_transport()
    way = inner.version, outer.source, outer.destination
    if way not in ways or inner.rest:
        raise Bad(f"IPv{way[0]} from {way[1].hex(':')} to {way[2].hex(':')}, {inner.rest} bytes after the inner packet")
    if form == "vxlan" and payload != vxlan(payload[22:], *ways[way]):
        raise Bad(f"VXLAN and inner Ethernet {payload[:22].hex(' ')}")
    return way


def main(form, path, least, *texts):
    ways, seen, wrong = {}, collections.Counter(), collections.Counter()
    for version, one, mac1, two, mac2 in (text.split(",") for text in texts):
        one, two = binary(one, two)
        ways |= {(int(version), one, two): (mac1, mac2), (int(version), two, one): (mac2, mac1)}
    for frame in read_pcap(path):
        try:
            seen[check_frame(frame, form, ways)] += 1
        except (Bad, IndexError) as error:
            wrong[f"{type(error).__name__}: {error}"] += 1
    for way in ways:
        what = f"{seen[way]} datagrams with IPv{way[0]} from {way[1].hex(':')} to {way[2].hex(':')}"
        print(what)
        if seen[way] < int(least):
            wrong[f"only {what}, {least} expected"] += 1
    for finding, count in wrong.most_common(20):
        print(f"{count} x {finding}")
    return 1 if wrong else 0


sys.exit(main(*sys.argv[1:]))
