"""The rules that kube-proxy keeps on one node for one address family, in its iptables mode.

    kube_proxy.py FIRST|AGAIN NODE CLUSTER <SERVICES

CLUSTER is the cluster network, SERVICES a JSON list of Services:
    {"name": "lab/pod1", "address": "10.96.0.1", "port": 80, "node_port": 30001, "local": false,
     "endpoints": [{"address": "10.244.1.2", "port": 8080, "node": "node1"}]}
where "local" is externalTrafficPolicy Local. Prints what goes to `iptables-restore --noflush`. FIRST also
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

    def match(self):
        return f"-m {self.protocol} -p {self.protocol}"

    def to_cluster_ip(self):
        return f'{self.match()} -d {self.service["address"]} --dport {self.service["port"]}'

    def to_node_port(self):
        return f'{self.match()} --dport {self.service["node_port"]}'

    def endpoint_chain(self, endpoint):
        return chain("SEP", self.name, self.protocol, place(endpoint))

    def nat(self):
        yield f'-A KUBE-SERVICES {remark(self.name + " cluster IP")} {self.to_cluster_ip()} -j {self.balanced}'
        yield f"-A KUBE-NODEPORTS {remark(self.name)} {self.to_node_port()} -j {self.external}"
        yield from self.from_outside()
        yield (
            f'-A {self.balanced} {remark(self.name + " cluster IP")} {self.to_cluster_ip()} '
            f"! -s {self.cluster} -j KUBE-MARK-MASQ"
        )
        yield from self.choice(self.balanced, self.all)
        if self.service["local"]:
            yield from self.choice(self.balanced_here, self.here)
        for endpoint in self.all:
            yield from self.destination(endpoint)

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
        """One of the endpoints, each as likely as every other."""
        for index, endpoint in enumerate(endpoints):
            left = len(endpoints) - index
            chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
            note = remark(f"{self.name} -> {place(endpoint)}")
            yield f"-A {from_chain} {note} {chance}-j {self.endpoint_chain(endpoint)}"

    def destination(self, endpoint):
        """An endpoint that reaches itself is masqueraded, or it would answer itself past the translation."""
        name = self.endpoint_chain(endpoint)
        yield f'-A {name} {remark(self.name)} -s {endpoint["address"]} -j KUBE-MARK-MASQ'
        yield f"-A {name} {remark(self.name)} {self.match()} -j DNAT --to-destination {place(endpoint)}"

    def chains(self):
        yield from (self.balanced, self.external)
        if self.service["local"]:
            yield self.balanced_here
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
    rules = [
        f'-A KUBE-EXTERNAL-SERVICES {remark(port.name + " has no local endpoints")} -m addrtype --dst-type LOCAL '
        f"{port.to_node_port()} -j DROP"
        for port in ports
        if port.service["local"] and not port.here
    ]
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
