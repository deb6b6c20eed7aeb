"""What Tartan must reach, as multiples of the kernel's VXLAN in the same run and underlay."""

# Underlay, figure, the bar, and whether it is a least ("≥") or a most ("≤"). For Tartan's vxlan path.
BARS = (
    ("offload", "udp64", 2.0, "≥"),
    ("offload", "udp1400", 1.8, "≥"),
    ("wire", "udp64", 1.8, "≥"),
    ("wire", "udp1400", 1.8, "≥"),
    ("wire", "tcp1", 0.80, "≥"),
    ("wire", "tcp8", 0.80, "≥"),
    ("no-tunnel", "tcp1", 1.25, "≥"),
    ("no-tunnel", "tcp8", 1.25, "≥"),
    ("offload", "tcp1", 0.55, "≥"),
    ("offload", "tcp8", 0.55, "≥"),
    ("wire", "latency", 1.7, "≤"),
    ("no-tunnel", "latency", 1.7, "≤"),
    ("offload", "latency", 1.7, "≤"),
)
# The udp path keeps within this share of the vxlan path, every figure.
BESIDE = 0.10
FIGURES = ("tcp1", "tcp8", "udp64", "udp1400", "latency")
# MiB of keeper and service under load, and per cent of a core when idle.
RESIDENT = 48
IDLE = 0.2


def judged(result):
    """Every bar that this run can judge: text, whether it is met."""
    found = []
    for underlay, figure, bar, sense in BARS:
        ratio = result.ratio(underlay, "vxlan", figure)
        if ratio is not None:
            met = ratio >= bar if sense == "≥" else ratio <= bar
            found.append(("%s, %s: %.2f × the kernel (%s %.2f)" % (underlay, figure, ratio, sense, bar), met))
    for underlay in result.values:
        for figure in FIGURES:
            udp, vxlan = result.median(underlay, "udp", figure), result.median(underlay, "vxlan", figure)
            if udp is None or not vxlan:
                continue
            worse = udp / vxlan - 1 if figure == "latency" else 1 - udp / vxlan
            found.append(("%s, %s: udp %.0f %% behind vxlan (≤ %.0f %%)" % (underlay, figure, 100 * max(worse, 0), 100 * BESIDE), worse <= BESIDE))
        for path in ("vxlan", "udp"):
            for figure, bar, text in (("rss", RESIDENT, "MiB resident"), ("idle", IDLE, "% of a core when idle")):
                value = result.median(underlay, path, figure)
                if value is not None:
                    found.append(("%s, %s: %.2f %s (≤ %g)" % (underlay, path, value, text, bar), value <= bar))
    return found


def missed(result):
    """The bars that are not met."""
    return [text for text, met in judged(result) if not met]


def lines(result):
    """Every bar as a line of the report."""
    return ["- %s %s" % ("met" if met else "**missed**", text) for text, met in judged(result)]
