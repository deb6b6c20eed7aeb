"""What was measured: medians and spread, as a table and as JSON, with the machine that it was measured on."""

import json
import os
import platform
import statistics
import subprocess
import time

import bars
import labs
import measure

TITLES = {
    "tcp1": "TCP, 1 flow (Gb/s)", "tcp1-back": "TCP, 1 flow, other way (Gb/s)",
    "tcp8": "TCP, 8 flows (Gb/s)", "tcp8-back": "TCP, 8 flows, other way (Gb/s)",
    "udp64": "UDP 64 B (kpps received)", "udp1400": "UDP 1,400 B (kpps received)",
    "udp64-arrived": "UDP 64 B: share that arrived", "udp1400-arrived": "UDP 1,400 B: share that arrived",
    "latency": "latency p50 (µs)", "latency-p99": "latency p99 (µs)",
    "connect": "new TCP connections a second", "connect-p99": "a TCP connection, p99 (µs)",
    "connect-failed": "TCP connections that failed",
    "tcp1-retransmits": "TCP, 1 flow: retransmits per GB", "tcp8-retransmits": "TCP, 8 flows: retransmits per GB",
    "tcp1-cpu": "TCP, 1 flow: CPU s per GB", "tcp8-cpu": "TCP, 8 flows: CPU s per GB",
    "udp64-cpu": "UDP 64 B: CPU s per GB", "udp1400-cpu": "UDP 1,400 B: CPU s per GB",
    "connect-cpu": "1,000 TCP connections: CPU s",
    "stolen": "taken away by the machine's host, %", "drops": "dropped by Tartan, packets",
    "rss": "keeper and service, MiB", "tables": "tables of the kernel path, MiB", "idle": "idle, % of a core",
    "flows": "flows that the kernel path took over", "flows-cpu": "100,000 flows alone, % of a core",
    "refused": "a flood of no node refused (kpps)",
    "captured": "packets of the workers while captured", "capture-lost": "of these not captured, %",
    "capture-off": "of these neither captured nor counted as lost",
    "followed-off": "packets dropped that were followed wrongly or not",
    "scrape": "a page of metrics, ms", "scrape-most": "a page of metrics, the longest, ms",
    "scrape-failed": "pages of metrics that were not had",
}
# Of these the multiple of the kernel's VXLAN says nothing.
ALONE = """udp64-arrived udp1400-arrived connect-failed stolen drops rss tables idle flows flows-cpu captured
    capture-lost capture-off followed-off scrape scrape-most scrape-failed""".split()
# Behind the name of an underlay: paths beside many flows.
SCALE_LABEL = " at scale"


class Result:
    """Values by underlay, path and figure, one per round."""

    def __init__(self, rounds, seconds):
        self.rounds, self.seconds, self.values = rounds, seconds, {}
        # Of Tartan's paths: tun or tap.
        self.devices = {}
        self.started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        # Asked before anything is written: a record that is written anew is a change of the tree.
        git = ["git", "-C", labs.REPOSITORY, "describe", "--always", "--dirty", "--abbrev=10"]
        self.commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"

    def add(self, underlay, path, values):
        place = self.values.setdefault(underlay, {}).setdefault(path, {})
        for figure, value in values.items():
            place.setdefault(figure, []).append(value)

    def close(self, underlay, path):
        """Takes what is asked once, after the load."""
        if path.tartan:
            dropped = sum(path.dropped(node, one).total() for node in labs.NODES for one in ("inbound", "outbound"))
            self.add(underlay, path.name, {"drops": dropped})
            self.devices.setdefault(underlay, {})[path.name] = path.device_type()
        self.add(underlay, path.name, measure.footprint(path) | path.at_end())

    def median(self, underlay, path, figure):
        values = self.values.get(underlay, {}).get(path, {}).get(figure)
        return statistics.median(values) if values else None

    def against(self, underlay, path, other, figure):
        """The multiple of another path's figure, or None: the median of each round's, as a virtual machine may work
        faster in some rounds than in others; at scale, where they are measured one after the other, that of the
        medians."""
        ours, theirs = (self.values.get(underlay, {}).get(name, {}).get(figure) or [] for name in (path, other))
        if not ours or not theirs:
            return None
        if underlay.endswith(SCALE_LABEL) or len(ours) != len(theirs):
            ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
        ratios = [one / beside for one, beside in zip(ours, theirs) if beside]
        return statistics.median(ratios) if ratios else None

    def machine(self):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
        return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "commit": self.commit,
                "date": self.started}

    def table(self):
        """Every figure as a Markdown table per underlay: median, spread, multiple of the kernel's VXLAN."""
        lines = ["%(cpu)s, %(cores)d cores, Linux %(kernel)s, commit %(commit)s, %(date)s" % self.machine(),
                 f"{self.rounds} rounds of {self.seconds:g} s; median (least to most), in brackets the multiple of the "
                 "kernel's VXLAN, the median of each round's"]
        for underlay, paths in self.values.items():
            lines += ["", f"### underlay `{underlay}`", "", f"| | {' | '.join(paths)} |"]
            lines.append("|---" * (len(paths) + 1) + "|")
            for figure, title in TITLES.items():
                if any(figure in values for values in paths.values()):
                    cells = [self.cell(underlay, path, figure) for path in paths]
                    lines.append(f"| {title} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *bars.goals(self), "", *bars.lines(self)]) + "\n"

    def cell(self, underlay, path, figure):
        values = self.values[underlay][path].get(figure)
        if not values:
            return "–"
        text = short(figure, statistics.median(values))
        if len(values) > 1:
            text += f" ({short(figure, min(values))}–{short(figure, max(values))})"
        # At scale each path is measured beside itself, not by rotation with the others.
        ratio = None if underlay.endswith(SCALE_LABEL) else self.against(underlay, path, "kernel", figure)
        return text if ratio is None or path == "kernel" or figure in ALONE else f"{text} [{ratio:.2f}]"

    def write(self, stem):
        with open(stem + ".md", "w", encoding="utf-8") as file:
            file.write(self.table())
        whole = {"machine": self.machine(), "rounds": self.rounds, "seconds": self.seconds, "devices": self.devices,
                 "values": self.values}
        with open(stem + ".json", "w", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)


def short(figure, value):
    """A value with as many digits as it is worth."""
    if value is None:
        return "–"
    return f"{value:.{0 if figure == 'drops' or abs(value) >= 100 else 2 if abs(value) < 10 else 1}f}"
