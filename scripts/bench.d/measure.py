"""One measurement at a time. Each returns its figure and what came with it: retransmits, CPU time, losses."""

import contextlib
import json
import os
import re
import time
from pathlib import Path

import labs

FIGURES = ("tcp1", "tcp1-back", "tcp8", "tcp8-back", "udp64", "udp1400", "latency", "connect")
# Measured with --observe, or if named.
OBSERVED = ("refused",)
# Seconds of idleness that are watched: of the refresh of each node, which comes every 10 or 11 s, two.
IDLE = 22
TICKS = os.sysconf("SC_CLK_TCK")
# Up to so much of what the machine wanted may be taken away, per cent: with a fifth gone floods arrive at a tenth.
CALM = 5


def now():
    """Seconds that all cores together have worked, and that the host gave to others while a core here had work."""
    words = Path("/proc/stat").read_text().split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, words)
    return (user + nice + system + irq + softirq) / TICKS, stolen / TICKS


def take(figure, path, seconds, tries=1):
    """Measures `figure` on `path` for about `seconds`; a dictionary of values, the figure itself among them. On a
    virtual machine it is measured again when the host gave the processors to others meanwhile, up to `tries` times; the
    first calm one counts, or the calmest, whatever it found; the others are kept beside it. The share is of what the
    machine wanted, not of the time, or a run that keeps more cores busy would seem disturbed more often."""
    found = []
    while len(found) < tries and (not found or found[-1][0] > CALM):
        before = now()
        path.measured(True)
        try:
            values = once(figure, path, seconds)
        finally:
            path.measured(False)
        work, taken = (after - one for after, one in zip(now(), before))
        found.append((100 * taken / max(work + taken, 1 / TICKS), values))
    share, values = min(found, key=lambda one: one[0])
    if figure not in values:
        return {}
    left = [other[figure] for _, other in found if other is not values]
    return values | {"stolen": share, figure + "-stolen": share, figure + "-not-counted": left}


def once(figure, path, seconds):
    """One measurement, however calm the machine is."""
    if figure.startswith("tcp"):
        return tcp(figure, path, seconds, figure[3], ["--reverse"] if figure.endswith("-back") else [])
    if figure.startswith("udp"):
        path.flooding(True)
        try:
            return udp(figure, path, seconds, int(figure[3:]))
        finally:
            path.flooding(False)
    return {"connect": connect, "latency": latency, "refused": refused}[figure](path, seconds)


def refused(path, seconds):
    """Thousands of packets per second that Tartan refuses of a flood by a host that is no node."""
    if not path.tartan:
        return {}
    # The first node of every lab, by scripts/lab.d/addresses.sh.
    flood = [path.load, "flood", "--to", "192.0.2.1:8472", "--size", "64", "--seconds", f"{seconds:g}"]
    before = path.dropped("node1", "inbound").total()
    labs.printed(*path.inside("mallory", *flood), timeout=seconds + 20)
    # What the socket still holds is read.
    time.sleep(0.3)
    return {"refused": (path.dropped("node1", "inbound").total() - before) / seconds / 1e3}


def tcp(figure, path, seconds, flows, options):
    """Gb/s received by the far end, retransmits and CPU seconds of the whole machine per GB."""
    command = path.inside(0, "iperf3", "--client", path.pods[1][1], "--time", f"{max(1, round(seconds))}", "--json")
    before = now()[0]
    end = json.loads(labs.printed(*command, "--parallel", flows, *options, timeout=seconds + 20))["end"]
    used = now()[0] - before
    gigabytes = max(end["sum_received"]["bytes"] / 1e9, 1e-9)
    return {
        figure: end["sum_received"]["bits_per_second"] / 1e9,
        figure + "-retransmits": end["sum_sent"].get("retransmits", 0) / gigabytes,
        figure + "-cpu": used / gigabytes,
    }


def loaded(path, seconds, port, far, near, *options):
    """What tartan-load says at both ends, `far` at the far one and `near` at this one, and CPU seconds meanwhile."""
    place = f"{path.pods[1][1]}:{port}"
    other = path.start(1, path.load, far, "--listen", place, "--seconds", f"{seconds + 0.6:g}")
    time.sleep(0.2)
    before = now()[0]
    command = path.inside(0, path.load, near, "--to", place, *options, "--seconds", f"{seconds:g}")
    found = json.loads(labs.printed(*command, timeout=seconds + 20))
    used = now()[0] - before
    return found, json.loads(other.communicate(timeout=seconds + 20)[0] or "{}"), used


def udp(figure, path, seconds, size):
    """Thousands of packets per second that the far end received of a flood, and the share of those sent."""
    sent, sink, used = loaded(path, seconds, 9000, "sink", "flood", "--size", str(size))
    received = sink["received"]
    return {
        figure: received / sent["seconds"] / 1e3,
        figure + "-arrived": received / max(sent["sent"], 1),
        figure + "-cpu": used / max(received * size / 1e9, 1e-9),
    }


def latency(path, seconds):
    """Half a round trip of 64 bytes, microseconds: the median and the 99th percentile."""
    found, _, _ = loaded(path, seconds, 9001, "echo", "ping")
    return {"latency": found["p50_us"], "latency-p99": found["p99_us"], "latency-lost": found["lost"]}


def connect(path, seconds):
    """New TCP connections a second, each accepted, closed by the far end, then by this one; and what each takes, µs."""
    found, _, used = loaded(path, seconds, 9002, "accept", "connect")
    return {
        "connect": found["connections"] / found["seconds"],
        "connect-p50": found["p50_us"],
        "connect-p99": found["p99_us"],
        "connect-failed": found["failed"],
        "connect-cpu": used / max(found["connections"], 1) * 1e3,
    }


def tables(processes):
    """MiB of the BPF maps of which the processes have descriptors, each once (linux/kernel/bpf/syscall.c,
    bpf_map_show_fdinfo): memory of the kernel and part of no process's own."""
    found = {}
    for file in (file for process in processes for file in Path(f"/proc/{process}/fdinfo").iterdir()):
        # One may be closed meanwhile.
        with contextlib.suppress(OSError):
            words = dict(re.findall(r"^(map_id|memlock):\s*(\d+)$", file.read_text(), re.M))
            if "map_id" in words:
                found[words["map_id"]] = int(words["memlock"])
    return sum(found.values()) / 2**20


def footprint(path):
    """Keeper and service of the hungrier node: MiB resident and in the kernel's tables; per cent of a core when
    idle."""
    nodes = list(path.agents())
    if not nodes:
        return {}

    def resident(process):
        return int(re.search(r"^VmRSS:\s*(\d+)", Path(f"/proc/{process}/status").read_text(), re.M)[1]) / 1024

    def worked():
        """Seconds of CPU, by the clock of each process (clock_getcpuclockid(3)), which counts nanoseconds and threads
        that have ended; /proc/PID/stat counts ticks of 10 ms, and rounds each down."""
        return sum(time.clock_gettime(~process << 3 | 2) for node in nodes for process in node)

    memory, kernel = max(sum(map(resident, node)) for node in nodes), max(map(tables, nodes))
    before, start = worked(), time.monotonic()
    time.sleep(IDLE)
    idle = (worked() - before) / (time.monotonic() - start) / len(nodes)
    return {"rss": memory, "tables": kernel, path.AT_REST: idle * 100}
