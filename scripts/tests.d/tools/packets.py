"""Packets written and read by hand, as an oracle that shares no code with Tartan.

Sources: RFC 791 (IPv4), RFC 768 (UDP), RFC 1071 (checksum), RFC 7348 (VXLAN), pcap savefile format.
"""

import array
import socket
import struct
import sys

ICMP, TCP, UDP = 1, 6, 17
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
    return source + destination + struct.pack("!BBH", 0, protocol, length)


def mac(text):
    return bytes(int(part, 16) for part in text.split(":"))


def udp_packet(source, destination, sport, dport, payload):
    """An IPv4 packet holding a UDP datagram, every checksum right."""
    source, destination = socket.inet_aton(source), socket.inet_aton(destination)
    length = 8 + len(payload)
    header = struct.pack("!HHHH", sport, dport, length, 0)
    value = checksum(pseudo_header(source, destination, UDP, length) + header + payload) or 0xFFFF
    datagram = struct.pack("!HHHH", sport, dport, length, value) + payload
    return ipv4_header(source, destination, UDP, len(datagram)) + datagram


def ipv4_header(source, destination, protocol, length):
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0) + source + destination
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:]


def vxlan(inner, source_mac, destination_mac, vni=1, flags=0x08, ethertype=0x0800, reserved=0):
    """What a VXLAN datagram carries: the header, an Ethernet header and the inner packet."""
    header = struct.pack("!BBHI", flags, 0, 0, vni << 8 | reserved)
    return header + mac(destination_mac) + mac(source_mac) + struct.pack("!H", ethertype) + inner


class Bad(Exception):
    """What is wrong with a packet."""


class Ipv4:
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
        (fragment,) = struct.unpack_from("!H", data, 6)
        self.total = total
        self.fragment = fragment & 0x3FFF != 0
        self.protocol = data[9]
        self.source, self.destination = data[12:16], data[16:20]
        self.payload = data[header_length:total]

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
        if self.protocol in (TCP, UDP):
            pseudo = pseudo_header(self.source, self.destination, self.protocol, len(self.payload))
            if ones_sum(pseudo + self.payload) != 0xFFFF:
                raise Bad("transport checksum")
        elif self.protocol == ICMP and ones_sum(self.payload) != 0xFFFF:
            raise Bad("ICMP checksum")


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
