"""The words of campaign.py: an answer of the plugin, a pod, its interfaces, and who may go on when."""

import ctypes
import json
import os
import signal
import subprocess
import threading
import time

from lab_namespace import make_namespace


class Wrong(Exception):
    """What must not be."""


class Slow(Exception):
    """What a clock alone decides."""


class Answer:
    """How one call of the plugin ended; `code` is None when we killed it, 0 on success."""

    def __init__(self, verb, process, out, began, may_be_killed):
        self.verb, self.out, self.began, self.ended = verb, out, began, time.monotonic()
        if process.returncode == -signal.SIGKILL and may_be_killed:
            self.code = None
            return
        if process.returncode < 0:
            raise Wrong(f"{verb} ended by signal {-process.returncode}")
        try:
            self.value = json.loads(out) if out else None
        except ValueError:
            raise Wrong(f"{verb} printed no JSON: {out!r}") from None
        self.code = 0 if process.returncode == 0 else self.value["code"]
        if self.code == 0 and (self.value is not None) != (verb in ("ADD", "VERSION")):
            raise Wrong(f"{verb} succeeded and printed {out!r}")


class Gate:
    """Many at a time, or one alone."""

    def __init__(self):
        self.changed, self.inside, self.alone = threading.Condition(), 0, False

    def enter(self, alone=False):
        with self.changed:
            if alone:
                self.changed.wait_for(lambda: not self.alone)
                self.alone = True
                self.changed.wait_for(lambda: self.inside == 0)
            else:
                self.changed.wait_for(lambda: not self.alone)
                self.inside += 1

    def leave(self, alone=False):
        with self.changed:
            if alone:
                self.alone = False
            else:
                self.inside -= 1
            self.changed.notify_all()


class Interface:
    """One attachment. `limited` and `result` are those of the ADD that succeeded, `ipam` is its network's."""

    def __init__(self, pod, name):
        self.pod, self.name = pod, name
        self.container = pod.container
        self.state, self.fate, self.since, self.result, self.limited = "free", None, 0.0, None, False
        self.ipam = None

    @property
    def key(self):
        return f"{self.container}:{self.name}"

    def addresses(self):
        return [ip["address"].split("/")[0] for ip in self.result["ips"]]


class Pod:
    """A namespace and the container in it; both are new after its end, but for the namespace's path."""

    def __init__(self, runtime, number):
        self.runtime, self.number, self.life = runtime, number, 0
        self.space = f"{runtime.prefix}-pod{number}"
        self.path = f"/var/run/netns/{self.space}"
        self.begin()

    def begin(self):
        self.life += 1
        self.container = f"{self.runtime.prefix}-{self.number}.{self.life}"
        self.interfaces = [Interface(self, "eth0"), Interface(self, "net1")]
        make_namespace(self.runtime.prefix, self.space)

    def end(self):
        run("ip", "netns", "delete", self.space)
        self.begin()

    def refresh(self):
        """Another container, as soon as nothing of this one is left: its namespace lives on."""
        if all(interface.state == "free" for interface in self.interfaces):
            self.life += 1
            self.container = f"{self.runtime.prefix}-{self.number}.{self.life}"
            self.interfaces = [Interface(self, "eth0"), Interface(self, "net1")]


def run(*command):
    subprocess.run(command, check=True)


def enter(space):
    """This thread, and what it starts, is in that network namespace."""
    descriptor = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
