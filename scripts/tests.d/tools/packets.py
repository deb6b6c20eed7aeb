"""Packets written and read by hand, as an oracle that shares no code with Tartan.

Sources: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), RFC 4443 (ICMPv6), RFC 1071 (checksum), RFC 7348 (VXLAN),
pcap savefile format.
"""

import array
import socket
import struct
import sys

HOP_BY_HOP, ICMP, TCP, UDP, FRAGMENT, ICMPV6 = 0, 1, 6, 17, 44, 58
IPV4, IPV6 = 0x0800, 0x86DD
FLANNEL_UDP_PORT, VXLAN_PORT = 8285, 8472


def ones_sum(data):
    """The one's complement sum of 16-bit words, folded; 0xffff over data that holds a right checksum."""
    if len(data) % 2:
        data += b"\0"
    words = array.array("H", data)
    if sys.byteorder == "little":
        words.byteswap()
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checksum(data):
    return 0xFFFF ^ ones_sum(data)


def pseudo_header(source, destination, protocol, length):
    """Of either family: the length and the protocol are numbers, whose zero bytes add nothing to the sum."""
    return source + destination + struct.pack("!II", length, protocol)


def family(address):
    """The family of an address given as text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def mac(text):
    return bytes(int(part, 16) for part in text.split(":"))


def udp_packet(source, destination, sport, dport, payload):
    """An IP packet, of the family of its source, holding a UDP datagram, every checksum right."""
    write_ip = {socket.AF_INET: ipv4_header, socket.AF_INET6: ipv6_header}[family(source)]
    source, destination = (socket.inet_pton(family(text), text) for text in (source, destination))
    length = 8 + len(payload)
    header = struct.pack("!HHHH", sport, dport, length, 0)
    value = checksum(pseudo_header(source, destination, UDP, length) + header + payload) or 0xFFFF
    datagram = struct.pack("!HHHH", sport, dport, length, value) + payload
    return write_ip(source, destination, UDP, len(datagram)) + datagram


def ipv4_header(source, destination, protocol, length):
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0) + source + destination
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:]


def ipv6_header(source, destination, protocol, length):
    return struct.pack("!IHBB", 6 << 28, length, protocol, 64) + source + destination


def vxlan(inner, source_mac, destination_mac, vni=1, flags=0x08, ethertype=None, reserved=0):
    """What a VXLAN datagram carries: the header, an Ethernet header and the inner packet."""
    if ethertype is None:
        ethertype = IPV6 if inner[0] >> 4 == 6 else IPV4
    header = struct.pack("!BBHI", flags, 0, 0, vni << 8 | reserved)
    return header + mac(destination_mac) + mac(source_mac) + struct.pack("!H", ethertype) + inner


class Bad(Exception):
    """What is wrong with a packet."""


class Packet:
    """What is asked of an IP packet of either family. `rest` counts the bytes behind it."""

    def check_transport(self):
        """The checksum of TCP, UDP or ICMP must be finished and right; a UDP checksum must be there."""
        if self.fragment:
            return
        if self.protocol == UDP:
            (length,) = struct.unpack_from("!H", self.payload, 4)
            if length != len(self.payload):
                raise Bad(f"UDP length {length} of {len(self.payload)}")
            if self.payload[6:8] == b"\0\0":
                raise Bad("UDP checksum zero")
        if self.protocol in (TCP, UDP, ICMPV6):
            pseudo = pseudo_header(self.source, self.destination, self.protocol, len(self.payload))
            if ones_sum(pseudo + self.payload) != 0xFFFF:
                raise Bad("transport checksum")
        elif self.protocol == ICMP and ones_sum(self.payload) != 0xFFFF:
            raise Bad("ICMP checksum")


class Ipv4(Packet):
    """An IPv4 packet: complete, header checksum right, or Bad."""

    def __init__(self, data):
        if len(data) < 20 or data[0] >> 4 != 4:
            raise Bad("no IPv4 header")
        header_length = (data[0] & 15) * 4
        (total,) = struct.unpack_from("!H", data, 2)
        if header_length < 20 or total < header_length or total > len(data):
            raise Bad(f"IPv4 lengths {header_length}, {total} in {len(data)} bytes")
        if ones_sum(data[:header_length]) != 0xFFFF:
            raise Bad("IPv4 header checksum")
        self.version = 4
        self.rest = len(data) - total
        self.fragment = struct.unpack_from("!H", data, 6)[0] & 0x3FFF != 0
        self.protocol = data[9]
        self.source, self.destination = data[12:16], data[16:20]
        self.payload = data[header_length:total]


class Ipv6(Packet):
    """An IPv6 packet: complete, or Bad. Of extension headers only a fragment's and a hop-by-hop header are known."""

    def __init__(self, data):
        if len(data) < 40 or data[0] >> 4 != 6:
            raise Bad("no IPv6 header")
        (length,) = struct.unpack_from("!H", data, 4)
        if length + 40 > len(data):
            raise Bad(f"IPv6 payload of {length} in {len(data)} bytes")
        self.version = 6
        self.rest = len(data) - 40 - length
        self.protocol = data[6]
        self.source, self.destination = data[8:24], data[24:40]
        self.payload = data[40 : 40 + length]
        self.fragment = self.protocol == FRAGMENT
        if self.protocol == HOP_BY_HOP:
            self.protocol, length = self.payload[0], self.payload[1] * 8 + 8
            self.payload = self.payload[length:]


def ip_packet(data):
    """The packet of either family that the bytes begin with."""
    return Ipv6(data) if data[:1] and data[0] >> 4 == 6 else Ipv4(data)


def read_pcap(path):
    """The link type and every frame of a capture. A frame that was cut off is an error."""
    with open(path, "rb") as file:
        data = file.read()
    magic = data[:4]
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}.get(magic)
    if order is None:
        raise Bad(f"{path} is no pcap file")
    (link,) = struct.unpack_from(order + "I", data, 20)
    frames, at = [], 24
    while at + 16 <= len(data):
        captured, original = struct.unpack_from(order + "II", data, at + 8)
        if captured != original:
            raise Bad(f"{path}: a frame of {original} bytes was captured with {captured}")
        frames.append(data[at + 16 : at + 16 + captured])
        at += 16 + captured
    return link & 0xFFFF, frames
