"""The rules of kube-proxy's iptables mode, what goes to `iptables-restore --noflush`.

Chains, their names, their order and what each decides follow Kubernetes, pkg/proxy/iptables/proxier.go (syncProxyRules,
writeServiceToEndpointRules, portProtoHash).
"""

import base64
import hashlib
import ipaddress
import subprocess

from kube_proxy import AFFINITY, MARK, ServicePort, place


def chain(kind, *parts):
    """KUBE-KIND-: and 16 letters of a hash of what the chain is about."""
    digest = hashlib.sha256("".join(parts).encode()).digest()
    return f"KUBE-{kind}-{base64.b32encode(digest)[:16].decode()}"


def remark(text):
    return f'-m comment --comment "{text}"'


class Port(ServicePort):
    """One Service and protocol."""

    def __init__(self, *given):
        super().__init__(*given)
        self.balanced, self.balanced_here, self.from_outside, self.firewall = (
            chain(kind, self.name, self.protocol) for kind in ("SVC", "SVL", "EXT", "FW"))

    def match(self):
        return f"-m {self.protocol} -p {self.protocol}"

    def to_address(self, address):
        return f'{self.match()} -d {address} --dport {self.port}'

    def to_node_port(self):
        return f'{self.match()} --dport {self.node_port}'

    def endpoint_chain(self, endpoint):
        return chain("SEP", self.name, self.protocol, place(endpoint))

    def nat(self):
        if not self.all:
            return
        inside = self.balanced_here if self.inside_local else self.balanced
        if self.inside:
            note = remark(self.name + " cluster IP")
            yield f"-A KUBE-SERVICES {note} {self.to_address(self.address)} -j {inside}"
            yield f"-A {inside} {note} {self.to_address(self.address)} ! -s {self.cluster} -j KUBE-MARK-MASQ"
        for address in self.external:
            yield f'-A KUBE-SERVICES {remark(self.name + " external IP")} {self.to_address(address)} -j {self.from_outside}'
        for address in self.balancers:
            target = self.firewall if self.ranges else self.from_outside
            yield f'-A KUBE-SERVICES {remark(self.name + " loadbalancer IP")} {self.to_address(address)} -j {target}'
        if self.node_port:
            yield f"-A KUBE-NODEPORTS {remark(self.name)} {self.to_node_port()} -j {self.from_outside}"
        for source in self.ranges:
            # What is not translated here is dropped by KUBE-PROXY-FIREWALL.
            yield f'-A {self.firewall} {remark(self.name + " loadbalancer IP")} -s {source} -j {self.from_outside}'
        yield from self.what_came_from_outside()
        yield from self.choice(self.balanced, self.all)
        if self.uses_here:
            yield from self.choice(self.balanced_here, self.here)
        for endpoint in self.all:
            yield from self.destination(endpoint)

    def what_came_from_outside(self):
        """What came to a node's port. Policy Local leaves a client's address alone and stays on the node."""
        where = f"for {self.name} external destinations"
        if not self.local:
            yield f'-A {self.from_outside} {remark("masquerade traffic " + where)} -j KUBE-MARK-MASQ'
            yield f"-A {self.from_outside} -j {self.balanced}"
            return
        ours = "-m addrtype --src-type LOCAL"
        yield f'-A {self.from_outside} {remark("pod traffic " + where)} -s {self.cluster} -j {self.balanced}'
        yield f'-A {self.from_outside} {remark("masquerade LOCAL traffic " + where)} {ours} -j KUBE-MARK-MASQ'
        yield f'-A {self.from_outside} {remark("route LOCAL traffic " + where)} {ours} -j {self.balanced}'
        if self.here:
            yield f"-A {self.from_outside} -j {self.balanced_here}"

    def choice(self, from_chain, endpoints):
        """One of the endpoints, each as likely as every other; with affinity the one of before."""
        for endpoint in endpoints if self.affinity else []:
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
        seen = f"-m recent --name {name} --set " if self.affinity else ""
        yield f"-A {name} {remark(self.name)} {seen}{self.match()} -j DNAT --to-destination {place(endpoint)}"

    def filter(self):
        """What no endpoint can answer, and what the source ranges exclude."""
        if not self.inside:
            yield f"-A KUBE-SERVICES {self.refusal()} {self.to_address(self.address)} {self.refused()}"
        if not self.outside:
            for address in (*self.external, *self.balancers):
                yield f"-A KUBE-EXTERNAL-SERVICES {self.refusal()} {self.to_address(address)} {self.refused()}"
            if self.node_port:
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
        yield from (self.balanced, self.from_outside)
        if self.uses_here:
            yield self.balanced_here
        if self.ranges:
            yield self.firewall
        yield from (self.endpoint_chain(endpoint) for endpoint in self.all)


def nat(ports):
    chains = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"]
    chains += [chain for port in ports for chain in port.chains()]
    note = remark("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
    rules = [
        f"-A KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN",
        # Cleared, so that a packet that comes by again is not masqueraded twice.
        f"-A KUBE-POSTROUTING -j MARK --xor-mark {MARK}",
        f'-A KUBE-POSTROUTING {remark("kubernetes service traffic requiring SNAT")} -j MASQUERADE --random-fully',
        f"-A KUBE-MARK-MASQ -j MARK --or-mark {MARK}",
        *(rule for port in ports for rule in port.nat()),
        f"-A KUBE-SERVICES {note} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
    ]
    hooks = (("PREROUTING OUTPUT", "", "service portals", "SERVICES"), ("POSTROUTING", "", "postrouting rules", "POSTROUTING"))
    return chains, rules, hooked(hooks)


def hooked(hooks):
    """The jumps from the kernel's chains: into these, with this condition and remark, to that chain."""
    return [f'{base} {condition}{remark("kubernetes " + note)} -j KUBE-{target}'
            for bases, condition, note, target in hooks for base in bases.split()]


def filtering(ports):
    chains = [f"KUBE-{name}" for name in ("SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "FORWARD", "PROXY-FIREWALL")]
    rules = [rule for port in ports for rule in port.filter()]
    rules += [
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        f'-A KUBE-FORWARD {remark("kubernetes forwarding rules")} -m mark --mark {MARK}/{MARK} -j ACCEPT',
        f'-A KUBE-FORWARD {remark("kubernetes forwarding conntrack rule")} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    ]
    new = "-m conntrack --ctstate NEW "
    hooks = (("INPUT OUTPUT FORWARD", new, "load balancer firewall", "PROXY-FIREWALL"),
             ("FORWARD", "", "forwarding rules", "FORWARD"),
             ("FORWARD OUTPUT", new, "service portals", "SERVICES"),
             ("INPUT FORWARD", new, "externally-visible service portals", "EXTERNAL-SERVICES"),
             ("INPUT", "", "health check service ports", "NODEPORTS"))
    return chains, rules, hooked(hooks)


def rules(ports, node_address, *_):
    """Our jumps are put at the head, as kube-proxy does, unless they are there; a chain that is declared is emptied."""
    program = "ip6tables-nft" if ipaddress.ip_address(node_address).version == 6 else "iptables-nft"
    hooked = subprocess.run([program, "-t", "nat", "-S", "POSTROUTING"], stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = []
    for table, (chains, rules_, hooks) in (("filter", filtering(ports)), ("nat", nat(ports))):
        lines += [f"*{table}", *(f":{name} - [0:0]" for name in chains)]
        if "-j KUBE-POSTROUTING" not in hooked:
            lines += [f"-I {hook}" for hook in hooks]
        lines += [*rules_, "COMMIT", ""]
    return [f"{program}-restore", "--noflush"], "\n".join(lines)
