"""The paths between two pods: Tartan's, the kernel's VXLAN, direct routing, and whatever else is named."""

import collections
import json
import os
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = Path("/run/tartan-lab")
USER = "--backend vxlan --kernel-path off"
# A lab for each path: the end of its prefix, which no other lab has, and its options.
LABS = {
    "vxlan": ("v", USER),
    "tun": ("n", USER + " --device-type tun"),
    "tap": ("p", USER + " --device-type tap"),
    "udp": ("u", "--backend udp --kernel-path off"),
    "stateless": ("s", "--kernel-path stateless"),
    "auto": ("a", "--kernel-path auto"),
    "auto-scale": ("x", "--kernel-path auto --pods 250 --listed 4998"),
    "before": ("b", "--backend vxlan"),
    "top": ("t", USER),
    "capture": ("c", USER),
    "listed": ("l", USER + " --listed 4998"),
    "scraped": ("m", USER + " --listed 4998"),
    "followed": ("f", USER),
    "unprobed": ("o", USER),
    "kernel": ("k", "--control"),
    "kernel-gathered": ("g", "--control"),
    "kernel-scale": ("y", "--control --pods 250"),
    "direct": ("d", "--direct"),
}
NODES = ("node1", "node2")


def printed(*command, timeout=None):
    """What a command prints, which has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def programs(directory):
    """The directory of the programs to measure; builds the optimised ones if none is named."""
    if directory is None:
        subprocess.run(["scripts/build", "--release", "--load"], cwd=REPOSITORY, check=True)
        directory = REPOSITORY / "target" / "release"
    for name in ("tartan", "tartan-cni", "tartan-load"):
        if not os.access(f"{directory}/{name}", os.X_OK):
            sys.exit(f"scripts/bench: no {name} in {directory}: build them, or leave --bin out")
    return os.path.realpath(directory)


def usual_weight():
    """Ends the bench where its processes, or the scheduling group of its session (sched(7)), have another nice value
    than 0: what takes several threads a packet then takes several times as long (docs/performance.md)."""
    group = Path("/proc/self/autogroup")
    # There are kernels without them.
    group = int(group.read_text().split()[-1]) if group.exists() else 0
    if group != 0 or os.nice(0) != 0:
        sys.exit(f"scripts/bench: what it starts would run with a nice value of {os.nice(0)}, in a group with {group}: "
                 "a measurement needs 0 and 0; 'echo 0 >/proc/self/autogroup' mends the group, a new shell the other")


def end(process):
    """Ends a program, politely first, and waits."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


class Lab:
    """Two pods and a way between them: a lab of scripts/lab."""

    # What the agents of the lab get besides, as variables of their environment.
    SETTINGS = {}
    # What the processor time while nothing is measured is called.
    AT_REST = "idle"

    def __init__(self, name, directory, options=(), load=None):
        suffix, own = LABS[name]
        self.name, self.directory, self.load = name, directory, f"{load or directory}/tartan-load"
        self.prefix, own, self.pods, self.server = "bench" + suffix, own.split(), [], None
        self.tartan = "--control" not in own and "--direct" not in own
        self.kernel_path = "stateless" in own or "auto" in own
        self.options = [*own, *(options if self.tartan else ())]

    def inside(self, name, *command):
        """The command line that runs it in the namespace of a pod, by its number, or of a node."""
        space = self.pods[name][0] if isinstance(name, int) else f"{self.prefix}-{name}"
        return ["ip", "netns", "exec", space, *command]

    def start(self, pod, *command, output=subprocess.PIPE):
        return subprocess.Popen(self.inside(pod, *command), stdout=output, stderr=subprocess.DEVNULL, text=True)

    def up(self, underlay):
        self.down()
        self.lab("up", *self.options, "--underlay", underlay)
        # Tartan's default; on the others it writes the rules of `flanneld --ip-masq`, so packets meet the same
        # kinds of work (connection tracking, forward and masquerade chains) on every path.
        self.lab("masquerade", "on")
        self.attached = [line.split() for line in (STATE / self.prefix / "pods").read_text().splitlines()]
        self.pods = [self.pod(node, 0) for node in NODES]
        latest = time.monotonic() + 20
        for node in NODES if self.kernel_path else ():
            # Without it the figures would be those of user space under another name.
            while not (state := self.asked(node, "status")["kernel_path"])["in_use"]:
                if time.monotonic() > latest:
                    sys.exit(f"scripts/bench: no kernel path on {node} in the lab {self.prefix}: {state['reason']}")
                time.sleep(0.2)

    def serve(self):
        # No program reads what a server prints; a pipe would be full after some dozens of measurements.
        self.server = self.start(1, "iperf3", "--server", "--bind", self.pods[1][1], output=subprocess.DEVNULL)

    def tartan_in(self, node, *words):
        """The command line that runs `tartan WORDS` on a node."""
        root = f"{STATE}/{self.prefix}/{node}"
        return self.inside(node, f"{self.directory}/tartan", words[0], "--root", root, *words[1:])

    def asked(self, node, command):
        """What `tartan COMMAND` says there. Its code is 1 where there is a problem, which is an answer all the same."""
        command = self.tartan_in(node, command, "-o", "json")
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout)

    def pod(self, node, number):
        """Namespace and address of a node's pod, by its place among the node's."""
        name, _, address = [words[:3] for words in self.attached if words[1] == node][number]
        return f"{self.prefix}-{name}", address

    def down(self):
        if self.server:
            end(self.server)
            self.server = None
        self.lab("down")

    def lab(self, verb, *options):
        command = [REPOSITORY / "scripts" / "lab", verb, "--prefix", self.prefix, *options]
        environment = dict(os.environ, LAB_BIN=self.directory, **self.SETTINGS)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"scripts/bench: scripts/lab {verb} failed:\n{done.stdout}{done.stderr}")

    def agents(self):
        """Process ids of keeper and service of each node; none where there is no Tartan."""
        for node in NODES if self.tartan else ():
            keeper = int((STATE / self.prefix / node / "pid").read_text())
            yield [keeper, *map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split())]

    def dropped(self, node, direction):
        """Packets that the workers of a node dropped in a direction, by reason."""
        found = collections.Counter()
        for worker in self.asked(node, "drops")["workers"]:
            found.update(worker[direction]["dropped"])
        return found

    def device_type(self):
        """tun or tap: what Tartan's tunnel device is."""
        shown = printed("ip", "-n", self.prefix + "-node1", "-d", "-j", "link", "show", "tartan0")
        return json.loads(shown)[0]["linkinfo"]["info_data"]["type"]

    def at_end(self):
        """What this path alone has measured all along."""
        return {}

    def flooding(self, on):
        """A flood begins or has ended."""

    def measured(self, on):
        """A measurement of this path begins or has ended; the other paths are measured in between."""


class Gathered(Lab):
    """The kernel's VXLAN where the pods' small UDP packets are gathered as Tartan does it."""

    def up(self, underlay):
        super().up(underlay)
        for node, pod in enumerate(self.pods, 1):
            how = "gro", "on", "rx-udp-gro-forwarding", "on"
            printed(*self.inside(f"node{node}", "ethtool", "-K", f"pod{node}", *how))
            # Back-pressure on the program that sends, instead of loss in the pod.
            printed("tc", "-n", pod[0], "qdisc", "replace", "dev", "eth0", "root", "pfifo")

    def flooding(self, on):
        # While a pod floods one way its end has a thread, as by an agent; at other times that costs latency.
        printed(*self.inside("node1", "sh", "-c", f"echo {on:d} >/sys/class/net/pod1/threaded"))


class Scale(Lab):
    """5,000 nodes where there is Tartan, 250 pods on each of two, and 100,000 flows between two of them."""

    FLOWS, PORT = 100_000, 10_000
    # Each flow sends one that is answered; 3 s later, when it is a stream for connection tracking, as many as the
    # kernel path takes it over for; then one in 20 s, too few to be judged anew, so that after a minute the host's
    # stack has it.
    PACE = ["--flows", str(FLOWS), "--first", "40", "--first-rate", "100000", "--rate", str(FLOWS // 20)]
    SECONDS, AT_REST, loads = "3600", "flows-cpu", ()

    def live(self):
        """Starts the flows, and waits until each has sent what makes it one."""
        (sender, _), (receiver, address) = self.pod("node1", 1), self.pod("node2", 1)
        place, enter, longest = f"{address}:{self.PORT}", ["ip", "netns", "exec"], ("--seconds", self.SECONDS)
        answer = [*enter, receiver, self.load, "answer", "--listen", place, *longest]
        self.loads = (subprocess.Popen(answer, stdout=subprocess.DEVNULL),)
        time.sleep(0.5)
        spread = [*enter, sender, self.load, "spread", "--to", place, *self.PACE, *longest]
        self.loads += (subprocess.Popen(spread, stdout=subprocess.PIPE, bufsize=0),)
        # A line after each of the first turns: the greetings, what makes each a flow, the later pace.
        for _ in range(3):
            ready, _, _ = select.select([self.loads[1].stdout], [], [], 360)
            if not ready or not self.loads[1].stdout.readline() or self.loads[0].poll() is not None:
                raise RuntimeError(f"the flows of {self.name} ended early, or a turn of theirs took 360 s")

    def quiet(self):
        """Ends them."""
        for process in self.loads[::-1]:
            end(process)
        self.loads = ()

    def flows(self):
        """How many flows the kernel path of each node has taken over, and how often it has refused one."""
        flows = [self.asked(node, "status")["kernel_path"]["flows"] for node in NODES if self.kernel_path]
        return [(one["installed"] - one["ended"], sum(refused["count"] for refused in one["refused"])) for one in flows]

    def down(self):
        self.quiet()
        super().down()


class Other(Lab):
    """Another overlay, brought up by a command of the user's."""

    def __init__(self, name, command, directory):
        super().__init__("direct", directory)
        self.name, self.command = name, shlex.split(command)

    def up(self, underlay):
        said = printed(*self.command, "up", underlay)
        self.pods = [tuple(line.split()[:2]) for line in said.splitlines() if len(line.split()) >= 2][:2]
        if len(self.pods) != 2:
            sys.exit(f"scripts/bench: '{shlex.join(self.command)} up' must print two lines 'NAMESPACE ADDRESS'; "
                     f"it printed:\n{said}")

    def lab(self, verb, *options):
        if self.pods:
            subprocess.run([*self.command, "down"], check=True)
            self.pods = []


# Paths that are more than a lab.
KINDS = {"kernel-gathered": Gathered, "auto-scale": Scale, "kernel-scale": Scale}
