"""Keeps on every node of a lab the rules that kube-proxy would, in its iptables or its nftables mode, with the Services
that plan() makes; and the routes of client and nodes to them.

    kube_proxy.py STATE iptables|nftables MOVED FAMILY=CLUSTER...

STATE is the lab's directory, MOVED 1 where the Service `moving` has its other endpoint, CLUSTER the pods' network of a
family. Writes the Services as STATE/services.FAMILY, a list; each is there for TCP and for UDP.

Chains, their names, their order and what each decides follow Kubernetes: pkg/proxy/iptables/proxier.go, with the name
of the Service alone for a remark, and pkg/proxy/nftables/proxier.go of 1.36, in which a hairpin is known by a set of
connections, not by a mark, and an endpoint has a chain of its own for affinity alone. Node ports are open at every
address of the node (--nodeport-addresses 0.0.0.0/0 and ::/0; by default nftables mode has them at the primary alone).
"""

import base64
import hashlib
import ipaddress
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The bit that kube-proxy sets on what it is going to masquerade.
MARK = "0x4000"
# Seconds that a client stays with its endpoint.
AFFINITY = 10800
# Of each family: the network of ClusterIPs and one of external addresses, to which the client's routes lead by the
# first node, one to which they lead by the last one, one of no host of the lab, and the client.
NETWORKS = {4: ("10.96.0.0/16", "203.0.113.0/26", "203.0.113.64/26", "198.51.100.0/24", "192.0.2.251"),
            6: ("fd00:10:96::/108", "2001:db8:f00::/64", "2001:db8:f00:1::/64", "2001:db8:51::/64",
                "2001:db8:192::251")}


class ServicePort:
    """One Service and protocol, as a node sees it."""

    def __init__(self, service, protocol, node, cluster):
        self.__dict__ |= {"inside_local": False, "affinity": False, "external": [], "balancer": [], "ranges": []}
        self.__dict__ |= service
        self.protocol, self.cluster, self.all = protocol, cluster, service["endpoints"]
        self.here = [endpoint for endpoint in self.all if endpoint["node"] == node]
        # The endpoints of the ClusterIP, and of every other address.
        self.inside = self.here if self.inside_local else self.all
        self.outside = self.here if self.local else self.all
        self.uses_here = self.here and (self.local or self.inside_local)


def place(endpoint):
    address = endpoint["address"]
    return f'[{address}]:{endpoint["port"]}' if ":" in address else f'{address}:{endpoint["port"]}'


def hashed(text, letters):
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:letters].decode()


OURS = "-m addrtype --src-type LOCAL"
NAT_RULES = f"""KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN
KUBE-POSTROUTING -j MARK --xor-mark {MARK}
KUBE-POSTROUTING -j MASQUERADE --random-fully
KUBE-MARK-MASQ -j MARK --or-mark {MARK}""".split("\n")
FILTER_RULES = f"""KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
KUBE-FORWARD -m mark --mark {MARK}/{MARK} -j ACCEPT
KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT""".split("\n")
TO_PORTS = "KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
# Chains; and the jumps from the kernel's chains: into these, with this condition, to that chain.
IS_NEW = "-m conntrack --ctstate NEW "
HOOKS = {
    "nat": ("SERVICES NODEPORTS POSTROUTING MARK-MASQ",
            ("PREROUTING OUTPUT", "", "SERVICES"), ("POSTROUTING", "", "POSTROUTING")),
    "filter": ("SERVICES EXTERNAL-SERVICES NODEPORTS FORWARD PROXY-FIREWALL",
               ("INPUT OUTPUT FORWARD", IS_NEW, "PROXY-FIREWALL"), ("FORWARD", "", "FORWARD"),
               ("FORWARD OUTPUT", IS_NEW, "SERVICES"), ("INPUT FORWARD", IS_NEW, "EXTERNAL-SERVICES"),
               ("INPUT", "", "NODEPORTS")),
}


class IptablesPort(ServicePort):
    """One Service and protocol: its rules, each a chain and what follows it."""

    def __init__(self, *given):
        super().__init__(*given)
        self.balanced, self.balanced_here, self.from_outside, self.firewall = (
            f"KUBE-{kind}-{hashed(self.name + self.protocol, 16)}" for kind in ("SVC", "SVL", "EXT", "FW"))
        self.note = f'-m comment --comment "{self.name}"'
        self.match = f"{self.note} -m {self.protocol} -p {self.protocol}"

    def to_address(self, address):
        return f"{self.match} -d {address} --dport {self.port}"

    def endpoint_chain(self, endpoint):
        return "KUBE-SEP-" + hashed(self.name + self.protocol + place(endpoint), 16)

    def nat(self):
        if not self.all:
            return
        inside = self.balanced_here if self.inside_local else self.balanced
        if self.inside:
            yield f"KUBE-SERVICES {self.to_address(self.address)} -j {inside}"
            yield f"{inside} {self.to_address(self.address)} ! -s {self.cluster} -j KUBE-MARK-MASQ"
        for address in self.external:
            yield f"KUBE-SERVICES {self.to_address(address)} -j {self.from_outside}"
        for address in self.balancer:
            yield f"KUBE-SERVICES {self.to_address(address)} -j {self.firewall if self.ranges else self.from_outside}"
        if self.node_port:
            yield f"KUBE-NODEPORTS {self.match} --dport {self.node_port} -j {self.from_outside}"
        for source in self.ranges:
            # What is not translated here is dropped by KUBE-PROXY-FIREWALL.
            yield f"{self.firewall} {self.note} -s {source} -j {self.from_outside}"
        # What came to a node's port. Policy Local leaves a client's address alone and stays on the node.
        if self.local:
            yield f"{self.from_outside} -s {self.cluster} -j {self.balanced}"
            yield f"{self.from_outside} {OURS} -j KUBE-MARK-MASQ"
            yield f"{self.from_outside} {OURS} -j {self.balanced}"
            if self.here:
                yield f"{self.from_outside} -j {self.balanced_here}"
        else:
            yield f"{self.from_outside} -j KUBE-MARK-MASQ"
            yield f"{self.from_outside} -j {self.balanced}"
        yield from self.choice(self.balanced, self.all)
        if self.uses_here:
            yield from self.choice(self.balanced_here, self.here)
        for endpoint in self.all:
            # An endpoint that reaches itself is masqueraded, or it would answer itself past the translation.
            name = self.endpoint_chain(endpoint)
            yield f'{name} -s {endpoint["address"]} -j KUBE-MARK-MASQ'
            seen = f"-m recent --name {name} --set " if self.affinity else ""
            yield f"{name} {seen}{self.match} -j DNAT --to-destination {place(endpoint)}"

    def choice(self, from_chain, endpoints):
        """One of the endpoints, each as likely as every other; with affinity the one of before."""
        for name in map(self.endpoint_chain, endpoints if self.affinity else []):
            yield f"{from_chain} -m recent --name {name} --rcheck --seconds {AFFINITY} --reap -j {name}"
        for left, endpoint in zip(range(len(endpoints), 0, -1), endpoints):
            chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
            yield f"{from_chain} {chance}-j {self.endpoint_chain(endpoint)}"

    def filter(self):
        """What no endpoint can answer, and what the source ranges exclude."""
        refused = "DROP" if self.all else "REJECT"
        if not self.inside:
            yield f"KUBE-SERVICES {self.to_address(self.address)} -j {refused}"
        if not self.outside:
            for address in (*self.external, *self.balancer):
                yield f"KUBE-EXTERNAL-SERVICES {self.to_address(address)} -j {refused}"
            if self.node_port:
                to_node = f"-m addrtype --dst-type LOCAL {self.match} --dport {self.node_port}"
                yield f"KUBE-EXTERNAL-SERVICES {to_node} -j {refused}"
        for address in self.balancer if self.ranges else []:
            yield f"KUBE-PROXY-FIREWALL {self.to_address(address)} -j DROP"

    def chains(self):
        yield from (self.balanced, self.from_outside)
        if self.uses_here:
            yield self.balanced_here
        if self.ranges:
            yield self.firewall
        yield from map(self.endpoint_chain, self.all)


def iptables(ports, node_address, _cluster, _service_network, within):
    """Our jumps are put at the head, as kube-proxy does, unless they are there; a chain that is declared is emptied."""
    program = "ip6tables-nft" if ":" in node_address else "iptables-nft"
    listing = [*within, program, "-t", "nat", "-S", "POSTROUTING"]
    listed = subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True)
    lines = []
    for table, all_ in (("filter", [*(rule for port in ports for rule in port.filter()), *FILTER_RULES]),
                        ("nat", [*NAT_RULES, *(rule for port in ports for rule in port.nat()), TO_PORTS])):
        chains, *hooks = HOOKS[table]
        lines += [f"*{table}", *(f":KUBE-{name} - [0:0]" for name in chains.split())]
        if table == "nat":
            lines += [f":{name} - [0:0]" for port in ports for name in port.chains()]
        for bases, condition, target in () if "-j KUBE-POSTROUTING" in listed.stdout else hooks:
            lines += [f"-I {base} {condition}-j KUBE-{target}" for base in bases.split()]
        lines += [*(f"-A {rule}" for rule in all_), "COMMIT", ""]
    return [f"{program}-restore", "--noflush"], "\n".join(lines)


MARKED = f"mark set mark or {MARK}"
NEW = "ct state new jump "
# Name; type, hook and priority; rules. Of them {at} and {port} look an address and port up, or a port alone.
CHAINS = (
    ("filter-prerouting-pre-dnat", "filter prerouting -110", NEW + "firewall-check"),
    ("filter-output-pre-dnat", "filter output -110", NEW + "firewall-check"),
    ("filter-input", "filter input 0", NEW + "nodeport-endpoints-check", NEW + "service-endpoints-check"),
    ("filter-forward", "filter forward 0", NEW + "service-endpoints-check", NEW + "cluster-ips-check"),
    ("filter-output", "filter output 0", NEW + "service-endpoints-check", NEW + "cluster-ips-check"),
    ("nat-prerouting", "nat prerouting -100", "jump services"),
    ("nat-output", "nat output -100", "jump services"),
    ("nat-postrouting", "nat postrouting 100", "jump masquerading"),
    ("nodeport-endpoints-check", "", "{port} @no-endpoint-nodeports"),
    ("service-endpoints-check", "", "{at} @no-endpoint-services"),
    ("firewall-check", "", "{at} @firewall-ips"),
    ("services", "", "{ip} daddr @cluster-ips {ip} saddr != {cluster} " + MARKED, "{at} @service-ips",
     "fib daddr type local {port} @service-nodeports"),
    ("masquerading", "", f"mark and {MARK} != 0 mark set mark xor {MARK} masquerade fully-random",
     "ct status dnat {ip} saddr . {ip} daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random"),
    ("cluster-ips-check", "", "{ip} daddr @cluster-ips reject", "{ip} daddr {{ {services} }} drop"),
    ("reject-chain", "", "reject"),
)
BY_ADDRESS, BY_PORT = "{address} . inet_proto . inet_service : verdict", "inet_proto . inet_service : verdict"
CONTAINERS = {
    "cluster-ips": "{address}", "hairpin-connections": "{address} . {address} . inet_proto . inet_service",
    "service-ips": BY_ADDRESS, "no-endpoint-services": BY_ADDRESS, "firewall-ips": BY_ADDRESS,
    "service-nodeports": BY_PORT, "no-endpoint-nodeports": BY_PORT,
}


class Table:
    """What is printed, in the order in which nft takes it: everything is made before it is named."""

    def __init__(self, v6, cluster, services):
        self.ip = "ip6" if v6 else "ip"
        self.address = "ipv6_addr" if v6 else "ipv4_addr"
        self.table = f"{self.ip} kube-proxy"
        self.made = [f'add table {self.table} {{ comment "rules for kube-proxy" ; }}']
        self.filled = []
        # What does not depend on any Service.
        words = {"ip": self.ip, "address": self.address, "cluster": cluster, "services": services,
                 "at": f"{self.ip} daddr . meta l4proto . th dport vmap",
                 "port": f"{self.ip} daddr != {'::1' if v6 else '127.0.0.0/8'} meta l4proto . th dport vmap"}
        for name, what in CONTAINERS.items():
            kind = "map" if "verdict" in what else "set"
            self.made += [f"add {kind} {self.table} {name} {{ type {what.format(**words)} ; }}",
                          f"flush {kind} {self.table} {name}"]
        for name, base, *rules_ in CHAINS:
            hook = "{{ type {} hook {} priority {} ; }}".format(*base.split()) if base else ""
            self.chain(name, *(rule.format(**words) for rule in rules_), base=hook)

    def chain(self, name, *rules_, base=""):
        self.made += [f"add chain {self.table} {name} {base}", f"flush chain {self.table} {name}"]
        self.filled += [f"add rule {self.table} {name} {rule}" for rule in rules_]

    def element(self, container, text):
        self.filled.append(f"add element {self.table} {container} {{ {text} }}")


class NftablesPort(ServicePort):
    """One Service and protocol."""

    def __init__(self, *given):
        super().__init__(*given)
        self.long_name = f"{self.name}/{self.protocol}/p{self.port}"
        self.balanced, self.balanced_here, self.from_outside, self.firewall = (
            f"{kind}-{hashed(self.long_name, 8)}-{self.long_name}"
            for kind in ("service", "local", "external", "firewall"))

    def endpoint_name(self, kind, endpoint):
        name = f'{self.long_name}__{endpoint["address"].replace(":", ".")}/{endpoint["port"]}'
        return f"{kind}-{hashed(name, 8)}-{name}"

    def write(self, table, node_address):
        if self.all:
            self.chains(table)
        table.element("cluster-ips", self.address)
        at = f". {self.protocol} . {self.port}"
        inside = self.balanced_here if self.inside_local else self.balanced
        self.frontend(table, "services", f"{self.address} {at}", self.inside, inside if self.inside else None)
        for address in (*self.external, *self.balancer):
            self.frontend(table, "services", f"{address} {at}", self.outside, self.from_outside)
        if self.node_port:
            self.frontend(table, "nodeports", f"{self.protocol} . {self.node_port}", self.outside, self.from_outside)
        if self.ranges:
            # Who may speak to the load balancer's addresses; whoever may, also as such an address, if the node may.
            may = any(ipaddress.ip_address(node_address) in ipaddress.ip_network(one) for one in self.ranges)
            sources = ", ".join([*self.ranges, *(self.balancer if may else [])])
            table.chain(self.firewall, f"{table.ip} saddr != {{ {sources} }} drop")
            for address in self.balancer:
                table.element("firewall-ips", f"{address} {at} : goto {self.firewall}")
        for endpoint in self.here:
            pair = f'{endpoint["address"]} . {endpoint["address"]}'
            table.element("hairpin-connections", f'{pair} . {self.protocol} . {endpoint["port"]}')

    def frontend(self, table, what, key, endpoints, chain):
        """Where an address or a port leads, and what becomes of a packet that none of these endpoints can answer."""
        if self.all and chain:
            table.element("service-nodeports" if what == "nodeports" else "service-ips", f"{key} : goto {chain}")
        if not endpoints:
            table.element(f"no-endpoint-{what}", f"{key} : {'drop' if self.all else 'goto reject-chain'}")

    def chains(self, table):
        uses_external = bool(self.external or self.balancer or self.node_port)
        # All endpoints serve policy Cluster, and what the node itself and its pods send to external addresses.
        uses_all = not self.inside_local or uses_external
        for endpoint in (self.all if uses_all else self.here) if self.affinity else ():
            name, remembered = self.endpoint_name("endpoint", endpoint), self.endpoint_name("affinity", endpoint)
            what = f"type {table.address} ; flags dynamic,timeout ; timeout {AFFINITY}s"
            table.made.append(f"add set {table.table} {remembered} {{ {what} ; }}")
            table.chain(name, f"update @{remembered} {{ {table.ip} saddr }}",
                        f"meta l4proto {self.protocol} dnat to {place(endpoint)}")
        if uses_all:
            table.chain(self.balanced, *self.choice(table, self.all))
        if self.uses_here:
            table.chain(self.balanced_here, *self.choice(table, self.here))
        if uses_external and self.local:
            # Policy Local leaves a client's address alone.
            rules_ = [f"{table.ip} saddr {self.cluster} goto {self.balanced}", f"fib saddr type local {MARKED}",
                      f"fib saddr type local goto {self.balanced}"]
            table.chain(self.from_outside, *rules_, *([f"goto {self.balanced_here}"] if self.here else []))
        elif uses_external:
            table.chain(self.from_outside, MARKED, f"goto {self.balanced}")

    def choice(self, table, endpoints):
        """One of the endpoints, each as likely as every other."""
        if self.affinity:
            names = [(self.endpoint_name("affinity", one), self.endpoint_name("endpoint", one)) for one in endpoints]
            yield from (f"{table.ip} saddr @{remembered} goto {name}" for remembered, name in names)
            parts = ", ".join(f"{number} : goto {name}" for number, (_, name) in enumerate(names))
            yield f"numgen random mod {len(endpoints)} vmap {{ {parts} }}"
        elif len(endpoints) == 1:
            yield f"meta l4proto {self.protocol} dnat to {place(endpoints[0])}"
        else:
            parts = ", ".join(f'{number} : {one["address"]} . {one["port"]}' for number, one in enumerate(endpoints))
            choice = f"numgen random mod {len(endpoints)} map {{ {parts} }}"
            yield f"meta l4proto {self.protocol} dnat {table.ip} addr . port to {choice}"


def nftables(ports, node_address, cluster, service_network, _within):
    table = Table(":" in node_address, cluster, service_network)
    for port in ports:
        port.write(table, node_address)
    return ["nft", "-f", "-"], "\n".join(table.made + table.filled)


def write_rules(mode, node, node_address, cluster, service_network, services, protocols=("tcp", "udp"), within=()):
    """In the network namespace into which the command `within` leads."""
    port, generate = {"iptables": (IptablesPort, iptables), "nftables": (NftablesPort, nftables)}[mode]
    ports = [port(service, protocol, node, cluster) for service in services for protocol in protocols]
    command, rules = generate(ports, node_address, cluster, service_network, within)
    subprocess.run([*within, *command], input=rules, text=True, check=True)


def plan(family, cluster, pods, nodes, moved):
    """The Services. A is the first pod of the first node, B that of the last one."""

    def service(name, group, number, node_port, endpoints, **more):
        address = f"fd00:10:96::{f'{group}:' * (group > 0)}{number}" if family == 6 else f"10.96.{group}.{number}"
        return {"name": f"lab/{name}", "address": address, "port": 80, "node_port": node_port, "local": False,
                "endpoints": endpoints} | more

    def outside(number):
        if family == 6:
            return [f"2001:db8:f00::{number}", f"2001:db8:f00:1::{number}"]
        return [f"203.0.113.{number}", f"203.0.113.{64 + number}"]

    every = [{"address": address, "port": 8080, "node": node} for _, node, address in pods]
    a, b = ([one for one in every if one["node"] == node][:1] for node in (nodes[0][0], nodes[-1][0]))
    *_, foreign, client = NETWORKS[family]
    ours = [f"{client}/{128 if family == 6 else 32}", cluster]
    for number, endpoint in zip((int(pod[3:]) for pod, *_ in pods), every):
        yield service(f"pod{number}", 0, number, 30000 + number, [endpoint])
        yield service(f"pod{number}-local", 1, number, 31000 + number, [endpoint], local=True)
    yield service("all", 2, 1, 32001, every)
    for node, address in nodes:
        number = int(node[4:])
        # As a pod with the host's network.
        yield service(node, 3, number, 32100 + number, [{"address": address, "port": 8080, "node": node}])
    yield service("inner", 4, 1, 0, a + b, inside_local=True)
    yield service("inner-far", 4, 2, 0, b, inside_local=True)
    yield service("sticky", 4, 3, 32303, every, affinity=True)
    yield service("outer", 4, 4, 0, b, external=outside(4))
    yield service("outer-local", 4, 5, 0, a, local=True, external=outside(5))
    yield service("ranged", 4, 6, 0, a, balancer=outside(6), ranges=ours)
    yield service("ranged-none", 4, 7, 0, a, balancer=outside(7), ranges=[foreign])
    yield service("ranged-local", 4, 8, 0, b, local=True, balancer=outside(8), ranges=ours)
    yield service("moving", 4, 9, 32309, b if moved else a)
    yield service("empty", 4, 10, 32310, [])


def route(space, family, to, via):
    subprocess.run(["ip", "-n", space, f"-{family}", "route", "replace", to, "via", via, "dev", "eth0"], check=True)


def keep(prefix, family, moved, mode, node, *given):
    """The rules of one node and family."""
    space = f"{prefix}-{node}"
    route(space, family, "default", NETWORKS[family][-1])
    write_rules(mode, node, *given, within=["ip", "netns", "exec", space])
    # kube-proxy forgets the UDP flows that lead to an endpoint that is none any more (pkg/proxy/conntrack/cleanup.go).
    # Here it is all flows, at once: to delete one after the other ends early when one has gone meanwhile.
    if moved:
        subprocess.run(["ip", "netns", "exec", space, "conntrack", "-F"], stderr=subprocess.DEVNULL, check=True)


def main(state, mode, moved, *families):
    state, moved = Path(state), moved == "1"
    pods, nodes = ([line.split() for line in (state / name).read_text().splitlines()] for name in ("pods", "nodes"))
    with ThreadPoolExecutor() as pool:
        kept = []
        for family, _, cluster in (word.partition("=") for word in families):
            family = int(family)
            homes = [(words[0], words[family - 2]) for words in nodes]
            found = [(*words[:2], next(one for one in words[2:] if (":" in one) == (family == 6))) for words in pods]
            services = list(plan(family, cluster, found, homes, moved))
            (state / f"services.{family}").write_text(json.dumps(services))
            for node, address in homes:
                given = mode, node, address, cluster, NETWORKS[family][0], services
                kept.append(pool.submit(keep, state.name, family, moved, *given))
            for network, (_, address) in zip(NETWORKS[family], (homes[0], homes[0], homes[-1])):
                route(f"{state.name}-client", family, network, address)
        for one in kept:
            one.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
