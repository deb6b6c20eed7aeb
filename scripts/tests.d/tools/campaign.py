"""A container runtime that attaches and detaches pods at random, while the plugin and the service are killed.

    campaign.py PREFIX OPERATIONS PLUGIN SEED GRACE [full]

Runs in the network namespace of node1 of the lab PREFIX: OPERATIONS calls of PLUGIN, a third of them killed. Prints
what it did, and fails on the first answer that the specification does not allow, on an address that two have, and on
any difference between what the runtime believes in the end and what the node holds. `full`: STATUS has a bar of time.

A pod is a network namespace with up to two interfaces. An interface is free; held, once ADD printed success: its
addresses are its own until its DEL begins, or its namespace goes; or owed, once a call of it was killed. What is owed
ends as with runtimes: by DEL until one is answered (kubelet), by a GC whose list does not name it (CRI-O), or by
nothing but the end of the namespace (`ctr run -d`): then the agent takes it away after GRACE seconds. In a round
several pods have a call each, in parallel; GC runs alone. Nothing is swept in the end: only GC goes on.

A part of the interfaces are of two other networks, whose addresses Debian's host-local and static give, out of the same
subnets. Those end by DEL alone, if need be long after their namespace: no other program may give back what is theirs.
"""

import collections
import contextlib
import concurrent.futures
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PODS, PARALLEL = 50, 6
SUBNET4, SUBNET6 = "10.244.1", "fd00:10:244:1"
# Of 100 calls; of 100 interfaces, those whose addresses host-local gives, and those of static.
KILLED, HOST_LOCAL, STATIC = 30, 20, 10
# Error codes: no service answered for as long as a plugin waits (5 s); an address of host-local or static is another's;
# STATUS, of a service that is away.
TRY_AGAIN, EXISTS, TAKEN, NOT_AVAILABLE = 11, 105, 101, (50, 51)
# Seconds for which GC takes what is half made for an ADD under way (cni-shim/src/gc.rs); with no kill of the service.
LONGEST_ADD, PEACE = 60, 8
# Namespaces that ended without DEL and wait for the agent; interfaces that wait for GC.
MOST_LEFT, MOST_OWED = 40, 10
LIMITS = {"ingressRate": 50_000_000, "ingressBurst": 0, "egressRate": 50_000_000, "egressBurst": 0}
# What `ip` shows in the end; files beside the records.
OBJECTS = "address", "-4 route show table all", "-6 route show table all", "-4 rule", "-6 rule", "neigh show nud perm"
NO_RECORDS = (".lock", ".last", ".resting")
# STATUS in the end: calls, and milliseconds that half of them take at most.
STATUSES, LONGEST_STATUS = 31, 10

Answer = collections.namedtuple("Answer", "code value began ended")


def expect(truth, what):
    if not truth:
        raise SystemExit(f"WRONG: {what}")


def lines(command):
    return subprocess.run(command.split(), check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def make_namespace(prefix, name):
    """As in checks.sh: what is on the lab's record goes with the lab."""
    lines(f"ip netns add {name}")
    with open(f"/run/tartan-lab/{prefix}/namespaces", "a", encoding="ascii") as record:
        record.write(f"{name} {os.stat(f'/run/netns/{name}').st_ino}\n")


def bare(addresses):
    return [address.split("/")[0] for address in addresses]


class Interface:
    """One attachment. `limited` and `result` are those of the ADD that succeeded, `ipam` is its network's."""

    def __init__(self, pod, container, name):
        self.pod, self.name, self.container, self.key = pod, name, container, f"{container}:{name}"
        self.state, self.fate, self.since, self.result, self.limited, self.ipam = "free", None, 0.0, None, False, None

    def addresses(self):
        return bare(ip["address"] for ip in self.result["ips"]) if self.result else []


class Pod:
    """A namespace and the container in it, which has a new name when the one before is gone."""

    def __init__(self, prefix, number, seed):
        self.name, self.life, self.chance = f"{prefix}-{number}", 0, random.Random(seed)
        self.space, self.path = f"{prefix}-pod{number}", f"/var/run/netns/{prefix}-pod{number}"
        make_namespace(prefix, self.space)
        self.renew()

    def renew(self):
        self.life += 1
        self.interfaces = [Interface(self, f"{self.name}.{self.life}", name) for name in ("eth0", "net1")]


class Node:
    """Seen from outside: its service, that is killed, and its records, that must be right at all times."""

    def __init__(self, prefix):
        self.root = f"/run/tartan-lab/{prefix}/node1"
        self.records = f"{self.root}/run/tartan/attachments"
        # Where the plugin, too, looks for addresses that host-local gave (cni-shim/src/taken.rs).
        self.reservations = f"{self.root}/var/lib/cni/networks"
        ranges = [[{"subnet": f"{SUBNET4}.0/24", "rangeStart": f"{SUBNET4}.120", "rangeEnd": f"{SUBNET4}.254"}],
                  [{"subnet": f"{SUBNET6}::/64", "rangeStart": f"{SUBNET6}::1:1", "rangeEnd": f"{SUBNET6}::1:ffff"}]]
        self.host_local = {"type": "host-local", "dataDir": self.reservations, "ranges": ranges}
        self.keeper = int(open(f"{self.root}/pid").read())
        # From the death of a service to the answer of the next.
        self.outages = []

    def was_away(self, answer):
        """Whether there was no service at some time of a call."""
        return any(began <= answer.ended and answer.began <= ended for began, ended in list(self.outages))

    def kill_services(self, chance, over):
        """Every second or so, with pauses in which the agent has its two observations."""
        while not over.wait(chance.uniform(0.4, 1.4) if chance.randrange(10) else PEACE):
            if children := open(f"/proc/{self.keeper}/task/{self.keeper}/children").read().split():
                outage = [time.monotonic(), float("inf")]
                self.outages.append(outage)
                os.kill(int(children[0]), signal.SIGKILL)
                self.until_ready()
                outage[1] = time.monotonic()

    def ask(self, question):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(f"{self.root}/run/tartan/tartan.sock")
            client.sendall(json.dumps({"call": question}).encode() + b"\n")
            return json.loads(client.makefile().readline())

    def until_ready(self):
        for _ in range(3000):
            with contextlib.suppress(OSError, ValueError):
                if "ok" in self.ask("ready"):
                    return
            time.sleep(0.02)
        expect(False, "no service is ready within a minute")

    def record(self, key):
        """None, if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return json.load(open(f"{self.records}/{key}.json"))

    def expect_record(self, interface):
        record, wanted = self.record(interface.key), interface.addresses()
        right = record and record["state"] == "attached" and bare(record["addresses"]) == wanted
        expect(right, f"{interface.key} has {wanted}, its record is {record}")

    def expect_nothing(self, interface, why):
        expect(not self.record(interface.key), f"the record of {interface.key} is there, and {why}")
        kept = [line for line in self.reserved() if line.endswith(f" {interface.container} {interface.name}")]
        expect(not kept, f"host-local holds {kept}, and {why}")

    def reserved(self):
        """What host-local has given: addresses, and whose."""
        directory = f"{self.reservations}/host-local"
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            if name != "lock" and not name.startswith("last_"):
                with contextlib.suppress(FileNotFoundError):
                    yield " ".join(["reservation", name, *open(f"{directory}/{name}").read().split()])

    def no_address_twice(self):
        """Of all records, killed ones included, while no call runs."""
        holders = {}
        for key in [name[:-5] for name in os.listdir(self.records) if not name.startswith(".")]:
            for address in (self.record(key) or {"addresses": []})["addresses"]:
                other = holders.setdefault(address, key)
                expect(other == key or not self.record(other), f"{address} is of {other} and {key}")

    def facts(self, pods):
        """What the node holds and its agent reports, and what is in the namespaces of its pods: lines, and counted."""
        for space, what in itertools.product(["", *(pod.space for pod in pods)], OBJECTS):
            for line in lines(f"ip {space and '-n'} {space} -o {what}"):
                if not space or not re.search(r"\blo\b", line):
                    yield f"{space}: {re.sub(r'^[0-9]+: |@if[0-9]+|expires [0-9]+sec|[a-z]+_lft .*', '', line)}"
        yield from (re.sub(r"(?<=^qdisc )(\S+) \S+:|refcnt \d+ ", r"\1", line) for line in lines("tc qdisc"))
        table = ""
        for line in lines("nft list ruleset"):
            table = line if line.startswith("table ") else table
            # Elements of sets, each a line. The table of pods comes and goes with them.
            for part in re.split("[,{}]", re.sub(r"packets \d+ bytes \d+|expires \w+", "", line)):
                if part.strip() and (table != "table inet tartan-pods {" or re.search(r"\btt[0-9a-f]{10}", part)):
                    yield f"nft {part.strip()}"
        for directory, _, names in os.walk(self.root):
            if "/sys/" not in directory and not directory.startswith(self.reservations):
                yield from (f"file {directory}/{name}" for name in names if name not in NO_RECORDS)
        yield from self.reserved()
        for row in self.ask("pods")["ok"]["pods"]:
            yield f"agent {row['container']}:{row['ifname']} {row['state']} {' '.join(row['addresses'])}"


class Runtime:
    def __init__(self, prefix, operations, plugin, seed):
        self.prefix, self.operations, self.plugin = prefix, operations, plugin
        self.node, self.chance = Node(prefix), random.Random(seed)
        # Of all: the verb and who gives the addresses, the code, the seconds.
        self.calls = []
        # Interfaces that nothing but a GC ends; keys of those that nothing but the agent does.
        self.for_gc, self.for_agent = [], []
        self.pods = [Pod(prefix, number, self.chance.random()) for number in range(101, 101 + PODS)]

    def interfaces(self, *states):
        return [i for pod in self.pods for i in pod.interfaces if i.state in states]

    def call(self, chance, verb, interface=None, space="", more=None):
        """One call of the plugin; killed, if there is a `chance`, at any time of its usual life: its code is None."""
        conf = {"cniVersion": "1.1.0", "name": "tartan", "type": "tartan-cni", "root": self.node.root}
        environment = {"CNI_COMMAND": verb, "CNI_PATH": "/usr/lib/cni", "PATH": os.environ["PATH"]}
        kind, kill = verb, None
        if interface:
            arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=campaign;K8S_POD_NAME={interface.pod.space}"
            environment |= {"CNI_CONTAINERID": interface.container, "CNI_IFNAME": interface.name,
                            "CNI_NETNS": space, "CNI_ARGS": arguments}
            if interface.ipam:
                kind += f" by {interface.ipam['type']}"
                # Debian's plugins know no later version.
                conf |= {"cniVersion": "1.0.0", "name": interface.ipam["type"], "ipam": interface.ipam}
        if chance and chance.randrange(100) < KILLED:
            known = sorted(took for other, code, took in self.calls[-400:] if (other, code) == (kind, 0))
            kill = chance.uniform(0, known[len(known) // 2] if known else 0.03)
        began = time.monotonic()
        with subprocess.Popen([self.plugin], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            # None takes five minutes.
            timer = threading.Timer(300 if kill is None else kill, process.kill)
            timer.start()
            out, _ = process.communicate(json.dumps(conf | (more or {})).encode())
            timer.cancel()
        code, value = process.returncode, None
        if code == -signal.SIGKILL and kill is not None:
            code = None
        else:
            expect(code >= 0, f"{verb} ended by signal {-code}")
            value = json.loads(out) if out else None
            code = value["code"] if code else 0
            expect(code or (value is not None) == (verb == "ADD"), f"{verb} succeeded and printed {out!r}")
        answer = Answer(code, value, began, time.monotonic())
        self.calls.append((kind, code, answer.ended - began))
        return answer

    def is_right(self, answer, *codes):
        """It was killed, or is one of these codes; or no service answered for as long as a plugin waits."""
        in_vain = answer.code == TRY_AGAIN and answer.ended - answer.began >= 5
        stopped = answer.code in NOT_AVAILABLE or in_vain
        return answer.code is None or answer.code in codes or stopped and self.node.was_away(answer)

    # What a runtime does with one interface.

    def add(self, interface):
        chance, of = interface.pod.chance, interface.pod.chance.randrange(100)
        v4, v6 = f"{SUBNET4}.{chance.randrange(2, 255)}/24", f"{SUBNET6}::2:{chance.randrange(2, 1 << 16):x}/64"
        static = {"type": "static", "addresses": [{"address": v4}, {"address": v6}]}
        interface.ipam = self.node.host_local if of < HOST_LOCAL else static if of < HOST_LOCAL + STATIC else None
        interface.limited = interface.name == "eth0" and chance.randrange(4) == 0
        more = {"runtimeConfig": {"bandwidth": LIMITS}} if interface.limited else None
        answer = self.call(chance, "ADD", interface, interface.pod.path, more)
        if answer.code is None:
            self.owe(interface)
        elif answer.code:
            # What host-local or static gives may be another pod's, which the refusal names.
            said = re.search(r"is taken: it is held by .*container (\S+), interface (\S+)", answer.value["msg"])
            others = said and said[1].startswith(f"{self.prefix}-") and ":".join(said.groups()) != interface.key
            right = self.is_right(answer) or interface.ipam and answer.code == TAKEN and others
            expect(right, f"ADD of {interface.key}: {answer.value}")
            self.node.expect_nothing(interface, "its ADD failed")
        else:
            interface.state, interface.result = "held", answer.value
            self.node.expect_record(interface)

    def again(self, chance, verb, interface, code=0):
        """Of one that is held: CHECK, or a second ADD."""
        answer = self.call(chance, verb, interface, interface.pod.path, {"prevResult": interface.result})
        expect(self.is_right(answer, code), f"{verb} of {interface.key}: {answer.value}")

    def status(self):
        answer = self.call(None, "STATUS")
        expect(self.is_right(answer, 0), f"STATUS: {answer.value}")
        return answer.ended - answer.began

    def delete(self, interface, may_be_killed=True):
        chance = interface.pod.chance
        space = "" if interface.name == "eth0" and chance.randrange(3) == 0 else interface.pod.path
        more = {"prevResult": interface.result} if interface.result and chance.randrange(2) else None
        answer = self.call(may_be_killed and chance, "DEL", interface, space, more)
        if answer.code is None:
            return self.owe(interface)
        expect(answer.code == 0, f"DEL of {interface.key}: {answer.value}")
        self.node.expect_nothing(interface, "its DEL succeeded")
        interface.state, interface.fate, interface.result = "free", None, None

    def owe(self, interface):
        """A call was killed: what the runtime will do about it."""
        may_gc, may_end = len(self.for_gc) < MOST_OWED and not interface.ipam, len(self.for_agent) < MOST_LEFT
        interface.state, interface.since = "owed", time.monotonic()
        interface.fate = interface.pod.chance.choice(["DEL", "DEL"] + ["GC"] * may_gc + ["end"] * may_end)
        if interface.fate == "GC":
            self.for_gc.append(interface)

    def abandon(self, pod):
        """The namespace ends, with no DEL but where another program gave the addresses, and then late."""
        left = [i for i in pod.interfaces if i.state != "free"]
        for interface in left:
            if not interface.ipam and interface.fate != "GC":
                self.for_agent.append(interface.key)
        self.calls.append(("namespace ended without DEL", 0, 0))
        lines(f"ip netns delete {pod.space}")
        make_namespace(self.prefix, pod.space)
        pod.renew()
        for interface in left:
            # Their namespace's path leads to the next one by now.
            while interface.ipam and interface.state != "free":
                self.delete(interface)

    def collect(self, chance=None):
        """GC: its list has all of its network but what was left to it."""
        ours = [i.key for i in self.interfaces("held", "owed") if i.fate != "GC" and i.ipam is None] + self.for_agent
        listed = [dict(zip(("containerID", "ifname"), key.rsplit(":", 1))) for key in ours]
        answer = self.call(chance, "GC", more={"cni.dev/valid-attachments": listed})
        expect(not answer.code, f"GC: {answer.value}")
        for interface in list(self.for_gc) if answer.code == 0 else []:
            if self.node.record(interface.key):
                # It may have been an ADD under way.
                expect(answer.began - interface.since <= LONGEST_ADD + 1, f"GC left {interface.key}")
            else:
                self.for_gc.remove(interface)
                interface.state, interface.fate, interface.result = "free", None, None

    def step(self, pod):
        chance = pod.chance
        interface, what = chance.choice(pod.interfaces), chance.randrange(100)
        states = [i.state for i in pod.interfaces]
        if interface.state == "owed":
            self.settle(pod)
        elif interface.state == "free" and "owed" not in states:
            if states == ["free", "free"]:
                pod.renew()
                interface = chance.choice(pod.interfaces)
            if what < 5:
                self.delete(interface, may_be_killed=False)
            else:
                self.add(interface)
        elif interface.state == "held" and what < 50:
            self.delete(interface)
        elif interface.state == "held" and what < 80:
            self.again(chance, "CHECK", interface)
        elif interface.state == "held" and what < 90:
            self.again(None, "ADD", interface, EXISTS)
        elif "owed" not in states and len(self.for_agent) < MOST_LEFT:
            self.abandon(pod)

    def settle(self, pod):
        """What is owed ends, but by GC. A runtime tries DEL again until it is answered."""
        for interface in pod.interfaces:
            while interface.state == "owed" and interface.fate != "GC":
                if interface.fate == "end" and all(i.fate != "GC" for i in pod.interfaces):
                    return self.abandon(pod)
                self.delete(interface)

    # The whole.

    def campaign(self):
        over, chance = threading.Event(), self.chance
        with concurrent.futures.ThreadPoolExecutor(PARALLEL + 1) as threads:
            killer = threads.submit(self.node.kill_services, random.Random(chance.random()), over)
            try:
                while len(self.calls) < self.operations and not killer.done():
                    list(threads.map(self.step, chance.sample(self.pods, 2 * PARALLEL)))
                    if chance.randrange(100) < 40:
                        self.collect(chance) if chance.randrange(3) else self.status()
                    self.node.no_address_twice()
                    self.for_agent = [key for key in self.for_agent if self.node.record(key)]
                list(threads.map(self.settle, self.pods))
            finally:
                over.set()
            killer.result()

    def rest(self, grace):
        """No more kills. GC goes on; the agent has its two observations."""
        self.node.until_ready()
        began = time.monotonic()
        for interface in [i for i in self.interfaces("held") if i.limited][:1]:
            self.abandon(interface.pod)
        print(f"{len(self.for_gc)} were left to GC, {len(self.for_agent)} to the agent")
        while self.for_gc or any(map(self.node.record, self.for_agent)):
            for interface in [i for i in self.for_gc if self.node.record(i.key)]:
                # A minute that GC would wait for an ADD under way is a minute lost.
                os.utime(f"{self.node.records}/{interface.key}.json", (0, time.time() - LONGEST_ADD - 1))
            self.collect()
            time.sleep(0.2)
            left = [i.key for i in self.for_gc], [key for key in self.for_agent if self.node.record(key)]
            expect(time.monotonic() - began < 2 * grace + 300, f"GC never took {left[0]}, the agent never {left[1]}")
        status, killed = self.node.ask("status")["ok"], len(self.node.outages)
        expect(status["restarts"] == killed, f"{killed} services were killed, and {status['restarts']} started again")
        # What killed writers of records left goes by its age.
        time.sleep(max(0, began + grace + 3 - time.monotonic()))

    def census(self, before):
        """What was there before the first pod is there, and what is there more is of an interface that is held."""
        found, held, tokens = collections.Counter(self.node.facts(self.pods)), self.interfaces("held"), []
        wrong = [f"missing: {line}" for line in before - found]
        for interface in held:
            devices = [re.sub("^tt", kind, interface.result["interfaces"][0]["name"]) for kind in ("tt", "tl")]
            tokens += devices[: 1 + interface.limited] + interface.addresses()
            tokens += [interface.key, f"{interface.key}.json"]
            buckets = sum(bool(re.match(rf"qdisc tbf .*dev ({'|'.join(devices)}) ", line)) for line in found)
            if buckets != 2 * interface.limited:
                wrong.append(f"{buckets} token buckets of {interface.key}")
        tokens = re.compile(rf"(?<![\w.:-])({'|'.join(map(re.escape, tokens))})(?![\w.:-])")
        inside = re.compile("|".join(rf"^{i.pod.space}: .*\b{i.name}\b" for i in held))
        for line, count in (found - before).items():
            if count > 1 or not tokens.search(line) and not inside.search(line):
                wrong.append(f"{count} left: {line}")
        expect(held and not wrong, "the census:\n" + "\n".join(sorted(wrong)))
        print(f"census: {found.total()} facts, {len(held)} attachments, no difference")

    def all_live(self):
        """Each has what it was given, and answers there."""
        pings = {}
        for interface in self.interfaces("held"):
            self.node.expect_record(interface)
            self.again(None, "CHECK", interface)
            for address in interface.addresses():
                ping = f"ping -n -q -c 3 -i 0.2 -W 5 {address}"
                pings[address] = subprocess.Popen(ping.split(), stdout=subprocess.DEVNULL)
        silent = [address for address, ping in pings.items() if ping.wait() != 0]
        expect(not silent, f"no answer from {silent}")


def main(prefix, operations, plugin, seed, grace, full=""):
    print(f"seed {seed}", flush=True)
    runtime = Runtime(prefix, int(operations), plugin, int(seed))
    before = collections.Counter(runtime.node.facts(runtime.pods))
    try:
        runtime.campaign()
        runtime.rest(int(grace))
        runtime.census(before)
        runtime.all_live()
        usual = 1000 * sorted(runtime.status() for _ in range(STATUSES))[STATUSES // 2]
        print(f"half of {STATUSES} calls of STATUS take less than {usual:.1f} ms")
        expect(not full or usual < LONGEST_STATUS, f"less than {LONGEST_STATUS} ms are promised")
    finally:
        counts = collections.Counter(f"{kind} {'killed' if code is None else code}" for kind, code, _ in runtime.calls)
        print(len(runtime.node.outages), "service killed", *(f"\n{count} {what}" for what, count in counts.items()))


main(*sys.argv[1:])
