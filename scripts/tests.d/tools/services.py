"""Asks every Service of a lab at every address that it has, from pods, nodes and outside, and compares who answered, and whom
it saw as the client, with the table below, which holds what the kernel's VXLAN device with flannel's rules brings about
(services_oracle.sh). Prints each answer that is another, and how many there were; fails if any is.

    services.py PREFIX KUBE_PROXY MASQUERADE [NODE...]      in a lab with Services and a server on each pod and node (exchange.py)

Asked is from the first pod of each NODE, from the node itself, unbound and bound to its address on the underlay, and from the
host outside. A Service with several endpoints is asked only where the answer does not depend on chance, and what affinity
remembers of a client at one address alone.
"""

import collections
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Who asks: a pod, its node (host: unbound, bound: to its address on the underlay, node: either), or the client outside. By
# which policy of the Service: direct is none, a pod's or a node's own address. Where the endpoint is: the client itself (a pod),
# another pod of its node (near) or of another one (far), its own node (here) or another one (there); of the client outside its
# node is the one that it asks. Then, at the ClusterIP, at an external address, at a port of its node, at another node's port at
# the underlay address, and at the tunnel's or bridge's (overlay): whom the endpoint saw. client: the client itself; its: an
# address of the endpoint's own node; H, T: the client's node and the one whose port was asked, tun, und: at its tunnel's or its
# underlay address (own: at the bridge's, if that was asked); lost; refused; -: not asked. Where it is another without masquerade,
# that stands behind a stroke, and behind a second one that of the iptables mode.
TABLE = """
who     policy      endpoint  inside        external  here     underlay        overlay
pod     direct      near      client        -         -        -               -
pod     direct      far       client        -         -        -               -
pod     direct      here      client        -         -        -               -
pod     direct      there     H.und/client  -         -        -               -
pod     cluster     self      its           its       its      T.tun           T.tun
pod     cluster     near      client        -         its      T.tun           T.tun
pod     cluster     far       client        H.tun     H.tun    its             its
pod     cluster     here      client        -         client   T.und           T.und
pod     cluster     there     H.und/client  -         H.und    H.und/client    client
pod     cluster     none      refused       -         refused  refused         refused
pod     local       self      its           its       its      lost/lost/T.tun T.tun/lost/T.tun
pod     local       near      client        -         client   lost            T.tun/lost
pod     local       far       client        client    client   H.und/client    client
pod     inner       self      its           -         -        -               -
pod     inner       near      client        -         -        -               -
pod     inner       none      lost          -         -        -               -
pod     ranged      self      its           its       -        -               -
pod     ranged      far       client        H.tun     -        -               -
pod     ranged-none self      its           lost      -        -               -
pod     ranged-none far       client        lost      -        -               -
node    direct      near      its           -         -        -               -
host    direct      far       H.tun         -         -        -               -
bound   direct      far       H.tun/H.und   -         -        -               -
node    direct      there     H.und         -         -        -               -
node    cluster     near      its           its       its      T.tun           T.tun
node    cluster     far       H.tun         H.tun     H.tun    its             its
node    cluster     here      its           -         its      T.und           T.und
host    cluster     there     H.und         -         H.und    H.und           H.tun
bound   cluster     there     H.und         -         H.und    H.und           H.tun/H.und
node    cluster     none      refused       -         refused  refused         refused
node    local       near      its           its       its      lost            T.tun/lost
host    local       far       H.tun         H.tun     H.own    H.und           H.tun
bound   local       far       H.tun         H.tun     H.tun    H.und           H.tun/H.und
node    inner       near      its           -         -        -               -
node    inner       none      lost          -         -        -               -
node    ranged      near      its           lost      -        -               -
node    ranged      far       H.tun         lost      -        -               -
node    ranged-none near      its           lost      -        -               -
node    ranged-none far       H.tun         lost      -        -               -
client  cluster     near      its           its       its      -               -
client  cluster     far       H.tun         H.tun     H.tun    -               -
client  cluster     here      client        -         client   -               -
client  cluster     there     H.und         -         H.und    -               -
client  cluster     none      refused       -         refused  -               -
client  local       near      its           client    client   -               -
client  local       far       H.tun         lost      lost     -               -
client  inner       near      its           -         -        -               -
client  inner       none      lost          -         -        -               -
client  ranged      near      its           its       -        -               -
client  ranged      far       H.tun         H.tun     -        -               -
client  ranged-none near      its           lost      -        -               -
client  ranged-none far       H.tun         lost      -        -               -
"""
# Where the lab's Services lead to.
PORT = 8080
# Pods that stand where others do: asked for with FULL alone, as a bridge's address is but by a node.
TWINS, FULL = ("pod4", "pod6"), bool(os.environ.get("FULL"))
# Times that a Service with every pod as endpoint is asked: not all by one.
CHANCES = 12
KINDS = {"tun": "tunnel", "und": "underlay"}
# What the socket says of a packet that was refused or lost; of UDP the client's own host says it at once.
FAILED = {"refused": ("ECONNREFUSED", "EPERM"), "lost": ("timeout", "EPERM")}

Question = collections.namedtuple("Question", "kind own address port label server seen")


def table():
    (_, _, _, *columns), *rows = (line.split() for line in TABLE.strip().splitlines())
    found = {}
    for who, policy, endpoint, *cells in rows:
        for one in ("host", "bound") if who == "node" else (who,):
            found[one, policy, endpoint] = dict(zip(columns, cells))
    return found


class Lab:
    """The addresses of one family."""

    def __init__(self, state, family):
        self.family, self.pods, self.nodes = family, {}, {}
        for line in (state / "pods").read_text().splitlines():
            pod, node, *addresses = line.split()
            self.pods[pod] = node, next(one for one in addresses if (":" in one) == (family == 6))
        for line in (state / "nodes").read_text().splitlines():
            words = line.split()
            number = words[0][4:]
            subnet = f"fd00:10:244:{number}::" if family == 6 else f"10.244.{number}."
            tunnel, bridge = (subnet, subnet + "1") if family == 6 else (subnet + "0", subnet + "1")
            self.nodes[words[0]] = {"underlay": words[4 if family == 6 else 2], "tunnel": tunnel, "bridge": bridge}
        self.services = json.loads((state / f"services.{family}").read_text())
        self.ends = (next(iter(self.nodes)), list(self.nodes)[-1])
        self.owners = {address: pod for pod, (_, address) in self.pods.items()}
        self.owners |= {address: f"{node}/{kind}" for node, all_ in self.nodes.items() for kind, address in all_.items()}
        self.owners["2001:db8:192::251" if family == 6 else "192.0.2.251"] = "client"


def spots(lab, service):
    """Where a Service can be asked: which column of the table, whose port, what it is called, address and port."""
    yield "inside", lab.ends[0], "ClusterIP", service["address"], service["port"]
    for node, address in zip(lab.ends, [*service.get("external", []), *service.get("balancer", [])]):
        yield "external", node, address, address, service["port"]
    if service["node_port"]:
        for node, addresses in lab.nodes.items():
            for kind, address in addresses.items():
                yield kind, node, f"{node}/{kind}", address, service["node_port"]


def direct(lab):
    """The pods and nodes themselves, as if each were a Service."""
    places = [*lab.pods.values(), *((node, kinds["underlay"]) for node, kinds in lab.nodes.items())]
    for node, address in places:
        yield {"name": f"lab/{address}", "address": address, "port": PORT, "node_port": 0, "local": False, "direct": True,
               "endpoints": [{"address": address, "node": node}]}


def policy(service, who, column):
    if service.get("direct"):
        return "direct"
    if service.get("inside_local"):
        return "inner"
    if service["name"] == "lab/ranged-none":
        return "ranged-none"
    if service.get("ranges") and not (service["local"] and column == "external" and who in ("pod", "client")):
        return "ranged"
    return "local" if service["local"] else "cluster"


def endpoint_is(lab, endpoints, who, name, here):
    if not endpoints:
        return "none"
    owner, node = lab.owners[endpoints[0]["address"]], endpoints[0]["node"]
    if owner.startswith("node"):
        return "here" if node == here else "there"
    return "self" if owner == name else "near" if node == here else "far"


def questions(lab, rows, who, name, masquerade, mode):
    """What a client asks, and what it is to be answered."""
    home = lab.pods[name][0] if who == "pod" else name
    own = lab.nodes[home]["underlay"] if who == "bound" else "any"
    text = f"IPv{lab.family}, {name}{', bound,' * (who == 'bound')} to "
    for service in [*lab.services, *direct(lab)]:
        for kind, node, what, address, port in spots(lab, service):
            here = node if who == "client" else home
            column = kind if kind in ("inside", "external") else "here" if node == here else "underlay" if kind == "underlay" else "overlay"
            label = f"{text}{service['name'][4:]} at {what}"
            endpoints = service["endpoints"]
            if service.get("inside_local"):
                endpoints = [one for one in endpoints if one["node"] == here]
            if len(endpoints) > 1:
                if (who, kind) in (("pod", "inside"), ("host", "inside")):
                    yield from several(service, own, address, port, label)
                continue
            if column in ("underlay", "overlay") and endpoints and endpoints[0]["node"] not in (here, node):
                continue
            if who == "client" and kind in ("tunnel", "bridge"):
                continue
            if not FULL and ((kind == "bridge" and who != "host") or endpoints and lab.owners[endpoints[0]["address"]] in TWINS):
                continue
            where = endpoint_is(lab, endpoints, who, name, here)
            row = rows.get((who, policy(service, who, column), where))
            cells = row[column].split("/") if row else ["-"]
            cell = cells[0] if masquerade == "on" else cells[-1] if mode == "iptables" else cells[min(1, len(cells) - 1)]
            if cell == "-":
                continue
            server = lab.owners[endpoints[0]["address"]].split("/")[0] if endpoints else None
            asked = "lost" if cell == "lost" else "much" if who == "pod" and where == "far" and column == "inside" else "one"
            yield Question(asked, own, address, port, label, server, seen(lab, cell, name, here, node, kind, endpoints))


def several(service, own, address, port, label):
    if service.get("affinity"):
        yield Question("same", own, address, port, label, None, {"one server"})
    else:
        for number in range(CHANCES):
            yield Question("one", own, address, port, f"{label}, {number}", None, set())


def seen(lab, cell, name, here, node, kind, endpoints):
    """The names of the addresses that a server may have seen, or the failures that there may be."""
    if cell in FAILED:
        return set(FAILED[cell])
    if cell == "client":
        return {name}
    if cell == "its":
        return {f"{endpoints[0]['node']}/{kind}" for kind in lab.nodes[here]}
    whose, _, which = cell.partition(".")
    if which == "own":
        which = "bridge" if kind == "bridge" else "tun"
    return {f"{here if whose == 'H' else node}/{KINDS.get(which, which)}"}


def judged(lab, question, answer, protocol, chosen):
    """What is wrong with an answer, or nothing."""
    server, _, peer = answer.partition(" ")
    if not question.seen:
        chosen.setdefault(question.label.rpartition(",")[0], set()).add(server)
        return None if server in lab.pods else f"{question.label}, {protocol}: {answer}"
    owner = lab.owners.get(peer, peer)
    right = answer in question.seen or (server == question.server and owner in question.seen)
    if right and not (answer == "EPERM" and protocol == "tcp"):
        return None
    expected = f"{question.server or ''} saw {' or '.join(sorted(question.seen))}"
    return f"{question.label}, {protocol}: {server} saw {owner}, expected {expected}"


def ask(prefix, name, all_):
    lines = "".join(f"{one.kind} {one.own} {one.address} {one.port} {one.label}\n" for one in all_)
    command = ["ip", "netns", "exec", f"{prefix}-{name}", sys.executable, str(Path(__file__).with_name("exchange.py")), "ask"]
    return subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def main(prefix, mode, masquerade, *nodes):
    state, rows = Path(f"/run/tartan-lab/{prefix}"), table()
    asked = []
    for family in (4, 6):
        if not (state / f"services.{family}").exists():
            continue
        lab = Lab(state, family)
        first = {node: next(pod for pod, (home, _) in lab.pods.items() if home == node) for node in nodes}
        clients = [(who, first[node] if who == "pod" else node) for node in nodes for who in ("pod", "host", "bound")]
        for who, name in [*clients, ("client", "client")]:
            asked.append((lab, name, list(questions(lab, rows, who, name, masquerade, mode))))
    wrong, chosen, count, lost = [], {}, 0, 0
    with ThreadPoolExecutor(len(asked)) as pool:
        for (lab, _, all_), lines in zip(asked, pool.map(lambda one: ask(prefix, *one[1:]), asked)):
            answers = [line.split("|")[:2] for line in lines]
            for number, (protocol, answer) in enumerate(answers):
                wrong += [judged(lab, all_[number // 2], answer, protocol, chosen)]
            count += len(answers)
            lost += sum(answer == "timeout" for _, answer in answers)
    wrong += [f"{label}: one pod answers everything: {found}" for label, found in chosen.items() if len(found) < 2]
    wrong = [one for one in wrong if one]
    print("\n".join(wrong + [f"{count} answers, {lost} of them none; {len(wrong)} wrong"]))
    sys.exit(1 if wrong or not chosen else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
