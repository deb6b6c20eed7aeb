"""The paths between two pods: Tartan in user space and with the kernel path, the kernel's VXLAN, direct routing, and
whatever else is named."""

import collections
import json
import os
import select
import shlex
import subprocess
import sys
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
LAB = os.path.join(REPOSITORY, "scripts", "lab")
NAMES = ("tartan", "tartan-cni", "tartan-load")
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
WITHOUT_TARTAN = ("kernel", "kernel-gathered", "kernel-scale", "direct")
NODES = ("node1", "node2")
# The first node of every lab on the underlay (scripts/lab.d/addresses.sh), and the port where it is sent VXLAN.
NODE1, VXLAN = "192.0.2.1", 8472


def programs(directory):
    """The directory of the programs to measure; builds the optimised ones if none is named."""
    if directory is None:
        subprocess.run(["scripts/build", "--release", "--load"], cwd=REPOSITORY, check=True)
        directory = os.path.join(REPOSITORY, "target", "release")
    missing = [name for name in NAMES if not os.access(os.path.join(directory, name), os.X_OK)]
    if missing:
        sys.exit("scripts/bench: no %s in %s: build them, or leave --bin out" % (", ".join(missing), directory))
    return os.path.realpath(directory)


def usual_weight():
    """Ends the bench where its processes, or the scheduling group of its session (sched(7)), have another nice value than 0:
    what takes several threads a packet then takes several times as long (docs/performance.md)."""
    try:
        with open("/proc/self/autogroup", encoding="ascii") as file:
            group = int(file.read().split()[-1])
    except (OSError, IndexError, ValueError):
        group = 0  # A kernel without them.
    if group != 0 or os.nice(0) != 0:
        sys.exit("scripts/bench: what it starts would run with a nice value of %d, in a group with %d: a measurement needs 0 and 0; "
                 "'echo 0 >/proc/self/autogroup' mends the group, a new shell the other" % (os.nice(0), group))


def lab(name, directory, options, load=None):
    """The lab of a path; `options` are further ones of the user's for labs with Tartan, `load` is the directory of
    tartan-load where that is another one."""
    return KINDS.get(name, Lab)(name, directory, shlex.split(options), load)


def paths(chosen, others, directory, options, before):
    """The paths in the order in which they are measured; `before` is the directory of earlier programs, or None."""
    found = [lab(name, directory, options) for name in chosen]
    if before:
        found.append(lab("before", before, "", directory))
    return found + [Other(*named.split("=", 1), directory) for named in others]


def end(process):
    """Ends a program, politely first."""
    process.terminate()
    wait(process)


def wait(process):
    """Waits until it ends, not for ever."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        # What it hangs on is in the error that brought us here; the lab must go all the same.
        process.kill()
        process.wait(10)


def enough_tracking(flows):
    """Ends the bench where connection tracking has no room for so many flows, and for half as many of everything else."""
    with open("/proc/sys/net/netfilter/nf_conntrack_max", encoding="ascii") as file:
        most = int(file.read())
    if most < flows * 3 // 2:
        sys.exit("scripts/bench: --scale needs room for %d flows in connection tracking, and there is room for %d: "
                 "set net.netfilter.nf_conntrack_max higher" % (flows * 3 // 2, most))


class Lab:
    """Two pods and a way between them: a lab of scripts/lab."""

    # What the agents of the lab get besides, as variables of their environment.
    SETTINGS = {}
    # What the processor time while nothing is measured is called.
    AT_REST = "idle"

    def __init__(self, name, directory, options, load=None):
        suffix, own = LABS[name]
        self.prefix, own = "bench" + suffix, own.split()
        self.name, self.directory = name, directory
        self.load = os.path.join(load or directory, "tartan-load")
        self.pods, self.server = [], None
        self.tartan = name not in WITHOUT_TARTAN
        self.kernel_path = "stateless" in own or "auto" in own
        self.options = own + (options if self.tartan else [])

    def run(self, pod, command, seconds):
        """Runs a command in the namespace of pod 0 or 1 to its end and returns what it printed."""
        done = subprocess.run(self.inside(pod, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds + 20)
        if done.returncode != 0:
            raise RuntimeError("%s in %s: %s" % (shlex.join(command), self.name, (done.stderr or done.stdout).strip()[-400:]))
        return done.stdout

    def start(self, pod, command, output=subprocess.PIPE):
        """Starts a command there; the caller that waits for it reads its output."""
        return subprocess.Popen(self.inside(pod, command), stdout=output, stderr=subprocess.DEVNULL, text=True)

    def inside(self, pod, command):
        return ["ip", "netns", "exec", self.pods[pod][0]] + command

    def address(self, pod):
        return self.pods[pod][1]

    def serve(self):
        # No program reads what a server prints; a pipe would be full after some dozens of measurements, and the server wait.
        self.server = self.start(1, ["iperf3", "--server", "--bind", self.address(1)], subprocess.DEVNULL)

    def stop_serving(self):
        if self.server:
            end(self.server)
            self.server = None

    def up(self, underlay):
        self.down()
        self.lab("up", *self.options, "--underlay", underlay)
        # Tartan's default; on the others it writes the rules of `flanneld --ip-masq`, so packets meet the same
        # kinds of work (connection tracking, forward and masquerade chains) on every path.
        self.lab("masquerade", "on")
        with open("/run/tartan-lab/%s/pods" % self.prefix, encoding="ascii") as file:
            self.attached = [line.split() for line in file]
        self.pods = [self.pod(node, 0) for node in NODES]
        if self.kernel_path:
            self.wait_for_kernel_path()
        self.serve()

    def wait_for_kernel_path(self):
        """Without it the figures would be those of user space under another name."""
        latest = time.monotonic() + 20
        for node in NODES:
            while not (state := self.asked(node, "status")["kernel_path"])["in_use"]:
                if time.monotonic() > latest:
                    sys.exit("scripts/bench: the kernel path of %s in the lab %s is not in use: %s" % (node, self.prefix, state["reason"]))
                time.sleep(0.2)

    def tartan_in(self, node, *words):
        """The command line that runs `tartan WORDS` on a node."""
        return ["ip", "netns", "exec", "%s-%s" % (self.prefix, node), os.path.join(self.directory, "tartan"), words[0], "--root",
                "/run/tartan-lab/%s/%s" % (self.prefix, node), *words[1:]]

    def asked(self, node, command):
        """What `tartan COMMAND` says there. Its code is 1 where there is a problem, which is an answer all the same."""
        return json.loads(subprocess.run(self.tartan_in(node, command, "-o", "json"), stdout=subprocess.PIPE, text=True, check=False).stdout)

    def pod(self, node, number):
        """Namespace and address of a node's pod, by its place among the node's."""
        name, _, address = [words[:3] for words in self.attached if words[1] == node][number]
        return "%s-%s" % (self.prefix, name), address

    def down(self):
        self.stop_serving()
        self.lab("down")

    def lab(self, verb, *options):
        environment = dict(os.environ, LAB_BIN=self.directory, **self.SETTINGS)
        done = subprocess.run([LAB, verb, "--prefix", self.prefix, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit("scripts/bench: scripts/lab %s failed:\n%s" % (verb, done.stdout))

    def agents(self):
        """Process ids of keeper and service of each node; none where there is no Tartan."""
        found = []
        for node in NODES if self.tartan else ():
            with open("/run/tartan-lab/%s/%s/pid" % (self.prefix, node), encoding="ascii") as file:
                keeper = int(file.read())
            with open("/proc/%d/task/%d/children" % (keeper, keeper), encoding="ascii") as file:
                found.append([keeper] + [int(word) for word in file.read().split()])
        return found

    def drops(self):
        """Packets that Tartan dropped on both nodes; None where there is no Tartan."""
        if not self.tartan:
            return None
        return sum(sum(self.dropped(node, direction).values()) for node in NODES for direction in ("inbound", "outbound"))

    def dropped(self, node, direction):
        """Packets that the workers of a node dropped in a direction, by reason."""
        found = collections.Counter()
        for worker in self.asked(node, "drops")["workers"]:
            found.update(worker[direction]["dropped"])
        return found

    def refused(self, seconds):
        """How many packets of a host that is no node the first node has refused, of a flood of so many seconds; None where
        there is no Tartan."""
        if not self.tartan:
            return None
        flood = [self.load, "flood", "--to", "%s:%d" % (NODE1, VXLAN), "--size", "64", "--seconds", "%g" % seconds]
        before = sum(self.dropped("node1", "inbound").values())
        subprocess.run(["ip", "netns", "exec", self.prefix + "-mallory"] + flood, stdout=subprocess.PIPE, check=True, timeout=seconds + 20)
        # What the socket still holds is read.
        time.sleep(0.3)
        return sum(self.dropped("node1", "inbound").values()) - before

    def device_type(self):
        """tun or tap: what Tartan's tunnel device is; None where there is no Tartan."""
        if not self.tartan:
            return None
        shown = subprocess.run(["ip", "-n", self.prefix + "-node1", "-d", "-j", "link", "show", "tartan0"], stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(shown.stdout)[0]["linkinfo"]["info_data"]["type"]

    def flooding(self, on):
        """A flood begins or has ended."""

    def measured(self, on):
        """A measurement of this path begins or has ended; the other paths are measured in between."""

    def at_end(self):
        """What this path alone has measured all along."""
        return {}


class Gathered(Lab):
    """The kernel's VXLAN where the pods' small UDP packets are gathered as Tartan does it: what of Tartan's gain is not its own."""

    def up(self, underlay):
        super().up(underlay)
        for node, pod in enumerate(self.pods, 1):
            end = "pod%d" % node
            self.lab("exec", "node%d" % node, "--", "ethtool", "-K", end, "gro", "on", "rx-udp-gro-forwarding", "on")
            # Back-pressure on the program that sends, instead of loss in the pod.
            subprocess.run(["tc", "-n", pod[0], "qdisc", "replace", "dev", "eth0", "root", "pfifo"], check=True)

    def flooding(self, on):
        # While a pod floods one way its end has a thread, which an agent would give it; at other times that costs latency.
        self.lab("exec", "node1", "--", "sh", "-c", "echo %d >/sys/class/net/pod1/threaded" % on)


class Scale(Lab):
    """5,000 nodes where there is Tartan, 250 pods on each of the two that are there, and 100,000 flows between two pods that
    are not measured."""

    FLOWS, PORT = 100_000, 10_000
    # Datagrams of each flow at first, enough for the kernel path to take it over, and a second of all together. Before them
    # each flow sends one that is answered, and 3 s later lasts long enough to be a stream for connection tracking.
    FIRST, FIRST_RATE = 40, 100_000
    # From then on a second of all flows together: each has one in 20 s, too few to be judged anew, so that after its first minute
    # the host's stack has it.
    RATE = FLOWS // 20
    # Seconds.
    LONGEST = 3600
    AT_REST = "flows-cpu"

    def __init__(self, name, directory, options, load=None):
        super().__init__(name, directory, options, load)
        self.sender = self.receiver = None

    def live(self):
        """Starts the flows, and waits until each has sent what makes it one."""
        (sender, _), (receiver, address) = self.pod("node1", 1), self.pod("node2", 1)
        place, longest = "%s:%d" % (address, self.PORT), ["--seconds", str(self.LONGEST)]
        self.receiver = subprocess.Popen(["ip", "netns", "exec", receiver, self.load, "answer", "--listen", place, *longest], stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        self.sender = subprocess.Popen(
            ["ip", "netns", "exec", sender, self.load, "spread", "--to", place, "--flows", str(self.FLOWS), "--first", str(self.FIRST),
             "--first-rate", str(self.FIRST_RATE), "--rate", str(self.RATE), *longest], stdout=subprocess.PIPE, bufsize=0)
        # tartan-load prints a line after each of the first turns: the greetings, what makes each a flow, the first at the later pace.
        for _ in range(3):
            ready, _, _ = select.select([self.sender.stdout], [], [], self.LONGEST / 10)
            if not ready or not self.sender.stdout.readline() or self.receiver.poll() is not None:
                raise RuntimeError("the flows of %s ended early, or a turn of theirs took longer than %d s" % (self.name, self.LONGEST // 10))

    def quiet(self):
        """Ends them."""
        for process in (self.sender, self.receiver):
            if process:
                end(process)
        self.sender = self.receiver = None

    def flows(self):
        """How many flows the kernel path of each node has taken over and connection tracking not forgotten since, and how often it
        has refused one; nothing where there is none."""
        flows = [self.asked(node, "status")["kernel_path"]["flows"] for node in NODES if self.kernel_path]
        return [(one["installed"] - one["ended"], sum(refused["count"] for refused in one["refused"])) for one in flows]

    def down(self):
        self.quiet()
        super().down()


class Other(Lab):
    """Another overlay, brought up by a command of the user's."""

    def __init__(self, name, command, directory):
        super().__init__("direct", directory, [])
        self.name, self.command = name, shlex.split(command)

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


# Paths that are more than a lab.
KINDS = {"kernel-gathered": Gathered, "auto-scale": Scale, "kernel-scale": Scale}
