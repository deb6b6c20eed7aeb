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
COLOURS = {
    "vxlan": "#b3202c",
    "tun": "#b3202c",
    "tap": "#d2606a",
    "udp": "#e08a2e",
    "stateless": "#2f8f5b",
    "auto": "#166b3d",
    "kernel": "#3b6ea5",
    "kernel-gathered": "#86a9cf",
    "direct": "#8c9aa8",
}
LABELS = {
    "vxlan": "user space, vxlan",
    "tun": "user space, TUN",
    "tap": "user space, TAP",
    "udp": "user space, udp",
    "stateless": "kernel path, stateless",
    "auto": "kernel path, auto",
    "kernel": "kernel VXLAN",
    "kernel-gathered": "kernel VXLAN, gathered",
    "direct": "direct routing",
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
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
        'font-family="system-ui, sans-serif" font-size="12">' % (WIDTH, height, WIDTH, height),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" font-weight="600">Pod to pod across two nodes, underlay “%s”</text>' % escape(underlay),
        '<text x="16" y="44" fill="#5b6670">%s</text>' % escape(caption(result)),
    ]
    y = 60
    for figure, title, unit in panels:
        drawn += panel(result, underlay, paths, figure, title, unit, y)
        y += PANEL + BAR * len(paths)
    drawn.append("</svg>")
    with open(file_name, "w", encoding="utf-8") as file:
        file.write("\n".join(drawn) + "\n")


def caption(result):
    machine = result.machine()
    return "medians of %d rounds, line: least to most; %s cores, Linux %s, %s" % (result.rounds, machine["cores"], machine["kernel"], machine["commit"])


def panel(result, underlay, paths, figure, title, unit, y):
    """One figure: its title and a bar per path."""
    values = {path: result.values[underlay][path].get(figure) for path in paths}
    largest = max(max(each) for each in values.values() if each)
    scale = (WIDTH - LEFT - RIGHT) / largest
    drawn = ['<text x="16" y="%d" font-weight="600">%s <tspan fill="#5b6670" font-weight="400">%s</tspan></text>' % (y + 18, escape(title), escape(unit))]
    for place, path in enumerate(paths):
        if values[path]:
            top = y + 26 + place * BAR
            drawn += bar(path, result.median(underlay, path, figure), values[path], scale, top)
    return drawn


def bar(path, median, values, scale, top):
    """One path: its name, its bar, its spread, its value."""
    middle = top + 7
    return [
        '<text x="%d" y="%d" text-anchor="end">%s</text>' % (LEFT - 8, middle + 4, escape(LABELS.get(path, path))),
        '<rect x="%d" y="%d" width="%.1f" height="14" fill="%s"/>' % (LEFT, top, median * scale, COLOURS.get(path, OTHER)),
        '<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#22272b"/>' % (LEFT + min(values) * scale, middle, LEFT + max(values) * scale, middle),
        '<text x="%.1f" y="%d">%s</text>' % (LEFT + max(values) * scale + 6, middle + 4, ("%.1f" if median < 100 else "%.0f") % median),
    ]
