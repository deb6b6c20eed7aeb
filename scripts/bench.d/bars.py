"""What Tartan must reach, mostly as multiples of the kernel's VXLAN in the same run and underlay."""

import collections

UNDERLAYS = ("wire", "no-tunnel", "offload")
# The columns of the table: which path it is, and its title.
USER, EXPRESS = "vxlan", "auto"
COLUMNS = {USER: "user space alone", EXPRESS: "with the kernel path"}
# Two runs of one program differ by so much: "no less than before" allows for it.
NOISE = 0.10
FIGURES = ("tcp1", "tcp8", "udp64", "udp1400", "latency")
SCALED = (*FIGURES, "latency-p99", "connect")
# Of these less is better.
LESS = ("latency", "latency-p99", "tcp1-cpu", "tcp8-cpu")
# A watcher asks all the time, so that these are never idle.
UNLIMITED = ("top", "capture", "followed")
# What a path may be worse than another: path, beside, figures, share, text. Latency under scrapes, and what nodes that
# probe each other and one that is followed under a flood do, may differ by what two runs of one program do.
WATCHED = (("top", "vxlan", ("tcp1", "udp64"), 0.03), ("capture", "vxlan", ("tcp1", "udp64"), 0.10),
           ("scraped", "listed", ("latency-p99",), NOISE), ("followed", "vxlan", ("refused",), NOISE),
           ("vxlan", "unprobed", ("tcp1", "udp64", "latency", "latency-p99"), NOISE))
BESIDES = (("udp", "vxlan", FIGURES, 0.10, "{path} {worse:.0f} % behind {beside} (≤ {share:.0f} %)"),
           ("auto-scale", "auto", SCALED, 0.10, "worse by {worse:.0f} % (≤ {share:.0f} %)"),
           *((*one, "{path} {worse:.0f} % worse than {beside} (≤ {share:.0f} %)") for one in WATCHED))
# What is judged by itself: the figure, its bar, text, the paths of which it is not judged, bars of others (a node that
# probes 5,000). At scale the memory is stated, not limited.
LIMITS = (("rss", 48, "MiB resident", ("auto-scale", "listed", "scraped", *UNLIMITED), {}),
          ("idle", 0.2, "% of a core when idle", ("scraped", *UNLIMITED), {"listed": 1.0}),
          ("scrape", 50, "ms for a page of metrics", (), {}),
          ("scrape-failed", 0, "pages of metrics not had", (), {}),
          ("capture-off", 0, "packets neither captured nor counted as lost", (), {}),
          ("followed-off", 0, "packets dropped that were followed wrongly or not", (), {}))
FLOWS = ("kernel-scale", "kernel")
# Of what a bar is a multiple, in words.
OF = {None: "", "kernel": " × the kernel", "direct": " × direct routing", "before": " × before"}


# `bar` may be a dictionary of tun and tap; `against` is the path of whose figure it is a multiple, or None.
Bar = collections.namedtuple("Bar", "title path underlay figure bar against", defaults=("kernel",))


def all_bars():
    """Every bar of the table, in its order."""
    for underlay in UNDERLAYS:
        express = 3.0 if underlay == "no-tunnel" else 4.0
        for figure, title, user in (("udp64", "UDP 64 B", 2.0), ("udp1400", "UDP 1,400 B", 2.1)):
            yield Bar(title, USER, underlay, figure, user)
            yield Bar(title, EXPRESS, underlay, figure, express)
            yield Bar(title + ": share that arrives", EXPRESS, underlay, figure + "-arrived", 0.95, None)
        user = {"wire": 0.80, "no-tunnel": 1.6, "offload": {"tun": 0.40, "tap": 0.70}}[underlay]
        express = {"wire": 1.05, "no-tunnel": 1.6, "offload": 1.3}[underlay]
        for figure, title in (("tcp1", "TCP, 1 flow"), ("tcp8", "TCP, 8 flows")):
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
        for path in (USER, EXPRESS):
            yield Bar("new TCP connections a second", path, underlay, "connect", 1 - NOISE, "before")
        yield Bar("new TCP connections a second", EXPRESS, underlay, "connect", 0.9)


def judged(result):
    """Every bar of the table that this run can judge: the bar, what was reached in words, and whether it is met."""
    for bar in all_bars():
        place = bar.underlay, bar.path
        reached = result.against(*place, bar.against, bar.figure) if bar.against else result.median(*place, bar.figure)
        device = result.devices.get(bar.underlay, {}).get(bar.path)
        limit = bar.bar.get(device) if isinstance(bar.bar, dict) else bar.bar
        if reached is not None and limit is not None:
            sense, met = ("≤", reached <= limit) if bar.figure in LESS else ("≥", reached >= limit)
            yield bar, f"{reached:.2f}{OF[bar.against]} ({sense} {limit:.2f})", met


def goals(result):
    """The table of both columns: a line per figure and underlay, in a cell what was reached and the bar."""
    cells = {}
    for bar, text, met in judged(result):
        place = cells.setdefault((bar.title, bar.underlay), {})
        place.setdefault(bar.path, []).append(text if met else "**missed** " + text)
    lines = ["### goals", "", f"| figure | underlay | {' | '.join(COLUMNS.values())} |", "|---|---|---|---|"]
    titles = list(dict.fromkeys(title for title, _ in cells))
    for title, underlay in sorted(cells, key=lambda one: (titles.index(one[0]), UNDERLAYS.index(one[1]))):
        texts = ["; ".join(cells[title, underlay].get(path, ["–"])) for path in COLUMNS]
        lines.append(f"| {title} | `{underlay}` | {' | '.join(texts)} |")
    return lines if cells else []


def others(result):
    """What else this run can judge: text, whether it is met."""
    for underlay in result.values:
        for path, beside, figures, share, text in BESIDES:
            for figure in figures:
                # How much worse, of 1; less than 0 where it is better. At scale also what the flows themselves take.
                worse, theirs = (
                    None if ratio is None else ratio - 1 if figure in LESS else 1 - ratio for ratio in (
                        result.against(underlay, path, beside, figure), result.against(underlay, *FLOWS, figure)))
                if worse is not None:
                    text_ = text.format(path=path, beside=beside, worse=100 * max(worse, 0), share=100 * share)
                    if path == "auto-scale" and theirs is not None:
                        text_ += f", the kernel's VXLAN by {100 * max(theirs, 0):.0f} %"
                    yield f"{underlay}, {figure}: {text_}", worse <= share
        for path in result.values[underlay]:
            for figure, bar, text, unjudged, other in LIMITS:
                value, bar = result.median(underlay, path, figure), other.get(path, bar)
                if value is not None and path not in ("before", *unjudged):
                    yield f"{underlay}, {path}: {value:.2f} {text} (≤ {bar:g})", value <= bar


def missed(result):
    """The bars that are not met."""
    table = [(f"{bar.underlay}, {bar.path}, {bar.title}: {text}", met) for bar, text, met in judged(result)]
    return [text for text, met in [*table, *others(result)] if not met]


def lines(result):
    """The bars outside the table as lines of the report."""
    return [f"- {'met' if met else '**missed**'} {text}" for text, met in others(result)]
