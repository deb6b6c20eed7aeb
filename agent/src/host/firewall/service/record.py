#!/usr/bin/env python3
"""Records how the kernel lists kube-proxy's rules, for the tests of this folder. In a network namespace of its own:

    unshare -n python3 agent/src/host/firewall/service/record.py iptables >agent/src/host/firewall/service/recorded_iptables.txt
    unshare -n python3 agent/src/host/firewall/service/record.py nftables >agent/src/host/firewall/service/recorded_nftables.txt

The rules are written by scripts/lab.d/kube_proxy.py, as of node1, for TCP alone. A line is
FAMILY TABLE rule|map NAME BYTES: of a rule its expressions, of a map one part of the list of its elements; hexadecimal,
(n) for n zeros.
"""

import importlib
import json
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "scripts" / "lab.d"))
kube_proxy = importlib.import_module("kube_proxy")

FAMILIES = {
    "ip": {
        "number": 2, "service": "10.96.4.{}", "pod": "10.244.{}.2",
        "cluster": "10.244.0.0/16", "services": "10.96.0.0/16", "node": "192.0.2.1", "outside": "203.0.113.{}",
        "client": "192.0.2.251/32",
    },
    "ip6": {
        "number": 10, "service": "fd00:10:96::4:{}", "pod": "fd00:10:244:{}::2",
        "cluster": "fd00:10:244::/48", "services": "fd00:10:96::/112", "node": "2001:db8:192::1",
        "outside": "2001:db8:f00::{}", "client": "2001:db8:192::251/128",
    },
}
CHAINS = re.compile(
    r"KUBE-(SERVICES|EXTERNAL-SERVICES|MARK-MASQ|(EXT|SVC|SVL|SEP|FW)-.*)$|(service|endpoint|external|firewall)-(?!.*check$)")
MAPS = re.compile(r"(service-ips|no-endpoint-services|firewall-ips|__map\d+)$")
NETLINK_NETFILTER, NFTABLES = 12, 10 << 8
GET_RULE, GET_ELEMENTS, RULE_EXPRESSIONS = 7, 13, 4
# NLM_F_REQUEST | NLM_F_DUMP
DUMP = 0x301
ERROR, DONE = 2, 3


def plan(words):
    """The Services: their addresses end with these numbers."""
    here, there = ({"address": words["pod"].format(node), "port": 8080, "node": f"node{node}"} for node in (1, 2))

    def service(number, name, endpoints, **more):
        address = words["service"].format(number)
        return {"name": f"lab/{name}", "address": address, "port": 80, "node_port": 0, "local": False,
                "endpoints": endpoints} | more

    return [
        service(1, "both", [here, there]),
        service(2, "far", [there]),
        service(3, "sticky", [here, there], affinity=True),
        service(4, "nobody", []),
        service(5, "inner-far", [there], inside_local=True),
        service(6, "ranged", [here], balancer=[words["outside"].format(6)], ranges=[words["client"]]),
        service(7, "outer-local", [there], local=True, external=[words["outside"].format(7)]),
    ]


def attribute(kind, text):
    value = text.encode() + b"\0"
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[length + 3 & ~3:]


def dump(kernel, kind, family, table, name):
    """The attributes of each object of the list."""
    body = struct.pack("BBH", family, 0, 0) + attribute(1, table) + attribute(2, name)
    kernel.send(struct.pack("IHHII", 16 + len(body), NFTABLES | kind, DUMP, 1, 0) + body)
    while True:
        data = kernel.recv(1 << 17)
        while data:
            length, kind = struct.unpack_from("IH", data)
            if kind == DONE:
                return
            if kind == ERROR:
                sys.exit(f"{table} {name}: the kernel refuses to list it")
            yield data[20:length]
            data = data[length + 3 & ~3:]


def folded(data):
    parts = re.split(rb"(\0{4,})", data)
    return "".join(f"({len(part)})" if part.startswith(b"\0\0\0\0") else part.hex() for part in parts)


def names():
    listed = subprocess.run(["nft", "--debug=netlink", "list", "ruleset"], capture_output=True, text=True, check=False).stdout
    maps = set(re.findall(r"^(ip6?) (\S+) @(\S+)$", listed, re.MULTILINE))
    chains = subprocess.run(["nft", "-j", "list", "chains"], capture_output=True, text=True, check=True).stdout
    chains = [one["chain"] for one in json.loads(chains)["nftables"] if "chain" in one]
    rules = [(chain["family"], chain["table"], "rule", chain["name"]) for chain in chains if CHAINS.match(chain["name"])]
    return rules + [(family, table, "map", name) for family, table, name in sorted(maps) if MAPS.match(name)]


def main(mode):
    for words in FAMILIES.values():
        kube_proxy.write_rules(mode, "node1", words["node"], words["cluster"], words["services"], plan(words), ("tcp",))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        for family, table, kind, name in names():
            get = GET_RULE if kind == "rule" else GET_ELEMENTS
            for found in dump(kernel, get, FAMILIES[family]["number"], table, name):
                data = dict(attributes(found))[RULE_EXPRESSIONS] if kind == "rule" else found
                print(family, table, kind, name, folded(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
