"""Paths that are watched: what `tartan top`, `tartan capture` and scrapes of /metrics cost the traffic that they look at."""

import os
import pty
import subprocess
import threading
import time

import labs

# The other paths, beside which a watched one is judged: the same without the watcher.
BESIDE = {"top": "vxlan", "capture": "vxlan", "scraped": "listed"}


class Watched(labs.Lab):
    """A lab on whose nodes a program watches from beginning to end."""

    # Its arguments behind `tartan`; it gets a terminal.
    WATCHER = ()

    def __init__(self, name, directory, options, load=None):
        super().__init__(name, directory, options, load)
        self.watchers = []

    def up(self, underlay):
        super().up(underlay)
        for node in ("node1", "node2"):
            ours, terminal = pty.openpty()
            command = ["ip", "netns", "exec", "%s-%s" % (self.prefix, node), os.path.join(self.directory, "tartan"), self.WATCHER[0], "--root",
                       "/run/tartan-lab/%s/%s" % (self.prefix, node), *self.WATCHER[1:]]
            environment = dict(os.environ, TERM="xterm-256color", COLUMNS="120", LINES="40")
            process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True)
            os.close(terminal)
            reader = threading.Thread(target=drain, args=(ours,), daemon=True)
            reader.start()
            self.watchers.append((process, reader))
        # The first sample is taken, and the workers are told to count.
        time.sleep(2)
        self.still_watched()

    def still_watched(self):
        """A watcher that has ended would leave the figures of a path that nothing watches."""
        for process, _ in self.watchers:
            if process.poll() is not None:
                raise RuntimeError("tartan %s in %s has ended with code %d" % (self.WATCHER[0], self.name, process.returncode))

    def drops(self):
        # Asked once, when everything is measured.
        self.still_watched()
        return super().drops()

    def down(self):
        for process, reader in self.watchers:
            process.terminate()
            process.wait(10)
            reader.join(10)
        self.watchers = []
        super().down()


class Top(Watched):
    """`tartan top` runs on both nodes, and so flows are counted."""

    WATCHER = ("top",)


class Capture(Watched):
    """`tartan capture` takes every packet at every stage on both nodes."""

    WATCHER = ("capture", "--write", "/dev/null")


class Scraped(labs.Lab):
    """5,000 nodes; the metrics of the two that are there are asked for once a second."""

    PORT = 9893
    # Seconds.
    EVERY = 1.0

    def __init__(self, name, directory, options, load=None):
        super().__init__(name, directory, options, load)
        self.times = []
        self.failed = 0
        self.ended = threading.Event()
        self.scrapers = []

    def lab(self, verb, *options):
        # Every agent of the lab has it from its environment.
        if verb != "up":
            return super().lab(verb, *options)
        os.environ["TARTAN_METRICS"] = "127.0.0.1:%d" % self.PORT
        try:
            return super().lab(verb, *options)
        finally:
            del os.environ["TARTAN_METRICS"]

    def up(self, underlay):
        super().up(underlay)
        self.ended.clear()
        for node in ("node1", "node2"):
            scraper = threading.Thread(target=self.scrape, args=("%s-%s" % (self.prefix, node),), daemon=True)
            scraper.start()
            self.scrapers.append(scraper)

    def scrape(self, space):
        """Asks until the lab goes, and notes how many seconds an answer took to arrive whole."""
        command = ["ip", "netns", "exec", space, "curl", "-s", "-f", "-m", "10", "-o", "/dev/null", "-w", "%{time_total}",
                   "http://127.0.0.1:%d/metrics" % self.PORT]
        while not self.ended.wait(self.EVERY):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0:
                self.times.append(float(done.stdout))
            else:
                self.failed += 1

    def at_end(self):
        """Milliseconds of a scrape: the median and the longest; how many failed."""
        times = sorted(self.times)
        if not times:
            raise RuntimeError("no page of metrics was had in %s" % self.name)
        return {"scrape": times[len(times) // 2] * 1000, "scrape-most": times[-1] * 1000, "scrape-failed": self.failed}

    def down(self):
        self.ended.set()
        for scraper in self.scrapers:
            scraper.join(20)
        self.scrapers = []
        super().down()


def drain(terminal):
    """Reads what a program paints, so that it never waits for its terminal."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        # The program has ended.
        pass
    finally:
        os.close(terminal)


KINDS = {"top": Top, "capture": Capture, "scraped": Scraped}
