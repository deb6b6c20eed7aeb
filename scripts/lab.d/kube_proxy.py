"""Keeps on one node the rules that kube-proxy would, for one address family, in its iptables or its nftables mode; in the node's
network namespace.

    kube_proxy.py iptables|nftables NODE NODE_ADDRESS CLUSTER SERVICE_NETWORK <SERVICES

CLUSTER is the pods' network, SERVICES a JSON list of Services:
    {"name": "lab/pod1", "address": "10.96.0.1", "port": 80, "node_port": 30001, "local": false,
     "endpoints": [{"address": "10.244.1.2", "port": 8080, "node": "node1"}]}
where "local" is externalTrafficPolicy Local. A node port of 0 is none. What else a Service may have:
    "inside_local": true                      internalTrafficPolicy Local
    "affinity": true                          session affinity ClientIP
    "external": ["203.0.113.4"]               external IPs
    "balancer": ["203.0.113.6"]               addresses of a load balancer
    "ranges": ["192.0.2.0/24"]                loadBalancerSourceRanges
Every Service is there for TCP and for UDP.
"""

import importlib
import ipaddress
import json
import subprocess
import sys

sys.dont_write_bytecode = True
# The bit that kube-proxy sets on what it is going to masquerade.
MARK = "0x4000"
PROTOCOLS = ("tcp", "udp")
# Seconds that a client stays with its endpoint.
AFFINITY = 10800


class ServicePort:
    """One Service and protocol, as a node sees it."""

    def __init__(self, service, protocol, node, cluster):
        self.protocol, self.cluster = protocol, cluster
        self.name, self.address = service["name"], service["address"]
        self.port, self.node_port = service["port"], service["node_port"]
        self.all = service["endpoints"]
        self.here = [endpoint for endpoint in self.all if endpoint["node"] == node]
        self.local, self.inside_local = service["local"], service.get("inside_local", False)
        self.affinity = service.get("affinity", False)
        self.external, self.balancers = service.get("external", []), service.get("balancer", [])
        self.ranges = service.get("ranges", [])
        # The endpoints of the ClusterIP, and of every other address.
        self.inside = self.here if self.inside_local else self.all
        self.outside = self.here if self.local else self.all
        self.uses_here = self.here and (self.local or self.inside_local)


def place(endpoint):
    if ipaddress.ip_address(endpoint["address"]).version == 6:
        return f'[{endpoint["address"]}]:{endpoint["port"]}'
    return f'{endpoint["address"]}:{endpoint["port"]}'


def write_rules(mode, node, node_address, cluster, service_network, services, protocols=PROTOCOLS):
    generator = importlib.import_module(f"kube_proxy_{mode}")
    ports = [generator.Port(service, protocol, node, cluster) for service in services for protocol in protocols]
    command, rules = generator.rules(ports, node_address, cluster, service_network)
    subprocess.run(command, input=rules, text=True, check=True)


if __name__ == "__main__":
    write_rules(*sys.argv[1:], json.load(sys.stdin))
