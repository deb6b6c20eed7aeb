"""Paths that are watched: by `tartan top`, `tartan capture`, `tartan drops --follow`, scrapes and probes of peers."""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import labs


class Watched(labs.Lab):
    """A lab on whose nodes a program watches from beginning to end."""

    # Its arguments behind `tartan`, and what its lines go through.
    WATCHER, FILTER = (), ("cat",)
    watchers = ()

    def watching(self, node):
        return self.tartan_in(node, *self.WATCHER)

    def up(self, underlay):
        super().up(underlay)
        for node in labs.NODES:
            said, pipes = tempfile.TemporaryFile("w+"), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(self.watching(node), stdin=subprocess.DEVNULL, **pipes)
            self.watchers += ((process, subprocess.Popen(self.FILTER, stdin=process.stdout, stdout=said), said),)
            process.stdout.close()
        # The first sample is taken, and the workers are told to count.
        time.sleep(2)
        self.said()

    def said(self, end=False):
        """What each has printed. A watcher that has ended would leave the figures of a path that nothing watches."""
        for process, filter_, file in self.watchers:
            if process.poll() is not None:
                raise RuntimeError(f"tartan {self.WATCHER[0]} in {self.name} has ended with code {process.returncode}")
            if end:
                labs.end(process)
                filter_.wait(10)
            file.seek(0)
            yield file.read()
        if end:
            self.watchers = ()

    def at_end(self):
        list(self.said())
        return {}

    def down(self):
        for process, *_ in self.watchers:
            labs.end(process)
        self.watchers = ()
        super().down()


class Top(Watched):
    """`tartan top` runs on both nodes, on a terminal, and so flows are counted."""

    WATCHER = ("top",)

    def watching(self, node):
        command = f"stty rows 40 cols 120; exec {shlex.join(super().watching(node))}"
        return ["env", "TERM=xterm-256color", "script", "-q", "-c", command, "/dev/null"]


class Capture(Watched):
    """`tartan capture` takes every packet at every stage on both nodes."""

    WATCHER = ("capture", "--write", "/dev/null")
    SAYS = "captured", "passed the filter of the workers", "lost, because"

    def at_end(self):
        """Packets that passed the workers' filters on both nodes, the share that the captures lost, and how many are in
        neither of their counts."""
        said = list(self.said(end=True))
        captured, offered, lost = (
            sum(int(re.search(rf"(\d+) packets {words}", one)[1]) for one in said) for words in self.SAYS)
        share = 100 * lost / max(offered, 1)
        return {"captured": offered, "capture-lost": share, "capture-off": abs(offered - captured - lost)}


class Followed(Watched):
    """`tartan drops --follow` runs on both nodes; kept are the lines of counts: reason, direction, packets."""

    WATCHER, FILTER = ("drops", "--follow"), ("grep", "--line-buffered", "^counted: ")

    def up(self, underlay):
        super().up(underlay)
        self.before = self.dropped("node1", "inbound")

    def at_end(self):
        """By how many packets its counts of the first node's inbound direction differ from those of the workers."""
        # It says the last count within half a second.
        time.sleep(2)
        said = dict(re.findall(r"^counted: (\w+) inbound (\d+) ", next(self.said()), re.M))
        dropped = self.dropped("node1", "inbound") - self.before
        return {"followed-off": sum(abs(dropped[reason] - int(said.get(reason, 0))) for reason in dropped)}


class Unprobed(labs.Lab):
    """The nodes do not probe each other."""

    SETTINGS = {"TARTAN_PROBE": "false"}


class Listed(labs.Lab):
    """5,000 nodes, of which all but two are one program that answers probes and sends as many (listed_nodes.py)."""

    nodes = None

    def up(self, underlay):
        super().up(underlay)
        program = Path(__file__).with_name("listed_nodes.py")
        self.nodes = subprocess.Popen(self.inside("mallory", sys.executable, program))
        began = time.monotonic()
        for node in labs.NODES:
            # Until each is found to be well, and the MTU of its path.
            while unknown := sum(path["state"] != "up" or not path["mtu_measured"]
                                 for peer in self.asked(node, "peers")["peers"] for path in peer["paths"]):
                if self.nodes.poll() is not None or time.monotonic() > began + 420:
                    raise RuntimeError(f"{node} of {self.name} has not found out about {unknown} nodes")
                time.sleep(5)
        # A node that has just started has then asked each path what it asks once.
        time.sleep(max(0, began + 90 - time.monotonic()))

    def down(self):
        if self.nodes:
            labs.end(self.nodes)
            self.nodes = None
        super().down()


class Scraped(Listed):
    """The same; the metrics of the two that are there are asked for once a second while the path is measured, and no
    longer: all labs share the cores."""

    SETTINGS = {"TARTAN_METRICS": "127.0.0.1:9893"}
    # Seconds that an answer took to arrive whole, a line each; 000 behind it if there was none.
    LOOP = """while :; do sleep 1 & curl -s -m 10 -o /dev/null -w '%{time_total} %{http_code}\n' \
        http://127.0.0.1:9893/metrics; wait; done"""
    scrapers = ()

    def up(self, underlay):
        super().up(underlay)
        self.answers = tempfile.TemporaryFile("w+")

    def measured(self, on):
        for scraper in self.scrapers:
            labs.end(scraper)
        self.scrapers = ()
        if on:
            loops = [self.inside(node, "sh", "-c", self.LOOP) for node in labs.NODES]
            self.scrapers = [subprocess.Popen(loop, stdout=self.answers) for loop in loops]

    def at_end(self):
        """Milliseconds of a scrape: the median and the longest; how many failed."""
        self.answers.seek(0)
        answers = [line.split() for line in self.answers]
        times = sorted(float(took) * 1000 for took, code in answers if code == "200")
        if not times:
            raise RuntimeError(f"no page of metrics was had in {self.name}")
        return {"scrape": times[len(times) // 2], "scrape-most": times[-1], "scrape-failed": len(answers) - len(times)}

    def down(self):
        self.measured(False)
        super().down()


KINDS = {
    "top": Top, "capture": Capture, "followed": Followed, "unprobed": Unprobed, "listed": Listed, "scraped": Scraped}
