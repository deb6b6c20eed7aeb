#!/usr/bin/env python3
"""What a lab consists of, one fact a line, to compare it with what it was: facts.py STATE <NAMESPACES

Links, addresses, routes, rules, nftables and settings of each of its namespaces, its processes and files. None are:
numbers that the kernel gives anew, counters, lifetimes, what packets put into a set, which table is the newest, what
lies below a node's sys, whether a TUN was taken over (its state, from then on, is UP), and which peers answered probes.
"""
import ctypes
import glob
import hashlib
import os
import re
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
OF_FAMILY = "address show\nroute show table all\nrule show\n"
IP = {"-4": "link show\n" + OF_FAMILY, "-6": OF_FAMILY}
BY_ITSELF = re.compile(r"^(broadcast|multicast|local|anycast) .* table | proto kernel")
CHANGING = re.compile(r"^\d+: |@[^: ]+| (expires|nhid|qlen|valid_lft|preferred_lft) [^ ]+")
SETTINGS = ("ipv4/ip_forward", "ipv[46]/conf/*/forwarding", "ipv[46]/conf/*/accept_ra", "ipv4/conf/*/rp_filter",
            "ipv4/conf/*/accept_local", "ipv6/conf/*/disable_ipv6")
# The service is another process behind each restart; the others are this program's and what started a load.
PASSING = re.compile(r"^$|tartan .*(service|--as)|[^ ]*sh |ip netns")
NO_FACTS = re.compile(r"/(log|facts|registry/data/.*|census\.before|namespaces|answering-peers\.json)$")
CONTENTS = ("nodes.toml", "net-conf.json", "subnet.env", "pods", "tartan.toml")


def said(command, given=""):
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout.splitlines()


def of_ip():
    for family, batch in IP.items():
        for line in said(["ip", family, "-o", "-batch", "-"], batch):
            if not BY_ITSELF.search(line):
                yield CHANGING.sub("", line.split("\\")[0]).replace(" state UNKNOWN ", " state UP ")


def of_nft():
    tables, name, dynamic, skipped = {}, None, False, False
    for line in said(["nft", "-s", "list", "ruleset"]):
        if line.startswith("table "):
            name = line
        if line == "\t}":
            dynamic = skipped = False
        dynamic |= "flags dynamic" in line
        skipped |= dynamic and "elements" in line
        if not skipped:
            tables.setdefault(name, []).append(line)
    for name, lines in sorted(tables.items()):
        # Which pod's rules come first is none.
        yield from sorted(lines) if "tartan-pods" in name else lines


def settings():
    for path in sorted(path for one in SETTINGS for path in glob.glob("/proc/sys/net/" + one)):
        with open(path, encoding="ascii") as file:
            yield f"{path}:{file.read().strip()}"


def processes(inodes):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                    words = file.read().replace("\0", " ")
                if int(pid) != os.getpid() and not PASSING.match(words):
                    yield "process " + re.sub(r" --load [^ ]*", "", words)
        except OSError:
            # It ended meanwhile.
            continue


def files(state):
    for folder, folders, names in os.walk(state):
        folders[:] = [name for name in folders if name != "sys"]
        for path in (os.path.join(folder, name) for name in names):
            if not NO_FACTS.search(path) and os.path.isfile(path):
                yield path
            if os.path.basename(path) in CONTENTS:
                with open(path, "rb") as file:
                    yield f"{hashlib.md5(file.read()).hexdigest()} {path}"


def main():
    inodes = set()
    for name in sys.stdin.read().split():
        print("namespace", name)
        with open("/run/netns/" + name, encoding="ascii") as space:
            inodes.add(os.fstat(space.fileno()).st_ino)
            if LIBC.setns(space.fileno(), CLONE_NEWNET) != 0:
                sys.exit(f"setns {name}: {os.strerror(ctypes.get_errno())}")
        print("\n".join([*sorted(of_ip()), *of_nft(), *settings()]))
    print("\n".join([*sorted(processes(inodes)), *sorted(files(sys.argv[1]))]))


main()
