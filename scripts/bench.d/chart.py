"""The medians of one underlay as an SVG bar chart: a panel per figure, a bar per path, the spread as a line."""

from html import escape

PANELS = (
    ("tcp1", "TCP, 1 flow", "Gb/s"),
    ("tcp8", "TCP, 8 flows", "Gb/s"),
    ("udp64", "UDP 64 B", "kpps received"),
    ("udp1400", "UDP 1,400 B", "kpps received"),
    ("latency", "latency p50", "µs, less is better"),
    ("latency-p99", "latency p99", "µs, less is better"),
    ("connect", "new TCP connections", "a second"),
)
# Of each path its colour and what it is called; other ones have their own name.
PATHS = {
    "vxlan": ("#b3202c", "user space, vxlan"),
    "tun": ("#b3202c", "user space, TUN"),
    "tap": ("#d2606a", "user space, TAP"),
    "udp": ("#e08a2e", "user space, udp"),
    "stateless": ("#2f8f5b", "kernel path, stateless"),
    "auto": ("#166b3d", "kernel path, auto"),
    "kernel": ("#3b6ea5", "kernel VXLAN"),
    "kernel-gathered": ("#86a9cf", "kernel VXLAN, gathered"),
    "direct": ("#8c9aa8", "direct routing"),
}
# Compared with in the table only.
HIDDEN = ("before",)
OTHER = "#5d8a4a"
WIDTH, PANEL, BAR, LEFT, RIGHT = 760, 34, 20, 160, 110


def write(file_name, result, underlay):
    """Draws what was measured of `underlay`."""
    paths = [path for path in result.values.get(underlay, {}) if path not in HIDDEN]
    panels = [panel for panel in PANELS if any(result.median(underlay, path, panel[0]) is not None for path in paths)]
    height = 66 + sum(PANEL + BAR * len(paths) for _ in panels)
    machine = result.machine()
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
        'font-family="system-ui, sans-serif" font-size="12">' % (WIDTH, height, WIDTH, height),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        text(16, 26, "Pod to pod across two nodes, underlay “%s”" % underlay, 'font-size="15" font-weight="600"'),
        text(16, 44, "medians of %d rounds, line: least to most; %s cores, Linux %s, %s"
             % (result.rounds, machine["cores"], machine["kernel"], machine["commit"]), 'fill="#5b6670"'),
    ]
    for number, (figure, title, unit) in enumerate(panels):
        drawn += panel(result, underlay, paths, figure, title, unit, 60 + number * (PANEL + BAR * len(paths)))
    with open(file_name, "w", encoding="utf-8") as file:
        file.write("\n".join(drawn) + "\n</svg>\n")


def text(x, y, words, how=""):
    return '<text x="%.1f" y="%d" %s>%s</text>' % (x, y, how, escape(words))


def panel(result, underlay, paths, figure, title, unit, y):
    """One figure: its title and a bar per path."""
    values = {path: result.values[underlay][path].get(figure) for path in paths}
    largest = max(max(each) for each in values.values() if each)
    scale = (WIDTH - LEFT - RIGHT) / largest
    drawn = [text(16, y + 18, "%s, %s" % (title, unit), 'font-weight="600"')]
    for place, path in enumerate(paths):
        if values[path]:
            drawn += bar(path, result.median(underlay, path, figure), values[path], scale, y + 26 + place * BAR)
    return drawn


def bar(path, median, values, scale, top):
    """One path: its name, its bar, its spread, its value."""
    middle = top + 7
    colour, label = PATHS.get(path, (OTHER, path))
    least, most = (LEFT + end(values) * scale for end in (min, max))
    return [
        text(LEFT - 8, middle + 4, label, 'text-anchor="end"'),
        '<rect x="%d" y="%d" width="%.1f" height="14" fill="%s"/>' % (LEFT, top, median * scale, colour),
        '<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#22272b"/>' % (least, middle, most, middle),
        text(most + 6, middle + 4, ("%.1f" if median < 100 else "%.0f") % median),
    ]
