"""The rules of kube-proxy's nftables mode, what goes to `nft -f`: it makes the table, or replaces its rules and keeps what affinity
has remembered.

Node ports are open at every address of the node (--nodeport-addresses 0.0.0.0/0 and ::/0; without it they are at the node's primary
address alone). Chains, maps, sets, their names, priorities and order follow Kubernetes 1.36, pkg/proxy/nftables/proxier.go
(setupNFTables, syncProxyRules, writeServiceToEndpointRules): a hairpin is known by a set of connections, not by kube-proxy's mark,
and an endpoint has a chain of its own only for the sake of affinity.
"""

import base64
import hashlib
import ipaddress

from kube_proxy import AFFINITY, MARK, ServicePort, place

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
CONTAINERS = (
    ("set", "cluster-ips", "{address}"),
    ("set", "hairpin-connections", "{address} . {address} . inet_proto . inet_service"),
    ("map", "service-ips", BY_ADDRESS),
    ("map", "no-endpoint-services", BY_ADDRESS),
    ("map", "firewall-ips", BY_ADDRESS),
    ("map", "service-nodeports", BY_PORT),
    ("map", "no-endpoint-nodeports", BY_PORT),
)


def base_name(name):
    """The name, behind a hash of it."""
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()
    return f"{digest[:8]}-{name}"


class Table:
    """What is printed, in the order in which nft takes it: everything is made before it is named."""

    def __init__(self, v6):
        self.table = "ip6 kube-proxy" if v6 else "ip kube-proxy"
        self.ip = "ip6" if v6 else "ip"
        self.address = "ipv6_addr" if v6 else "ipv4_addr"
        self.made = [f'add table {self.table} {{ comment "rules for kube-proxy" ; }}']
        self.filled = []

    def chain(self, name, base=""):
        self.made += [f"add chain {self.table} {name} {base}", f"flush chain {self.table} {name}"]

    def container(self, kind, name, what):
        self.made.append(f"add {kind} {self.table} {name} {{ {what} ; }}")

    def rule(self, chain, text):
        self.filled.append(f"add rule {self.table} {chain} {text}")

    def element(self, container, text):
        self.filled.append(f"add element {self.table} {container} {{ {text} }}")

    def __str__(self):
        return "\n".join(self.made + self.filled)


def setup(table, cluster, services):
    """What does not depend on any Service."""
    words = {"ip": table.ip, "address": table.address, "cluster": cluster, "services": services,
             "at": f"{table.ip} daddr . meta l4proto . th dport vmap",
             "port": f"{'ip6 daddr != ::1' if table.ip == 'ip6' else 'ip daddr != 127.0.0.0/8'} meta l4proto . th dport vmap"}
    for kind, name, what in CONTAINERS:
        table.container(kind, name, "type " + what.format(**words))
        table.made.append(f"flush {kind} {table.table} {name}")
    for name, base, *rules_ in CHAINS:
        table.chain(name, "{{ type {} hook {} priority {} ; }}".format(*base.split()) if base else "")
        for rule in rules_:
            table.rule(name, rule.format(**words))


class Port(ServicePort):
    """One Service and protocol."""

    def __init__(self, *given):
        super().__init__(*given)
        self.base = base_name(self.long_name())
        self.balanced, self.balanced_here, self.from_outside, self.firewall = (
            f"{kind}-{self.base}" for kind in ("service", "local", "external", "firewall"))
        self.frontends = [*self.external, *self.balancers]

    def long_name(self):
        return f"{self.name}/{self.protocol}/p{self.port}"

    def endpoint_name(self, kind, endpoint):
        where = f'{endpoint["address"].replace(":", ".")}/{endpoint["port"]}'
        return f"{kind}-{base_name(self.long_name() + '__' + where)}"

    def write(self, table, node_address):
        self.table, self.node_address = table, node_address
        if self.all:
            self.chains()
        self.cluster_ip()
        for address in self.frontends:
            key = f'{address} . {self.protocol} . {self.port}'
            self.frontend("service-ips", "no-endpoint-services", key)
        if self.node_port:
            key = f'{self.protocol} . {self.node_port}'
            self.frontend("service-nodeports", "no-endpoint-nodeports", key)
        if self.ranges:
            self.source_ranges()
        for endpoint in self.here:
            address, port = endpoint["address"], endpoint["port"]
            self.table.element("hairpin-connections", f"{address} . {address} . {self.protocol} . {port}")

    def refusal(self, endpoints):
        """What becomes of a packet that none of these can answer."""
        return "drop" if self.all and not endpoints else "goto reject-chain"

    def cluster_ip(self):
        self.table.element("cluster-ips", self.address)
        key = f'{self.address} . {self.protocol} . {self.port}'
        if self.inside:
            chain = self.balanced_here if self.inside_local else self.balanced
            self.table.element("service-ips", f"{key} : goto {chain}")
        else:
            self.table.element("no-endpoint-services", f"{key} : {self.refusal(self.inside)}")

    def frontend(self, served, refused, key):
        if self.all:
            self.table.element(served, f"{key} : goto {self.from_outside}")
        if not self.outside:
            self.table.element(refused, f"{key} : {self.refusal(self.outside)}")

    def chains(self):
        uses_external = bool(self.frontends or self.node_port)
        # All endpoints serve policy Cluster, and what the node itself and its pods send to external addresses.
        uses_all = not self.inside_local or uses_external
        if self.affinity:
            for endpoint in self.all if uses_all else self.here:
                self.endpoint_chain(endpoint)
        if uses_all:
            self.table.chain(self.balanced)
        if self.uses_here:
            self.table.chain(self.balanced_here)
        if uses_external:
            self.table.chain(self.from_outside)
            self.external_rules()
        if uses_all:
            self.choice(self.balanced, self.all)
        if self.uses_here:
            self.choice(self.balanced_here, self.here)

    def external_rules(self):
        """What came to a node's port or an external address. Policy Local leaves a client's address alone."""
        if not self.local:
            self.table.rule(self.from_outside, MARKED)
            self.table.rule(self.from_outside, f"goto {self.balanced}")
            return
        self.table.rule(self.from_outside, f"{self.table.ip} saddr {self.cluster} goto {self.balanced}")
        self.table.rule(self.from_outside, f"fib saddr type local {MARKED}")
        self.table.rule(self.from_outside, f"fib saddr type local goto {self.balanced}")
        if self.here:
            self.table.rule(self.from_outside, f"goto {self.balanced_here}")

    def choice(self, chain, endpoints):
        """One of the endpoints, each as likely as every other."""
        ip = self.table.ip
        if self.affinity:
            for endpoint in endpoints:
                remembered = f"{ip} saddr @{self.endpoint_name('affinity', endpoint)}"
                self.table.rule(chain, f"{remembered} goto {self.endpoint_name('endpoint', endpoint)}")
            numbered = enumerate(endpoints)
            parts = [f"{number} : goto {self.endpoint_name('endpoint', endpoint)}" for number, endpoint in numbered]
            self.table.rule(chain, f"numgen random mod {len(endpoints)} vmap {{ {', '.join(parts)} }}")
        elif len(endpoints) == 1:
            self.table.rule(chain, f"meta l4proto {self.protocol} dnat to {place(endpoints[0])}")
        else:
            parts = [f'{number} : {one["address"]} . {one["port"]}' for number, one in enumerate(endpoints)]
            choice = f"numgen random mod {len(endpoints)} map {{ {', '.join(parts)} }}"
            self.table.rule(chain, f"meta l4proto {self.protocol} dnat {ip} addr . port to {choice}")

    def endpoint_chain(self, endpoint):
        name, remembered = self.endpoint_name("endpoint", endpoint), self.endpoint_name("affinity", endpoint)
        what = f"type {self.table.address} ; flags dynamic,timeout ; timeout {AFFINITY}s"
        self.table.container("set", remembered, what)
        self.table.chain(name)
        self.table.rule(name, f"update @{remembered} {{ {self.table.ip} saddr }}")
        self.table.rule(name, f"meta l4proto {self.protocol} dnat to {place(endpoint)}")

    def source_ranges(self):
        """Who may speak to the load balancer's addresses; whoever may, also as such an address, if the node may."""
        ranges = list(self.ranges)
        if any(ipaddress.ip_address(self.node_address) in ipaddress.ip_network(one) for one in ranges):
            ranges += self.balancers
        self.table.chain(self.firewall)
        self.table.rule(self.firewall, f"{self.table.ip} saddr != {{ {', '.join(ranges)} }} drop")
        for address in self.balancers:
            key = f'{address} . {self.protocol} . {self.port}'
            self.table.element("firewall-ips", f"{key} : goto {self.firewall}")


def rules(ports, node_address, cluster, service_network):
    table = Table(ipaddress.ip_address(node_address).version == 6)
    setup(table, cluster, service_network)
    for port in ports:
        port.write(table, node_address)
    return ["nft", "-f", "-"], str(table)
