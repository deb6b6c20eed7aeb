"""Forgets the UDP flows that lead to an endpoint of a Service that is none any more. Speaks to the kernel's connection tracking itself (nfnetlink_conntrack.h,
nfnetlink.h). What is stale follows Kubernetes, pkg/proxy/conntrack/cleanup.go: the first packet went to an address and
port of a Service with endpoints, or to its node port, and the answers come from an address that is not among them.
"""

import ipaddress
import socket
import struct
import sys

NETLINK_NETFILTER = 12
CONNTRACK_GET = 1 << 8 | 1
CONNTRACK_DELETE = 1 << 8 | 2
REQUEST, ACKNOWLEDGE, DUMP = 1, 4, 0x300
ERROR, DONE = 2, 3
ORIGINAL, REPLY = 1, 2
TUPLE_ADDRESSES, TUPLE_PROTOCOL = 1, 2
PROTOCOL_NUMBER, PROTOCOL_TO = 1, 3
ATTRIBUTE_TYPE = 0x3FFF
ENOENT = 2


def attributes(data):
    """Type by type, what is inside."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & ATTRIBUTE_TYPE] = data[4:length]
        data = data[max((length + 3) & ~3, 4) :]
    return found


def messages(sock):
    """Every message up to the end of what was asked for: its type and its payload."""
    while True:
        data = sock.recv(1 << 18)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind == DONE:
                return
            yield kind, data[16:length]
            if kind == ERROR:
                return
            data = data[(length + 3) & ~3 :]


def ask(sock, kind, flags, family, body=b""):
    header = struct.pack("=IHHII", 20 + len(body), kind, REQUEST | flags, 1, 0)
    sock.send(header + struct.pack("=BBH", family, 0, 0) + body)
    return list(messages(sock))


def flow(payload):
    """Of an entry: its protocol, where its first packet went, who answers, and the attribute that names it."""
    parts = attributes(payload[4:])
    one = attributes(parts[ORIGINAL])
    protocol = attributes(one[TUPLE_PROTOCOL])
    first = attributes(one[TUPLE_ADDRESSES])
    answers = attributes(attributes(parts[REPLY])[TUPLE_ADDRESSES])
    # Source and destination are 1 and 2 of IPv4, 3 and 4 of IPv6.
    to = ipaddress.ip_address(first.get(2) or first.get(4))
    by = ipaddress.ip_address(answers.get(1) or answers.get(3))
    port = int.from_bytes(protocol.get(PROTOCOL_TO, b""), "big")
    name = parts[ORIGINAL]
    return protocol[PROTOCOL_NUMBER][0], to, port, by, struct.pack("=HH", 4 + len(name), ORIGINAL | 0x8000) + name


def forget(services):
    by_address, by_port, family = {}, {}, socket.AF_INET
    for service in services:
        endpoints = {ipaddress.ip_address(endpoint["address"]) for endpoint in service["endpoints"]}
        if not endpoints:
            continue
        for text in (service["address"], *service.get("external", []), *service.get("balancer", [])):
            address = ipaddress.ip_address(text)
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            by_address[address, service["port"]] = endpoints
        if service["node_port"]:
            by_port[service["node_port"]] = endpoints
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as sock:
        sock.bind((0, 0))
        sock.settimeout(5)
        for _, payload in ask(sock, CONNTRACK_GET, DUMP, family):
            protocol, to, port, by, name = flow(payload)
            if protocol != socket.IPPROTO_UDP:
                continue
            wanted = [found for found in (by_address.get((to, port)), by_port.get(port)) if found]
            if any(by not in endpoints for endpoints in wanted):
                for kind, answer in ask(sock, CONNTRACK_DELETE, ACKNOWLEDGE, family, name):
                    code = -struct.unpack_from("=i", answer)[0]
                    if kind == ERROR and code not in (0, ENOENT):
                        sys.exit(f"stale_flows.py: the kernel keeps a flow to {to} port {port}: error {code}")
