"""A container runtime that attaches and detaches pods at random, through the plugin, while plugin and service are killed.

    campaign.py PREFIX OPERATIONS BIN [--seed N] [--slots N] [--workers N]
        on node1 of the lab PREFIX: OPERATIONS calls of BIN/tartan-cni, a third of them killed; prints what it did, and
        fails on the first answer that the specification does not allow, on an address that two have, and on any
        difference between what the runtime believes in the end and what the node holds (campaign_census.py).

What the runtime believes is the model. A pod is a network namespace with up to two interfaces; an interface is

    free      nobody attached it, or it was detached
    held      ADD printed success: its addresses are its own until its DEL begins, or its namespace goes
    owed      a call of it was killed; what is there, nobody knows

and what is owed ends as with runtimes: by DEL until one is answered (kubelet), by a GC whose list does not name it
(CRI-O), or by nothing at all but the end of the namespace (`ctr run -d`): then the agent takes it away. No runtime does
two things to one pod at a time, nor GC beside anything else; all else is parallel. No sweep at the end: only GC goes on,
as it did all the time, for what was left to it.

A part of the interfaces are of two other networks, whose addresses Debian's host-local and static give, out of the same
subnets. What one of them gives may be another's by then: that ADD is refused, and host-local gets its address back.
Those interfaces end by DEL alone, if need be long after their namespace: nobody else may give back what is another
program's, and Debian's host-local knows no GC.
"""

import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import threading
import time

import campaign_census
from campaign_node import Node
from campaign_pods import Answer, Gate, Pod, Slow, Wrong, enter

# Of 100 calls.
KILLED = 30
# The exit code of a test that missed nothing but bars of time (test_case.sh).
TOO_SLOW = 75
# Why an ADD of a free interface may fail, and why each is right: 11, the service was killed meanwhile, and none answered
# for as long as a plugin waits (5 s). Nothing else: the range is never full, its addresses are not asked for by name,
# the namespaces are there, and nobody else is at work on these pods.
ADD_MAY_FAIL = {11}
# The interface stands, and is asked for once more.
EXISTS = 105
# An address that host-local or static gives and that somebody has.
TAKEN = 101
# Of 100 interfaces, those whose addresses host-local gives, and those of static. Where Debian has both.
HOST_LOCAL, STATIC = 20, 10
IPAM_PLUGINS = "/usr/lib/cni"
# STATUS: the service was killed meanwhile.
NOT_AVAILABLE = {50, 51}
# Seconds for which GC takes what is half made for an ADD under way (cni-shim/src/gc.rs).
LONGEST_ADD = 60
# Namespaces that ended without DEL and wait for the agent; interfaces that wait for GC.
MOST_LEFT, MOST_OWED = 40, 10
LIMITS = {"ingressRate": 50_000_000, "ingressBurst": 0, "egressRate": 50_000_000, "egressBurst": 0}


class Runtime:
    def __init__(self, order):
        self.prefix, self.bin, self.node = order.prefix, order.bin, Node(order.prefix)
        self.operations, self.calls = order.operations, 0
        self.lock, self.gate, self.over = threading.RLock(), Gate(), threading.Event()
        self.counts, self.took = collections.Counter(), collections.defaultdict(lambda: collections.deque(maxlen=50))
        # Whose each address is: of interfaces that are held, and of those whose namespace is gone.
        self.holders, self.leavers = {}, {}
        # Interfaces that nothing but a GC ends, and those that nothing but the agent does.
        self.for_gc, self.for_agent = [], []
        self.failure = None
        self.pods = [Pod(self, number) for number in range(1, order.slots + 1)]

    # One call.

    def call(self, verb, interface=None, space="", kill=None, more=None):
        conf = {"cniVersion": "1.1.0", "name": "tartan", "type": "tartan-cni", "root": self.node.root}
        if interface and interface.ipam:
            # Debian's plugins know no later version.
            conf |= {"cniVersion": "1.0.0", "name": interface.ipam["type"], "ipam": interface.ipam}
        conf |= more or {}
        environment = {"CNI_COMMAND": verb, "CNI_PATH": f"{self.bin}:{IPAM_PLUGINS}", "PATH": os.environ["PATH"]}
        if interface:
            environment |= {
                "CNI_CONTAINERID": interface.container,
                "CNI_IFNAME": interface.name,
                "CNI_NETNS": space,
                "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=campaign;K8S_POD_NAME={interface.pod.space}",
            }
        began = time.monotonic()
        pipe = subprocess.PIPE
        plugin = f"{self.bin}/tartan-cni"
        with subprocess.Popen([plugin], env=environment, stdin=pipe, stdout=pipe) as process:
            timer = threading.Timer(kill, process.kill) if kill is not None else None
            if timer:
                timer.start()
            try:
                out, _ = process.communicate(json.dumps(conf).encode(), timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Wrong(f"{verb} took a minute") from None
            finally:
                if timer:
                    timer.cancel()
        answer = Answer(verb, process, out, began, kill is not None)
        with self.lock:
            self.calls += 1
            by = f" by {interface.ipam['type']}" if interface and interface.ipam else ""
            self.counts[f"{verb}{by} {'killed' if answer.code is None else answer.code or 'ok'}"] += 1
            if answer.code == 0:
                self.took[verb + by].append(answer.ended - began)
        return answer

    def moment(self, chance, verb, interface=None):
        """When to kill a call, if at all: at any time of its usual life."""
        if chance.randrange(100) >= KILLED:
            return None
        by = f" by {interface.ipam['type']}" if interface and interface.ipam else ""
        with self.lock:
            known = sorted(self.took[verb + by])
        return chance.uniform(0, known[len(known) // 2] if known else 0.03)

    # What a runtime does with one interface.

    def add(self, chance, interface):
        interface.ipam = self.ipam(chance)
        limited = interface.name == "eth0" and chance.randrange(4) == 0
        more = {"runtimeConfig": {"bandwidth": LIMITS}} if limited else None
        answer = self.call("ADD", interface, interface.pod.path, self.moment(chance, "ADD", interface), more)
        if answer.code is None:
            return self.owe(chance, interface)
        if answer.code != 0:
            late = answer.code in ADD_MAY_FAIL and self.node.waited_in_vain(answer)
            if not late and not self.is_taken(interface, answer):
                raise Wrong(f"ADD of {interface.key} failed: {answer.out!r}")
            return self.node.expect_nothing(interface, "its ADD failed")
        with self.lock:
            interface.state, interface.result, interface.limited = "held", answer.value, limited
            for address in interface.addresses():
                self.take(address, interface.key)
        self.node.expect_record(interface)

    def ipam(self, chance):
        """Who gives the next interface its addresses: None is the node's own range."""
        which = chance.randrange(100)
        if which < HOST_LOCAL:
            return self.node.host_local
        if which < HOST_LOCAL + STATIC:
            v4, v6 = self.node.asked_for(chance.randrange(2, 255), chance.randrange(2, 1 << 16))
            return {"type": "static", "addresses": [{"address": v4}, {"address": v6}]}
        return None

    def is_taken(self, interface, answer):
        """What host-local or static gives is another pod's of this campaign, whom the refusal names."""
        if interface.ipam is None or answer.code != TAKEN:
            return False
        said = re.search(r"(\S+) was asked for and is taken: it is held by (.*)", answer.value["msg"])
        if said is None or f"container {interface.container}, interface {interface.name}" in said[2]:
            return False
        asked = [address["address"].split("/")[0] for address in interface.ipam.get("addresses", [])]
        return f"{self.prefix}-" in said[2] and (not asked or said[1] in asked)

    def take(self, address, key):
        if address in self.holders:
            raise Wrong(f"{address} is given to {key}, and {self.holders[address]} has it")
        left = self.leavers.pop(address, None)
        if left and os.path.exists(f"{self.node.records}/{left}.json"):
            raise Wrong(f"{address} is given to {key}, and the record of {left} has it")
        self.holders[address] = key

    def add_again(self, interface):
        answer = self.call("ADD", interface, interface.pod.path)
        if answer.code != EXISTS and not (answer.code in ADD_MAY_FAIL and self.node.waited_in_vain(answer)):
            raise Wrong(f"a second ADD of {interface.key}: {answer.out!r}")
        self.node.expect_record(interface)

    def delete(self, chance, interface, kill=True):
        self.let_go(interface, self.holders)
        space = chance.choice([interface.pod.path, interface.pod.path, ""]) if interface.name == "eth0" else interface.pod.path
        more = {"prevResult": interface.result} if interface.result and chance.randrange(2) else None
        answer = self.call("DEL", interface, space, self.moment(chance, "DEL", interface) if kill else None, more)
        if answer.code is None:
            return self.owe(chance, interface)
        if answer.code != 0:
            raise Wrong(f"DEL of {interface.key} failed: {answer.out!r}")
        self.node.expect_nothing(interface, "its DEL succeeded")
        interface.state, interface.result = "free", None

    def check(self, chance, interface):
        kill = self.moment(chance, "CHECK", interface)
        answer = self.call("CHECK", interface, interface.pod.path, kill, {"prevResult": interface.result})
        if answer.code and not (answer.code == 11 and self.node.waited_in_vain(answer)):
            raise Wrong(f"CHECK of {interface.key} failed: {answer.out!r}")

    def status(self):
        answer = self.call("STATUS")
        if answer.code and not (answer.code in NOT_AVAILABLE and self.node.outage(answer)):
            raise Wrong(f"STATUS failed: {answer.out!r}")

    def owe(self, chance, interface):
        """A call was killed: what the runtime will do about it."""
        interface.state, interface.since = "owed", time.monotonic()
        with self.lock:
            fates = ["DEL", "DEL"]
            if len(self.for_gc) < MOST_OWED and interface.ipam is None:
                fates.append("GC")
            if len(self.for_agent) < MOST_LEFT:
                fates.append("end")
            interface.fate = chance.choice(fates)
            if interface.fate == "GC":
                self.for_gc.append(interface)

    def abandon(self, chance, pod):
        """The namespace ends, and nobody calls DEL but where another program gave the addresses, and then late."""
        late = [interface for interface in pod.interfaces if interface.state != "free" and interface.ipam]
        with self.lock:
            for interface in pod.interfaces:
                if interface in late:
                    continue
                if interface.state == "held":
                    self.leavers |= dict.fromkeys(interface.addresses(), interface.key)
                self.let_go(interface, self.holders)
                if interface.state != "free" and interface.fate != "GC":
                    self.for_agent.append((interface.container, interface.name))
            self.counts["namespaces ended without DEL"] += 1
        pod.end()
        for interface in late:
            # Their namespace's path leads to the next one by now.
            while interface.state != "free":
                self.delete(chance, interface)
            self.counts["DEL after the end of the namespace"] += 1

    def let_go(self, interface, of):
        with self.lock:
            for address in [address for address, key in of.items() if key == interface.key]:
                del of[address]

    def collect(self, chance, kill=True):
        """GC, alone: its list has all but what was left to it."""
        self.gate.enter(alone=True)
        try:
            with self.lock:
                # Of its own network alone: it leaves the others' interfaces alone, which it is not told of.
                mine = [i for pod in self.pods for i in pod.interfaces if i.state != "free" and i.ipam is None]
                held = [i for i in mine if i.fate != "GC"]
                valid = [(i.container, i.name) for i in held] + self.for_agent
            listed = [{"containerID": container, "ifname": name} for container, name in valid]
            kill = self.moment(chance, "GC") if kill else None
            began = time.monotonic()
            answer = self.call("GC", kill=kill, more={"cni.dev/valid-attachments": listed})
            if answer.code:
                raise Wrong(f"GC failed: {answer.out!r}")
            if answer.code == 0:
                self.collected(began)
        finally:
            self.gate.leave(alone=True)

    def collected(self, began):
        """What a GC had to take is gone: all but what may have been an ADD under way."""
        for interface in list(self.for_gc):
            old_enough = began - interface.since > LONGEST_ADD + 1
            if os.path.exists(f"{self.node.records}/{interface.key}.json"):
                if old_enough:
                    raise Wrong(f"GC left {interface.key}")
                continue
            with self.lock:
                self.for_gc.remove(interface)
            interface.state, interface.fate, interface.result = "free", None, None
            self.counts["owed, ended by GC"] += 1

    # The parties.

    def work(self, chance, pods):
        while self.goes_on():
            if chance.randrange(100) < 4:
                self.status() if chance.randrange(3) == 0 else self.collect(chance)
                continue
            self.gate.enter()
            try:
                self.step(chance, chance.choice(pods))
            finally:
                self.gate.leave()
        # A runtime tries DEL again until it is answered.
        self.gate.enter()
        try:
            for interface in [interface for pod in pods for interface in pod.interfaces]:
                self.settle(chance, interface)
        finally:
            self.gate.leave()

    def step(self, chance, pod):
        interface = chance.choice(pod.interfaces)
        if interface.state == "owed":
            self.settle(chance, interface)
        elif interface.state == "free":
            if any(other.state == "owed" for other in pod.interfaces):
                return
            pod.refresh()
            interface = chance.choice([i for i in pod.interfaces if i.state == "free"])
            if chance.randrange(20) == 0:
                self.delete(chance, interface, kill=False)
            else:
                self.add(chance, interface)
        else:
            what = chance.randrange(100)
            if what < 50:
                self.delete(chance, interface)
            elif what < 80:
                self.check(chance, interface)
            elif what < 90:
                self.add_again(interface)
            elif len(self.for_agent) < MOST_LEFT and all(i.state != "owed" for i in pod.interfaces):
                self.abandon(chance, pod)

    def settle(self, chance, interface):
        if interface.state != "owed" or interface.fate == "GC":
            return
        if interface.fate == "end":
            if any(other.fate == "GC" and other.state == "owed" for other in interface.pod.interfaces):
                interface.fate = "DEL"
            else:
                return self.abandon(chance, interface.pod)
        while interface.state == "owed" and interface.fate == "DEL":
            interface.fate = None
            self.delete(chance, interface)
        if interface.state == "free":
            interface.fate = None
        elif interface.state == "owed":
            self.settle(chance, interface)

    def goes_on(self):
        return self.calls < self.operations and not self.failure

    def watch(self):
        while not self.over.wait(0.1):
            self.node.no_address_twice()
            with self.lock:
                self.for_agent = [key for key in self.for_agent if self.node.is_recorded(key)]

    # The whole.

    def started(self, party, *arguments):
        def body():
            enter(f"{self.prefix}-node1")
            try:
                party(*arguments)
            except Exception as failure:  # of whatever kind: the others are to end
                with self.lock:
                    self.failure = self.failure or failure

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def campaign(self, order):
        chance = random.Random(order.seed)
        parts = [self.pods[n :: order.workers] for n in range(order.workers)]
        workers = [self.started(self.work, random.Random(chance.random()), part) for part in parts]
        killer = self.started(self.node.kill_services, random.Random(chance.random()), self.over)
        others = [killer, self.started(self.watch)]
        for thread in workers:
            thread.join()
        self.over.set()
        for thread in others:
            thread.join()
        if self.failure:
            raise self.failure

    def rest(self, chance, grace):
        """Nobody is killed any more. GC goes on; the agent has its two observations."""
        enter(f"{self.prefix}-node1")
        self.node.until_ready()
        limited = (pod for pod in self.pods if pod.interfaces[0].limited and pod.interfaces[0].state == "held")
        if (pod := next(limited, None)) is not None:
            self.abandon(chance, pod)
        began = time.monotonic()
        before, waiting = self.waiting()
        for_gc = len(self.for_gc)
        while self.for_gc:
            self.age_what_is_half_made()
            self.collect(chance, kill=False)
            time.sleep(1)
            if time.monotonic() - began > LONGEST_ADD + 10:
                raise Wrong(f"GC never took {[interface.key for interface in self.for_gc]}")
        while left := [key for key in self.for_agent if self.node.is_recorded(key)]:
            time.sleep(0.2)
            if time.monotonic() - began > 2 * grace + LONGEST_ADD + 10:
                raise Wrong(f"the agent never took {left}")
        if (restarts := self.node.ask("status")["ok"]["restarts"]) != self.node.killed:
            raise Wrong(f"the service was killed {self.node.killed} times and started again {restarts} times")
        # What killed writers of records left goes by its age.
        time.sleep(max(0, began + grace + 3 - time.monotonic()))
        told = self.node.ask("status")["ok"]["reclaimed"] - before
        # Of what waited for GC the agent may have been first to take what never had an interface.
        if not waiting <= told <= waiting + for_gc:
            raise Wrong(f"{waiting} attachments were left to the agent, and it says that it took {told}")
        print(f"reclaimed by the agent, at the end alone: {told}")

    def age_what_is_half_made(self):
        """Nobody is at work: a minute that GC would wait for an ADD under way is a minute lost."""
        for interface in self.for_gc:
            path = f"{self.node.records}/{interface.key}.json"
            try:
                before = os.stat(path).st_mtime
                os.utime(path, (before, min(before, time.time() - LONGEST_ADD - 1)))
            except FileNotFoundError:
                pass

    def waiting(self):
        """How many attachments the agent has taken, and how many it has still to take."""
        while True:
            before = self.node.ask("status")["ok"]["reclaimed"]
            waiting = len([key for key in self.for_agent if self.node.is_recorded(key)])
            if before == self.node.ask("status")["ok"]["reclaimed"]:
                return before, waiting

    def held(self):
        return [i for pod in self.pods for i in pod.interfaces if i.state == "held"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prefix")
    parser.add_argument("operations", type=int)
    parser.add_argument("bin")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--slots", type=int, default=50)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--grace", type=int, default=60, help="seconds after which the agent reclaims")
    order = parser.parse_args()
    print(f"--seed {order.seed}", flush=True)
    runtime = Runtime(order)
    census = campaign_census.Census(runtime)
    try:
        began = time.monotonic()
        runtime.campaign(order)
        print(f"{order.operations} operations in {time.monotonic() - began:.1f} s", flush=True)
        runtime.rest(random.Random(order.seed), order.grace)
        census.compare()
        census.everybody_lives()
        census.status_is_quick()
    except Wrong as wrong:
        print(f"WRONG: {wrong}")
        return 1
    except Slow as slow:
        print(f"SLOW: {slow}")
        return TOO_SLOW
    finally:
        runtime.counts["services killed"] = runtime.node.killed
        for what, count in sorted(runtime.counts.items()):
            print(f"{count:7} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
