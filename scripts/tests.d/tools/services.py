"""The Services of a lab, asked at every address that they have: who answered, and whom it saw as the client, is as in
the table below, which is what the kernel's VXLAN device with flannel's rules brings about (services_oracle.sh).

    services.py serve                               answers on each pod and node
    services.py ask KUBE_PROXY MASQUERADE NODE...   from the first pod of each NODE, from the node, unbound and bound to
                                                    its address on the underlay, and from outside; prints what is wrong
    services.py move CMD...                         UDP flows, whose endpoint CMD moves from pod1 to pod5: one that its
                                                    node still tracked would go on to the old one

A Service with several endpoints is asked only where the answer does not depend on chance, and what affinity remembers
of a client at one address alone.
"""

import collections
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import exchange
import spaces

# Who asks: a pod, its node (host: unbound, bound: to its address on the underlay, node: either), or the client outside.
# By which policy of the Service: direct is none, a pod's or a node's own address. Where the endpoint is: the client
# itself, another pod of its node (near) or of another one (far), its own node (here) or another one (there); of the
# client outside its node is the one that it asks. Then whom the endpoint saw, asked at the ClusterIP, at an external
# address, at a port of the client's node, at another's port at the underlay address, and at the tunnel's or bridge's.
# client: the client itself; its: an address of the endpoint's own node; H, T: the client's node and the one whose port
# was asked, at its tunnel's or its underlay address (own: at the bridge's, if that was asked). -: not asked. What is
# another without masquerade stands behind a stroke, and behind a second one that of the iptables mode.
TABLE = """
who              policy              endpoint         inside        external  here     underlay        overlay
pod              direct,inner        near,far,here    client        -         -        -               -
pod              direct              there            H.und/client  -         -        -               -
pod              cluster             self             its           its       its      T.tun           T.tun
pod              cluster             near             client        -         its      T.tun           T.tun
pod              cluster             far              client        H.tun     H.tun    its             its
pod,client       cluster             here             client        -         client   T.und           T.und
pod              cluster             there            H.und/client  -         H.und    H.und/client    client
pod,node,client  cluster             none             refused       -         refused  refused         refused
pod              local               self             its           its       its      lost/lost/T.tun T.tun/lost/T.tun
pod              local               near             client        -         client   lost            T.tun/lost
pod              local               far              client        client    client   H.und/client    client
pod              inner               self             its           -         -        -               -
pod,node,client  inner               none             lost          -         -        -               -
pod,client       ranged              self,near        its           its       -        -               -
pod              ranged              far              client        H.tun     -        -               -
pod,node,client  ranged-none         self,near        its           lost      -        -               -
pod              ranged-none         far              client        lost      -        -               -
node             direct              near             its           -         -        -               -
node             direct              there            H.und         -         -        -               -
host             direct              far              H.tun         -         -        -               -
bound            direct              far              H.tun/H.und   -         -        -               -
node,client      cluster             near             its           its       its      T.tun           T.tun
node,client      cluster             far              H.tun         H.tun     H.tun    its             its
node             cluster             here             its           -         its      T.und           T.und
host,client      cluster             there            H.und         -         H.und    H.und           H.tun
bound            cluster             there            H.und         -         H.und    H.und           H.tun/H.und
node             local               near             its           its       its      lost            T.tun/lost
host             local               far              H.tun         H.tun     H.own    H.und           H.tun
bound            local               far              H.tun         H.tun     H.tun    H.und           H.tun/H.und
node,client      inner               near             its           -         -        -               -
node             ranged              near             its           lost      -        -               -
node             ranged,ranged-none  far              H.tun         lost      -        -               -
client           local               near             its           client    client   -               -
client           local               far              H.tun         lost      lost     -               -
client           ranged              far              H.tun         H.tun     -        -               -
client           ranged-none         far              H.tun         lost      -        -               -
"""
# Where the lab's Services lead to.
PORT = 8080
# Pods that stand where others do: asked for with FULL alone, as a bridge's address is but by a node.
TWINS, FULL = ("pod4", "pod6"), bool(os.environ.get("FULL"))
# Times that a Service with every pod as endpoint is asked: by one server all if it has affinity, by several if not.
CHANCES = 12
# Questions at a time in a namespace, and of those that wait in vain; for how many seconds.
WORKERS, WAITING, PATIENCE = 6, 16, (1.5,)
# What the socket says of a packet that was refused or lost; of UDP the client's own host says it at once.
FAILED = {"refused": {"ECONNREFUSED", "EPERM"}, "lost": {"timeout", "EPERM"}}
STATE = Path("/run/tartan-lab") / spaces.PREFIX

Question = collections.namedtuple("Question", "kind own address port label server seen")


class Lab:
    """The addresses of one family, and its Services; behind them the pods and nodes themselves, as if each were one."""

    def __init__(self, family):
        self.family, self.pods, self.nodes = family, {}, {}
        for pod, node, *addresses in map(str.split, (STATE / "pods").open()):
            self.pods[pod] = node, next(one for one in addresses if (":" in one) == (family == 6))
        for words in map(str.split, (STATE / "nodes").open()):
            subnet = f"fd00:10:244:{words[0][4:]}::" if family == 6 else f"10.244.{words[0][4:]}."
            tunnel = subnet if family == 6 else subnet + "0"
            self.nodes[words[0]] = {"und": words[family - 2], "tun": tunnel, "bridge": subnet + "1"}
        self.places = self.pods | {node: (node, kinds["und"]) for node, kinds in self.nodes.items()}
        file = STATE / f"services.{family}"
        self.services = json.loads(file.read_text()) if file.exists() else []
        for node, address in self.places.values():
            own = {"name": f"lab/{address}", "address": address, "endpoints": [{"address": address, "node": node}]}
            self.services.append(own | {"port": PORT, "node_port": 0, "local": False, "direct": True})
        self.ends = next(iter(self.nodes)), list(self.nodes)[-1]
        self.owners = {address: pod for pod, (_, address) in self.pods.items()}
        self.owners |= {one: f"{node}/{kind}" for node, kinds in self.nodes.items() for kind, one in kinds.items()}
        self.owners["2001:db8:192::251" if family == 6 else "192.0.2.251"] = "client"

    def asked(self):
        """Each Service, and where it can be asked: kind of address, whose port, what it is called, address and port."""
        for service in self.services:
            yield service, ("inside", self.ends[0], "ClusterIP", service["address"], service["port"])
            for node, address in zip(self.ends, [*service.get("external", []), *service.get("balancer", [])]):
                yield service, ("external", node, address, address, service["port"])
            for node, kinds in self.nodes.items() if service["node_port"] else ():
                for kind, address in kinds.items():
                    yield service, (kind, node, f"{node}/{kind}", address, service["node_port"])


def labs():
    """Of the families that both nodes and pods have, and ASKED names."""
    words, asked = (STATE / "nodes").read_text().split(), os.environ.get("ASKED", "4 6")
    return [Lab(family) for family in (4, 6) if "-" not in words[family - 2 : family] and str(family) in asked]


def cells_by_row():
    (_, _, _, *columns), *rows = (line.split() for line in TABLE.strip().splitlines())
    for *keys, cells in ((*row[:3], row[3:]) for row in rows):
        for who, policy, endpoint in itertools.product(*(key.split(",") for key in keys)):
            for one in ("host", "bound") if who == "node" else (who,):
                yield (one, policy, endpoint), dict(zip(columns, cells))


def row_of(lab, service, endpoints, who, name, here, column):
    """The words that name a row of the table: who asks, the policy, where the endpoint is."""
    ranged = service.get("ranges") and not (service["local"] and column == "external" and who in ("pod", "client"))
    policy = ("direct" if service.get("direct") else "inner" if service.get("inside_local")
              else "ranged-none" if service["name"] == "lab/ranged-none" else "ranged" if ranged
              else "local" if service["local"] else "cluster")
    if not endpoints:
        return who, policy, "none"
    owner, is_here = lab.owners[endpoints[0]["address"]], endpoints[0]["node"] == here
    if owner.startswith("node"):
        return who, policy, "here" if is_here else "there"
    return who, policy, "self" if owner == name else "near" if is_here else "far"


def questions(lab, rows, who, name, mode):
    """What a client asks, and what it is to be answered; mode: which of a cell's answers."""
    home = lab.pods[name][0] if who == "pod" else name
    own = lab.nodes[home]["und"] if who == "bound" else "any"
    for service, (kind, node, what, *where) in lab.asked():
        here = node if who == "client" else home
        column = "here" if node == here else {"und": "underlay"}.get(kind, "overlay")
        column = kind if kind in ("inside", "external") else column
        label = f"IPv{lab.family}, {name}{', bound,' * (who == 'bound')} to {service['name'][4:]} at {what}"
        endpoints = service["endpoints"]
        if service.get("inside_local"):
            endpoints = [one for one in endpoints if one["node"] == here]
        if len(endpoints) > 1:
            if kind == "inside" and who in ("pod", "host"):
                wanted = {"one server" if service.get("affinity") else "several"}
                yield Question("often", own, *where, label, None, wanted)
            continue
        owner = lab.owners[endpoints[0]["address"]] if endpoints else ""
        # The port of a node that has nothing to do with it; the client's ways to tunnel and bridge; what others show.
        if (column in ("underlay", "overlay") and endpoints and endpoints[0]["node"] not in (here, node)
                or who == "client" and kind in ("tun", "bridge")
                or not FULL and (kind == "bridge" and who != "host" or owner in TWINS)):
            continue
        row = row_of(lab, service, endpoints, who, name, here, column)
        cells = rows.get(row, {column: "-"})[column].split("/")
        cell = cells[min(mode, len(cells) - 1)]
        if cell != "-":
            amount = "lost" if cell == "lost" else "much" if row[::2] == ("pod", "far") and kind == "inside" else "one"
            whose, _, which = cell.partition(".")
            which = {"own": "bridge" if kind == "bridge" else "tun"}.get(which, which)
            # The names of the addresses that a server may have seen, or the failures that there may be.
            seen = FAILED.get(cell) or {f"{here if whose == 'H' else node}/{which}"}
            if cell in ("client", "its"):
                seen = {name} if cell == "client" else {f"{endpoints[0]['node']}/{one}" for one in lab.nodes[here]}
            yield Question(amount, own, *where, label, owner.split("/")[0], seen)


def answered(name, question, protocol):
    size = len(exchange.DATA) if question.kind == "much" else exchange.LITTLE
    given = protocol, *question[1:4], size, PATIENCE if question.kind == "lost" else None
    times = range(CHANCES if question.kind == "often" else 1)
    answers = [spaces.inside(name, lambda: exchange.ask(*given)) for _ in times]
    if question.kind != "often":
        return answers[0]
    # What the first question has made the node remember holds for all that follow.
    servers = {answer.split(" ")[0] for answer in answers}
    if not all(server.startswith("pod") for server in servers):
        return f"some of {sorted(servers)}"
    return "one server" if len(servers) == 1 else "several"


def wrong_with(lab, question, protocol, answer):
    server, _, peer = answer.partition(" ")
    owner = lab.owners.get(peer, peer)
    right = answer in question.seen or (server == question.server and owner in question.seen)
    if not right or answer == "EPERM" and protocol == "tcp":
        expected = f"{question.server or ''} saw {' or '.join(sorted(question.seen))}"
        yield f"{question.label}, {protocol}: {server} saw {owner}, expected {expected}"


def ask(mode, masquerade, *nodes):
    rows, todo, pools = dict(cells_by_row()), [], {}
    mode = 0 if masquerade == "on" else 2 if mode == "iptables" else 1
    for lab in labs():
        first = {node: next(pod for pod, (home, _) in lab.pods.items() if home == node) for node in nodes}
        clients = [(who, first[node] if who == "pod" else node) for node in nodes for who in ("pod", "host", "bound")]
        for who, name in [*clients, ("client", "client")]:
            for question in questions(lab, rows, who, name, mode):
                key = name, WAITING if question.kind == "lost" else WORKERS
                pool = pools.setdefault(key, ThreadPoolExecutor(key[1]))
                todo += [(lab, question, one, pool.submit(answered, name, question, one)) for one in ("tcp", "udp")]
    answers = [(*asked, future.result()) for *asked, future in todo]
    wrong = [text for answer in answers for text in wrong_with(*answer)]
    lost = sum(answer == "timeout" for *_, answer in answers)
    print("\n".join(wrong + [f"{len(answers)} answers, {lost} of them none; {len(wrong)} wrong"]))
    return bool(wrong or not answers)


def serve():
    for lab in labs():
        for name, (_, address) in lab.places.items():
            spaces.inside(name, lambda: exchange.serve(name, PORT, [address]))
    print("all serve", flush=True)


def move(*command):
    flows, said, findings = {}, collections.defaultdict(list), spaces.Findings()
    for lab in labs():
        moving = next(one for one in lab.services if one["name"] == "lab/moving")
        ways = [(name, "ClusterIP", moving["address"], moving["port"]) for name in ("pod1", "pod2", "pod5", *lab.ends)]
        ways += [("client", node, lab.nodes[node]["und"], moving["node_port"]) for node in lab.ends]
        for client, what, *where in ways:
            kind = exchange.family(where[0]), socket.SOCK_DGRAM
            flows[f"{client} to {what}, IPv{lab.family}"] = asking = spaces.inside(client, lambda: socket.socket(*kind))
            asking.settimeout(0.05)
            asking.connect(tuple(where))

    def all_say(server):
        """A datagram of each; of one whose answer is another than before it is noted."""
        for what, asking in flows.items():
            # Lost while the endpoint changes, or refused.
            with contextlib.suppress(OSError):
                one = exchange.exchange("udp", asking, exchange.DATA[: exchange.LITTLE]).split()[0]
                said[what] += [one] if said[what][-1:] != [one] else []
        time.sleep(0.03)
        return all(said[what][-1:] == [server] for what in flows)

    spaces.soon(lambda: all_say("pod1"), True)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as moved:
        while moved.poll() is None:
            all_say("pod5")
    spaces.soon(lambda: all_say("pod5"), True)
    for what in flows:
        findings.equal(f"{what}: who answered", ["pod1", "pod5"], said[what])
    return bool(findings.failures or moved.returncode)


if __name__ == "__main__":
    sys.exit({"serve": serve, "ask": ask, "move": move}[sys.argv[1]](*sys.argv[2:]))
