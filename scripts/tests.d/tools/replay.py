"""Makes the calls that container runtimes were seen to make, in their order, and checks every answer by the specification.

    replay.py CAPTURED PLUGIN ROOT PREFIX [VERSION]

Runs in the network namespace of the node. CAPTURED has one call a line: the runtime, its environment variables and
what it wrote to standard input, byte for byte; only paths of network namespaces are replaced, by namespaces that are
made here, PREFIX-called1 and so on, and ROOT, the agent's, is added. With VERSION every configuration is of that one.
After all calls every attachment is gone again. Prints what was called, and how often.
"""

import ipaddress
import json
import os
import re
import subprocess
import sys
from collections import Counter

from lab_namespace import make_namespace

PATIENCE = 30
SINCE_1_1 = ("mtu", "socketPath", "pciID")
# Kept alive only by their first call's netns: what ctr calls for is /proc/PID/ns/net.
NO_NAMESPACE = ("", "dummy")


class Wrong(Exception):
    pass


def expect(truth, what):
    if not truth:
        raise Wrong(what)


def number(version):
    return tuple(map(int, version.split(".")))


class Namespaces:
    """One of ours for each that a runtime named."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.paths = {}

    def path(self, theirs):
        if theirs not in self.paths:
            name = f"{self.prefix}-called{len(self.paths) + 1}"
            make_namespace(self.prefix, name)
            self.paths[theirs] = f"/run/netns/{name}"
        return self.paths[theirs]

    def replace(self, text):
        for theirs, ours in self.paths.items():
            text = text.replace(theirs, ours)
        return text

    def end(self):
        for path in self.paths.values():
            subprocess.run(["ip", "netns", "delete", os.path.basename(path)], check=True)


def call(plugin, environment, stdin):
    return subprocess.run(
        [plugin],
        input=stdin.encode(),
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def in_namespace(path, *command):
    found = subprocess.run(
        ["nsenter", f"--net={path}", "ip", "-j", *command],
        capture_output=True,
        check=True,
    )
    return json.loads(found.stdout or "[]")


def check_link(environment, mac, addresses):
    """The interface is there, as the result says."""
    (link,) = in_namespace(
        environment["CNI_NETNS"], "address", "show", "dev", environment["CNI_IFNAME"]
    )
    expect(mac in (None, link["address"]), f"MAC {mac}, but the interface has {link['address']}")
    held = {entry["local"] for entry in link["addr_info"]}
    for address in addresses:
        expect(str(address.ip) in held, f"{address} is in the result and not in the pod")


def check_routes(routes, version):
    for route in routes:
        ipaddress.ip_network(route["dst"])
        if "gw" in route:
            ipaddress.ip_address(route["gw"])
        if number(version) < (1, 1, 0):
            expect(set(route) <= {"dst", "gw"}, f"a route has fields of 1.1.0: {route}")


def check_old(result, environment, version):
    """0.1.0 and 0.2.0: one object a family."""
    expect("ip4" in result or "ip6" in result, "no address")
    expect(not {"interfaces", "ips", "routes"} & set(result), "fields of 0.3.0 in an older result")
    addresses = []
    for family in ("ip4", "ip6"):
        if family in result:
            address = ipaddress.ip_interface(result[family]["ip"])
            expect(f"ip{address.version}" == family, f"{address} as {family}")
            check_routes(result[family].get("routes") or [], version)
            addresses.append(address)
    check_link(environment, None, addresses)


def check_result(result, environment, version):
    interfaces = result["interfaces"]
    index, pod = next(
        (index, found) for index, found in enumerate(interfaces) if found.get("sandbox")
    )
    expect(pod["sandbox"] == environment["CNI_NETNS"], f"sandbox {pod['sandbox']}")
    expect(pod["name"] == environment["CNI_IFNAME"], f"interface {pod['name']}")
    if number(version) < (1, 1, 0):
        expect(not any(set(SINCE_1_1) & set(found) for found in interfaces), "interfaces have fields of 1.1.0")
    addresses = []
    for entry in result["ips"]:
        address = ipaddress.ip_interface(entry["address"])
        addresses.append(address)
        expect(entry["interface"] == index, f"{address} is on interface {entry['interface']}")
        if "gateway" in entry:
            expect(ipaddress.ip_address(entry["gateway"]).version == address.version, "a gateway of the other family")
        if number(version) < (1, 0, 0):
            expect(entry.get("version") == str(address.version), f"version of {address}: {entry.get('version')}")
        else:
            expect("version" not in entry, "ips have a version, which 1.0.0 took away")
    expect(addresses, "no address")
    check_routes(result.get("routes") or [], version)
    check_link(environment, pod["mac"], addresses)


def check_answer(environment, version, answer):
    said = f"{answer.stdout.decode()!r} {answer.stderr.decode()!r}"
    expect(answer.returncode == 0, f"exit code {answer.returncode}: {said}")
    verb = environment["CNI_COMMAND"]
    if verb == "DEL":
        expect(answer.stdout == b"", f"DEL says {said}")
        return
    result = json.loads(answer.stdout)
    expect(result["cniVersion"] == version, f"version {result['cniVersion']}, asked for {version}")
    if verb == "VERSION":
        expect(version in result["supportedVersions"], f"supported: {result['supportedVersions']}")
    elif number(version) < (0, 3, 0):
        check_old(result, environment, version)
    else:
        check_result(result, environment, version)


def prepared(captured, root, namespaces, version):
    """The call as it is made here: its environment, its input and its version."""
    environment = dict(captured["environment"])
    if environment["CNI_NETNS"] not in NO_NAMESPACE:
        environment["CNI_NETNS"] = namespaces.path(environment["CNI_NETNS"])
    stdin = namespaces.replace(captured["stdin"])
    if environment["CNI_COMMAND"] != "VERSION":
        stdin = re.sub(r"^\{", f'{{"root":{json.dumps(root)},', stdin)
    if version:
        stdin = re.sub(r'"cniVersion":"[0-9.]+"', f'"cniVersion":"{version}"', stdin)
        # Its results were of their own version: these would have been converted.
        stdin = re.sub(r',"prevResult":\{.*\}(?=,"(runtimeConfig|type)")', "", stdin)
    return environment, stdin, json.loads(stdin)["cniVersion"]


def detach_all(plugin, root, attached):
    """A capture may end with a container that its runtime never detached."""
    for container, ifname in attached:
        environment = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": ifname, "CNI_PATH": "/opt/cni/bin"}
        answer = call(plugin, environment, json.dumps({"cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": root}))
        check_answer(environment, "1.0.0", answer)


def main(file, plugin, root, prefix, version=None):
    namespaces, attached, counts = Namespaces(prefix), set(), Counter()
    with open(file, encoding="utf-8") as lines:
        calls = [json.loads(line) for line in lines]
    try:
        for captured in calls:
            environment, stdin, spoken = prepared(captured, root, namespaces, version)
            verb = environment["CNI_COMMAND"]
            key = (environment["CNI_CONTAINERID"], environment["CNI_IFNAME"])
            try:
                check_answer(environment, spoken, call(plugin, environment, stdin))
            except (Wrong, KeyError, ValueError, StopIteration) as error:
                raise SystemExit(f"{verb} of {captured['runtime']}, version {spoken}: {error!r}\n{stdin}") from error
            if verb == "ADD":
                attached.add(key)
            elif verb == "DEL":
                attached.discard(key)
            counts[verb] += 1
        detach_all(plugin, root, attached)
    finally:
        namespaces.end()
    print(" ".join(f"{verb}:{count}" for verb, count in sorted(counts.items())))


main(*sys.argv[1:])
