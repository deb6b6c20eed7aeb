"""Packets written and read by hand, as an oracle that shares no code with Tartan.

Sources: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), RFC 4443 (ICMPv6), RFC 1071 (checksum), RFC 7348 (VXLAN),
pcap savefile format.
"""

import socket
import struct

HOP_BY_HOP, ICMP, TCP, UDP, FRAGMENT, ICMPV6 = 0, 1, 6, 17, 44, 58
IPV4, IPV6 = 0x0800, 0x86DD
FLANNEL_UDP_PORT, VXLAN_PORT = 8285, 8472
PORTS, ETHERTYPES = {"udp": FLANNEL_UDP_PORT, "vxlan": VXLAN_PORT}, {4: IPV4, 6: IPV6}


def ones_sum(data):
    """The one's complement sum of 16-bit words, folded; 0xffff over data that holds a right checksum. The words are
    digits of one number, and 65,536 is 1 modulo 65,535."""
    total = int.from_bytes(data + bytes(len(data) % 2))
    return total and (total - 1) % 0xFFFF + 1


def checksum(data):
    return 0xFFFF ^ ones_sum(data)


def pseudo_header(source, destination, protocol, length):
    """Of either family: the length and the protocol are numbers, whose zero bytes add nothing to the sum."""
    return source + destination + struct.pack("!II", length, protocol)


def family(address):
    """The family of an address given as text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def binary(*addresses):
    return [socket.inet_pton(family(address), address) for address in addresses]


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def ipv6_header(source, destination, protocol, length):
    return struct.pack("!IHBB", 6 << 28, length, protocol, 64) + source + destination


def ip_packet(source, destination, protocol, payload):
    if len(source) == 16:
        return ipv6_header(source, destination, protocol, len(payload)) + payload
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0) + source + destination
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def udp_packet(source, destination, sport, dport, payload):
    """An IP packet, of the family of its source, holding a UDP datagram, every checksum right."""
    source, destination = binary(source, destination)
    header = struct.pack("!HHH", sport, dport, 8 + len(payload))
    value = checksum(pseudo_header(source, destination, UDP, 8 + len(payload)) + header + b"\0\0" + payload)
    return ip_packet(source, destination, UDP, header + struct.pack("!H", value or 0xFFFF) + payload)


def vxlan(inner, source_mac, destination_mac, vni=1, flags=0x08, ethertype=None, reserved=0):
    """What a VXLAN datagram carries: the header, an Ethernet header and the inner packet."""
    header = struct.pack("!BBHI", flags, 0, 0, vni << 8 | reserved) + mac(destination_mac) + mac(source_mac)
    return header + struct.pack("!H", ethertype or ETHERTYPES.get(inner[0] >> 4, IPV4)) + inner


class Bad(Exception):
    """What is wrong with a packet."""


class Packet:
    """An IP packet of either family: complete, an IPv4 header's checksum right, or Bad; `rest` counts the bytes behind
    it. Of extension headers only a fragment's and a hop-by-hop header are known."""

    def __init__(self, data):
        self.version = data[0] >> 4
        if self.version == 4:
            header, length = (data[0] & 15) * 4, int.from_bytes(data[2:4])
            self.protocol, ends = data[9], data[12:20]
            self.fragment = int.from_bytes(data[6:8]) & 0x3FFF != 0
        else:
            header, length = 40, 40 + int.from_bytes(data[4:6])
            self.protocol, ends = data[6], data[8:40]
            self.fragment = self.protocol == FRAGMENT
        if self.version not in ETHERTYPES or not 20 <= header <= length <= len(data):
            raise Bad(f"IPv{self.version} lengths {header}, {length} in {len(data)} bytes")
        if self.version == 4 and ones_sum(data[:header]) != 0xFFFF:
            raise Bad("IPv4 header checksum")
        self.source, self.destination = ends[: len(ends) // 2], ends[len(ends) // 2 :]
        self.payload, self.rest = data[header:length], len(data) - length
        if self.version == 6 and self.protocol == HOP_BY_HOP:
            self.protocol, self.payload = self.payload[0], self.payload[self.payload[1] * 8 + 8 :]

    def check_transport(self):
        """The checksum of TCP, UDP or ICMP must be finished and right; a UDP checksum must be there."""
        if self.fragment or self.protocol not in (TCP, UDP, ICMP, ICMPV6):
            return
        length, pseudo = len(self.payload), b""
        if self.protocol == UDP and (int.from_bytes(self.payload[4:6]) != length or self.payload[6:8] == b"\0\0"):
            raise Bad(f"UDP header {self.payload[:8].hex(' ')} of {length} bytes")
        if self.protocol != ICMP:
            pseudo = pseudo_header(self.source, self.destination, self.protocol, length)
        if ones_sum(pseudo + self.payload) != 0xFFFF:
            raise Bad(f"checksum of protocol {self.protocol}")


def read_pcap(path):
    """Every frame of a capture of Ethernet that this machine wrote. One that was cut off is an error."""
    with open(path, "rb") as file:
        magic, *_, link = struct.unpack("=IHHiIII", file.read(24))
        if (magic, link) != (0xA1B2C3D4, 1):
            raise Bad(f"{path} is no capture of Ethernet")
        while len(head := file.read(16)) == 16:
            captured, original = struct.unpack_from("=II", head, 8)
            if captured != original:
                raise Bad(f"{path}: a frame of {original} bytes was captured with {captured}")
            yield file.read(captured)
