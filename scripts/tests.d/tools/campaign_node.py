"""The node of campaign.py, seen from outside: its service, that is killed, and its records, that must be right at all times."""

import collections
import json
import os
import signal
import socket
import threading
import time

from campaign_pods import Wrong

# Seconds of kills, and of peace, in which the agent has its two observations.
STORM, PEACE = 10, 8
# What host-local keeps beside its reservations.
HOST_LOCAL_NOTES = {"lock", "last_reserved_ip.0", "last_reserved_ip.1"}


class Node:
    def __init__(self, prefix):
        self.root = f"/run/tartan-lab/{prefix}/node1"
        self.records = f"{self.root}/run/tartan/attachments"
        # Where the plugin, too, looks for addresses that host-local gave (cni-shim/src/taken.rs).
        self.reservations = f"{self.root}/var/lib/cni/networks"
        self.host_local = {
            "type": "host-local",
            "dataDir": self.reservations,
            "ranges": [
                [{"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.120", "rangeEnd": "10.244.1.254"}],
                [{"subnet": "fd00:10:244:1::/64", "rangeStart": "fd00:10:244:1::1:1", "rangeEnd": "fd00:10:244:1::1:ffff"}],
            ],
        }
        self.keeper = int(open(f"{self.root}/pid").read())
        # From the death of a service to the answer of the next.
        self.outages, self.killed = [], 0

    def outage(self, answer):
        """Whether the service was away at some time of a call."""
        return any(began <= answer.ended and answer.began <= ended for began, ended in list(self.outages))

    def waited_in_vain(self, answer):
        """The plugin asks for five seconds before it gives up; a service that was there sooner should have answered."""
        return self.outage(answer) and answer.ended - answer.began >= 5

    def kill_services(self, chance, over):
        """Every second or so, with pauses."""
        until = time.monotonic() + STORM
        while not over.wait(chance.uniform(0.4, 1.4)):
            if time.monotonic() > until:
                if over.wait(PEACE):
                    break
                until = time.monotonic() + STORM
            service = self.service()
            if service is None:
                continue
            outage = [time.monotonic(), float("inf")]
            self.outages.append(outage)
            os.kill(service, signal.SIGKILL)
            self.killed += 1
            self.until_ready()
            outage[1] = time.monotonic()

    def is_recorded(self, key):
        container, name = key
        return os.path.exists(f"{self.records}/{container}:{name}.json")

    def service(self):
        children = open(f"/proc/{self.keeper}/task/{self.keeper}/children").read().split()
        return int(children[0]) if children else None

    def ask(self, question):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(f"{self.root}/run/tartan/tartan.sock")
            client.sendall(json.dumps({"call": question}).encode() + b"\n")
            return json.loads(client.makefile().readline())

    def until_ready(self):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if "ok" in self.ask("ready"):
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        raise Wrong("no service is ready within 20 s")

    def expect_record(self, interface):
        try:
            record = json.load(open(f"{self.records}/{interface.key}.json"))
        except OSError:
            raise Wrong(f"{interface.key} is attached and has no record") from None
        found = [address.split("/")[0] for address in record["addresses"]]
        if record["state"] != "attached" or found != interface.addresses():
            raise Wrong(f"{interface.key} has {interface.addresses()}, its record says {record}")

    def expect_nothing(self, interface, why):
        if os.path.exists(f"{self.records}/{interface.key}.json"):
            raise Wrong(f"the record of {interface.key} is there, and {why}")
        if interface.ipam and interface.ipam["type"] == "host-local":
            if kept := [address for address, key in self.reserved() if key == interface.key]:
                raise Wrong(f"host-local holds {kept} for {interface.key}, and {why}")

    def reserved(self):
        """What host-local has given: addresses, and whose."""
        directory = f"{self.reservations}/host-local"
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            if name in HOST_LOCAL_NOTES:
                continue
            try:
                yield name, ":".join(open(f"{directory}/{name}").read().split())
            except FileNotFoundError:
                pass

    @staticmethod
    def asked_for(v4, v6):
        """Addresses of this node's subnets, for static."""
        return f"10.244.1.{v4}/24", f"fd00:10:244:1::2:{v6:x}/64"

    def no_address_twice(self):
        """Of all records, killed ones included. Two that are read one after the other may be of one address in turn."""
        seen = None
        for _ in range(2):
            now = collections.defaultdict(set)
            for name in os.listdir(self.records):
                if name.startswith("."):
                    continue
                try:
                    record = json.load(open(f"{self.records}/{name}"))
                except OSError:
                    continue
                for address in record["addresses"]:
                    now[address].add((name, record["created"]))
            before = now if seen is None else seen
            seen = {a: k & before.get(a, set()) for a, k in now.items() if len(k & before.get(a, set())) > 1}
            if not seen:
                return
        raise Wrong(f"addresses in two records: {seen}")
