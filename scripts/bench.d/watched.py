"""Paths that are watched: what `tartan top`, `tartan capture`, `tartan drops --follow`, scrapes of /metrics and probes of peers
cost the traffic beside them."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import labs

LISTED_NODES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "listed_nodes.py")


class Watched(labs.Lab):
    """A lab on whose nodes a program watches from beginning to end."""

    # Its arguments behind `tartan`; it gets a terminal.
    WATCHER = ()
    watchers = ()

    def up(self, underlay):
        super().up(underlay)
        self.watchers = [Watcher(self.tartan_in(node, *self.WATCHER)) for node in labs.NODES]
        # The first sample is taken, and the workers are told to count.
        time.sleep(2)
        self.still_watched()

    def still_watched(self):
        """A watcher that has ended would leave the figures of a path that nothing watches."""
        for watcher in self.watchers:
            code = watcher.process.poll()
            if code is not None:
                raise RuntimeError("tartan %s in %s has ended with code %d" % (self.WATCHER[0], self.name, code))

    def drops(self):
        # Asked once, when everything is measured.
        self.still_watched()
        return super().drops()

    def ended(self):
        """Ends the watchers, and returns the end of what each printed."""
        watchers, self.watchers = self.watchers, ()
        return [watcher.end() for watcher in watchers]

    def down(self):
        self.ended()
        super().down()


class Watcher:
    """A program that watches a node, on a terminal of its own."""

    # Bytes of what it printed that are kept, from the last on.
    KEPT = 65536

    def __init__(self, command):
        self.ours, terminal = pty.openpty()
        environment = dict(os.environ, TERM="xterm-256color", COLUMNS="120", LINES="40")
        self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True)
        os.close(terminal)
        self.printed = b""
        # What `tartan drops --follow` has counted, by reason and direction.
        self.counted = {}
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        """Reads what the program paints, so that it never waits for its terminal."""
        line = b""
        try:
            while found := os.read(self.ours, 65536):
                self.printed = (self.printed + found)[-self.KEPT :]
                *whole, line = (line + found).split(b"\n")
                for count in filter(None, map(COUNTED.match, whole)):
                    self.counted[count[1].decode(), count[2].decode()] = int(count[3])
                line = line[-self.KEPT :]
        except OSError:
            # The program has ended.
            pass
        finally:
            os.close(self.ours)

    def end(self):
        """Ends it as a key of the terminal would."""
        self.process.send_signal(signal.SIGINT)
        labs.wait(self.process)
        self.reader.join(10)
        return self.printed.decode(errors="replace")


# A line of `tartan drops --follow`: reason, direction, packets since it began.
COUNTED = re.compile(rb"counted: (\w+) (\w+) (\d+) ")


class Top(Watched):
    """`tartan top` runs on both nodes, and so flows are counted."""

    WATCHER = ("top",)


class Capture(Watched):
    """`tartan capture` takes every packet at every stage on both nodes."""

    WATCHER = ("capture", "--write", "/dev/null")
    SAYS = {name: re.compile(r"(\d+) packets " + words) for name, words in (
        ("captured", "captured"), ("offered", "passed the filter of the workers"), ("lost", "lost, because"))}

    def at_end(self):
        """Packets that passed the workers' filters on both nodes, the share that the captures lost, and how many are in
        neither of their counts."""
        sums = dict.fromkeys(self.SAYS, 0)
        for printed in self.ended():
            for name, words in self.SAYS.items():
                said = words.search(printed)
                if not said:
                    raise RuntimeError("tartan capture in %s did not say what it has: %s" % (self.name, printed[-400:]))
                sums[name] += int(said[1])
        return {"captured": sums["offered"], "capture-lost": 100 * sums["lost"] / max(sums["offered"], 1),
                "capture-off": abs(sums["offered"] - sums["captured"] - sums["lost"])}


class Followed(Watched):
    """`tartan drops --follow` runs on both nodes."""

    WATCHER = ("drops", "--follow")
    # Seconds in which it says the last count, which it does twice a second.
    LAST = 2

    def up(self, underlay):
        super().up(underlay)
        self.before = self.dropped("node1", "inbound")

    def at_end(self):
        """By how many packets the counts that it printed differ from those of the workers, the reasons of the first node's
        inbound direction together."""
        time.sleep(self.LAST)
        dropped, counted = self.dropped("node1", "inbound"), self.watchers[0].counted
        return {"followed-off": sum(abs(count - self.before.get(reason, 0) - counted.get((reason, "inbound"), 0)) for reason, count in dropped.items())}


class Unprobed(labs.Lab):
    """The nodes do not probe each other."""

    SETTINGS = {"TARTAN_PROBE": "false"}


class Listed(labs.Lab):
    """5,000 nodes, of which all but two are one program that answers probes and sends as many (listed_nodes.py)."""

    # Seconds within which each node is found to be well, and the MTU of its path.
    LONGEST = 420
    # Seconds after which a node that has just started has asked each path what it asks once.
    SETTLED = 90
    nodes = None

    def up(self, underlay):
        super().up(underlay)
        self.nodes = subprocess.Popen(["ip", "netns", "exec", self.prefix + "-mallory", sys.executable, LISTED_NODES])
        began = time.monotonic()
        for node in labs.NODES:
            while unknown := self.unknown(node):
                if self.nodes.poll() is not None:
                    raise RuntimeError("the program that answers as the nodes of %s has ended" % self.name)
                if time.monotonic() > began + self.LONGEST:
                    raise RuntimeError("%s of %s has not found out about %d nodes" % (node, self.name, unknown))
                time.sleep(5)
        time.sleep(max(0, began + self.SETTLED - time.monotonic()))

    def unknown(self, node):
        """How many paths are not known to be well yet, or not how much they carry."""
        paths = [path for peer in self.asked(node, "peers")["peers"] for path in peer["paths"]]
        return sum(path["state"] != "up" or not path["mtu_measured"] for path in paths)

    def down(self):
        if self.nodes:
            labs.end(self.nodes)
            self.nodes = None
        super().down()


class Scraped(Listed):
    """The same; the metrics of the two that are there are asked for once a second while the path is measured. All labs share
    the cores, so that it would cost the others too if it went on."""

    PORT = 9893
    SETTINGS = {"TARTAN_METRICS": "127.0.0.1:%d" % PORT}
    # Seconds.
    EVERY = 1.0

    scrapers = ()

    def up(self, underlay):
        super().up(underlay)
        self.times, self.failed = [], 0
        self.ended, self.wanted = threading.Event(), threading.Event()
        self.scrapers = [threading.Thread(target=self.scrape, args=("%s-%s" % (self.prefix, node),), daemon=True) for node in labs.NODES]
        for scraper in self.scrapers:
            scraper.start()

    def measured(self, on):
        (self.wanted.set if on else self.wanted.clear)()

    def scrape(self, space):
        """Asks while it is wanted, until the lab goes, and notes how many seconds an answer took to arrive whole."""
        command = ["ip", "netns", "exec", space, "curl", "-s", "-f", "-m", "10", "-o", "/dev/null", "-w", "%{time_total}",
                   "http://127.0.0.1:%d/metrics" % self.PORT]
        while not self.ended.is_set():
            if not self.wanted.wait(0.1):
                continue
            next_one = time.monotonic() + self.EVERY
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0:
                self.times.append(float(done.stdout))
            else:
                self.failed += 1
            self.ended.wait(max(0, next_one - time.monotonic()))

    def at_end(self):
        """Milliseconds of a scrape: the median and the longest; how many failed."""
        times = sorted(self.times)
        if not times:
            raise RuntimeError("no page of metrics was had in %s" % self.name)
        return {"scrape": times[len(times) // 2] * 1000, "scrape-most": times[-1] * 1000, "scrape-failed": self.failed}

    def down(self):
        for scraper in self.scrapers:
            self.ended.set()
            scraper.join(20)
        self.scrapers = ()
        super().down()


KINDS = {"top": Top, "capture": Capture, "followed": Followed, "unprobed": Unprobed, "listed": Listed, "scraped": Scraped}
