"""What Tartan must reach: in user space alone and with the kernel path, mostly as multiples of the kernel's VXLAN in the same
run and underlay."""

from typing import NamedTuple, Optional, Union

UNDERLAYS = ("wire", "no-tunnel", "offload")
# The column of the table: which path it is, and its title.
USER, EXPRESS = "vxlan", "auto"
COLUMNS = ((USER, "user space alone"), (EXPRESS, "with the kernel path"))
# Two runs of one program differ by so much: "no less than before" allows for it.
NOISE = 0.10
# The udp path keeps within this share of the vxlan path, every figure.
BESIDE = 0.10
FIGURES = ("tcp1", "tcp8", "udp64", "udp1400", "latency")
# MiB of keeper and service under load, and per cent of a core when idle.
RESIDENT = 48
IDLE = 0.2
# With 100,000 flows, 5,000 nodes and 250 pods a figure is worse by this share at the most.
AT_SCALE = 0.10
SCALED = ("tcp1", "tcp8", "udp64", "udp1400", "latency", "latency-p99", "connect")
# A path that is watched is worse than the same unwatched by this share at the most; latency under scrapes, and what nodes that
# probe each other and one that is followed under a flood do, by what two runs of one program differ.
WATCHED = (("top", "vxlan", ("tcp1", "udp64"), 0.03), ("capture", "vxlan", ("tcp1", "udp64"), 0.10),
           ("scraped", "listed", ("latency-p99",), NOISE), ("followed", "vxlan", ("refused",), NOISE),
           ("vxlan", "unprobed", ("tcp1", "udp64", "latency", "latency-p99"), NOISE))
# A watcher asks all the time, so that these are never idle.
UNLIMITED = ("top", "capture", "followed")
# Milliseconds of a page of metrics with 5,000 nodes; per cent of a core of an idle node that probes them.
SCRAPE = 50
PROBING = 1.0
# Of these less is better.
LESS = ("latency", "latency-p99", "tcp1-cpu", "tcp8-cpu")


class Bar(NamedTuple):
    """One bar of one column. `bar` may depend on the tunnel device: a dictionary of tun and tap."""

    title: str
    path: str
    underlay: str
    figure: str
    bar: Union[float, dict]
    # The path of whose figure it is a multiple; None: it is the figure itself.
    against: Optional[str] = "kernel"

    @property
    def sense(self):
        return "≤" if self.figure in LESS else "≥"


def all_bars():
    """Every bar of the table, in its order."""
    for underlay in UNDERLAYS:
        express = 3.0 if underlay == "no-tunnel" else 4.0
        for figure, title, user in (("udp64", "UDP 64 B", 2.0), ("udp1400", "UDP 1,400 B", 2.1)):
            yield Bar(title, USER, underlay, figure, user)
            yield Bar(title, EXPRESS, underlay, figure, express)
            yield Bar(title + ": share that arrives", EXPRESS, underlay, figure + "-arrived", 0.95, None)
        for figure, title in (("tcp1", "TCP, 1 flow"), ("tcp8", "TCP, 8 flows")):
            user, express = {"wire": (0.80, 1.05), "no-tunnel": (1.6, 1.6), "offload": ({"tun": 0.40, "tap": 0.70}, 1.3)}[underlay]
            yield Bar(title, USER, underlay, figure, user)
            yield Bar(title, EXPRESS, underlay, figure, express)
            if underlay == "wire":
                yield Bar(title, EXPRESS, underlay, figure, 0.85, "direct")
            if underlay == "offload":
                yield Bar(title + ": CPU seconds per GB", EXPRESS, underlay, figure + "-cpu", 0.8)
        yield Bar("latency p50", USER, underlay, "latency", 1.7)
        for figure, title in (("latency", "latency p50"), ("latency-p99", "latency p99")):
            yield Bar(title, USER, underlay, figure, 1 + NOISE, "before")
            yield Bar(title, EXPRESS, underlay, figure, 1.0)
        title = "new TCP connections a second"
        yield Bar(title, USER, underlay, "connect", 1 - NOISE, "before")
        yield Bar(title, EXPRESS, underlay, "connect", 1 - NOISE, "before")
        yield Bar(title, EXPRESS, underlay, "connect", 0.9)


# Of what a bar is a multiple, in words.
OF = {None: "", "kernel": " × the kernel", "direct": " × direct routing", "before": " × before"}


class Judged(NamedTuple):
    """A bar and what was reached."""

    bar: Bar
    limit: float
    reached: float

    @property
    def met(self):
        return self.reached <= self.limit if self.bar.sense == "≤" else self.reached >= self.limit

    def text(self):
        return "%.2f%s (%s %.2f)" % (self.reached, OF[self.bar.against], self.bar.sense, self.limit)


def judged(result):
    """Every bar of the table that this run can judge."""
    found = []
    for bar in all_bars():
        place = (bar.underlay, bar.path)
        reached = result.against(*place, bar.against, bar.figure) if bar.against else result.median(*place, bar.figure)
        device = result.devices.get(bar.underlay, {}).get(bar.path)
        limit = bar.bar.get(device) if isinstance(bar.bar, dict) else bar.bar
        if reached is not None and limit is not None:
            found.append(Judged(bar, limit, reached))
    return found


def goals(result):
    """The table of both columns, in Markdown: a line per figure and underlay, in a cell what was reached and the bar."""
    cells = {}
    for one in judged(result):
        text = one.text() if one.met else "**missed** " + one.text()
        cells.setdefault((one.bar.title, one.bar.underlay), {}).setdefault(one.bar.path, []).append(text)
    lines = ["### goals", "", "| figure | underlay | %s |" % " | ".join(title for _, title in COLUMNS), "|---" * (2 + len(COLUMNS)) + "|"]
    titles = list(dict.fromkeys(title for title, _ in cells))
    for (title, underlay), cell in sorted(cells.items(), key=lambda one: (titles.index(one[0][0]), UNDERLAYS.index(one[0][1]))):
        lines.append("| %s | `%s` | %s |" % (title, underlay, " | ".join("; ".join(cell.get(path, ["–"])) for path, _ in COLUMNS)))
    return lines if cells else []


def loss(figure, ratio):
    """How much worse a figure is that is this multiple of another; less than 0 where it is better."""
    return ratio - 1 if figure in LESS else 1 - ratio


# What is judged as a share that a path may be worse than another: path, beside, figures, share, text; the shares in per cent.
BESIDES = (("udp", "vxlan", FIGURES, BESIDE, "{path} {worse:.0f} % behind {beside} (≤ {share:.0f} %)"),
           ("auto-scale", "auto", SCALED, AT_SCALE, "worse by {worse:.0f} % (≤ {share:.0f} %)"),
           *((*one, "{path} {worse:.0f} % worse than {beside} (≤ {share:.0f} %)") for one in WATCHED))
# What is judged by itself: the figure, its bar, text, the paths of which it is not judged, bars of other paths. At scale the memory
# is stated, not limited.
LIMITS = (("rss", RESIDENT, "MiB resident", ("auto-scale", "listed", "scraped", *UNLIMITED), {}),
          ("idle", IDLE, "% of a core when idle", ("scraped", *UNLIMITED), {"listed": PROBING}),
          ("scrape", SCRAPE, "ms for a page of metrics", (), {}),
          ("scrape-failed", 0, "pages of metrics not had", (), {}),
          ("capture-off", 0, "packets neither captured nor counted as lost", (), {}),
          ("followed-off", 0, "packets dropped that were followed wrongly or not", (), {}))


def others(result):
    """What else this run can judge: text, whether it is met."""
    found = []
    for underlay in result.values:
        for path, beside, figures, share, text in BESIDES:
            for figure in figures:
                ratio = result.against(underlay, path, beside, figure)
                if ratio is None:
                    continue
                worse = loss(figure, ratio)
                text_ = text.format(path=path, beside=beside, worse=100 * max(worse, 0), share=100 * share)
                # What the flows themselves take.
                ratio = result.against(underlay, "kernel-scale", "kernel", figure) if path == "auto-scale" else None
                if ratio is not None:
                    text_ += ", the kernel's VXLAN by %.0f %%" % (100 * max(loss(figure, ratio), 0))
                found.append(("%s, %s: %s" % (underlay, figure, text_), worse <= share))
        for path in (path for path in result.values[underlay] if path != "before"):
            for figure, bar, text, unjudged, other in LIMITS:
                value, bar = result.median(underlay, path, figure), other.get(path, bar)
                if value is not None and path not in unjudged:
                    found.append(("%s, %s: %.2f %s (≤ %g)" % (underlay, path, value, text, bar), value <= bar))
    return found


def missed(result):
    """The bars that are not met."""
    table = [("%s, %s, %s: %s" % (one.bar.underlay, one.bar.path, one.bar.title, one.text()), one.met) for one in judged(result)]
    return [text for text, met in table + others(result) if not met]


def lines(result):
    """The bars outside the table as lines of the report."""
    return ["- %s %s" % ("met" if met else "**missed**", text) for text, met in others(result)]
