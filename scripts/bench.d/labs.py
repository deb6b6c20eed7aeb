"""The paths between two pods: Tartan's formats, the kernel's VXLAN, direct routing, and whatever else is named."""

import json
import os
import shlex
import signal
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
LAB = os.path.join(REPOSITORY, "scripts", "lab")
NAMES = ("tartan", "tartan-cni", "tartan-load")
OPTIONS = {
    "vxlan": ["--backend", "vxlan"],
    "udp": ["--backend", "udp"],
    "kernel": ["--control"],
    "direct": ["--direct"],
}


def programs(directory):
    """The directory of the programs to measure; builds the optimised ones if none is named."""
    if directory is None:
        subprocess.run(["scripts/build", "--release", "--load"], cwd=REPOSITORY, check=True)
        directory = os.path.join(REPOSITORY, "target", "release")
    missing = [name for name in NAMES if not os.access(os.path.join(directory, name), os.X_OK)]
    if missing:
        sys.exit("scripts/bench: no %s in %s: build them, or leave --bin out" % (", ".join(missing), directory))
    return os.path.realpath(directory)


def paths(chosen, others, directory, options):
    """The paths in the order in which they are measured."""
    found = [Lab(name, directory, shlex.split(options)) for name in chosen]
    return found + [Other(*named.split("=", 1), directory) for named in others]


class Path:
    """Two pods and a way between them."""

    def __init__(self, name, directory):
        self.name = name
        self.load = os.path.join(directory, "tartan-load")
        self.pods = []
        self.server = None

    def run(self, pod, command, seconds):
        """Runs a command in the namespace of pod 0 or 1 to its end and returns what it printed."""
        done = subprocess.run(self.inside(pod, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds + 20)
        if done.returncode != 0:
            raise RuntimeError("%s in %s: %s" % (shlex.join(command), self.name, (done.stderr or done.stdout).strip()[-400:]))
        return done.stdout

    def start(self, pod, command):
        """Starts a command there; the caller that waits for it reads its output."""
        return subprocess.Popen(self.inside(pod, command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def inside(self, pod, command):
        return ["ip", "netns", "exec", self.pods[pod][0]] + command

    def address(self, pod):
        return self.pods[pod][1]

    def serve(self):
        # No program reads what a server prints; a pipe would be full after some dozens of measurements, and the server wait.
        self.server = subprocess.Popen(self.inside(1, ["iperf3", "--server", "--bind", self.address(1)]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop_serving(self):
        if self.server:
            self.server.send_signal(signal.SIGTERM)
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                # What it hangs on is in the error that brought us here; the lab must go all the same.
                self.server.kill()
                self.server.wait(10)
            self.server = None

    def agents(self):
        """Process ids of keepers and services; none where there is no Tartan."""
        return []

    def drops(self):
        """Packets that Tartan dropped on both nodes; None where there is no Tartan."""
        return None


class Lab(Path):
    """A lab of scripts/lab."""

    def __init__(self, name, directory, options):
        super().__init__(name, directory)
        self.prefix = "bench" + name[0]
        self.directory = directory
        self.tartan = name in ("vxlan", "udp")
        self.options = OPTIONS[name] + (options if self.tartan else [])

    def up(self, underlay):
        self.down()
        self.lab("up", *self.options, "--underlay", underlay)
        # Tartan's default; on the others it writes the rules of `flanneld --ip-masq`, so packets meet the same
        # kinds of work (connection tracking, forward and masquerade chains) on every path.
        self.lab("masquerade", "on")
        with open("/run/tartan-lab/%s/pods" % self.prefix, encoding="ascii") as file:
            self.pods = [("%s-%s" % (self.prefix, line.split()[0]), line.split()[2]) for line in file]
        self.serve()

    def down(self):
        self.stop_serving()
        self.lab("down")

    def lab(self, verb, *options):
        environment = dict(os.environ, LAB_BIN=self.directory)
        done = subprocess.run([LAB, verb, "--prefix", self.prefix, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit("scripts/bench: scripts/lab %s failed:\n%s" % (verb, done.stdout))
        return done.stdout

    def agents(self):
        if not self.tartan:
            return []
        found = []
        for node in (1, 2):
            with open("/run/tartan-lab/%s/node%d/pid" % (self.prefix, node), encoding="ascii") as file:
                keeper = int(file.read())
            with open("/proc/%d/task/%d/children" % (keeper, keeper), encoding="ascii") as file:
                found.append([keeper] + [int(word) for word in file.read().split()])
        return found

    def drops(self):
        if not self.tartan:
            return None
        total = 0
        for node in ("node1", "node2"):
            counts = json.loads(self.lab("exec", node, "--", "tartan", "drops", "-o", "json"))
            for worker in counts["workers"]:
                for direction in ("inbound", "outbound"):
                    total += sum(worker[direction]["dropped"].values())
        return total


class Other(Path):
    """Another overlay, brought up by a command of the user's."""

    def __init__(self, name, command, directory):
        super().__init__(name, directory)
        self.command = shlex.split(command)

    def up(self, underlay):
        printed = subprocess.run(self.command + ["up", underlay], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.pods = [tuple(line.split()[:2]) for line in printed.splitlines() if len(line.split()) >= 2][:2]
        if len(self.pods) != 2:
            sys.exit("scripts/bench: '%s up' must print two lines 'NAMESPACE ADDRESS'; it printed:\n%s" % (shlex.join(self.command), printed))
        self.serve()

    def down(self):
        if self.pods:
            self.stop_serving()
            subprocess.run(self.command + ["down"], check=True)
            self.pods = []
