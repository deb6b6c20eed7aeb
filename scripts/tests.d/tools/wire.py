"""Is every frame of a capture exactly what the format says?

    wire.py udp|vxlan FILE LEAST MAC1 MAC2

FILE holds what passed between 192.0.2.1 and 192.0.2.2, whose VTEPs have MAC1 and MAC2; at least LEAST
datagrams in each direction. Prints a line per finding, exit 1 on any.
"""

import collections
import socket
import struct
import sys

from packets import FLANNEL_UDP_PORT, UDP, VXLAN_PORT, Bad, Ipv4, mac, read_pcap

ARP, IPV4 = 0x0806, 0x0800


def check_frame(frame, form, macs):
    """The outer source of a right frame; None for the underlay's own ARP."""
    (ethertype,) = struct.unpack_from("!H", frame, 12)
    if ethertype == ARP:
        return None
    if ethertype != IPV4:
        raise Bad(f"ethertype {ethertype:#06x}")
    outer = Ipv4(frame[14:])
    if outer.fragment:
        raise Bad("a fragmented outer packet")
    if outer.protocol != UDP:
        raise Bad(f"outer protocol {outer.protocol}")
    outer.check_transport()
    (port,) = struct.unpack_from("!H", outer.payload, 2)
    source, destination = socket.inet_ntoa(outer.source), socket.inet_ntoa(outer.destination)
    payload = outer.payload[8:]
    if form == "udp":
        if port != FLANNEL_UDP_PORT:
            raise Bad(f"destination port {port}")
        inner = payload
    else:
        if port != VXLAN_PORT:
            raise Bad(f"destination port {port}")
        inner = check_vxlan(payload, macs[source], macs[destination])
    packet = Ipv4(inner)
    if packet.total != len(inner):
        raise Bad(f"{len(inner) - packet.total} bytes after the inner packet")
    packet.check_transport()
    return source


def check_vxlan(payload, source_mac, destination_mac):
    if len(payload) < 22:
        raise Bad("too short for VXLAN")
    if payload[:8] != bytes([0x08, 0, 0, 0, 0, 0, 1, 0]):
        raise Bad(f"VXLAN header {payload[:8].hex(' ')}")
    if payload[8:14] != destination_mac or payload[14:20] != source_mac:
        raise Bad(f"inner MACs {payload[8:14].hex(':')} from {payload[14:20].hex(':')}")
    if payload[20:22] != b"\x08\x00":
        raise Bad(f"inner ethertype {payload[20:22].hex()}")
    return payload[22:]


def main(form, path, least, mac1, mac2):
    macs = {"192.0.2.1": mac(mac1), "192.0.2.2": mac(mac2)}
    seen, wrong = collections.Counter(), collections.Counter()
    link, frames = read_pcap(path)
    if link != 1:
        sys.exit(f"{path}: link type {link}, expected Ethernet")
    for frame in frames:
        try:
            seen[check_frame(frame, form, macs)] += 1
        except (Bad, struct.error, KeyError) as error:
            wrong[f"{type(error).__name__}: {error}"] += 1
    for source in sorted(macs):
        print(f"{seen[source]} datagrams in the {form} format from {source}")
        if seen[source] < int(least):
            wrong[f"only {seen[source]} datagrams from {source}, {least} expected"] += 1
    for finding, count in wrong.most_common(20):
        print(f"{count} x {finding}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
