"""Is every frame of a capture exactly what the format says?

    wire.py udp|vxlan FILE LEAST WAY...

FILE holds what passed between two nodes. A WAY is FAMILY,ADDRESS1,MAC1,ADDRESS2,MAC2: inner packets of the family (4 or
6) pass between these underlay addresses, whose VTEPs have these MACs, and nowhere else; at least LEAST datagrams of
each way in each direction. Prints a line per finding, exit 1 on any.
"""

import collections
import ipaddress
import struct
import sys

from packets import FLANNEL_UDP_PORT, ICMPV6, IPV4, IPV6, UDP, VXLAN_PORT, Bad, ip_packet, mac, read_pcap

ARP = 0x0806
# What the hosts of an IPv6 underlay ask and tell each other: neighbour solicitation and advertisement (RFC 4861),
# group report (RFC 3810).
UNDERLAYS_OWN = (135, 136, 143)
PORTS = {"udp": FLANNEL_UDP_PORT, "vxlan": VXLAN_PORT}
ETHERTYPES = {4: IPV4, 6: IPV6}


def check_frame(frame, form, ways):
    """The way of a right frame: inner family, outer source, outer destination; None for the underlay's own."""
    (ethertype,) = struct.unpack_from("!H", frame, 12)
    if ethertype == ARP:
        return None
    outer = ip_packet(frame[14:])
    if ethertype != ETHERTYPES[outer.version]:
        raise Bad(f"ethertype {ethertype:#06x}")
    if outer.fragment:
        raise Bad("a fragmented outer packet")
    outer.check_transport()
    if outer.protocol == ICMPV6 and outer.payload[0] in UNDERLAYS_OWN:
        return None
    if outer.protocol != UDP:
        raise Bad(f"outer protocol {outer.protocol}")
    (port,) = struct.unpack_from("!H", outer.payload, 2)
    if port != PORTS[form]:
        raise Bad(f"destination port {port}")
    payload = outer.payload[8:]
    inner = ip_packet(payload[22:] if form == "vxlan" else payload)
    way = inner.version, *(ipaddress.ip_address(address) for address in (outer.source, outer.destination))
    if way not in ways:
        raise Bad(f"IPv{way[0]} from {way[1]} to {way[2]}")
    if form == "vxlan":
        check_vxlan(payload, *ways[way], ETHERTYPES[inner.version])
    if inner.rest:
        raise Bad(f"{inner.rest} bytes after the inner packet")
    inner.check_transport()
    return way


def check_vxlan(payload, source_mac, destination_mac, ethertype):
    if payload[:8] != bytes([0x08, 0, 0, 0, 0, 0, 1, 0]):
        raise Bad(f"VXLAN header {payload[:8].hex(' ')}")
    if payload[8:14] != destination_mac or payload[14:20] != source_mac:
        raise Bad(f"inner MACs {payload[8:14].hex(':')} from {payload[14:20].hex(':')}")
    if payload[20:22] != ethertype.to_bytes(2, "big"):
        raise Bad(f"inner ethertype {payload[20:22].hex()}")


def both_directions(text):
    """A WAY as (family, source, destination): (MAC of the source, MAC of the destination), there and back."""
    version, one, mac1, two, mac2 = text.split(",")
    one, two = ipaddress.ip_address(one), ipaddress.ip_address(two)
    return {(int(version), one, two): (mac(mac1), mac(mac2)), (int(version), two, one): (mac(mac2), mac(mac1))}


def main(form, path, least, *texts):
    ways = {}
    for text in texts:
        ways |= both_directions(text)
    seen, wrong = collections.Counter(), collections.Counter()
    link, frames = read_pcap(path)
    if link != 1:
        sys.exit(f"{path}: link type {link}, expected Ethernet")
    for frame in frames:
        try:
            seen[check_frame(frame, form, ways)] += 1
        except (Bad, struct.error, IndexError) as error:
            wrong[f"{type(error).__name__}: {error}"] += 1
    for way in ways:
        version, source, destination = way
        print(f"{seen[way]} datagrams in the {form} format with IPv{version} from {source} to {destination}")
        if seen[way] < int(least):
            wrong[f"only {seen[way]} of {least} expected with IPv{version} from {source}"] += 1
    for finding, count in wrong.most_common(20):
        print(f"{count} x {finding}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
