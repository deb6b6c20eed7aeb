"""One measurement at a time. Each returns its figure and what came with it: retransmits, CPU time, losses."""

import json
import os
import re
import time

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
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, irq, softirq, stolen = (int(word) for word in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS, stolen / TICKS


def taken_since(before):
    """Per cent of what the machine wanted since `before`, what now() returned, that was taken.

    A share of what was wanted and not of the time, or a run that keeps more cores busy would seem disturbed more often.
    """
    work, taken = (after - one for after, one in zip(now(), before))
    return 100 * taken / max(work + taken, 1 / TICKS)


def take(figure, path, seconds, tries=1):
    """Measures `figure` on `path` for about `seconds`; a dictionary of values, the figure itself among them.

    On a virtual machine it is measured again when the host gave the processors to others meanwhile, up to `tries` times;
    the first calm one counts, or the calmest, whatever it found. What did not count is kept beside it.
    """
    found = []
    while len(found) < tries and (not found or found[-1][0] > CALM):
        before = now()
        path.measured(True)
        try:
            values = once(figure, path, seconds)
        finally:
            path.measured(False)
        found.append((taken_since(before), values))
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
    """Thousands of packets per second that Tartan refuses of a flood by a host that is no node; nothing where there is no Tartan."""
    count = path.refused(seconds)
    return {} if count is None else {"refused": count / seconds / 1e3}


def tcp(figure, path, seconds, flows, options):
    """Gb/s received by the far end, retransmits and CPU seconds of the whole machine per GB."""
    command = ["iperf3", "--client", path.address(1), "--time", "%g" % max(1, round(seconds)), "--parallel", flows, "--json"]
    before = now()[0]
    end = json.loads(path.run(0, command + options, seconds))["end"]
    used = now()[0] - before
    gigabytes = max(end["sum_received"]["bytes"] / 1e9, 1e-9)
    return {
        figure: end["sum_received"]["bits_per_second"] / 1e9,
        figure + "-retransmits": end["sum_sent"].get("retransmits", 0) / gigabytes,
        figure + "-cpu": used / gigabytes,
    }


def loaded(path, seconds, port, far, near, *options):
    """What tartan-load says at both ends, with `far` at the far one and `near` at this one, and CPU seconds meanwhile."""
    place = "%s:%d" % (path.address(1), port)
    other = path.start(1, [path.load, far, "--listen", place, "--seconds", "%g" % (seconds + 0.6)])
    time.sleep(0.2)
    before = now()[0]
    found = json.loads(path.run(0, [path.load, near, "--to", place, *options, "--seconds", "%g" % seconds], seconds))
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
    """New TCP connections a second, each accepted, closed by the far end, then by this one; and how long each takes, µs."""
    found, _, used = loaded(path, seconds, 9002, "accept", "connect")
    return {
        "connect": found["connections"] / found["seconds"],
        "connect-p50": found["p50_us"],
        "connect-p99": found["p99_us"],
        "connect-failed": found["failed"],
        "connect-cpu": used / max(found["connections"], 1) * 1e3,
    }


def resident(process):
    """Resident memory of a process, MiB."""
    with open("/proc/%d/status" % process, encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def tables(processes):
    """What the BPF maps take of which the processes have descriptors, MiB: each once (bpf(2); linux/kernel/bpf/syscall.c,
    bpf_map_show_fdinfo). It is memory of the kernel and part of no process's own."""
    found = {}
    for process in processes:
        folder = "/proc/%d/fdinfo" % process
        for descriptor in os.listdir(folder):
            try:
                with open("%s/%s" % (folder, descriptor), encoding="ascii") as file:
                    words = dict(re.findall(r"^(map_id|memlock):\s*(\d+)$", file.read(), re.M))
            except OSError:
                # It was closed meanwhile.
                continue
            if "map_id" in words:
                found[words["map_id"]] = int(words["memlock"])
    return sum(found.values()) / 2**20


def worked(processes):
    """Seconds of CPU that the processes have used, by the clock of each (clock_getcpuclockid(3); linux/posix-timers_types.h,
    MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED), which counts nanoseconds and the threads that have ended too. /proc/PID/stat counts
    ticks of 10 ms, and rounds user and system down each."""
    return sum(time.clock_gettime(~process << 3 | 2) for process in processes)


def footprint(path):
    """Keeper and service of the hungrier node: MiB resident after load and in the kernel's tables, and the share of a core
    when idle."""
    nodes = path.agents()
    if not nodes:
        return {}
    memory = max(sum(resident(process) for process in node) for node in nodes)
    kernel = max(tables(node) for node in nodes)
    agents = [process for node in nodes for process in node]
    before, start = worked(agents), time.monotonic()
    time.sleep(IDLE)
    idle = (worked(agents) - before) / (time.monotonic() - start) / len(nodes)
    return {"rss": memory, "tables": kernel, path.AT_REST: idle * 100}
