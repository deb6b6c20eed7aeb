"""What a node holds, compared with what the runtime of campaign.py believes: links, addresses, routes, neighbours, queues
and nftables of the node, every file below its root, temporary ones too, its records, what host-local holds, what its agent
tells, and what is in the namespaces of its pods."""

import collections
import ipaddress
import json
import os
import re
import subprocess

from campaign_pods import Slow, Wrong

# The plugin's own files beside the records: the lock, and two hints of the range.
NOT_RECORDS = {".lock", ".last", ".resting"}
# STATUS: calls, and milliseconds that half of them take at most.
STATUSES, LONGEST_STATUS = 31, 10
# The rules that every namespace has.
USUAL_RULES = {0, 32766, 32767}


class Census:
    """Facts are lines, and they are counted. What was there before the first pod stays; each interface that is held adds
    its own."""

    def __init__(self, runtime):
        self.runtime, self.space = runtime, f"{runtime.prefix}-node1"
        self.before = collections.Counter(self.look())
        strange = [fact for fact in self.before if re.search(r"\b(tt|tl)[0-9a-f]{10}\b|^record|^agent", fact)]
        if strange:
            raise SystemExit(f"the node is not fresh: {strange}")

    def compare(self):
        expected = collections.Counter(self.before)
        for interface in self.runtime.held():
            expected.update(self.of(interface))
        found = collections.Counter(self.look())
        lines = [f"left, and nobody has it: {fact}" for fact in sorted((found - expected).elements())]
        lines += [f"missing: {fact}" for fact in sorted((expected - found).elements())]
        if lines:
            raise Wrong("the census:\n" + "\n".join(lines))
        print(f"census: {found.total()} facts, {len(self.runtime.held())} attachments, no difference")

    def status_is_quick(self):
        """With all these pods, from the start of the plugin to its end; a machine that is busy otherwise may have three tries."""
        for _ in range(3):
            usual = sorted(self.status() for _ in range(STATUSES))[STATUSES // 2]
            print(f"STATUS takes {usual:.1f} ms")
            if usual < LONGEST_STATUS:
                return
        raise Slow(f"STATUS takes {usual:.1f} ms, less than {LONGEST_STATUS} is promised")

    def status(self):
        """Milliseconds of one STATUS."""
        answer = self.runtime.call("STATUS")
        if answer.code:
            raise Wrong(f"STATUS at the end: {answer.out!r}")
        return 1000 * (answer.ended - answer.began)

    def everybody_lives(self):
        """Each has what it was given, and answers there."""
        for interface in self.runtime.held():
            answer = self.runtime.call("CHECK", interface, interface.pod.path, more={"prevResult": interface.result})
            if answer.code:
                raise Wrong(f"CHECK of {interface.key} at the end: {answer.out!r}")
        pings = []
        for interface in self.runtime.held():
            for address in interface.addresses():
                ping = ["ping", "-n", "-q", "-c", "3", "-i", "0.2", "-W", "1", address]
                pings.append((address, subprocess.Popen(ping, stdout=subprocess.DEVNULL)))
        silent = [address for address, ping in pings if ping.wait() != 0]
        if silent:
            raise Wrong(f"no answer from {silent}")

    def of(self, interface):
        """What one attachment is to be."""
        end, key, space = interface.result["interfaces"][0]["name"], interface.key, interface.pod.space
        limiter = "tl" + end[2:]
        addresses = interface.addresses()
        yield f"link {end}"
        yield f"file {key}.json"
        yield f"record {key} attached {' '.join(addresses)}"
        yield f"agent {key} attached {' '.join(addresses)}"
        yield f"{space} link {interface.name}"
        if interface.ipam and interface.ipam["type"] == "host-local":
            yield from (f"reservation {address} of {key}" for address in addresses)
        record = json.load(open(f"{self.runtime.node.records}/{key}.json"))
        for address in addresses:
            yield f"route {address} dev {end}"
            yield f"neighbour {address} dev {end}"
            yield f"pod rule {end} {ipaddress.ip_network(address)}"
            yield f"{space} address {address} dev {interface.name}"
            if "table" in record:
                yield f"{space} rule from {address} lookup {record['table']}"
                yield f"{space} route default dev {interface.name} table {record['table']} of {version(address)}"
        if interface.limited:
            yield f"link {limiter}"
            yield f"queue tbf of {end}"
            yield f"queue ingress of {end}"
            yield f"queue tbf of {limiter}"

    def look(self):
        yield from self.links_and_addresses()
        yield from self.routes()
        for queue in told("tc", "-n", self.space, "-j", "qdisc", "show"):
            if queue["kind"] in ("tbf", "ingress"):
                yield f"queue {queue['kind']} of {queue['dev']}"
        ruleset = text("ip", "netns", "exec", self.space, "nft", "list", "ruleset")
        # The table of pods comes and goes with them: of it only the rules of pods are facts.
        tables = re.split(r"^(?=table )", re.sub(r"packets \d+ bytes \d+", "", ruleset), flags=re.MULTILINE)
        for table in tables:
            if table.startswith("table inet tartan-pods "):
                yield from (f"pod rule {of}" for of in re.findall(r'comment "(tt[0-9a-f]{10} \S+)"', table))
            else:
                yield from (f"nft {line}" for line in table.splitlines() if line.strip())
        yield from self.files()
        yield from self.records()
        yield from (f"reservation {address} of {key}" for address, key in self.runtime.node.reserved())
        for row in self.runtime.node.ask("pods")["ok"]["pods"]:
            addresses = [prefix.split("/")[0] for prefix in row["addresses"]]
            yield f"agent {row['container']}:{row['ifname']} {row['state']} {' '.join(addresses)}"
        for pod in self.runtime.pods:
            yield from in_pod(pod.space)

    def links_and_addresses(self):
        for link in told("ip", "-n", self.space, "-j", "address", "show"):
            yield f"link {link['ifname']}"
            if not is_pods(link["ifname"]):
                yield from (f"address {a['local']}/{a['prefixlen']} dev {link['ifname']}" for a in link["addr_info"])

    def routes(self):
        for family in ("-4", "-6"):
            for route in told("ip", "-n", self.space, "-j", family, "route", "show", "table", "all"):
                device = route.get("dev", "")
                # What the kernel gives every interface, and what nobody who is asked leaves for a moment.
                if not is_pods(device):
                    yield f"route {route.get('type', '')} {route['dst']} dev {device} table {route.get('table', 'main')}"
                elif route.get("type", "unicast") == "unicast" and not route["dst"].startswith("fe80:"):
                    yield f"route {route['dst']} dev {device}"
            for neighbour in told("ip", "-n", self.space, "-j", family, "neighbour", "show", "nud", "permanent"):
                if is_pods(neighbour["dev"]) and not ipaddress.ip_address(neighbour["dst"]).is_multicast:
                    yield f"neighbour {neighbour['dst']} dev {neighbour['dev']}"

    def files(self):
        """Below the node's root: what the agent keeps, and what of it or of a plugin should not be there any more."""
        node = self.runtime.node
        for directory, _, names in os.walk(node.root):
            if directory != node.records and not directory.startswith(node.reservations):
                yield from (f"file {os.path.relpath(directory, node.root)}/{name}" for name in names)

    def records(self):
        directory = self.runtime.node.records
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            if name in NOT_RECORDS:
                continue
            yield f"file {name}"
            if not name.startswith("."):
                record = json.load(open(f"{directory}/{name}"))
                addresses = [prefix.split("/")[0] for prefix in record["addresses"]]
                yield f"record {record['container']}:{record['ifname']} {record['state']} {' '.join(addresses)}"


def in_pod(space):
    for link in told("ip", "-n", space, "-j", "address", "show"):
        if link["ifname"] == "lo":
            continue
        yield f"{space} link {link['ifname']}"
        for address in link["addr_info"]:
            if address["scope"] != "link":
                yield f"{space} address {address['local']} dev {link['ifname']}"
    for family in ("-4", "-6"):
        for rule in told("ip", "-n", space, "-j", family, "rule", "show"):
            if rule["priority"] not in USUAL_RULES:
                yield f"{space} rule from {rule['src']} lookup {rule['table']}"
        for route in told("ip", "-n", space, "-j", family, "route", "show", "table", "all"):
            if route.get("table", "main") not in ("main", "local"):
                yield f"{space} route {route['dst']} dev {route.get('dev')} table {route['table']} of {family[1:]}"


def is_pods(device):
    return device[:2] in ("tt", "tl") and len(device) == 12


def version(address):
    return ipaddress.ip_address(address).version


def text(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def told(*command):
    """What a program says as JSON; nothing at all is an empty list."""
    return json.loads(text(*command) or "[]")
