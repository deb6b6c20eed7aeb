"""Makes the calls that container runtimes were seen to make, in their order, and checks each answer.

    replay.py CAPTURED PLUGIN ROOT PREFIX [VERSION]

Runs in the network namespace of the node. CAPTURED has one call a line: the runtime, its environment variables and
what it wrote to standard input, byte for byte; only paths of network namespaces are replaced, by namespaces that are
made here, and ROOT, the agent's, is added. With VERSION each configuration is of that one. After all calls each
attachment is gone. Prints what was called, and how often. The parts of a result of each version are checked by
cni-shim/tests/plugin/protocol.rs.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter

from lab_namespace import make_namespace

# ctr names none, podman "dummy": what it asks needs none.
NO_NAMESPACE = ("", "dummy")


def call(plugin, environment, stdin):
    """What the plugin prints, as JSON; None for nothing."""
    environment = {"PATH": os.environ["PATH"], **environment}
    answer = subprocess.run([plugin], input=stdin.encode(), env=environment, capture_output=True, timeout=30)
    if answer.returncode != 0:
        raise SystemExit(f"exit code {answer.returncode}: {answer.stdout!r} {answer.stderr!r}\n{environment}\n{stdin}")
    return json.loads(answer.stdout) if answer.stdout else None


def held(environment):
    """MAC and addresses of the interface that was asked for."""
    command = ["nsenter", f"--net={environment['CNI_NETNS']}", "ip", "-j", "address", "show", environment["CNI_IFNAME"]]
    (link,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return link["address"], {entry["local"] for entry in link["addr_info"] if entry["scope"] == "global"}


def has_what_is_said(result, environment, version):
    mac, addresses = held(environment)
    if version < (0, 3, 0):
        said = {result[family]["ip"].split("/")[0] for family in ("ip4", "ip6") if family in result}
    else:
        index, pod = next((index, end) for index, end in enumerate(result["interfaces"]) if end.get("sandbox"))
        if (pod["sandbox"], pod["name"], pod["mac"]) != (environment["CNI_NETNS"], environment["CNI_IFNAME"], mac):
            return False
        said = {entry["address"].split("/")[0] for entry in result["ips"] if entry["interface"] == index}
    return bool(said) and said == addresses


def is_right(verb, environment, version, answer):
    if verb == "DEL":
        return answer is None
    if answer["cniVersion"] != version:
        return False
    if verb == "VERSION":
        return version in answer["supportedVersions"]
    return has_what_is_said(answer, environment, tuple(map(int, version.split("."))))


def main(file, plugin, root, prefix, version=None):
    spaces, attached, counts = {}, set(), Counter()
    try:
        for line in open(file, encoding="utf-8"):
            captured = json.loads(line)
            environment, stdin = captured["environment"], captured["stdin"]
            verb, theirs = environment["CNI_COMMAND"], environment["CNI_NETNS"]
            if theirs not in NO_NAMESPACE and theirs not in spaces:
                make_namespace(prefix, f"{prefix}-called{len(spaces) + 1}")
                spaces[theirs] = f"/run/netns/{prefix}-called{len(spaces) + 1}"
            environment["CNI_NETNS"] = spaces.get(theirs, theirs)
            for theirs, ours in spaces.items():
                stdin = stdin.replace(theirs, ours)
            if verb != "VERSION":
                stdin = re.sub(r"^\{", f'{{"root":{json.dumps(root)},', stdin)
            if version:
                stdin = re.sub(r'"cniVersion":"[0-9.]+"', f'"cniVersion":"{version}"', stdin)
                # Its results were of their own version: these would have been converted.
                stdin = re.sub(r',"prevResult":\{.*\}(?=,"(runtimeConfig|type)")', "", stdin)
            answer = call(plugin, environment, stdin)
            if not is_right(verb, environment, json.loads(stdin)["cniVersion"], answer):
                raise SystemExit(f"{verb} of {captured['runtime']}: {answer}\n{stdin}")
            key = (environment["CNI_CONTAINERID"], environment["CNI_IFNAME"])
            (attached.add if verb == "ADD" else attached.discard)(key)
            counts[verb] += 1
        # A capture may end with a container that its runtime never detached.
        for container, ifname in attached:
            conf = {"cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": root}
            environment = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": ifname, "CNI_PATH": "/bin"}
            call(plugin, environment, json.dumps(conf))
    finally:
        for path in spaces.values():
            subprocess.run(["ip", "netns", "delete", os.path.basename(path)], check=True)
    print(" ".join(f"{verb}:{count}" for verb, count in sorted(counts.items())))


main(*sys.argv[1:])
