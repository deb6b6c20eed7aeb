"""Sockets in the namespaces of the lab LAB_PREFIX, and what its agents count, seen from one process."""

import ctypes
import json
import os
import socket
import sys
import time

PREFIX = os.environ.get("LAB_PREFIX", "test")
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
# Seconds that a count may take on a busy machine.
PATIENCE = 20.0


def inside(name, make):
    """What `make` makes in the namespace of that name."""
    with open("/proc/thread-self/ns/net", "rb") as home, open(f"/run/netns/{PREFIX}-{name}", "rb") as there:
        if LIBC.setns(there.fileno(), CLONE_NEWNET) != 0:
            sys.exit(f"setns {there.name}: {os.strerror(ctypes.get_errno())}")
        try:
            return make()
        finally:
            LIBC.setns(home.fileno(), CLONE_NEWNET)


def drops(node):
    """What a node counts, as `tartan drops -o json` prints it."""
    with socket.socket(socket.AF_UNIX) as api:
        api.settimeout(PATIENCE)
        api.connect(f"/run/tartan-lab/{PREFIX}/{node}/run/tartan/tartan.sock")
        api.sendall(b'{"call": "drops"}\n')
        with api.makefile() as answer:
            return json.loads(answer.readline())["ok"]


def workers(node):
    """The counts of each of its workers."""
    return drops(node)["workers"]


def soon(find, wanted):
    """What `find` finds: at once when that is what is wanted, else what it is after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while (found := find()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found


class Findings:
    """Comparisons that are printed as those of checks.sh."""

    def __init__(self):
        self.failures = 0

    def equal(self, what, expected, found):
        if expected == found:
            print(f"{what}: {found}", flush=True)
        else:
            self.failures += 1
            print(f"FAILED: {what}: expected {expected}, found {found}", flush=True)

    def end(self):
        sys.exit(1 if self.failures else 0)
