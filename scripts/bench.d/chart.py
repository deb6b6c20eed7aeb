"""The medians of one underlay as an SVG bar chart: a panel per figure, a bar per path, the spread as a line."""

import statistics
from html import escape

PANELS = {
    "tcp1": "TCP, 1 flow, Gb/s", "tcp8": "TCP, 8 flows, Gb/s",
    "udp64": "UDP 64 B, kpps received", "udp1400": "UDP 1,400 B, kpps received",
    "latency": "latency p50, µs, less is better", "latency-p99": "latency p99, µs, less is better",
    "connect": "new TCP connections, a second",
}
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
WIDTH, PANEL, BAR, LEFT, RIGHT = 760, 34, 20, 160, 110


def write(file_name, result, underlay):
    """Draws what was measured of `underlay`."""
    measured = {path: values for path, values in result.values.get(underlay, {}).items() if path not in HIDDEN}
    panels = [panel for panel in PANELS.items() if any(values.get(panel[0]) for values in measured.values())]
    height = 66 + sum(PANEL + BAR * len(measured) for _ in panels)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        text(16, 26, f"Pod to pod across two nodes, underlay “{underlay}”", 'font-size="15" font-weight="600"'),
        text(16, 44, "medians of %d rounds, line: least to most; %s cores, Linux %s, %s" % (
            result.rounds, *map(result.machine().get, ("cores", "kernel", "commit"))), 'fill="#5b6670"'),
    ]
    top = 60
    for figure, title in panels:
        drawn.append(text(16, top + 18, title, 'font-weight="600"'))
        scale = (WIDTH - LEFT - RIGHT) / max(max(values.get(figure) or [0]) for values in measured.values())
        for place, (path, values) in enumerate(measured.items()):
            if values.get(figure):
                drawn += bar(path, values[figure], scale, top + 26 + place * BAR)
        top += PANEL + BAR * len(measured)
    with open(file_name, "w", encoding="utf-8") as file:
        file.write("\n".join(drawn) + "\n</svg>\n")


def text(x, y, words, how=""):
    return f'<text x="{x:.1f}" y="{y}" {how}>{escape(words)}</text>'


def bar(path, values, scale, top):
    """One path: its name, its bar, its spread, its value."""
    middle, median = top + 7, statistics.median(values)
    colour, label = PATHS.get(path, ("#5d8a4a", path))
    least, most = (LEFT + end(values) * scale for end in (min, max))
    yield text(LEFT - 8, middle + 4, label, 'text-anchor="end"')
    yield f'<rect x="{LEFT}" y="{top}" width="{median * scale:.1f}" height="14" fill="{colour}"/>'
    yield f'<line x1="{least:.1f}" y1="{middle}" x2="{most:.1f}" y2="{middle}" stroke="#22272b"/>'
    yield text(most + 6, middle + 4, ("%.1f" if median < 100 else "%.0f") % median)
