"""A container runtime that attaches and detaches pods at random, while the plugin and the service are killed.

    campaign.py PREFIX OPERATIONS BIN SEED POD...

Runs in the network namespace of node1 of the lab PREFIX: OPERATIONS calls of BIN/tartan-cni. A POD is a namespace, and
in it one container after the other, of up to two interfaces. A container ends by DEL until one is answered (as with
kubelet), by a GC whose list does not name it (CRI-O), or by nothing but the end of its namespace (`ctr run -d`): then
the agent takes it away. Pods have a call at a time each, several at once; GC runs alone.
"""

import collections
import concurrent.futures
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

PARALLEL = 6
# Of 100 calls, some of them when they have ended.
KILLED = 35
# Error codes: of an ADD of what is there; of a service that is away.
EXISTS, AWAY = 105, {"ADD": (11,), "CHECK": (11, 50, 51), "STATUS": (50, 51)}
# Seconds with no kill of the service; interfaces whose namespace ended, and that wait for the agent.
PEACE, MOST_LEFT = 8, 40
LIMITS = {"bandwidth": {"ingressRate": 50_000_000, "ingressBurst": 0, "egressRate": 50_000_000, "egressBurst": 0}}


def addresses(result):
    return [address["address"].split("/")[0] for address in result["ips"]] if result else []


class Runtime:
    def __init__(self, prefix, programs, seed, spaces):
        self.lab, self.programs, self.chance = f"/run/tartan-lab/{prefix}", programs, random.Random(seed)
        self.root = f"{self.lab}/node1"
        # Of all calls: the verb and its code.
        self.counts = collections.Counter()
        # Of each service that was killed: from its death to the answer of the next.
        self.outages = []
        # What the runtime believes to be attached: the result of ADD, or None once a call was killed.
        self.known = {}
        # Those that nothing but a GC ends, and those that nothing but the agent does.
        self.for_gc, self.for_agent = set(), []
        self.lives = [self.live(space, random.Random(self.chance.random())) for space in spaces]

    def has_record(self, key):
        return os.path.exists(f"{self.root}/run/tartan/attachments/{key}.json")

    def kill_services(self, chance, over):
        """Every second or so, with pauses in which the agent has its two observations."""
        keeper = open(f"{self.root}/pid").read().strip()
        ready = [f"{self.programs}/tartan", "ready", "--root", self.root]
        while not over.wait(chance.uniform(0.4, 1.4) if chance.randrange(10) else PEACE):
            if children := open(f"/proc/{keeper}/task/{keeper}/children").read().split():
                self.outages.append(outage := [time.monotonic(), float("inf")])
                os.kill(int(children[0]), signal.SIGKILL)
                while subprocess.run(ready, capture_output=True).returncode:
                    assert time.monotonic() - outage[0] < 60, "no service is ready within a minute"
                outage[1] = time.monotonic()

    def call(self, chance, verb, key="", *codes, **more):
        """One call of the plugin; killed, if there is a `chance`, at any time: its code is None."""
        conf = {"cniVersion": "1.1.0", "name": "tartan", "type": "tartan-cni", "root": self.root} | more
        container, _, name = key.partition(":")
        environment = {"CNI_COMMAND": verb, "CNI_PATH": "/usr/lib/cni", "PATH": os.environ["PATH"]}
        if key:
            netns = f"/run/netns/{container.split('.')[0]}"
            environment |= {"CNI_CONTAINERID": container, "CNI_IFNAME": name, "CNI_NETNS": netns}
        is_killed = chance and chance.randrange(100) < KILLED
        until = chance.expovariate(20) if is_killed else 300
        plugin, given, began = f"{self.programs}/tartan-cni", json.dumps(conf).encode(), time.monotonic()
        try:
            done = subprocess.run([plugin], input=given, env=environment, stdout=subprocess.PIPE, timeout=until)
        except subprocess.TimeoutExpired:
            assert is_killed, f"{verb} of {key} takes more than five minutes"
            self.counts[f"{verb} killed"] += 1
            return None, None
        ended, value = time.monotonic(), json.loads(done.stdout) if done.stdout else None
        code = done.returncode and value["code"]
        was_away = any(down <= ended and began <= up for down, up in list(self.outages))
        right = code in (codes or (0,)) or was_away and code in AWAY.get(verb, ())
        assert right, f"{verb} of {key}: {value}"
        assert code or (value is not None) == (verb == "ADD"), f"{verb} succeeded and printed {value}"
        self.counts[f"{verb} {code}"] += 1
        return code, value

    def add(self, chance, key):
        more = {"runtimeConfig": LIMITS} if key.endswith("eth0") and chance.randrange(4) == 0 else {}
        code, result = self.call(chance, "ADD", key, **more)
        if not code:
            self.known[key] = result
        else:
            assert not self.has_record(key), f"ADD of {key} failed and left a record"

    def delete(self, chance, key):
        code, _ = self.call(chance, "DEL", key, prevResult=self.known[key])
        if code is None:
            self.known[key] = None
        else:
            del self.known[key]
            assert not self.has_record(key), f"DEL of {key} succeeded and left a record"

    def collect(self, chance=None):
        """GC: its list has all but what was left to it."""
        keys = [*self.known.keys() - self.for_gc, *self.for_agent]
        listed = [dict(zip(("containerID", "ifname"), key.split(":"))) for key in keys]
        if self.call(chance, "GC", **{"cni.dev/valid-attachments": listed})[0] == 0:
            assert not any(map(self.has_record, self.for_gc)), f"GC left some of {self.for_gc}"
            self.known = {key: result for key, result in self.known.items() if key not in self.for_gc}
            self.for_gc.clear()

    def live(self, space, chance):
        """The containers of a pod. Each yield ends a turn."""
        for number in itertools.count():
            keys = [f"{space}.{number}:{name}" for name in chance.sample(("eth0", "net1"), chance.randrange(1, 3))]
            for key in keys:
                self.add(chance, key)
                yield
            for key in [key for key in keys if self.known.get(key)]:
                self.call(chance, "CHECK", key, prevResult=self.known[key])
                yield
                if chance.randrange(3) == 0:
                    self.call(None, "ADD", key, EXISTS)
                    yield
            way = chance.choice(("DEL", "DEL", "GC", "end") if len(self.for_agent) < MOST_LEFT else ("DEL", "GC"))
            for key in keys:
                # What is half made GC leaves alone for a minute.
                while key in self.known and (way == "DEL" or way == "GC" and not self.known[key]):
                    self.delete(chance, key)
                    yield
            left = self.known.keys() & keys
            if way == "GC":
                self.for_gc |= left
                while self.for_gc & left:
                    yield
            elif left:
                # The namespace ends, and there is another of its name, on the lab's record as in checks.sh.
                self.for_agent += left
                for key in left:
                    del self.known[key]
                for verb in ("delete", "add"):
                    subprocess.run(["ip", "netns", verb, space], check=True)
                with open(f"{self.lab}/namespaces", "a", encoding="ascii") as record:
                    record.write(f"{space} {os.stat(f'/run/netns/{space}').st_ino}\n")

    def campaign(self, operations):
        over = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(PARALLEL + 1) as threads:
            killer = threads.submit(self.kill_services, random.Random(self.chance.random()), over)
            try:
                while self.counts.total() < operations and not killer.done():
                    list(threads.map(next, self.chance.sample(self.lives, 2 * PARALLEL)))
                    if self.chance.randrange(100) < 40:
                        self.collect(self.chance) if self.chance.randrange(3) else self.call(None, "STATUS")
                    given = [address for result in self.known.values() for address in addresses(result)]
                    assert len(given) == len(set(given)), f"an address is given twice: {self.known}"
                    self.for_agent = list(filter(self.has_record, self.for_agent))
            finally:
                over.set()
            killer.result()

    def rest(self):
        """No more kills: what DEL and GC owe is done; what is attached is right, answers, and is detached."""
        self.collect()
        for key in [key for key, result in self.known.items() if not result]:
            self.delete(None, key)
        assert self.known, "nothing is attached in the end"
        for key, result in list(self.known.items()):
            self.call(None, "CHECK", key, prevResult=result)
            for address in addresses(result):
                ping = subprocess.run(["ping", "-q", "-c", "1", "-w", "5", address], stdout=subprocess.DEVNULL)
                assert ping.returncode == 0, f"no answer from {address} of {key}"
            self.delete(None, key)


RUNTIME = Runtime(sys.argv[1], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
try:
    RUNTIME.campaign(int(sys.argv[2]))
    RUNTIME.rest()
finally:
    print("seed", sys.argv[4], len(RUNTIME.outages), "services killed;", dict(sorted(RUNTIME.counts.items())))
