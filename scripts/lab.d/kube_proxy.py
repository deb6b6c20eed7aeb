"""The rules that kube-proxy keeps on one node for one address family, in its iptables mode.

    kube_proxy.py FIRST|AGAIN NODE CLUSTER <SERVICES

CLUSTER is the cluster network, SERVICES a JSON list of Services:
    {"name": "lab/pod1", "address": "10.96.0.1", "port": 80, "node_port": 30001, "local": false,
     "endpoints": [{"address": "10.244.1.2", "port": 8080, "node": "node1"}]}
where "local" is externalTrafficPolicy Local. A node port of 0 is none. What else a Service may have:
    "inside_local": true                      internalTrafficPolicy Local
    "affinity": true                          session affinity ClientIP
    "external": ["203.0.113.4"]               external IPs
    "balancer": ["203.0.113.6"]               addresses of a load balancer
    "ranges": ["192.0.2.0/24"]                loadBalancerSourceRanges
Prints what goes to `iptables-restore --noflush`. FIRST also
hooks the chains into those of the kernel; AGAIN replaces their rules alone, as kube-proxy does.

Every Service is there for TCP and for UDP. Chains, their names, their order and what each decides follow
Kubernetes, pkg/proxy/iptables/proxier.go (syncProxyRules, writeServiceToEndpointRules, portProtoHash).
"""

import base64
import hashlib
import ipaddress
import json
import sys

# The bit that kube-proxy sets on what it is going to masquerade.
MARK = "0x4000"
PROTOCOLS = ("tcp", "udp")
# Seconds that a client stays with its endpoint.
AFFINITY = 10800


def chain(kind, *parts):
    """KUBE-KIND-: and 16 letters of a hash of what the chain is about."""
    digest = hashlib.sha256("".join(parts).encode()).digest()
    return f"KUBE-{kind}-{base64.b32encode(digest)[:16].decode()}"


def remark(text):
    return f'-m comment --comment "{text}"'


class Port:
    """One Service and protocol."""

    def __init__(self, service, protocol, node, cluster):
        self.service, self.protocol, self.cluster = service, protocol, cluster
        self.name = service["name"]
        self.all = service["endpoints"]
        self.here = [endpoint for endpoint in self.all if endpoint["node"] == node]
        self.balanced = chain("SVC", self.name, protocol)
        self.balanced_here = chain("SVL", self.name, protocol)
        self.external = chain("EXT", self.name, protocol)
        self.firewall = chain("FW", self.name, protocol)
        self.inside_local = service.get("inside_local", False)
        self.addresses = service.get("external", [])
        self.balancers = service.get("balancer", [])
        self.ranges = service.get("ranges", [])

    def match(self):
        return f"-m {self.protocol} -p {self.protocol}"

    def to_cluster_ip(self):
        return self.to_address(self.service["address"])

    def to_address(self, address):
        return f'{self.match()} -d {address} --dport {self.service["port"]}'

    def to_node_port(self):
        return f'{self.match()} --dport {self.service["node_port"]}'

    def endpoint_chain(self, endpoint):
        return chain("SEP", self.name, self.protocol, place(endpoint))

    def inside(self):
        """The endpoints of the ClusterIP on this node, and the chain that chooses one."""
        return (self.here, self.balanced_here) if self.inside_local else (self.all, self.balanced)

    def nat(self):
        if not self.all:
            return
        endpoints, inside = self.inside()
        if endpoints:
            note = remark(self.name + " cluster IP")
            yield f"-A KUBE-SERVICES {note} {self.to_cluster_ip()} -j {inside}"
            yield f"-A {inside} {note} {self.to_cluster_ip()} ! -s {self.cluster} -j KUBE-MARK-MASQ"
        for address in self.addresses:
            yield f'-A KUBE-SERVICES {remark(self.name + " external IP")} {self.to_address(address)} -j {self.external}'
        for address in self.balancers:
            target = self.firewall if self.ranges else self.external
            yield f'-A KUBE-SERVICES {remark(self.name + " loadbalancer IP")} {self.to_address(address)} -j {target}'
        if self.service["node_port"]:
            yield f"-A KUBE-NODEPORTS {remark(self.name)} {self.to_node_port()} -j {self.external}"
        for source in self.ranges:
            # What is not translated here is dropped by KUBE-PROXY-FIREWALL.
            yield f'-A {self.firewall} {remark(self.name + " loadbalancer IP")} -s {source} -j {self.external}'
        yield from self.from_outside()
        yield from self.choice(self.balanced, self.all)
        if self.uses_here():
            yield from self.choice(self.balanced_here, self.here)
        for endpoint in self.all:
            yield from self.destination(endpoint)

    def uses_here(self):
        return self.here and (self.service["local"] or self.inside_local)

    def from_outside(self):
        """What came to a node's port. Policy Local leaves a client's address alone and stays on the node."""
        where = f"for {self.name} external destinations"
        if not self.service["local"]:
            yield f'-A {self.external} {remark("masquerade traffic " + where)} -j KUBE-MARK-MASQ'
            yield f"-A {self.external} -j {self.balanced}"
            return
        ours = "-m addrtype --src-type LOCAL"
        yield f'-A {self.external} {remark("pod traffic " + where)} -s {self.cluster} -j {self.balanced}'
        yield f'-A {self.external} {remark("masquerade LOCAL traffic " + where)} {ours} -j KUBE-MARK-MASQ'
        yield f'-A {self.external} {remark("route LOCAL traffic " + where)} {ours} -j {self.balanced}'
        if self.here:
            yield f"-A {self.external} -j {self.balanced_here}"

    def choice(self, from_chain, endpoints):
        """One of the endpoints, each as likely as every other; with affinity the one of before."""
        for endpoint in endpoints if self.service.get("affinity") else []:
            name = self.endpoint_chain(endpoint)
            seen = f"-m recent --name {name} --rcheck --seconds {AFFINITY} --reap"
            yield f'-A {from_chain} {remark(f"{self.name} -> {place(endpoint)}")} {seen} -j {name}'
        for index, endpoint in enumerate(endpoints):
            left = len(endpoints) - index
            chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
            note = remark(f"{self.name} -> {place(endpoint)}")
            yield f"-A {from_chain} {note} {chance}-j {self.endpoint_chain(endpoint)}"

    def destination(self, endpoint):
        """An endpoint that reaches itself is masqueraded, or it would answer itself past the translation."""
        name = self.endpoint_chain(endpoint)
        yield f'-A {name} {remark(self.name)} -s {endpoint["address"]} -j KUBE-MARK-MASQ'
        seen = f"-m recent --name {name} --set " if self.service.get("affinity") else ""
        yield f"-A {name} {remark(self.name)} {seen}{self.match()} -j DNAT --to-destination {place(endpoint)}"

    def filter(self):
        """What no endpoint can answer, and what the source ranges exclude."""
        outside = self.here if self.service["local"] else self.all
        if not self.inside()[0]:
            yield f"-A KUBE-SERVICES {self.refusal()} {self.to_cluster_ip()} {self.refused()}"
        if not outside:
            for address in (*self.addresses, *self.balancers):
                yield f"-A KUBE-EXTERNAL-SERVICES {self.refusal()} {self.to_address(address)} {self.refused()}"
            if self.service["node_port"]:
                to_node = f"-m addrtype --dst-type LOCAL {self.to_node_port()}"
                yield f"-A KUBE-EXTERNAL-SERVICES {self.refusal()} {to_node} {self.refused()}"
        for address in self.balancers if self.ranges else []:
            note = remark(f"{self.name} traffic not accepted by {self.firewall}")
            yield f"-A KUBE-PROXY-FIREWALL {note} {self.to_address(address)} -j DROP"

    def refusal(self):
        return remark(f"{self.name} has no {'local ' if self.all else ''}endpoints")

    def refused(self):
        return "-j DROP" if self.all else "-j REJECT"

    def chains(self):
        yield from (self.balanced, self.external)
        if self.uses_here():
            yield self.balanced_here
        if self.ranges:
            yield self.firewall
        yield from (self.endpoint_chain(endpoint) for endpoint in self.all)


def place(endpoint):
    if ipaddress.ip_address(endpoint["address"]).version == 6:
        return f'[{endpoint["address"]}]:{endpoint["port"]}'
    return f'{endpoint["address"]}:{endpoint["port"]}'


def nat(ports):
    chains = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"]
    rules = [
        f"-A KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN",
        # Cleared, so that a packet that comes by again is not masqueraded twice.
        f"-A KUBE-POSTROUTING -j MARK --xor-mark {MARK}",
        f'-A KUBE-POSTROUTING {remark("kubernetes service traffic requiring SNAT")} -j MASQUERADE --random-fully',
        f"-A KUBE-MARK-MASQ -j MARK --or-mark {MARK}",
    ]
    for port in ports:
        chains.extend(port.chains())
        rules.extend(port.nat())
    note = remark("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
    rules.append(f"-A KUBE-SERVICES {note} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
    hooks = [
        f'{base} {remark("kubernetes service portals")} -j KUBE-SERVICES' for base in ("PREROUTING", "OUTPUT")
    ] + [f'POSTROUTING {remark("kubernetes postrouting rules")} -j KUBE-POSTROUTING']
    return chains, rules, hooks


def filtering(ports):
    chains = [f"KUBE-{name}" for name in ("SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "FORWARD", "PROXY-FIREWALL")]
    rules = [rule for port in ports for rule in port.filter()]
    rules += [
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        f'-A KUBE-FORWARD {remark("kubernetes forwarding rules")} -m mark --mark {MARK}/{MARK} -j ACCEPT',
        f'-A KUBE-FORWARD {remark("kubernetes forwarding conntrack rule")} '
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ]
    new = "-m conntrack --ctstate NEW"
    hooks = [
        f'{base} {new} {remark("kubernetes load balancer firewall")} -j KUBE-PROXY-FIREWALL'
        for base in ("INPUT", "OUTPUT", "FORWARD")
    ]
    hooks += [f'FORWARD {remark("kubernetes forwarding rules")} -j KUBE-FORWARD']
    hooks += [f'{base} {new} {remark("kubernetes service portals")} -j KUBE-SERVICES' for base in ("FORWARD", "OUTPUT")]
    hooks += [
        f'{base} {new} {remark("kubernetes externally-visible service portals")} -j KUBE-EXTERNAL-SERVICES'
        for base in ("INPUT", "FORWARD")
    ]
    hooks += [f'INPUT {remark("kubernetes health check service ports")} -j KUBE-NODEPORTS']
    return chains, rules, hooks


def main(order, node, cluster):
    ports = [Port(service, protocol, node, cluster) for service in json.load(sys.stdin) for protocol in PROTOCOLS]
    for table, (chains, rules, hooks) in (("filter", filtering(ports)), ("nat", nat(ports))):
        print(f"*{table}")
        # A chain that is declared is emptied.
        print("\n".join(f":{name} - [0:0]" for name in chains))
        if order == "FIRST":
            # At the head: kube-proxy puts its jumps before whatever is there.
            print("\n".join(f"-I {hook}" for hook in hooks))
        print("\n".join(rules))
        print("COMMIT")


if __name__ == "__main__":
    main(*sys.argv[1:])
